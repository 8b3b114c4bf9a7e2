// SPDX-License-Identifier: Apache-2.0
// RegisteredGraph: a partition with its kernels, ready to be run any number of times.
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

// Immutable; thread-safe. Shared by its session and the runs of it.
class RegisteredGraph final {
 public:
  //   task: this worker. constants: what its constants take.
  //   Errors: INVALID_ARGUMENT for a device that is not here, an edge between two devices, a key
  //   that is none or has nothing to do with this worker; as MakeKernel.
  static absl::StatusOr<std::shared_ptr<const RegisteredGraph>> Create(
      std::string handle, graph::Graph graph, const TaskName& task, Session& session,
      Budget::Share constants = {});

  const std::string& handle() const { return handle_; }
  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  const graph::Graph& graph() const { return graph_; }
  const Devices& devices() const { return *devices_; }
  // As it was registered, with complete attributes.
  tensorflow::GraphDef Def() const;

  // For records of its runs; made when it is first asked for.
  const std::shared_ptr<const NodeLabels>& labels() const;

  // Other workers that it receives from.
  const absl::flat_hash_set<TaskName>& sources() const { return sources_; }
  // The key that one of its nodes sends or receives under; null if none does.
  const RendezvousKey* FindSend(absl::string_view key) const { return Find(sends_, key); }
  const RendezvousKey* FindRecv(absl::string_view key) const { return Find(recvs_, key); }
  bool has_collectives() const { return has_collectives_; }
  // Those that take part in collectives of a step, if it is here that their leader is; else null.
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
  // Those of the plan.
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
