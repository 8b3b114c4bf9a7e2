// SPDX-License-Identifier: Apache-2.0
// RemoteRendezvous: one step of one worker; delivers values locally, fetches them from other
// workers, or takes the eager ones that those send by themselves.
#ifndef FERRY_RENDEZVOUS_REMOTE_RENDEZVOUS_H_
#define FERRY_RENDEZVOUS_REMOTE_RENDEZVOUS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

#include "base/clock.h"
#include "base/spin_lock.h"
#include "base/table_sizes.h"
#include "rendezvous/arrival_table.h"
#include "rendezvous/device_name.h"
#include "rendezvous/eager_link.h"
#include "rendezvous/key.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/outstanding_operations.h"
#include "rendezvous/value.h"

namespace ferry {

// A pending fetch from another worker.
class RemoteFetch {
 public:
  virtual ~RemoteFetch() = default;
  // The value is no longer needed. May be called at any time, and more than once.
  virtual void Cancel() = 0;
  // Human-readable progress: "asked node 3, which has not sent it yet".
  virtual std::string Phase() const { return "asked"; }
};

// Fetches values from other workers, over any protocol.
class RemoteFetcher {
 public:
  virtual ~RemoteFetcher() = default;
  // Requests the value of `key` from the source's task. `done` is called exactly once, on any
  // thread, not inline; possibly before this returns. `args` has no cancellation, since the receive
  // may be over, and its owner destroyed, before this is read: RemoteFetch::Cancel is called
  // instead.
  virtual std::shared_ptr<RemoteFetch> Fetch(int64_t step_id, const RendezvousKey& key,
                                             const RecvArgs& args, RecvCallback done) = 0;
  // Null: every value is fetched.
  virtual EagerLinks* eager_links() { return nullptr; }
};

// An operation that a step waits for, for status reports.
struct PendingStepOp {
  // A kTransfer was sent, and its receiver has not acknowledged it yet: an eager value, or one that
  // was requested and is in flight. Its protocol reports it, the rendezvous no longer knows it.
  enum class Side { kSend, kRecv, kFetch, kDeferred, kTransfer };

  int64_t step_id = 0;
  RendezvousKey key;
  Side side = Side::kSend;
  size_t bytes = 0;
  absl::Duration age;
  // For a fetch, RemoteFetch::Phase; also for a transfer.
  std::string phase;
  // For a transfer: it can still be fetched, or stays with the receiver, after this process has
  // exited.
  bool outlives_sender = false;
};

using PendingVisitor = absl::FunctionRef<void(const PendingStepOp&)>;

// Thread-safe; shared by the users of the step. StartAbort ends everything that waits, without
// exception: a fetch that was being issued at that moment is cancelled afterwards. Callbacks run on
// the thread that completes them, with no lock held.
// Source: tensorflow/core/distributed_runtime/base_rendezvous_mgr.cc; departures:
// docs/rendezvous.md.
class RemoteRendezvous final : public std::enable_shared_from_this<RemoteRendezvous> {
 public:
  // Created by a RendezvousManager. `fetcher` and `clock` must outlive it. `wake`: see
  // operations().
  RemoteRendezvous(int64_t step_id, const Clock& clock, RendezvousLimits limits,
                   RemoteFetcher& fetcher, const OutstandingOperations::Wake* wake = nullptr);
  ~RemoteRendezvous();

  int64_t step_id() const { return step_id_; }

  // Sets which worker this is; earlier local receives are served now. May be repeated with the same
  // name.
  //   Errors: INTERNAL for another name.
  absl::Status Initialize(const TaskName& worker) ABSL_LOCKS_EXCLUDED(mu_);

  // As LocalRendezvous::Send.
  //   Errors: also INTERNAL before Initialize, INVALID_ARGUMENT unless the source is this worker.
  absl::Status Send(const RendezvousKey& key, Tensor tensor, bool is_dead = false,
                    SendArgs args = {});

  // As Send for each of them, those of a key in this order; values for one worker share messages,
  // and each lock is taken once. Callbacks run at the end.
  void SendMany(absl::Span<SendItem> items);

  // Receives for a consumer on this worker: from the local table if the source is this worker too,
  // else from the source's worker.
  //   Errors: the abort's status (no fetch is issued then); INTERNAL before Initialize;
  //   INVALID_ARGUMENT unless the destination is this worker; CANCELLED (derived);
  //   DEADLINE_EXCEEDED; RESOURCE_EXHAUSTED naming the limit.
  void RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done);

  // As RecvAsync for each of them, those of a key in this order. Those from other workers enter the
  // table of arrivals together, up to 64 at a time: each of its locks is taken once.
  void RecvMany(absl::Span<RecvItem> items);

  // Receives a value sent on this worker, for a consumer anywhere. Waits for Initialize if needed.
  //   Errors: as LocalRendezvous; INVALID_ARGUMENT unless the source is this worker.
  void RecvLocalAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done);

  // Ends everything permanently with `why`, marked as derived: waiting callers, in this process or
  // another, receive a copy of the error that the caller reports itself. REQUIRES: not OK.
  void StartAbort(const absl::Status& why);
  // As StartAbort, for a step that is_unused() and may begin again.
  void Discard();
  // With its mark.
  absl::Status abort_status() const { return local_.abort_status(); }

  // Ends everything that needs `task`, with `why` and the key; the rest of the step continues.
  // Returns how many ended.
  size_t FailTask(const TaskName& task, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Why the first lost value was dropped that was sent here: its consumer had died, it could not be
  // delivered, or the step was aborted. OK: none was lost. Send cannot report it, since it has
  // returned by then.
  absl::Status send_status() const ABSL_LOCKS_EXCLUDED(mu_);
  // A value sent here was in transit when `why` happened.
  void RecordSendFailure(const RendezvousKey& key, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same for a value whose key is unknown.
  void RecordSendFailure(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Values sent here that are in transit to other processes: those that were requested, until they
  // have arrived; eager ones, until they were received; either until it is lost, which
  // send_status() reports by then. From TrackQueuedSends on also values
  // not taken yet, and so everything to wait for when the step is closed.
  OutstandingOperations& operations() { return *operations_; }
  void TrackQueuedSends() { local_.TrackQueuedSends(); }

  // For eager links.

  // A link keeps state for this step, and is told of its events. May be called with a link's lock
  // held. False: the step is over, and tells nothing.
  bool AddSendLink(EagerSendLink& send_link) ABSL_LOCKS_EXCLUDED(mu_);
  bool AddRecvLink(EagerRecvLink& recv_link) ABSL_LOCKS_EXCLUDED(mu_);
  // Asks for the acknowledgements of values that were sent before they were requested, or will be
  // until EndFlush. Calls may overlap.
  void StartFlush() ABSL_LOCKS_EXCLUDED(mu_);
  void EndFlush() ABSL_LOCKS_EXCLUDED(mu_);
  bool is_flushing() const { return flushes_.load(std::memory_order_relaxed) != 0; }
  // Deferred local receives have been started.
  bool is_serving() const { return ServingWorker() != nullptr; }
  // Offers the queued values of the key to `send_link`, in order, until it declines one.
  void OfferQueued(const RendezvousKey& key, EagerSendLink& send_link);
  // Visits the keys of queued values for `consumer`, once for each value.
  void ForEachQueued(const TaskName& consumer,
                     absl::FunctionRef<void(const RendezvousKey&)> visit) const;
  bool HasQueued(const RendezvousKey& key) { return local_.HasQueued(key); }
  // As ArrivalTable::Arrive.
  absl::Status Arrive(const RendezvousKey& key, bool is_dead, LocalRendezvous::IncomingValue& value)
      ABSL_LOCKS_EXCLUDED(mu_);
  // As ArrivalTable::TakePosted.
  size_t TakePosted(size_t max_count, ArrivalTable::MatchPosted match,
                    ArrivalTable::ItemPtr* taken);
  bool has_posted() const {
    const ArrivalTable* const arrivals = ArrivalsIfAny();
    return arrivals != nullptr && arrivals->has_posted();
  }
  // As LocalRendezvous::FindKey, among the receives that wait for values from other nodes.
  std::optional<RendezvousKey> FindArrivalKey(absl::string_view text) const;
  // As ArrivalTable::ArriveMany.
  void ArriveMany(absl::Span<LocalRendezvous::ArrivalItem> items, absl::FunctionRef<void()> settle)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Requests the waiting receives whose keys match, those of a key in order.
  void RequestWaiting(EagerRecvLink& recv_link,
                      absl::FunctionRef<bool(const RendezvousKey&)> matches)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends receives that wait for values that have not arrived, with that status if it is not OK.
  void EndWaiting(absl::FunctionRef<absl::Status(const RendezvousKey&)> verdict);

  // Drops values that have arrived and were not received.
  void DropArrivals(absl::FunctionRef<bool(const RendezvousKey&)> matches);
  // It was neither initialized nor aborted, and nothing waits in it.
  bool is_unused() const ABSL_LOCKS_EXCLUDED(mu_);

  // As in LocalRendezvous.
  void Expire();
  absl::Time NextDeadline() const ABSL_LOCKS_EXCLUDED(mu_);
  void ForEachPending(absl::Duration min_age,
                      absl::FunctionRef<void(const PendingStepOp&)> visit) const
      ABSL_LOCKS_EXCLUDED(mu_);
  size_t fetch_count() const ABSL_LOCKS_EXCLUDED(mu_);
  // The size of every internal table, including those of the local one; for tests and debugging.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A fetch, or a local receive that waits for Initialize. Also referenced by its callback and its
  // cancellation; all but the first two fields belong to the thread that removed it from the list.
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

    // Position in the list, which is in order of arrival: itself, and its neighbours. Null: not in
    // it.
    WaitingPtr self;
    Waiting* before = nullptr;
    Waiting* after = nullptr;
  };

  struct Worker {
    explicit Worker(const TaskName& name) : name(name), number(WorkerNumber(name)) {}

    // `other_number`: the task's WorkerNumber, which usually suffices to tell.
    bool Is(const TaskName& other, int64_t other_number) const {
      return other_number >= 0 ? other_number == number : other == name;
    }

    const TaskName name;
    const int64_t number;
  };

  // Null before Initialize.
  const Worker* worker() const { return known_worker_.load(std::memory_order_acquire); }
  // The worker, unless local receives must still queue behind deferred ones.
  const Worker* ServingWorker() const { return serving_worker_.load(std::memory_order_acquire); }
  // Adds it to the list; ends it, and returns false, if the step is aborted, it is cancelled, or
  // too many wait.
  bool Add(const WaitingPtr& waiting) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes it from the list; false: it is no longer in it.
  bool Take(Waiting& waiting) ABSL_LOCKS_EXCLUDED(mu_);
  WaitingPtr Unlink(Waiting& waiting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends it if it is still waiting.
  void End(Waiting& waiting, absl::Status&& status, Received&& received) ABSL_LOCKS_EXCLUDED(mu_);
  // For one removed by Take.
  void Complete(Waiting& waiting, absl::Status&& status, Received&& received);
  // `with_phase`: errors of fetches include their progress.
  void EndAll(absl::FunctionRef<absl::Status(const Waiting&)> verdict, size_t& count,
              bool with_phase = false) ABSL_LOCKS_EXCLUDED(mu_);
  //   Errors: INTERNAL before Initialize, INVALID_ARGUMENT unless the source is this worker.
  absl::Status CheckSend(const RendezvousKey& key, const Tensor& tensor) const;
  // Passes a value for another worker on at once. False: `tensor` is as before, and the value is to
  // be sent by the local table.
  bool SendAtOnce(const RendezvousKey& key, Tensor& tensor);
  // Passes values for one worker on at once, from the first on. Returns how many; the others are to
  // be sent by SendManyQueued. Adds the link to `send_links`, for AfterSend.
  size_t SendBurst(absl::Span<SendItem* const> items,
                   absl::InlinedVector<EagerSendLink*, 4>& send_links);
  // Each by the local table, where it is queued if it cannot be passed on.
  void SendManyQueued(absl::Span<SendItem* const> items,
                      absl::InlinedVector<EagerSendLink*, 4>& send_links);
  absl::Status CheckRecv(const RendezvousKey& key) const;
  // Null: a receive from another worker is requested.
  EagerRecvLink* RecvLinkFor(const RendezvousKey& key) const;
  // True if it cannot be sent eagerly: its destination is this worker, or the protocol is disabled.
  // The worker's number suffices to tell.
  bool CannotBeEager(const RendezvousKey& key) const {
    return eager_ == nullptr || key.dst().task.task == worker()->name.task;
  }
  void EndStep(const absl::Status& why, bool may_begin_again) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<EagerSendLink*> SendLinks() const ABSL_LOCKS_EXCLUDED(mu_);
  void RecvHere(const RendezvousKey& key, const Worker& here, RecvArgs args, RecvCallback done);
  void FetchRemote(const RendezvousKey& key, RecvArgs args, RecvCallback done);
  // RecvMany for a part of them.
  void RecvSome(absl::Span<RecvItem> items);
  // A receive from another node that may send the value by itself.
  void RecvEager(EagerRecvLink& recv_link, const RendezvousKey& key, RecvArgs&& args,
                 RecvCallback&& done) ABSL_LOCKS_EXCLUDED(mu_);
  // Several of them, and the link of each.
  void RecvManyEager(absl::Span<LocalRendezvous::RecvEntry> entries,
                     absl::Span<EagerRecvLink* const> recv_links) ABSL_LOCKS_EXCLUDED(mu_);
  // The table of arrivals, made on first use; null: the step is aborted.
  ArrivalTable* Arrivals() ABSL_LOCKS_EXCLUDED(mu_);
  ArrivalTable* ArrivalsIfAny() const { return arrivals_.load(std::memory_order_acquire); }
  // These are called with the lock that EagerRecvLink::OnReceive is called with. Receives of that
  // key that wait are to be requested, before a new one is.
  void QueueEarlier(LocalRendezvous::TakeEarlier take_earlier, EagerRecvLink& recv_link)
      ABSL_LOCKS_EXCLUDED(mu_);
  void QueueReceive(const RendezvousKey& key, RecvArgs&& args, RecvCallback&& done,
                    EagerRecvLink& recv_link) ABSL_LOCKS_EXCLUDED(mu_);
  void QueueRequest(LocalRendezvous::ItemPtr receive, EagerRecvLink& recv_link)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Issues the queued requests in order; one thread at a time.
  void IssueRequests() ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const int64_t step_id_;
  const Clock& clock_;
  const RendezvousLimits limits_;
  RemoteFetcher& fetcher_;
  EagerLinks* const eager_;

  const OutstandingOperations::Ptr operations_;
  LocalRendezvous local_;
  // Set once, under mu_.
  std::atomic<ArrivalTable*> arrivals_{nullptr};
  // StartFlush calls without their EndFlush.
  std::atomic<int> flushes_{0};
  // Queued requests that have not been issued.
  std::atomic<size_t> unissued_{0};
  // Never held while calling out. Lock order: see eager_link.h; a
  // cancellation's is behind this.
  mutable SpinLock mu_;
  std::optional<Worker> worker_ ABSL_GUARDED_BY(mu_);
  // Copies readable without the lock: worker_ is constant once set.
  std::atomic<const Worker*> known_worker_{nullptr};
  std::atomic<const Worker*> serving_worker_{nullptr};
  absl::Status abort_status_ ABSL_GUARDED_BY(mu_);
  absl::Status send_status_ ABSL_GUARDED_BY(mu_);
  Waiting* first_ ABSL_GUARDED_BY(mu_) = nullptr;
  Waiting* last_ ABSL_GUARDED_BY(mu_) = nullptr;
  size_t waiting_count_ ABSL_GUARDED_BY(mu_) = 0;
  // Values from other nodes that were not requested, and the receives that wait for such.
  std::unique_ptr<ArrivalTable> owned_arrivals_ ABSL_GUARDED_BY(mu_);
  std::vector<EagerSendLink*> send_links_ ABSL_GUARDED_BY(mu_);
  std::vector<EagerRecvLink*> recv_links_ ABSL_GUARDED_BY(mu_);
  // They have been told that the step is over.
  bool are_links_ended_ ABSL_GUARDED_BY(mu_) = false;
  // Receives taken out of the table of arrivals, to be requested in this order.
  struct Request {
    LocalRendezvous::ItemPtr receive;
    EagerRecvLink* recv_link;
  };
  std::vector<Request> requests_ ABSL_GUARDED_BY(mu_);
  bool is_issuing_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_REMOTE_RENDEZVOUS_H_
