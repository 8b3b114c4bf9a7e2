// SPDX-License-Identifier: Apache-2.0
// Graphs as any client may send them, from their bytes to partitions. The first byte chooses the
// devices and where the bytes of an extension begin.
#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/stubs/logging.h>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/graph/graph.h"
#include "tensorflow/graph/partition.h"
#include "tensorflow/graph/place.h"
#include "tensorflow/graph/prune.h"

namespace ferry::graph {
namespace {

DeviceSet Devices(int tasks, int gpus) {
  std::vector<std::pair<std::string, uint64_t>> devices;
  for (int task = 0; task < tasks; ++task) {
    devices.emplace_back(absl::StrCat("/job:w/task:", task, "/cpu:0"), 1);
    for (int gpu = 0; gpu < gpus; ++gpu) {
      devices.emplace_back(absl::StrCat("/job:w/task:", task, "/gpu:", gpu), 2);
    }
  }
  return *DeviceSet::Create(devices, "/job:w/task:0/cpu:0");
}

void CheckError(const absl::Status& status) {
  FERRY_CHECK(absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
              absl::IsUnimplemented(status) || absl::IsResourceExhausted(status));
  FERRY_CHECK(!status.message().empty());
}

bool Parse(const uint8_t* data, size_t size, tensorflow::GraphDef& def) {
  return size <= INT_MAX && def.ParseFromArray(data, static_cast<int>(size));
}

// A step that fetches the first output of every third node, feeds that of every fifth and runs to
// the rest; and one that runs to everything.
void CheckSteps(const Graph& graph, const std::vector<int>& placement, const DeviceSet& devices) {
  StepRequest all;
  StepRequest some;
  for (int i = 0; i < graph.node_count(); ++i) {
    const std::string& name = graph.node(i).name();
    all.targets.push_back(name);
    const bool has_output = graph.node(i).signature.outputs.size() > 0;
    if (i % 5 == 4 && has_output) {
      some.feeds.push_back(absl::StrCat(name, ":0"));
    } else if (i % 3 == 0 && has_output) {
      some.fetches.push_back(name);
    } else {
      some.targets.push_back(name);
    }
  }
  for (const StepRequest& request : {all, some}) {
    const absl::StatusOr<StepGraph> step = Prune(graph, placement, devices, request);
    if (!step.ok()) {
      FERRY_CHECK(graph.node_count() == 0);
      continue;
    }
    const absl::StatusOr<Partitioned> cut =
        PartitionByDevice(step->graph, step->placement, devices);
    FERRY_CHECK(cut.ok());
    int nodes = 0;
    for (const Partition& partition : cut->partitions) nodes += partition.graph.node_size();
    FERRY_CHECK(nodes >= step->graph.node_count());
    // Each crossing adds two nodes, or four.
    FERRY_CHECK(nodes <= step->graph.node_count() + 4 * static_cast<int>(cut->crossings.size()));
  }
}

void Check(const uint8_t* data, size_t size) {
  [[maybe_unused]] static const bool kIsSilent =
      google::protobuf::SetLogHandler(nullptr) != nullptr;
  static const auto* const kDeviceSets =
      new std::vector<DeviceSet>{Devices(1, 0), Devices(2, 0), Devices(2, 2), Devices(3, 1)};
  if (size == 0) return;
  const uint8_t choice = data[0];
  ++data;
  --size;
  const DeviceSet& devices = (*kDeviceSets)[choice & 3];
  PlaceOptions options;
  options.allow_soft_placement = (choice & 4) != 0;
  tensorflow::GraphDef def;
  if (!Parse(data, size, def)) return;
  // The latter half of the nodes as an extension.
  tensorflow::GraphDef extension;
  if ((choice & 8) != 0) {
    const int first = def.node_size() / 2;
    for (int i = first; i < def.node_size(); ++i) *extension.add_node() = def.node(i);
    def.mutable_node()->DeleteSubrange(first, def.node_size() - first);
  }
  const absl::StatusOr<Graph> graph = Graph::Create(std::move(def));
  if (!graph.ok()) return CheckError(graph.status());
  FERRY_CHECK(graph->topological_order().size() == static_cast<size_t>(graph->node_count()));
  const absl::StatusOr<std::vector<int>> placement = Place(*graph, devices, options);
  if (!placement.ok()) return CheckError(placement.status());
  CheckSteps(*graph, *placement, devices);
  const absl::StatusOr<Graph> extended = graph->Extended(std::move(extension));
  if (!extended.ok()) return CheckError(extended.status());
  const absl::StatusOr<std::vector<int>> both = Place(*extended, devices, options, *placement);
  if (!both.ok()) return CheckError(both.status());
  for (size_t i = 0; i < placement->size(); ++i) FERRY_CHECK((*both)[i] == (*placement)[i]);
  CheckSteps(*extended, *both, devices);
}

}  // namespace
}  // namespace ferry::graph

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ferry::graph::Check(data, size);
  return 0;
}
