// SPDX-License-Identifier: Apache-2.0
// Discovery of this machine's GPUs and the paths between them, from the CUDA driver and NVML,
// without creating a context.
#ifndef FERRY_GPU_DISCOVERY_H_
#define FERRY_GPU_DISCOVERY_H_

#include <string>
#include <vector>

#include "topology/local_topology.h"

namespace ferry {

struct GpuDiscovery {
  std::vector<Device> devices;    // in the driver's order; empty if cuda_reason is set
  std::vector<DeviceLink> links;  // by indexes into `devices`, sorted; empty if nvml_reason is set
  std::string cuda_reason;        // why there are no GPUs; empty if there are some
  // For each GPU that is not in `devices` since the driver answered with an error: which, and why.
  std::vector<std::string> gpu_failures;
  std::string nvml_reason;  // why links and fabrics are unknown; empty if they are known
};

struct DiscoveryOptions {
  // Source of the NUMA nodes of PCI devices; tests use a fake.
  std::string sysfs_root = "/sys";
};

// Never fails: unavailable parts are empty, with the reason. Only GPUs visible to CUDA
// (CUDA_VISIBLE_DEVICES) are found. If a query about a GPU fails, that value is left unset, and the
// reason says so. Blocks, for seconds if the driver must wake GPUs. Thread-safe.
GpuDiscovery DiscoverGpus(const DiscoveryOptions& options = {});

struct LocalDiscovery {
  LocalTopology topology;   // node id 0, no endpoint: the caller sets them
  std::string host_reason;  // why cores and memory are unknown; empty if they are known
  std::string cuda_reason;
  std::vector<std::string> gpu_failures;
  std::string nvml_reason;
};

// The whole machine: host:0 first, then the GPUs, PHB between the host and each of them.
// The topology is always valid.
LocalDiscovery DiscoverLocal(const DiscoveryOptions& options = {});

}  // namespace ferry

#endif  // FERRY_GPU_DISCOVERY_H_
