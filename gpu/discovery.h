// SPDX-License-Identifier: Apache-2.0
// This machine's GPUs and the paths between them, from the CUDA driver and NVML, with no context
// created.
#ifndef FERRY_GPU_DISCOVERY_H_
#define FERRY_GPU_DISCOVERY_H_

#include <string>
#include <vector>

#include "topology/local_topology.h"

namespace ferry {

struct GpuDiscovery {
  std::vector<Device> devices;    // in the driver's order; empty with a cuda_reason
  std::vector<DeviceLink> links;  // by indexes into `devices`, sorted; empty with an nvml_reason
  std::string cuda_reason;        // why there are no GPUs; empty if there are
  std::string nvml_reason;        // why links and fabrics are not known; empty if they are
};

struct DiscoveryOptions {
  // Where the kernel tells the NUMA nodes of PCI devices; tests have their own.
  std::string sysfs_root = "/sys";
};

// Never fails: what cannot be had is empty, with the reason. Only GPUs that CUDA shows
// (CUDA_VISIBLE_DEVICES) are found. A GPU about which a question fails is left without the answer,
// and the reason says so. Blocks, for seconds where the driver must wake GPUs. Thread-safe.
GpuDiscovery DiscoverGpus(const DiscoveryOptions& options = {});

struct LocalDiscovery {
  LocalTopology topology;   // node id 0, no endpoint: the caller knows those
  std::string host_reason;  // why cores and memory are not known; empty if they are
  std::string cuda_reason;
  std::string nvml_reason;
};

// The whole machine: host:0 first, then the GPUs, PHB between the host and each of them.
// The topology is always valid.
LocalDiscovery DiscoverLocal(const DiscoveryOptions& options = {});

}  // namespace ferry

#endif  // FERRY_GPU_DISCOVERY_H_
