// SPDX-License-Identifier: Apache-2.0
// The host device of the machine the tests run on, compared with other sources.
#include "topology/host_discovery.h"

#include <fstream>
#include <string>
#include <thread>

#include "tests/topology/topology_test_util.h"

namespace ferry {
namespace {

TEST(DiscoverHost, FindsCoresMemoryAndNames) {
  const HostDiscovery host = DiscoverHost();
  EXPECT_EQ(host.reason, "");
  EXPECT_EQ(host.device.kind, DeviceKind::kHost);
  EXPECT_GE(host.device.core_count, 1);
  EXPECT_LE(host.device.core_count, static_cast<int>(std::thread::hardware_concurrency()));
  std::string label;
  uint64_t memory_kib = 0;
  std::ifstream("/proc/meminfo") >> label >> memory_kib;
  ASSERT_EQ(label, "MemTotal:");
  // Less in a container with a limit.
  EXPECT_GT(host.device.memory_bytes, 0u);
  EXPECT_LE(host.device.memory_bytes, memory_kib * 1024);
  EXPECT_FALSE(host.host_name.empty());
  EXPECT_EQ(host.boot_id.size(), 36u);
  EXPECT_GE(host.numa_node_count, 1);
}

TEST(DiscoverHost, IsDeterministic) {
  const HostDiscovery first = DiscoverHost();
  const HostDiscovery second = DiscoverHost();
  EXPECT_EQ(first.device, second.device);
  EXPECT_EQ(first.boot_id, second.boot_id);
}

}  // namespace
}  // namespace ferry
