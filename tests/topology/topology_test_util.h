// SPDX-License-Identifier: Apache-2.0
// Small topologies and files for the tests of topology/.
#ifndef FERRY_TESTS_TOPOLOGY_TOPOLOGY_TEST_UTIL_H_
#define FERRY_TESTS_TOPOLOGY_TOPOLOGY_TEST_UTIL_H_

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "topology/local_topology.h"

namespace ferry {

inline Device TestGpu(int ordinal, const std::string& uuid = "", const std::string& fabric = "") {
  Device gpu;
  gpu.kind = DeviceKind::kGpu;
  gpu.ordinal = ordinal;
  gpu.name = "NVIDIA H200";
  gpu.vendor = "NVIDIA";
  gpu.uuid = uuid;
  gpu.pci_bus_id = absl::StrFormat("0000:%02x:00.0", 0x19 + ordinal);
  gpu.compute_major = 9;
  gpu.core_count = 132;
  gpu.memory_bytes = 150'754'820'096;
  gpu.numa_node = ordinal / 4;
  gpu.fabric_uuid = fabric;
  return gpu;
}

inline Device TestHost() {
  Device host;
  host.name = "Xeon";
  host.core_count = 64;
  host.memory_bytes = uint64_t{1} << 40;
  return host;
}

// One host device on its own machine.
inline LocalTopology TestNode(int32_t node_id) {
  LocalTopology node;
  node.node_id = node_id;
  node.host_name = absl::StrFormat("node-%04d", node_id);
  node.boot_id = absl::StrFormat("%08x-0000-4000-8000-%012x", node_id * 2654435761u, node_id + 1);
  node.endpoint = absl::StrFormat("10.0.%d.%d:%d", node_id / 256, node_id % 256, 30000 + node_id);
  node.devices.push_back(TestHost());
  return node;
}

template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}
inline absl::Status StatusOf(const absl::Status& status) { return status; }

// Matches a Status or StatusOr with this code and a message that `message` matches.
MATCHER_P2(FailsWith, code, message, "") {
  const absl::Status status = StatusOf(arg);
  *result_listener << "which is " << status;
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()), result_listener);
}

#define FERRY_ASSERT_OK(expr)                                         \
  do {                                                                \
    const absl::Status ferry_test_status = ::ferry::StatusOf((expr)); \
    ASSERT_TRUE(ferry_test_status.ok()) << ferry_test_status;         \
  } while (false)

// The path of a cloud vendor's topology file in shared/, or empty where that folder is not there.
inline std::string SharedTopologyPath(const std::string& name) {
  const char* const from_environment = std::getenv("FERRY_SHARED_DIR");
  const std::string folder =
      from_environment != nullptr ? from_environment : absl::StrCat(FERRY_SOURCE_DIR, "/../shared");
  const std::string path = absl::StrCat(folder, "/topologies/", name);
  return std::ifstream(path).good() ? path : "";
}

inline std::string TestDataPath(const std::string& name) {
  return absl::StrCat(FERRY_SOURCE_DIR, "/tests/topology/data/", name);
}

inline std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace ferry

#endif  // FERRY_TESTS_TOPOLOGY_TOPOLOGY_TEST_UTIL_H_
