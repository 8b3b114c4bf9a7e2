// SPDX-License-Identifier: Apache-2.0
// BatchRunner: issues agreed batches on a GPU's communicators, one after the other.
#ifndef FERRY_TRANSPORT_NCCL_BATCH_RUNNER_H_
#define FERRY_TRANSPORT_NCCL_BATCH_RUNNER_H_

#include <cstddef>
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
#include "gpu/clique/communicator.h"
#include "gpu/cuda/sync_gate.h"
#include "gpu/gpus.h"
#include "net/event_loop.h"

namespace ferry {

struct BatchOperation {
  bool is_send = false;
  // In the GPU's memory, which is the batch's until it is over.
  void* data = nullptr;
  size_t bytes = 0;
};

struct RunnableBatch {
  std::shared_ptr<NcclCommunicator> communicator;
  // All with this rank, in one group, in this order.
  int peer_rank = 0;
  // Two bytes of the GPU's memory, for the first batch of a communicator: one of them goes each way
  // before the batch, in a group of its own, since only then NCCL makes its connections the same
  // way on both sides. Null: it is not the first.
  std::shared_ptr<Buffer> warmth;
  std::vector<BatchOperation> operations;
  // OK: all that was to come is there, and what was sent may be written again. Anything else: the
  // communicator is of no use any more; nothing touches the memory.
  absl::AnyInvocable<void(absl::Status) &&> done;
  // Of the runner: thrown out while it was running; its bytes of warmth have been enqueued.
  bool was_aborted = false;
  bool is_warm = false;
};

// Of one GPU. All of NCCL is called on that GPU's `nccl` executor, except for aborts. Thread-safe;
// callbacks run on the executor, or on a thread of the group.
class BatchRunner final : public std::enable_shared_from_this<BatchRunner>,
                          public cuda::QuietListener {
 public:
  // NCCL says that a communicator with work under way is broken; told once or more for each.
  using BrokenCallback =
      std::function<void(const std::shared_ptr<NcclCommunicator>&, absl::Status why)>;

  // How long the GPU was busy with so many bytes.
  using LearnCallback = std::function<void(size_t bytes, absl::Duration taken)>;

  // Nothing new is to be agreed on, so that the GPUs become quiet; or it may be again. The last one
  // holds.
  using QuietCallback = std::function<void(bool is_wanted)>;

  // All outlive it.
  BatchRunner(Gpus& gpus, Gpu& gpu, EventLoop& loop, ThreadGroup& threads, BrokenCallback broken,
              LearnCallback learn, QuietCallback quiet);

  // SyncGate's, which may know it from now on.
  void OnQuietWanted() override;

  // Behind those that were launched before.
  void Launch(RunnableBatch batch);
  // Everything on it ends soon; nothing of it is issued any more. Once for each.
  void Abort(std::shared_ptr<NcclCommunicator> communicator, absl::Status why);
  // Until the executor has come to what was asked for before this call.
  void WaitUntilReached(absl::Duration timeout);

 private:
  using BatchPtr = std::shared_ptr<RunnableBatch>;

  // All that follows is of the executor's thread.
  void IssueNext();
  absl::Status Issue(RunnableBatch& batch);
  absl::Status IssueGroup(const RunnableBatch& batch, absl::Span<const BatchOperation> operations);
  // Until NCCL has enqueued what it was asked for.
  void LookWhetherEnqueued();
  absl::Status WatchUntilDone(const BatchPtr& batch);
  // It may be running, and nothing will tell when it ends, but the end of its communicator.
  void StrandBatch(const BatchPtr& batch, const absl::Status& why);
  void Finish(const BatchPtr& batch, absl::Status status);
  bool IsAborted(const RunnableBatch& batch) const {
    return batch.was_aborted || aborted_.contains(batch.communicator.get());
  }
  // Asks NCCL from time to time how those are that have work under way.
  void ScheduleLook();
  void Look();

  Gpus& gpus_;
  Gpu& gpu_;
  EventLoop& loop_;
  ThreadGroup& threads_;
  const BrokenCallback broken_;
  const LearnCallback learn_;
  const QuietCallback quiet_;

  std::unique_ptr<cuda::CudaStream> stream_;
  std::deque<BatchPtr> queue_;
  // Asked for, and not enqueued yet.
  BatchPtr issuing_;
  int looks_ = 0;
  absl::Time last_end_;
  std::vector<BatchPtr> running_;
  std::vector<BatchPtr> stranded_;
  // Until their threads are through.
  absl::flat_hash_set<const NcclCommunicator*> aborted_;
  bool is_look_scheduled_ = false;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_BATCH_RUNNER_H_
