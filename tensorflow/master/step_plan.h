// SPDX-License-Identifier: Apache-2.0
// StepPlan: what each worker runs in a step, and under which keys the client's tensors travel.
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

// A session's graph at one version. A value; immutable.
struct PlacedGraph {
  graph::Graph graph;
  std::vector<int> placement;
  int64_t version = 0;
  // What its constants take, as their shapes say.
  size_t constant_bytes = 0;
};

// A tensor of the client, and its key in the rendezvous of a step.
struct PlanTensor {
  // As the client wrote it.
  std::string name;
  // Empty for a feed that nothing takes.
  std::string key;
};

// All devices of one worker.
struct PlanPart {
  // An index of SessionDevices::workers.
  int worker = 0;
  tensorflow::GraphDef graph;
};

struct StepPlan {
  std::vector<PlanPart> parts;
  // In the order of the request. All of them go through the client's worker.
  std::vector<PlanTensor> feeds;
  std::vector<PlanTensor> fetches;
  // What was cut, for steps that are fed and fetched in pieces. Shared by all of those.
  std::shared_ptr<const graph::StepGraph> step;
};

// Names in order and without duplicates: requests that ask for the same thing are equal.
graph::StepRequest Canonical(graph::StepRequest request);
// Equal for equal requests only.
std::string KeyOf(const graph::StepRequest& request);

// Prunes and cuts. Takes time for the whole graph.
//   Errors: as graph::Prune and graph::PartitionByDevice.
absl::StatusOr<StepPlan> PlanStep(const PlacedGraph& graph, const SessionDevices& devices,
                                  const graph::StepRequest& request);

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_STEP_PLAN_H_
