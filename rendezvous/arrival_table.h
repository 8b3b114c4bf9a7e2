// SPDX-License-Identifier: Apache-2.0
// ArrivalTable: values of one step from other processes, and the receives that wait for them.
#ifndef FERRY_RENDEZVOUS_ARRIVAL_TABLE_H_
#define FERRY_RENDEZVOUS_ARRIVAL_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "base/clock.h"
#include "base/spin_lock.h"
#include "base/table_sizes.h"
#include "rendezvous/key.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/receive_canceller.h"
#include "rendezvous/value.h"

namespace ferry {

// A LocalRendezvous with a queue of posted receives in front of it. Values mostly arrive in the
// order in which their receives were posted, and are then matched without a search, as MPI
// libraries match the head of their posted receive queue.
//
// The queue is open or closed. While it is open, no unexpected value waits in the table, receives
// in the table are older than those in the queue, and a value is first looked for in the table.
// When it is closed, its receives move into the table, in order. It is closed by
//   a value that matches none of the first kWindow receives;
//   searches that pass more than kMaxSearched receives on average;
//   a cancellation, a deadline that has passed, an abort, and the methods that say so.
// It opens again when a receive is posted and no unexpected value waits, after as many posts as
// Pause says.
//
// Thread-safe. Lock order: eager_link.h.
class ArrivalTable final {
 public:
  using ItemPtr = LocalRendezvous::ItemPtr;
  using ArrivalItem = LocalRendezvous::ArrivalItem;

  ArrivalTable(const Clock& clock, const RendezvousLimits& limits);
  // Waiting receives end with CANCELLED.
  ~ArrivalTable();

  ArrivalTable(const ArrivalTable&) = delete;
  ArrivalTable& operator=(const ArrivalTable&) = delete;

  // Posts receives in the queue. False: nothing was done, use RecvOrDivert or RecvManyOrDivert.
  //   may_wait: called with the queue's lock held. False: some of them may have to be requested.
  bool Post(absl::Span<LocalRendezvous::RecvEntry> entries, absl::FunctionRef<bool()> may_wait)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `match`, with the queue's lock held, with up to `max_count` receives from the head on. It
  // returns how many of them, from the first on, it accepts; those are moved to `taken`, for the
  // caller to complete. Returns that number.
  using MatchPosted = absl::FunctionRef<size_t(absl::Span<const ItemPtr> posted)>;
  size_t TakePosted(size_t max_count, MatchPosted match, ItemPtr* taken) ABSL_LOCKS_EXCLUDED(mu_);
  bool has_posted() const { return posted_count_.load(std::memory_order_relaxed) != 0; }

  // As in LocalRendezvous. An open queue stays open unless receives wait in the table; one that is
  // diverted leaves the others where they are.
  bool RecvOrDivert(const RendezvousKey& key, RecvArgs& args, RecvCallback& done,
                    LocalRendezvous::TakeValue take,
                    absl::FunctionRef<bool(LocalRendezvous::TakeEarlier)> divert)
      ABSL_LOCKS_EXCLUDED(mu_);
  void RecvManyOrDivert(absl::Span<LocalRendezvous::RecvEntry> entries,
                        LocalRendezvous::TakeEntry take, LocalRendezvous::DivertEntry divert,
                        absl::FunctionRef<void()> settle) ABSL_LOCKS_EXCLUDED(mu_);
  // As in LocalRendezvous. Stays open if the value matches.
  absl::Status Arrive(const RendezvousKey& key, bool is_dead, LocalRendezvous::IncomingValue& value)
      ABSL_LOCKS_EXCLUDED(mu_);
  // As Arrive for each of them, those of a key in order.
  //   settle: called with no lock held, once the items are matched and before their callbacks run,
  //   in order. It may change the status of those that were taken.
  void ArriveMany(absl::Span<ArrivalItem> items, absl::FunctionRef<void()> settle)
      ABSL_LOCKS_EXCLUDED(mu_);
  // As in LocalRendezvous. Stays open.
  std::optional<RendezvousKey> FindKey(absl::string_view text) const ABSL_LOCKS_EXCLUDED(mu_);
  void DropSends(absl::FunctionRef<bool(const RendezvousKey&)> matches);
  // As in LocalRendezvous. These close the queue.
  void TakeReceives(absl::FunctionRef<bool(const RendezvousKey&)> matches,
                    absl::FunctionRef<void(ItemPtr)> take) ABSL_LOCKS_EXCLUDED(mu_);
  void StartAbort(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  size_t FailReceives(absl::FunctionRef<absl::Status(const RendezvousKey&)> verdict)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Closes the queue if a deadline of it has passed.
  void Expire(absl::FunctionRef<std::string(const RendezvousKey&)> describe)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Time NextDeadline() const ABSL_LOCKS_EXCLUDED(mu_);
  // Closes the queue.
  void ForEachPending(absl::Duration min_age, absl::FunctionRef<void(const PendingOp&)> visit)
      ABSL_LOCKS_EXCLUDED(mu_);
  size_t waiting_count() const;
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

  // Received::path of its values.
  static constexpr absl::string_view kPath = "eager";

 private:
  class TableUse;

  // Receives behind the head that are looked at.
  static constexpr size_t kWindow = 128;
  // Receives that a search may pass over on average.
  static constexpr uint64_t kMaxSearched = 8;
  // Posts after which a queue that was closed by a value may be opened again: the first number,
  // twice as many each time, up to the second, and the first again after it has matched many.
  static constexpr uint32_t kFirstPause = 512;
  static constexpr uint32_t kMaxPause = 16384;

  size_t QueueSize() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return posted_.size() - head_; }
  // False: it has been closed for too few posts. Counts these.
  bool IsWorthOpening(size_t posts);
  // Opens it if it is closed. False: it stays closed, or has no room.
  bool IsOpenFor(size_t receives) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds a receive at the end. Returns it if it was cancelled before, for EndCancelled.
  ItemPtr Push(RecvItem& item, int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void EndCancelled(absl::Span<ItemPtr> receives);
  ItemPtr TakeFromQueue(size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the first receive of that key; null: there is none.
  ItemPtr TakeEarlier(const RendezvousKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False: it stays closed.
  bool Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Closes the queue, if it is open.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);
  // Moves its receives into the table.
  void CloseLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // It stays closed for a number of posts: opening it is not worth while.
  void Pause() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes a receive that is cancelled; null: it no longer waits.
  ItemPtr TakeCancelled(const RendezvousKey& key, uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // Matches a value while the queue is open; false: no receive was found.
  bool MatchLocked(ArrivalItem& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // After receives were taken: the head is a receive again, or the queue is empty.
  void SkipTaken() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // True if receives wait in the table, which are older. While the queue is open.
  bool HasOlder() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock& clock_;
  const size_t max_receives_;
  LocalRendezvous table_;
  const std::shared_ptr<ReceiveCanceller> canceller_;
  // Written with the lock held.
  std::atomic<bool> is_open_{false};
  std::atomic<size_t> posted_count_{0};
  // Posts until the queue may be opened; approximate. Written while it is closed.
  alignas(64) std::atomic<uint32_t> pause_{0};

  mutable SpinLock mu_;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  // In order; null: it was taken. Those before the head were taken.
  std::vector<ItemPtr> posted_ ABSL_GUARDED_BY(mu_);
  size_t head_ ABSL_GUARDED_BY(mu_) = 0;
  // Where the last search for a key's text ended.
  mutable size_t next_text_ ABSL_GUARDED_BY(mu_) = 0;
  bool may_have_older_ ABSL_GUARDED_BY(mu_) = false;
  // The earliest of those in the queue, or earlier.
  absl::Time next_deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  // For the next time.
  uint32_t next_pause_ ABSL_GUARDED_BY(mu_) = kFirstPause;
  // Receives taken from the queue since it was opened.
  uint64_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  // Receives that were passed over in searches for these.
  uint64_t searched_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_ARRIVAL_TABLE_H_
