// SPDX-License-Identifier: Apache-2.0
// Discovers this machine apart from its GPUs; never fails, since every node has a host device.
#ifndef FERRY_TOPOLOGY_HOST_DISCOVERY_H_
#define FERRY_TOPOLOGY_HOST_DISCOVERY_H_

#include <string>

#include "topology/device.h"

namespace ferry {

struct HostDiscovery {
  std::string host_name;
  std::string boot_id;      // empty if the kernel does not report one
  int numa_node_count = 0;  // 0 when unknown
  Device device;            // host:0, with all cores and memory of the machine
  std::string reason;       // why cores and NUMA nodes are unknown; empty if they are known
};

// Queries hwloc and the kernel. Cores are those available to this process; memory is the
// machine's. Blocks for some milliseconds. Thread-safe.
HostDiscovery DiscoverHost();

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_HOST_DISCOVERY_H_
