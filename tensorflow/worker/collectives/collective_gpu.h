// SPDX-License-Identifier: Apache-2.0
// CollectiveGpu: the operations of a GPU that NCCL collectives need.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_GPU_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_GPU_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "tensor/tensor.h"
#include "tensorflow/worker/collectives/async_fifo_lock.h"
#include "tensorflow/worker/collectives/collective_node.h"

namespace ferry::worker {

// One rank's part.
struct NcclCollective {
  // Must outlive the collective.
  const CollectiveNode* node = nullptr;
  // By rank: indexes into node->devices.
  std::vector<int> members;
  int rank = 0;
  int source_rank = -1;
  // Invalid for a receiver of a broadcast.
  Tensor input;
  // The result; invalid for the source of a broadcast.
  Tensor output;
  // All ranks create a new communicator; else they use the existing one of `generation`.
  bool is_anew = false;
  uint32_t generation = 0;
  absl::Time deadline = absl::InfiniteFuture();
  // For messages.
  std::string what;
};

// A launched collective. Thread-safe.
class NcclRun {
 public:
  virtual ~NcclRun() = default;
  // Aborts the collective, and everything else on its communicator, with `why`. Never blocks;
  // `begun` and `over` are still called.
  virtual void Abort(const absl::Status& why) = 0;
};

// Thread-safe; never blocks, except where noted. One per GPU of a process, shared by all steps.
class CollectiveGpu {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;
  using Prepared = absl::AnyInvocable<void(absl::StatusOr<Tensor>) &&>;

  virtual ~CollectiveGpu() = default;

  virtual AsyncFifoLock& line() = 0;
  // Allocates an output once `input` (which may be invalid) is ready and no kernel uses the
  // output's memory any more.
  virtual void Prepare(const Tensor& input, DataType dtype, const Shape& shape, absl::Time deadline,
                       Prepared done) = 0;
  // Returns the generation of its communicator for these members, in this order; 0 if it has none.
  virtual uint32_t Generation(const CollectiveNode& node, const std::vector<int>& members) = 0;
  // Launches the collective on the GPU's stream. REQUIRES: the caller is at the head of the line,
  // on all ranks.
  //   begun: called once, when it is enqueued or has failed to be.
  //   over: called once, after that; OK if the output is ready and NCCL reports no error.
  virtual std::shared_ptr<NcclRun> Launch(NcclCollective collective, Done begun, Done over) = 0;
  // Post-processes an output once all ranks' parts are reduced: divides it, if the node says so.
  // May block in the driver.
  virtual absl::StatusOr<Tensor> Finish(const CollectiveNode& node, int count, Tensor output) = 0;
};

// The GPUs of a worker. Thread-safe.
class CollectiveGpus {
 public:
  virtual ~CollectiveGpus() = default;
  virtual NcclOffer Offer(const CollectiveNode& node) = 0;
  // REQUIRES: Offer returned an empty `why_not`.
  virtual CollectiveGpu& gpu(int ordinal) = 0;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_GPU_H_
