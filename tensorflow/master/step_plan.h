// SPDX-License-Identifier: Apache-2.0
// StepPlan: the graph of each worker in a step, and the rendezvous keys of feeds and fetches.
#ifndef FERRY_TENSORFLOW_MASTER_STEP_PLAN_H_
#define FERRY_TENSORFLOW_MASTER_STEP_PLAN_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "proto/tf_graph.pb.h"
#include "tensorflow/graph/graph.h"
#include "tensorflow/graph/prune.h"
#include "tensorflow/master/session_devices.h"

namespace ferry::master {

// One version of a session's graph. A value; immutable.
struct PlacedGraph {
  graph::Graph graph;
  std::vector<int> placement;
  int64_t version = 0;
  // Memory of its constants, computed from their shapes.
  size_t constant_bytes = 0;
};

// A feed or fetch, and its key in the step's rendezvous.
struct PlanTensor {
  // As the client wrote it.
  std::string name;
  // Empty for a feed that nothing consumes.
  std::string key;
};

// The graph of one worker, for all its devices.
struct PlanPart {
  // Index into SessionDevices::workers.
  int worker = 0;
  tensorflow::GraphDef graph;
};

struct StepPlan {
  std::vector<PlanPart> parts;
  // In request order. All of them go through the client's worker.
  std::vector<PlanTensor> feeds;
  std::vector<PlanTensor> fetches;
  // The pruned graph, for partial runs, which share it.
  std::shared_ptr<const graph::StepGraph> step;
};

// Sorts names and removes duplicates, so that equivalent requests compare equal.
graph::StepRequest Canonical(graph::StepRequest request);
// Returns a cache key; equal only for equal requests.
std::string KeyOf(const graph::StepRequest& request);

// Prunes and partitions the graph. Linear in the size of the whole graph.
//   Errors: as graph::Prune and graph::PartitionByDevice.
absl::StatusOr<StepPlan> PlanStep(const PlacedGraph& graph, const SessionDevices& devices,
                                  const graph::StepRequest& request);

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_STEP_PLAN_H_
