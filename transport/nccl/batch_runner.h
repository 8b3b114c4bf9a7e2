// SPDX-License-Identifier: Apache-2.0
// BatchRunner: issues agreed batches on a GPU's communicators, in order.
#ifndef FERRY_TRANSPORT_NCCL_BATCH_RUNNER_H_
#define FERRY_TRANSPORT_NCCL_BATCH_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "base/thread_group.h"
#include "gpu/communicator/communicator.h"
#include "gpu/cuda/stream_retention.h"
#include "gpu/cuda/sync_gate.h"
#include "gpu/gpus.h"
#include "net/loop.h"
#include "tensor/tensor.h"

namespace ferry {

struct BatchOperation {
  bool is_send = false;
  // GPU memory, owned by the batch until it is over.
  void* data = nullptr;
  size_t bytes = 0;
};

// Calls NCCL on the executor, with the device's context current. `stream`: the batch's.
using BatchStep =
    std::function<absl::Status(const NcclCommunicator& communicator, cuda::Stream stream)>;

struct RunnableBatch {
  std::shared_ptr<NcclCommunicator> communicator;
  // Operations with this rank, in one group, in this order.
  int peer_rank = 0;
  // Two bytes of GPU memory, for the first batch of a communicator: one is sent in each direction
  // before the batch, in a group of its own, so that NCCL sets up its connections in the same order
  // on both sides. Null: not the first.
  std::shared_ptr<Buffer> warmth;
  // Before the operations: each when NCCL has enqueued what the one before has requested.
  std::vector<BatchStep> steps;
  // For the steps, if there are no operations. Null: the runner's.
  std::shared_ptr<cuda::CudaStream> stream;
  std::vector<BatchOperation> operations;
  // The operations' memory: held until the stream has passed the batch, for ever if it never does.
  std::vector<Tensor> memory;
  // Bytes of other memory that the steps use, for the message that says how much is held.
  uint64_t pool_bytes = 0;
  // OK: everything was received, and what was sent may be overwritten. Otherwise the communicator
  // is unusable, and nothing touches the memory.
  absl::AnyInvocable<void(absl::Status) &&> done;
  // With a stream of its own, called in place of `done` if the stream has not passed the batch
  // within `patience` of the beginning of its communicator's end, or this cannot be known: it may
  // never pass it, and NCCL's calls that end the communicator may never return. The rest of the
  // process does not wait for it from then on. Null: it waits.
  absl::AnyInvocable<void(absl::Status) &&> lost;
  absl::Duration patience = absl::Seconds(5);
  // Set by the runner: aborted while running; its bytes of `warmth` have been enqueued.
  bool was_aborted = false;
  bool is_over = false;  // `done` or `lost` was called
  bool is_warm = false;
  size_t step_count = 0;  // of `steps`, those that are enqueued
};

// The runner of one GPU. NCCL is called only on that GPU's `nccl` executor, except for aborts.
// Thread-safe; callbacks run on the executor, or on a thread of the group.
class BatchRunner final : public std::enable_shared_from_this<BatchRunner>,
                          public cuda::QuiesceListener {
 public:
  // NCCL reports that a communicator with work outstanding is broken; called once or more for each.
  using BrokenCallback =
      std::function<void(const std::shared_ptr<NcclCommunicator>&, absl::Status why)>;

  // Reports how long the GPU took for this many bytes.
  using LearnCallback = std::function<void(size_t bytes, absl::Duration taken)>;

  // Stops or resumes agreeing on new work, so that the GPUs become quiet. The last call counts.
  using QuietCallback = std::function<void(bool is_wanted)>;

  // All must outlive it.
  BatchRunner(Gpus& gpus, Gpu& gpu, Loop& loop, ThreadGroup& threads, BrokenCallback broken,
              LearnCallback learn, QuietCallback quiet);

  // Called by SyncGate, with which it may be registered from now on.
  void OnQuiesceRequested() override;

  // Runs it after the batches launched before.
  void Launch(RunnableBatch batch);
  // Ends the communicator: closes it if it is idle here, and not in use at the peer; aborts it
  // otherwise. Its batches end when the stream has passed them, which may be before or after the
  // communicator's end; none are issued on it any more. Call once for each.
  void Abort(std::shared_ptr<NcclCommunicator> communicator, absl::Status why,
             bool is_in_use_at_peer = false);
  // Blocks until the executor has reached what was posted before this call.
  void WaitUntilReached(absl::Duration timeout);
  // Communicators whose aborts are in progress. On the executor's thread; for tests.
  size_t aborting_count() const { return aborted_.size(); }

 private:
  using BatchPtr = std::shared_ptr<RunnableBatch>;

  // The following run on the executor's thread.
  void IssueNext();
  // NCCL may still be about to enqueue something on the batch's stream, for a communicator that has
  // failed: until that is aborted, nothing else is enqueued there. Batches of the runner's own
  // stream have an agreed order, and are not held.
  bool IsHeld(const RunnableBatch& batch) const;
  absl::Status Issue(RunnableBatch& batch);
  // NCCL has enqueued what was issued. Returns whether there is more to issue.
  static bool Advance(RunnableBatch& batch);
  cuda::Stream StreamOf(const RunnableBatch& batch) const {
    return batch.stream == nullptr ? stream_->get() : batch.stream->get();
  }
  absl::Status IssueGroup(const RunnableBatch& batch, absl::Span<const BatchOperation> operations);
  // Polls until NCCL has enqueued the group.
  void PollEnqueued();
  absl::Status WatchUntilDone(const BatchPtr& batch);
  // The batch may be running, and only the end of its communicator will tell when it is over.
  void StrandBatch(const BatchPtr& batch, const absl::Status& why);
  bool IsIdle(const NcclCommunicator& communicator) const;
  // NCCL enqueues nothing of the communicator any more: its stranded batches are over once their
  // kernels have left.
  void FinishStranded(const std::shared_ptr<NcclCommunicator>& communicator);
  // Ends those batches, which were stranded, as far as that is known of their stream.
  void Settle(cuda::StreamEnd end, const std::vector<BatchPtr>& batches);
  void Finish(const BatchPtr& batch, absl::Status status);
  void Lose(const BatchPtr& batch, const absl::Status& why);
  // Loses those of them that are not over when their patience is.
  void LoseLater(const std::vector<BatchPtr>& batches);
  // The batch's communicator has ended, or is being ended: no NCCL call can be made on it.
  bool IsEnded(const RunnableBatch& batch) const {
    return IsAborted(batch) || batch.communicator->get() == nullptr;
  }
  bool IsAborted(const RunnableBatch& batch) const {
    return batch.was_aborted || aborted_.contains(batch.communicator.get());
  }
  // Polls NCCL periodically for communicators with work outstanding.
  void SchedulePoll();
  void Poll();

  Gpus& gpus_;
  Gpu& gpu_;
  Loop& loop_;
  ThreadGroup& threads_;
  const BrokenCallback broken_;
  const LearnCallback learn_;
  const QuietCallback quiet_;

  std::unique_ptr<cuda::CudaStream> stream_;
  std::deque<BatchPtr> queue_;
  // Issued, but not enqueued by NCCL yet.
  BatchPtr issuing_;
  int polls_ = 0;
  absl::Time last_end_;
  std::vector<BatchPtr> running_;
  std::vector<BatchPtr> stranded_;
  // Communicators being aborted, until their threads finish.
  absl::flat_hash_set<const NcclCommunicator*> aborted_;
  bool is_poll_scheduled_ = false;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_BATCH_RUNNER_H_
