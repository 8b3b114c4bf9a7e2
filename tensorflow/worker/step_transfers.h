// SPDX-License-Identifier: Apache-2.0
// StepTransfers: how the tensors of one step get from node to node, whoever has them.
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

// One step of this worker; thread-safe. RemoteRendezvous says what its operations promise.
class StepTransfers {
 public:
  virtual ~StepTransfers() = default;
  // `tensor` is not valid if `is_dead`.
  virtual absl::Status Send(const RendezvousKey& key, Tensor tensor, bool is_dead) = 0;
  // `done` may run inside.
  virtual void RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done) = 0;
  // Ends everything in the step, for good; the first one stays.
  virtual void Abort(const absl::Status& why) = 0;
};

// The steps of this worker. Thread-safe; outlives the worker's runs.
class StepExchanges {
 public:
  virtual ~StepExchanges() = default;
  // Tensors will come from that worker: finds out where it is, which may block.
  virtual absl::Status Reach(const TaskName& task) = 0;
  //   Errors: ABORTED the step is over; RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::shared_ptr<StepTransfers>> Open(int64_t step_id) = 0;
  // The step is over: what waits in it ends ABORTED, and so does what comes later.
  virtual void Cleanup(int64_t step_id) = 0;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_STEP_TRANSFERS_H_
