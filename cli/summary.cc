// SPDX-License-Identifier: Apache-2.0
// Counts machines and devices.
#include "cli/summary.h"

#include <set>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "cli/table.h"
#include "topology/topology_proto.h"

namespace ferry::cli {

std::string Summarize(const GlobalTopology& topology) {
  std::set<std::string> machines;
  int unknown_machines = 0;
  int hosts = 0;
  int gpus = 0;
  std::set<std::string> gpu_names;
  for (const LocalTopology& node : topology.nodes()) {
    if (node.boot_id.empty()) {
      ++unknown_machines;
    } else {
      machines.insert(node.boot_id);
    }
    for (const Device& device : node.devices) {
      if (device.kind == DeviceKind::kHost) {
        ++hosts;
      } else {
        ++gpus;
        gpu_names.insert(device.name);
      }
    }
  }
  std::string text = absl::StrCat(Count(topology.nodes().size(), "node"), " on ",
                                  Count(machines.size() + unknown_machines, "machine"), ", ",
                                  Count(hosts, "host device"), ", ", Count(gpus, "GPU"));
  if (!gpu_names.empty()) absl::StrAppend(&text, " (", absl::StrJoin(gpu_names, ", "), ")");
  return text;
}

std::string TopologyHash(const GlobalTopology& topology) {
  const std::string bytes = SerializeTopology(topology);
  return absl::StrFormat("%016x", XXH3_64bits(bytes.data(), bytes.size()));
}

}  // namespace ferry::cli
