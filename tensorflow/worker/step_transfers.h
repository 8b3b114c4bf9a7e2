// SPDX-License-Identifier: Apache-2.0
// StepTransfers: sends and receives of one step, in or between processes.
#ifndef FERRY_TENSORFLOW_WORKER_STEP_TRANSFERS_H_
#define FERRY_TENSORFLOW_WORKER_STEP_TRANSFERS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "rendezvous/key.h"
#include "rendezvous/value.h"
#include "tensor/tensor.h"

namespace ferry::worker {

// One step of this worker; thread-safe. RemoteRendezvous documents the semantics.
class StepTransfers {
 public:
  virtual ~StepTransfers() = default;
  // `tensor` is not valid if `is_dead`.
  virtual absl::Status Send(const RendezvousKey& key, Tensor tensor, bool is_dead) = 0;
  // `done` may be called before RecvAsync returns.
  virtual void RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done) = 0;
  // Fails all operations of the step, for good; the first reason is kept.
  virtual void Abort(const absl::Status& why) = 0;
};

// The steps of this worker. Thread-safe; must outlive the worker's runs.
class WorkerSteps {
 public:
  virtual ~WorkerSteps() = default;
  // Prepares for tensors from that worker: resolves its address, which may block.
  virtual absl::Status Reach(const TaskName& task) = 0;
  //   Errors: ABORTED if the step is over; RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::shared_ptr<StepTransfers>> Open(int64_t step_id) = 0;
  // Ends the step: pending and later operations in it fail with ABORTED.
  virtual void Cleanup(int64_t step_id) = 0;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_STEP_TRANSFERS_H_
