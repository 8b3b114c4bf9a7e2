// SPDX-License-Identifier: Apache-2.0
// RemoteRendezvous: one step of one worker; finds values here or gets them from other workers.
#ifndef FERRY_RENDEZVOUS_REMOTE_RENDEZVOUS_H_
#define FERRY_RENDEZVOUS_REMOTE_RENDEZVOUS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "base/clock.h"
#include "base/spin_lock.h"
#include "base/table_sizes.h"
#include "rendezvous/device_name.h"
#include "rendezvous/key.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/outstanding_operations.h"
#include "rendezvous/value.h"

namespace ferry {

// A value that is under way from another worker.
class RemoteFetch {
 public:
  virtual ~RemoteFetch() = default;
  // Nobody waits for it any more. May come at any time, and more than once.
  virtual void Cancel() = 0;
  // How far it is, for people: "asked node 3, which has not sent it yet".
  virtual std::string Phase() const { return "asked"; }
};

// Gets values from other workers, by whatever carries them.
class RemoteFetcher {
 public:
  virtual ~RemoteFetcher() = default;
  // Asks the source's task for the value of `key`. `done` is called exactly once, on any thread,
  // not from inside; it may come before this returns. `args` has no cancellation, since the receive
  // may be over, and its owner gone, before this is read: RemoteFetch::Cancel says so.
  virtual std::shared_ptr<RemoteFetch> Fetch(int64_t step_id, const RendezvousKey& key,
                                             const RecvArgs& args, RecvCallback done) = 0;
};

// What a step is waiting for, for status reports.
struct PendingStepOp {
  // A kTransfer was sent and asked for, and its receiver has not said yet that it has it; what
  // carries it tells of it, the rendezvous knows of it no more.
  enum class Side { kSend, kRecv, kFetch, kDeferred, kTransfer };

  int64_t step_id = 0;
  RendezvousKey key;
  Side side = Side::kSend;
  size_t bytes = 0;
  absl::Duration age;
  // Of a fetch, as RemoteFetch::Phase, and of a transfer.
  std::string phase;
  // Of a transfer: it can be taken, or stays with who has it, when this process has gone.
  bool outlives_sender = false;
};

using PendingVisitor = absl::FunctionRef<void(const PendingStepOp&)>;

// Thread-safe; shared by whoever runs the step. Everything that waits is ended by StartAbort, and
// nothing can slip past it: a fetch that was being issued at that moment is called off when it has
// been. Callbacks run on the thread of whoever completes them, with no lock held.
// Source: tensorflow/core/distributed_runtime/base_rendezvous_mgr.cc; departures:
// docs/rendezvous.md.
class RemoteRendezvous final : public std::enable_shared_from_this<RemoteRendezvous> {
 public:
  // Made by a RendezvousManager. `fetcher` and `clock` outlive it. `wake`: see operations().
  RemoteRendezvous(int64_t step_id, const Clock& clock, RendezvousLimits limits,
                   RemoteFetcher& fetcher, const OutstandingOperations::Wake* wake = nullptr);
  ~RemoteRendezvous();

  int64_t step_id() const { return step_id_; }

  // Says which worker this is; local receives that came earlier are served now. Once more with the
  // same name is fine.
  //   Errors: INTERNAL for another name.
  absl::Status Initialize(const TaskName& worker) ABSL_LOCKS_EXCLUDED(mu_);

  // As LocalRendezvous::Send.
  //   Errors: also INTERNAL before Initialize, INVALID_ARGUMENT unless the source is here.
  absl::Status Send(const RendezvousKey& key, Tensor tensor, bool is_dead = false,
                    SendArgs args = {});

  // For a consumer of this worker: from the local table if the source is here too, else from the
  // source's worker.
  //   Errors: the abort's status (no fetch is issued then); INTERNAL before Initialize;
  //   INVALID_ARGUMENT unless the destination is here; CANCELLED (derived); DEADLINE_EXCEEDED;
  //   RESOURCE_EXHAUSTED naming the limit.
  void RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done);

  // For a consumer anywhere, of a value that is sent here. Waits for Initialize if need be.
  //   Errors: as LocalRendezvous; INVALID_ARGUMENT unless the source is here.
  void RecvLocalAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done);

  // Ends everything permanently with `why`, marked as derived: waiting callers, in this process or
  // another, receive a copy of the error that the caller reports itself. REQUIRES: not OK.
  void StartAbort(const absl::Status& why);
  // As it was marked.
  absl::Status abort_status() const { return local_.abort_status(); }

  // Ends what needs `task`, with `why` and the key; the rest of the step goes on. Returns how many.
  size_t FailTask(const TaskName& task, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Why a value that was sent here has been dropped, since its consumer had died, it could not be
  // brought there or the step was aborted; the first one. OK: none was. A send cannot tell: it has
  // returned by then.
  absl::Status lost() const ABSL_LOCKS_EXCLUDED(mu_);
  // A value that was sent here was on its way when `why` happened.
  void RecordSendFailure(const RendezvousKey& key, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same of one whose key is not known.
  void RecordSendFailure(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // What was sent here and is on its way: values that consumers in other processes have taken,
  // until they are there or lost, which lost() says by then. From CountSends on also what nobody
  // has taken yet, and so what is left to be waited for when the step is closed.
  OutstandingOperations& operations() { return *operations_; }
  void CountSends() { local_.CountSends(); }

  // As LocalRendezvous.
  void Expire();
  absl::Time NextDeadline() const ABSL_LOCKS_EXCLUDED(mu_);
  void ForEachPending(absl::Duration min_age,
                      absl::FunctionRef<void(const PendingStepOp&)> visit) const
      ABSL_LOCKS_EXCLUDED(mu_);
  size_t fetch_count() const ABSL_LOCKS_EXCLUDED(mu_);
  // The size of every internal table, those of the local one among them; for tests and debugging.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A fetch, or a local receive that waits for Initialize. Who answers it and who cancels it have
  // it too; all but the first two belong to whoever took it out of the list.
  struct Waiting;
  using WaitingPtr = std::shared_ptr<Waiting>;
  struct Waiting {
    Waiting(std::weak_ptr<RemoteRendezvous> owner, const RendezvousKey& key, RecvArgs args,
            RecvCallback done, bool is_deferred)
        : owner(std::move(owner)),
          key(key),
          args(std::move(args)),
          done(std::move(done)),
          is_deferred(is_deferred) {}

    const std::weak_ptr<RemoteRendezvous> owner;
    const RendezvousKey key;
    RecvArgs args;
    RecvCallback done;
    absl::Time since;
    CancellationToken::CallbackId token = CancellationToken::kNoCallback;
    // Null while the fetch is being issued, and for deferred receives.
    std::shared_ptr<RemoteFetch> fetch;
    bool is_deferred = false;

    // In the list, in the order in which they came: itself, and its neighbours. Null: it is not.
    WaitingPtr self;
    Waiting* before = nullptr;
    Waiting* after = nullptr;
  };

  // Null before Initialize.
  const TaskName* worker() const { return known_worker_.load(std::memory_order_acquire); }
  // The worker, unless local receives still have to queue up behind deferred ones.
  const TaskName* ServingWorker() const { return serving_worker_.load(std::memory_order_acquire); }
  // Puts it into the list; ends it, and returns false, if the step is aborted, it is cancelled, or
  // too many wait.
  bool Add(const WaitingPtr& waiting) ABSL_LOCKS_EXCLUDED(mu_);
  // Out of the list; false: it is in it no more.
  bool Take(Waiting& waiting) ABSL_LOCKS_EXCLUDED(mu_);
  WaitingPtr Unlink(Waiting& waiting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends it if it still waits.
  void End(Waiting& waiting, absl::Status&& status, Received&& received) ABSL_LOCKS_EXCLUDED(mu_);
  // Of one that was taken.
  void Complete(Waiting& waiting, absl::Status&& status, Received&& received);
  // `with_phase`: errors of fetches also say how far they were.
  void EndAll(absl::FunctionRef<absl::Status(const Waiting&)> verdict, size_t& count,
              bool with_phase = false) ABSL_LOCKS_EXCLUDED(mu_);
  void RecvHere(const RendezvousKey& key, const TaskName& here, RecvArgs args, RecvCallback done);
  void FetchRemote(const RendezvousKey& key, RecvArgs args, RecvCallback done);

  // Constant after construction.
  const int64_t step_id_;
  const Clock& clock_;
  const RendezvousLimits limits_;
  RemoteFetcher& fetcher_;

  const OutstandingOperations::Ptr operations_;
  LocalRendezvous local_;
  // Never held while calling out. Lock order: this, then a cancellation's.
  mutable SpinLock mu_;
  std::optional<TaskName> worker_ ABSL_GUARDED_BY(mu_);
  // Copies that are read without the lock: worker_ stays as it is once it is set.
  std::atomic<const TaskName*> known_worker_{nullptr};
  std::atomic<const TaskName*> serving_worker_{nullptr};
  // Initialize is handing the deferred receives over, in their order; others wait behind them.
  absl::Status abort_status_ ABSL_GUARDED_BY(mu_);
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
  Waiting* first_ ABSL_GUARDED_BY(mu_) = nullptr;
  Waiting* last_ ABSL_GUARDED_BY(mu_) = nullptr;
  size_t waiting_count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_REMOTE_RENDEZVOUS_H_
