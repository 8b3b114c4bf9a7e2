// SPDX-License-Identifier: Apache-2.0
// StepCollectives: runs the collective nodes of one run of a graph.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_STEP_COLLECTIVES_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_STEP_COLLECTIVES_H_

#include <memory>

#include "absl/types/span.h"

#include "base/clock.h"
#include "rendezvous/value.h"
#include "tensorflow/worker/collectives/collective_backend.h"
#include "tensorflow/worker/collectives/collective_node.h"
#include "tensorflow/worker/kernel.h"
#include "tensorflow/worker/step_transfers.h"

namespace ferry::worker {

// Thread-safe; uses no thread while waiting. Owned by its run.
class StepCollectives final {
 public:
  //   clock: the clock of the receives' deadlines; must outlive what it runs.
  StepCollectives(std::shared_ptr<StepTransfers> transfers,
                  std::unique_ptr<CollectiveBackend> carrier, const Clock& clock)
      : transfers_(std::move(transfers)), carrier_(std::move(carrier)), clock_(clock) {}

  // Resolves the group, then runs the node's part. Uses no thread while waiting.
  //   node, environment, cancellation: must outlive the call until `done`.
  //   inputs: of the node.
  //   done: called once, on any thread, possibly before returning, with the node's output.
  //   Errors: as GroupTable and CollectiveBackend; DEADLINE_EXCEEDED if the leader does not answer.
  void Run(const CollectiveNode& node, const KernelEnvironment& environment,
           absl::Span<const Tensor> inputs, CancellationToken* cancellation, RecvCallback done);

 private:
  struct Joining;

  absl::Status Join(const std::shared_ptr<Joining>& joining);
  void OnMembers(Joining& joining, absl::Status status, const Received& received);

  const std::shared_ptr<StepTransfers> transfers_;
  const std::unique_ptr<CollectiveBackend> carrier_;
  const Clock& clock_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_STEP_COLLECTIVES_H_
