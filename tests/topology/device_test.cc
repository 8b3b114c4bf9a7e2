// SPDX-License-Identifier: Apache-2.0
// Names of devices, which users type and read.
#include "topology/device.h"

#include <sstream>

#include "tests/topology/topology_test_util.h"

namespace ferry {
namespace {

TEST(Device, IsNamedByKindAndOrdinal) {
  EXPECT_EQ(DeviceName(TestGpu(1)), "gpu:1");
  EXPECT_EQ(DeviceName(3, TestHost()), "node3/host:0");
}

TEST(Device, KindsRoundTripThroughTheirNames) {
  EXPECT_EQ(ParseDeviceKind("gpu"), DeviceKind::kGpu);
  EXPECT_EQ(ParseDeviceKind("host"), DeviceKind::kHost);
  EXPECT_EQ(ParseDeviceKind("tpu"), std::nullopt);
}

// Machines whose NVLinks end inside report a zero cluster: taking it for a fabric would join the
// whole job.
TEST(Device, ZeroClusterIsNoFabric) {
  EXPECT_FALSE(IsFabric(""));
  EXPECT_FALSE(IsFabric("00000000-0000-0000-0000-000000000000/7"));
  EXPECT_TRUE(IsFabric("00000000-0000-0000-0000-000000000001/0"));
}

TEST(Device, PrintsKnownFields) {
  std::ostringstream out;
  out << TestGpu(1, "GPU-1");
  EXPECT_EQ(
      out.str(),
      "gpu:1 NVIDIA NVIDIA H200 0000:1a:00.0 GPU-1 sm_90 cores 132 memory 150754820096 numa 0");
}

}  // namespace
}  // namespace ferry
