// SPDX-License-Identifier: Apache-2.0
// LocalRendezvous: the table of one step that matches sends and receives of one process.
#ifndef FERRY_RENDEZVOUS_LOCAL_RENDEZVOUS_H_
#define FERRY_RENDEZVOUS_LOCAL_RENDEZVOUS_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "base/usable_resources.h"
#include "rendezvous/key.h"
#include "rendezvous/outstanding_operations.h"
#include "rendezvous/receive_canceller.h"
#include "rendezvous/rendezvous_shard.h"
#include "rendezvous/value.h"
#include "tensor/tensor.h"

namespace ferry {

struct RendezvousLimits {
  // Bytes of tensors sent and not yet received, per step.
  size_t max_queued_bytes = ShareOfMemory(size_t{64} << 30, 1);
  // Sends and receives that wait, per step; counted separately, receives that wait for other
  // workers or for the step to start.
  size_t max_pending_ops = size_t{1} << 20;
};

// A send or a receive that waits for its counterpart.
struct PendingOp {
  RendezvousKey key;
  bool is_send = false;
  // For a send.
  size_t bytes = 0;
  absl::Duration age;
};

// Values with the same key are delivered in the order of the sends, to receives in the order of the
// calls. A send never blocks. Thread-safe. Callbacks run on the thread that completes them, with no
// lock held: a receive's on the sender's thread, or inside RecvAsync if the value was already sent,
// as TensorFlow's users expect. A callback may send and receive, to any depth. Time comes from
// `clock`, and deadlines take effect when Expire is called.
// Source: tensorflow/core/framework/rendezvous.cc, LocalRendezvousImpl; departures:
// docs/rendezvous.md.
class LocalRendezvous final {
 public:
  static constexpr size_t kMaxShards = size_t{1} << RendezvousShard::kShardBits;
  // Items of a batch that need no memory from the heap.
  static constexpr size_t kInlinedBatch = 64;

  // `operations` counts the values taken by receives with RecvArgs::operation and, from
  // TrackQueuedSends on, those that wait; must outlive this. May be null.
  // `path`: Received::path of its values. `shards`: a power of two, at most kMaxShards.
  explicit LocalRendezvous(const Clock& clock, RendezvousLimits limits = {},
                           OutstandingOperations* operations = nullptr,
                           absl::string_view path = "local", size_t shards = kMaxShards);
  // Waiting receives end with CANCELLED.
  ~LocalRendezvous();

  LocalRendezvous(const LocalRendezvous&) = delete;
  LocalRendezvous& operator=(const LocalRendezvous&) = delete;

  // Passes the value to the first waiting receive, else queues it. `tensor` is not valid if
  // `is_dead`.
  //   Errors: the abort's status; RESOURCE_EXHAUSTED naming the limit.
  absl::Status Send(const RendezvousKey& key, Tensor tensor, bool is_dead = false,
                    SendArgs args = {});

  //   Errors, through `done`: the abort's status; CANCELLED (derived) by args.cancellation, unless
  //   the value was already sent; DEADLINE_EXCEEDED by Expire; RESOURCE_EXHAUSTED naming the limit.
  void RecvAsync(const RendezvousKey& key, RecvArgs&& args, RecvCallback&& done);

  using ItemPtr = std::unique_ptr<RendezvousItem>;

  // The functions below call their arguments with the lock of the key's shard held, so these must
  // not use the table, or call out.

  // As Send, but a value for which no receive waits is first offered to `divert`, which returns
  // true if it has sent the value elsewhere.
  //   is_behind_another: values of that key are queued.
  using DivertSend =
      absl::FunctionRef<bool(const Tensor& tensor, const SendArgs& args, bool is_behind_another)>;
  absl::Status SendOrDivert(const RendezvousKey& key, Tensor tensor, bool is_dead, SendArgs args,
                            DivertSend divert);
  struct SendEntry {
    // Its tensor stays there if it is diverted.
    SendItem* item = nullptr;
    // The receive that takes it.
    ItemPtr receive;
  };
  // The same for each of them, those of a key in order. Each lock is taken once.
  //   settle: called with no lock held, before the callbacks of the receives run, in order.
  using DivertItem = absl::FunctionRef<bool(const SendItem& item, bool is_behind_another)>;
  void SendManyOrDivert(absl::Span<SendEntry> entries, DivertItem divert,
                        absl::FunctionRef<void()> settle);
  // Offers values to `divert` together, from the first on, up to one for whose key something waits.
  // `divert` is called with the lock of the first one's shard held, which an abort waits for, and
  // returns how many it has sent elsewhere. Returns that, 0 if the table is aborted. REQUIRES:
  // `divert` sends a key's value only if, from the call of this function on, a receive of that key
  // was added by another thread only where it might as well be added after that.
  size_t DivertMany(absl::Span<SendItem* const> items,
                    absl::FunctionRef<size_t(size_t most)> divert);
  // Offers the queued values of the key to `divert`, in order, until it returns false.
  void DivertQueued(const RendezvousKey& key,
                    absl::FunctionRef<bool(const Tensor&, const SendArgs&, bool is_dead)> divert);
  bool HasQueued(const RendezvousKey& key);
  // The key with that text, if a send or a receive waits for it.
  std::optional<RendezvousKey> FindKey(absl::string_view text) const;

  // A value from another process, whose elements are not in a tensor yet.
  class IncomingValue {
   public:
    virtual ~IncomingValue() = default;
    // The receive with that key and those arguments takes it. Returns the receive's status, and
    // sets `tensor` unless it is dead.
    virtual absl::Status Match(const RendezvousKey& key, const RecvArgs& args, Tensor& tensor) = 0;
    // It is queued; sets both.
    virtual absl::Status Queue(Tensor& tensor, SendArgs& args) = 0;
  };
  // As Send, but without its limits.
  //   Errors: the abort's status; that of IncomingValue::Queue.
  absl::Status Arrive(const RendezvousKey& key, bool is_dead, IncomingValue& value);
  struct ArrivalItem {
    const RendezvousKey* key = nullptr;
    bool is_dead = false;
    IncomingValue* value = nullptr;
    // The receive that takes it, and what it is completed with; null: it was queued, unless
    // `status` says why not.
    ItemPtr receive;
    Tensor tensor;
    absl::Status status;
  };
  // As Arrive for each of them, those of a key in order, except that the receives that take them
  // are left to CompleteArrivals. Each lock is taken once.
  void MatchArrivals(absl::Span<ArrivalItem> items);
  // Completes the receives that took them, in order. Call with no lock held. Their status may be
  // changed before.
  static void CompleteArrivals(absl::Span<ArrivalItem> items, absl::string_view path);
  // As MatchArrivals for one, but it is not queued: false: no receive waits for it.
  bool MatchArrival(ArrivalItem& item);

  // As RecvAsync.
  //   take: a queued value is taken; returns the receive's status.
  //   divert: no value is queued. Returns true if the receive is not to wait here: `args` and
  //   `done` are then left alone, and so is RecvArgs::cancellation. It may remove the receives of
  //   that key that wait, in order, by its argument.
  // Returns false if it was diverted.
  using TakeValue = absl::FunctionRef<absl::Status(Tensor&, SendArgs&, const RecvArgs&)>;
  using TakeEarlier = absl::FunctionRef<ItemPtr()>;
  bool RecvOrDivert(const RendezvousKey& key, RecvArgs& args, RecvCallback& done, TakeValue take,
                    absl::FunctionRef<bool(TakeEarlier)> divert);
  struct RecvEntry {
    RecvItem* item = nullptr;
    // Not OK: it ends with that. Set by `take`, and perhaps by `divert`.
    absl::Status status;
    // The value that it takes.
    ItemPtr send;
    CancellationToken::CallbackId token = CancellationToken::kNoCallback;
  };
  // The same for each of them, those of a key in order. Each lock is taken once. `divert` may take
  // the item's arguments and callback.
  //   settle: called with no lock held, before callbacks run, in order.
  using TakeEntry = absl::FunctionRef<absl::Status(RecvEntry&, Tensor&, SendArgs&)>;
  using DivertEntry = absl::FunctionRef<bool(RecvEntry&, TakeEarlier)>;
  void RecvManyOrDivert(absl::Span<RecvEntry> entries, TakeEntry take, DivertEntry divert,
                        absl::FunctionRef<void()> settle);
  // Adds a receive that was removed from a table, behind those of its key.
  void AddReceive(ItemPtr receive);
  // Removes and returns the receive with that id; null: it no longer waits.
  ItemPtr TakeReceive(const RendezvousKey& key, uint64_t id);
  // Completes a receive that was removed from a table. Call with no lock held. `tensor` is not
  // valid if `is_dead`, or the status is not OK.
  static void Complete(ItemPtr receive, absl::Status&& status, Tensor&& tensor, bool is_dead,
                       absl::string_view path);
  // Ends those that were diverted with an error. Call with no lock held.
  static void EndFailed(absl::Span<RecvEntry> entries);
  // The status of receives that were cancelled.
  static absl::Status CancelledReceive();
  // Removes the receives whose keys match, in order for each key; the caller ends them.
  void TakeReceives(absl::FunctionRef<bool(const RendezvousKey&)> matches,
                    absl::FunctionRef<void(ItemPtr)> take);

  // Blocks. Must not be called from a callback: the value may be held back until that callback
  // returns.
  //   Errors: as RecvAsync; DEADLINE_EXCEEDED after `timeout` of real time, and then a later send
  //   stays for another receive.
  absl::StatusOr<Received> Recv(const RendezvousKey& key, absl::Duration timeout,
                                RecvArgs args = {});

  // Ends every waiting and every later call with `why`. The first call counts. REQUIRES: not OK.
  void StartAbort(const absl::Status& why) ABSL_LOCKS_EXCLUDED(abort_mu_);
  // OK unless aborted.
  absl::Status abort_status() const ABSL_LOCKS_EXCLUDED(abort_mu_);

  // Ends receives for whose key `verdict` is not OK with that status, and drops such sends; the
  // step continues. Returns the number of both. `verdict` must not use the rendezvous.
  size_t Fail(absl::FunctionRef<absl::Status(const RendezvousKey&)> verdict);
  // The same for receives only.
  size_t FailReceives(absl::FunctionRef<absl::Status(const RendezvousKey&)> verdict);

  // Drops the queued values whose keys match.
  void DropSends(absl::FunctionRef<bool(const RendezvousKey&)> matches);

  // Ends the receives whose deadline has passed.
  void Expire();
  // With the text of the errors.
  void Expire(absl::FunctionRef<std::string(const RendezvousKey&)> describe);
  // The earliest deadline of a waiting receive, or an earlier time.
  absl::Time NextDeadline() const;

  // Visits items that have waited for at least `min_age`.
  void ForEachPending(absl::Duration min_age,
                      absl::FunctionRef<void(const PendingOp&)> visit) const;
  // From now on the operations' count is not 0 while a send waits for its receive.
  void TrackQueuedSends();
  size_t waiting_count() const;
  // Those of them that are sends.
  size_t send_count() const;
  size_t queued_bytes() const;
  // The size of every internal table, summed over the shards; for tests and debugging.
  TableSizes InnerTableSizes() const;

 private:
  using Shard = RendezvousShard;
  using Item = RendezvousItem;

  absl::Span<Shard> Shards() const { return {shards_.get(), shard_mask_ + 1}; }
  Shard& ShardOf(const RendezvousKey& key) { return shards_[key.hash() & shard_mask_]; }

  template <typename Divert>
  absl::Status SendImpl(const RendezvousKey& key, Tensor&& tensor, bool is_dead, SendArgs&& args,
                        const Divert& divert);
  template <typename Take, typename Divert>
  bool RecvImpl(const RendezvousKey& key, RecvArgs& args, RecvCallback& done, const Take& take,
                const Divert& divert);
  size_t FailItems(absl::FunctionRef<absl::Status(const RendezvousKey&)> verdict,
                   bool is_receives_only);

  // Visits the items, those of a shard together with its lock held, and in order. Clang's analysis
  // cannot see that `visit` is called with the lock.
  template <typename Each, typename KeyOf, typename Visit>
  void ForEachByShard(absl::Span<Each> items, const KeyOf& key_of, const Visit& visit);
  // An arrival. Returns the receive that takes it, which is to be completed with `status` and
  // `tensor` once the lock is released; null: it was queued, unless `status` says why not.
  ItemPtr ArriveLocked(Shard& shard, const RendezvousKey& key, bool is_dead, IncomingValue& value,
                       Tensor& tensor, absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  // Adds a receive for which nothing is queued; `link` is that of its key. If it fails, the caller
  // deregisters `token`, and ends the receive.
  absl::Status AddReceive(Shard& shard, Item** link, const RendezvousKey& key, RecvArgs& args,
                          RecvCallback& done, CancellationToken::CallbackId& token)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  // Removes a value that was sent, and unlocks the shard; `link` is that of its key.
  ItemPtr TakeSendAndUnlock(Shard& shard, Item** link, const RecvArgs& args)
      ABSL_UNLOCK_FUNCTION(shard.mu);
  // Checks the limits for one more item. Called with the shard's lock. The limits apply to the
  // whole table, but while every shard stays within its share the others need not be read.
  // Concurrent additions may exceed the limits together.
  absl::Status Admit(const Shard& shard, size_t bytes) const;
  absl::Status AdmitBySum(size_t bytes) const;
  // A value leaves the table for that receive. Called with the shard's lock, so that the next
  // reader of the table finds the operation.
  void BeginOperation(const RecvArgs& args) const {
    if (ABSL_PREDICT_FALSE(args.operation != nullptr) && operations_ != nullptr) {
      args.operation->Begin(*operations_);
    }
  }
  // Removes and returns every item that `matches`; the caller ends the receives.
  std::vector<ItemPtr> TakeAll(absl::FunctionRef<bool(const Item&)> matches, bool drops_deadlines);

  const Clock& clock_;
  const RendezvousLimits limits_;
  OutstandingOperations* const operations_;
  const absl::string_view path_;
  const std::shared_ptr<ReceiveCanceller> canceller_;
  // Set before any shard is emptied, and read with a shard's lock held.
  std::atomic<bool> is_aborted_{false};
  mutable absl::Mutex abort_mu_;
  absl::Status abort_status_ ABSL_GUARDED_BY(abort_mu_);
  // Number of shards that exceed their share of the limits.
  std::atomic<int> over_share_{0};
  const RendezvousShares shares_;
  // The number of shards is a power of two; one less.
  const size_t shard_mask_;
  const std::unique_ptr<Shard[]> shards_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_LOCAL_RENDEZVOUS_H_
