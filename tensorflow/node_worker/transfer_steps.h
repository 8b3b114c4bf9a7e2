// SPDX-License-Identifier: Apache-2.0
// TransferSteps: the steps of a TransferEngine, for a TensorFlow worker.
#ifndef FERRY_TENSORFLOW_NODE_WORKER_TRANSFER_STEPS_H_
#define FERRY_TENSORFLOW_NODE_WORKER_TRANSFER_STEPS_H_

#include <functional>
#include <memory>

#include "node/transfer_engine.h"
#include "tensorflow/worker/step_transfers.h"

namespace ferry {

// Thread-safe.
class TransferSteps final : public worker::WorkerSteps {
 public:
  // Looks up a node's endpoint, so that gRPC can reach it; may block. Empty: not needed.
  using Lookup = std::function<absl::Status(int64_t node)>;

  // `engine` outlives it.
  explicit TransferSteps(TransferEngine& engine, Lookup lookup = {})
      : engine_(engine), lookup_(std::move(lookup)) {}

  absl::Status Reach(const TaskName& task) override {
    return lookup_ ? lookup_(task.task) : absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<worker::StepTransfers>> Open(int64_t step_id) override;
  void Cleanup(int64_t step_id) override { engine_.Cleanup(step_id); }

 private:
  TransferEngine& engine_;
  const Lookup lookup_;
};

}  // namespace ferry

#endif  // FERRY_TENSORFLOW_NODE_WORKER_TRANSFER_STEPS_H_
