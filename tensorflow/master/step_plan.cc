// SPDX-License-Identifier: Apache-2.0
// Merges the partitions of each worker's devices into one graph.
#include "tensorflow/master/step_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/graph/partition.h"

namespace ferry::master {
namespace {

void SortAndUnique(std::vector<std::string>& names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
}

void AppendNames(std::string& key, const std::vector<std::string>& names) {
  absl::StrAppend(&key, names.size(), ";");
  // Length-prefixed, because a name may contain any byte.
  for (const std::string& name : names) absl::StrAppend(&key, name.size(), ":", name);
}

}  // namespace

graph::StepRequest Canonical(graph::StepRequest request) {
  // Duplicate feeds are kept: Prune reports them, and can name the node.
  std::sort(request.feeds.begin(), request.feeds.end());
  SortAndUnique(request.fetches);
  SortAndUnique(request.targets);
  return request;
}

std::string KeyOf(const graph::StepRequest& request) {
  std::string key;
  AppendNames(key, request.feeds);
  AppendNames(key, request.fetches);
  AppendNames(key, request.targets);
  return key;
}

absl::StatusOr<StepPlan> PlanStep(const PlacedGraph& graph, const SessionDevices& devices,
                                  const graph::StepRequest& request) {
  StepPlan plan;
  auto step = std::make_shared<graph::StepGraph>();
  FERRY_ASSIGN_OR_RETURN(*step, graph::Prune(graph.graph, graph.placement, devices.set, request));
  for (const graph::StepTensor& feed : step->feeds) {
    plan.feeds.push_back({feed.name, feed.node < 0 ? "" : feed.key});
  }
  for (const graph::StepTensor& fetch : step->fetches) {
    plan.fetches.push_back({fetch.name, fetch.key});
  }
  FERRY_ASSIGN_OR_RETURN(graph::Partitioned partitioned,
                         graph::PartitionByDevice(step->graph, step->placement, devices.set));
  plan.step = std::move(step);
  std::vector<int> part_of_worker(devices.workers.size(), -1);
  for (graph::Partition& partition : partitioned.partitions) {
    const int worker = devices.worker_of_device[static_cast<size_t>(partition.device)];
    int& index = part_of_worker[static_cast<size_t>(worker)];
    if (index < 0) {
      index = static_cast<int>(plan.parts.size());
      plan.parts.push_back({worker, std::move(partition.graph)});
      continue;
    }
    tensorflow::GraphDef& whole = plan.parts[static_cast<size_t>(index)].graph;
    for (tensorflow::NodeDef& node : *partition.graph.mutable_node()) {
      *whole.add_node() = std::move(node);
    }
  }
  return plan;
}

}  // namespace ferry::master
