// SPDX-License-Identifier: Apache-2.0
// Buffers of a bench on a GPU, and the detection of wrong bytes.
#include "bench/device.h"

#include <cstdlib>
#include <memory>

#include <gmock/gmock.h>

#include "tests/coord/wire/test_server.h"

namespace ferry::cli {
namespace {

// A node with the fake driver.
class BenchDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"FERRY_CUDA_LIBRARY", "FERRY_NVML_LIBRARY", "FERRY_NCCL_LIBRARY"}) {
      setenv(name, STRICT_CUDA_LIBRARY, 1);
    }
    NodeOptions options;
    options.coordinator = server_.address();
    options.node_id = 0;
    options.num_nodes = 1;
    absl::StatusOr<std::unique_ptr<Node>> node = Node::Join(options);
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
  }
  std::unique_ptr<BenchDevice> Open(const std::string& name) {
    auto device = BenchDevice::Open(*node_, name, "float", coord::kTimeout);
    EXPECT_TRUE(device.ok()) << device.status();
    return *std::move(device);
  }

  coord::TestServer server_{1};
  std::unique_ptr<Node> node_;
};

TEST_F(BenchDeviceTest, WrongBytesAreCounted) {
  constexpr size_t kBytes = 100'000;
  for (const char* name : {"host:0", "gpu:0"}) {
    SCOPED_TRACE(name);
    const std::unique_ptr<BenchDevice> device = Open(name);
    const auto tensor = device->MakePattern(kBytes, 7);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(tensor->location(), device->location());
    EXPECT_EQ(tensor->is_on_host(), !device->is_gpu());
    EXPECT_EQ(device->CountErrors(*tensor, kBytes, 7).value(), 0u);
    // At least a byte of each word.
    EXPECT_GE(device->CountErrors(*tensor, kBytes, 8).value(), kBytes / 8);
    EXPECT_EQ(device->CountErrors(*tensor, kBytes + 1, 7).value(), kBytes + 1);
  }
}

TEST_F(BenchDeviceTest, CopiesTakeTime) {
  const std::unique_ptr<BenchDevice> device = Open("gpu:0");
  for (const bool is_from_host : {false, true}) {
    const auto copy = device->MeasureCopy(1 << 20, 3, is_from_host);
    ASSERT_TRUE(copy.ok()) << copy.status();
    EXPECT_GT(*copy, absl::ZeroDuration());
  }
}

TEST_F(BenchDeviceTest, CopiesBetweenTwoGpusTakeTime) {
  const std::unique_ptr<BenchDevice> device = Open("gpu:0");
  const auto copy = device->MeasurePeerCopy(1 << 20, 3, "gpu:1");
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_GT(*copy, absl::ZeroDuration());
  // A floor that there is not is no end of a bench.
  EXPECT_TRUE(absl::IsUnavailable(device->MeasurePeerCopy(1 << 20, 3, "gpu:7").status()));
}

}  // namespace
}  // namespace ferry::cli
