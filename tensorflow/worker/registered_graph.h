// SPDX-License-Identifier: Apache-2.0
// RegisteredGraph: a partition with its kernels, ready to run any number of times.
#ifndef FERRY_TENSORFLOW_WORKER_REGISTERED_GRAPH_H_
#define FERRY_TENSORFLOW_WORKER_REGISTERED_GRAPH_H_

#include <memory>
#include <string>

#include "absl/base/call_once.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "base/budget.h"
#include "rendezvous/device_name.h"
#include "rendezvous/key.h"
#include "tensorflow/graph/graph.h"
#include "tensorflow/worker/plan.h"
#include "tensorflow/worker/session.h"
#include "tensorflow/worker/step_ring.h"

namespace ferry::worker {

// Immutable; thread-safe. Shared by its session and its runs.
class RegisteredGraph final {
 public:
  //   task: this worker. constants: memory reserved for its constants.
  //   Errors: INVALID_ARGUMENT for a device that this worker lacks, an edge between two devices, a
  //   key that is malformed or does not involve this worker; as MakeKernel.
  static absl::StatusOr<std::shared_ptr<const RegisteredGraph>> Create(
      std::string handle, graph::Graph graph, const TaskName& task, Session& session,
      Budget::Share constants = {});

  const std::string& handle() const { return handle_; }
  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  const graph::Graph& graph() const { return graph_; }
  const Devices& devices() const { return *devices_; }
  // Returns the graph as registered, with complete attributes.
  tensorflow::GraphDef Def() const;

  // Labels for traces of its runs; created on first use.
  const std::shared_ptr<const NodeLabels>& labels() const;

  // Other workers that it receives from.
  const absl::flat_hash_set<TaskName>& sources() const { return sources_; }
  // Returns the key that one of its nodes sends or receives under; null if none does.
  const RendezvousKey* FindSend(absl::string_view key) const { return Find(sends_, key); }
  const RendezvousKey* FindRecv(absl::string_view key) const { return Find(recvs_, key); }
  bool has_collectives() const { return has_collectives_; }
  // The participants of the step's collectives, if their leader is on this worker; else null.
  const std::shared_ptr<const CollectiveDevices>& led_devices() const { return led_devices_; }

 private:
  using Keys = absl::flat_hash_map<absl::string_view, const RendezvousKey*>;

  RegisteredGraph() = default;
  void AddCollective(const CollectiveNode& node, const TaskName& task);
  static const RendezvousKey* Find(const Keys& keys, absl::string_view key) {
    const auto found = keys.find(key);
    return found == keys.end() ? nullptr : found->second;
  }

  std::string handle_;
  Budget::Share constants_;
  graph::Graph graph_;
  std::shared_ptr<Devices> devices_;
  std::shared_ptr<const Plan> plan_;
  // Keys of the plan's sends and receives.
  Keys sends_;
  Keys recvs_;
  absl::flat_hash_set<TaskName> sources_;
  mutable absl::once_flag labels_once_;
  mutable std::shared_ptr<const NodeLabels> labels_;
  bool has_collectives_ = false;
  std::shared_ptr<const CollectiveDevices> led_devices_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_REGISTERED_GRAPH_H_
