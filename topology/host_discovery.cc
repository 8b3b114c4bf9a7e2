// SPDX-License-Identifier: Apache-2.0
// Discovers the host device through hwloc and /proc.
#include "topology/host_discovery.h"

#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <type_traits>

#include "absl/strings/ascii.h"

#include "base/usable_resources.h"

namespace ferry {
namespace {

// Source: proc(5). New at each boot and shared by all containers of a machine.
constexpr char kBootIdPath[] = "/proc/sys/kernel/random/boot_id";

struct TopologyDestroyer {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, TopologyDestroyer>;

HwlocTopology LoadHwloc() {
  // hwloc retries with ever larger sets until the kernel accepts one; if a seccomp profile denies
  // the call, it never returns.
  cpu_set_t cores;
  const bool is_refused = sched_getaffinity(0, sizeof(cores), &cores) != 0 && errno != EINVAL;
  if (is_refused) return nullptr;
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  HwlocTopology topology(raw);
  return hwloc_topology_load(raw) == 0 ? std::move(topology) : nullptr;
}

std::string Info(hwloc_obj_t object, const char* name) {
  const char* value = object == nullptr ? nullptr : hwloc_obj_get_info_by_name(object, name);
  return value == nullptr ? "" : std::string(absl::StripAsciiWhitespace(value));
}

int CountOf(hwloc_topology_t topology, hwloc_obj_type_t type) {
  const int count = hwloc_get_nbobjs_by_type(topology, type);
  return count < 0 ? 0 : count;
}

}  // namespace

HostDiscovery DiscoverHost() {
  HostDiscovery host;
  char name[256] = "";
  // Keeps the terminating zero when a longer name is truncated.
  if (gethostname(name, sizeof(name) - 1) == 0) host.host_name = name;
  std::ifstream(kBootIdPath) >> host.boot_id;
  host.device.kind = DeviceKind::kHost;
  // The kernel's total, not hwloc's sum over NUMA nodes: a virtual machine whose memory grew after
  // boot (virtio-mem) was seen to report 6 of its 24 GiB there. A smaller cgroup limit applies
  // instead, since placement has to respect it.
  host.device.memory_bytes = Usable().memory_bytes;

  const HwlocTopology topology = LoadHwloc();
  if (topology == nullptr) {
    host.reason = "hwloc could not read this machine's topology";
    return host;
  }
  host.numa_node_count = CountOf(topology.get(), HWLOC_OBJ_NUMANODE);
  host.device.core_count = CountOf(topology.get(), HWLOC_OBJ_CORE);
  if (host.device.core_count == 0) {
    host.device.core_count = CountOf(topology.get(), HWLOC_OBJ_PU);
  }
  host.device.core_count = Usable().WithinQuota(host.device.core_count);
  host.device.numa_node = host.numa_node_count == 1 ? 0 : -1;
  const hwloc_obj_t package = hwloc_get_obj_by_type(topology.get(), HWLOC_OBJ_PACKAGE, 0);
  host.device.name = Info(package, "CPUModel");
  host.device.vendor = Info(package, "CPUVendor");
  return host;
}

}  // namespace ferry
