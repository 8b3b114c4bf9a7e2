// SPDX-License-Identifier: Apache-2.0
// Device: the host memory or one GPU of a node.
#ifndef FERRY_TOPOLOGY_DEVICE_H_
#define FERRY_TOPOLOGY_DEVICE_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"

namespace ferry {

enum class DeviceKind { kHost = 0, kGpu = 1 };

// "host" or "gpu", as used in device names.
absl::string_view DeviceKindName(DeviceKind kind);

// The kind called `name` ("host", "gpu"), or nullopt.
std::optional<DeviceKind> ParseDeviceKind(absl::string_view name);

// A plain value; thread-compatible.
struct Device {
  DeviceKind kind = DeviceKind::kHost;
  int ordinal = 0;         // index among the devices of its kind on its node, in the driver's order
  std::string name;        // product name: "NVIDIA H200", "AMD EPYC 7742 64-Core Processor"
  std::string vendor;      // "NVIDIA", "AuthenticAMD"; empty when unknown
  std::string uuid;        // "GPU-6d3f..."; empty for hosts and when unknown
  std::string pci_bus_id;  // in NormalizePciBusId's form; empty for hosts
  int compute_major = 0;   // CUDA compute capability; 0.0 for hosts and when unknown
  int compute_minor = 0;
  int core_count = 0;         // streaming multiprocessors of a GPU, physical cores of a host
  uint64_t memory_bytes = 0;  // 0 when unknown
  int numa_node = -1;         // -1 when unknown, or when a host spans several
  std::string fabric_uuid;    // "<cluster uuid>/<clique>" of an NVLink fabric; empty without one

  friend bool operator==(const Device&, const Device&) = default;
};

// "gpu:1": the device's name within its node.
std::string DeviceName(const Device& device);

// "node3/gpu:1": the device's name within the job.
std::string DeviceName(int32_t node_id, const Device& device);

// True if the id names a fabric: not empty, and with a nonzero cluster uuid. Machines whose
// NVLinks end inside the machine report a zero uuid.
bool IsFabric(absl::string_view fabric_uuid);

// One line for logs and test failures: "gpu:1 NVIDIA H200 0000:19:00.0 sm_90 numa 0 ...".
std::string ToString(const Device& device);
std::ostream& operator<<(std::ostream& out, const Device& device);

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_DEVICE_H_
