// SPDX-License-Identifier: Apache-2.0
// CollectiveGpu: what a collective by NCCL needs of the GPU that it is on.
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
  // Outlives the collective.
  const CollectiveNode* node = nullptr;
  // By rank; numbers of node->devices.
  std::vector<int> members;
  int rank = 0;
  int source_rank = -1;
  // Of no receiver of a broadcast.
  Tensor input;
  // What the node gives; of no source of a broadcast.
  Tensor output;
  // All ranks make a communicator, whatever they have; else they have this one.
  bool is_anew = false;
  uint32_t generation = 0;
  absl::Time deadline = absl::InfiniteFuture();
  // For messages.
  std::string what;
};

// Something that was begun. Thread-safe.
class NcclRun {
 public:
  virtual ~NcclRun() = default;
  // Ends it, and all that is under way on its communicator, with `why`. Does not block; `begun` and
  // `over` come all the same.
  virtual void Abort(const absl::Status& why) = 0;
};

// Thread-safe; nothing here blocks. One for each GPU of a process, shared by all steps.
class CollectiveGpu {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;
  using Prepared = absl::AnyInvocable<void(absl::StatusOr<Tensor>) &&>;

  virtual ~CollectiveGpu() = default;

  virtual AsyncFifoLock& line() = 0;
  // Memory for an output, when `input` (perhaps none) is there and what it is for is no kernel's
  // any more.
  virtual void Prepare(const Tensor& input, DataType dtype, const Shape& shape, absl::Time deadline,
                       Prepared done) = 0;
  // Of the communicator that it has for these members, in this order; 0: it has none.
  virtual uint32_t Generation(const CollectiveNode& node, const std::vector<int>& members) = 0;
  // Puts it on the GPU's stream. REQUIRES: whoever asks is at the head of the line, on all ranks.
  //   begun: once, when it is there, or will not be.
  //   over: once, after that; OK when the output is there and NCCL knows of no error.
  virtual std::shared_ptr<NcclRun> Launch(NcclCollective collective, Done begun, Done over) = 0;
  // What is to be done with an output when all ranks' parts are merged: divides it, if the node
  // says so. May wait for the driver.
  virtual absl::StatusOr<Tensor> Finish(const CollectiveNode& node, int count, Tensor output) = 0;
};

// Of a worker. Thread-safe.
class CollectiveGpus {
 public:
  virtual ~CollectiveGpus() = default;
  virtual NcclOffer Offer(const CollectiveNode& node) = 0;
  // REQUIRES: Offer had no reason against it.
  virtual CollectiveGpu& gpu(int ordinal) = 0;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_GPU_H_
