// SPDX-License-Identifier: Apache-2.0
// The queue of posted receives, and when values are matched in the table instead.
#include "rendezvous/arrival_table.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/container/inlined_vector.h"

namespace ferry {
namespace {

// Fewer than of the local table, since a step whose values are all requested has one too.
constexpr size_t kShards = 16;
// In the ids of receives in the queue, so that they differ from those which the table gives.
constexpr uint64_t kPostedId = uint64_t{1} << 63;
// Posts of a thread between two looks at the pause, whose cache line all threads write.
constexpr uint32_t kPostsPerLook = 16;

// The table to which a thread is adding, as in hazard pointers: each thread writes a cache line of
// its own, where a counter in the table would be written by all. Not in the table, since a callback
// may destroy it.
struct alignas(64) ThreadUse {
  std::atomic<const void*> table{nullptr};
  std::atomic<bool> is_owned{false};
};
constexpr size_t kMaxThreadUses = 256;
std::array<ThreadUse, kMaxThreadUses> thread_uses;
// Uses by threads for which there is none of those; then no queue is opened.
std::atomic<uint32_t> other_uses{0};

// The calling thread's; null: there are too many threads.
std::atomic<const void*>* ThisThreadsUse() {
  struct Owner {
    Owner() {
      for (ThreadUse& each : thread_uses) {
        if (each.is_owned.load(std::memory_order_relaxed) || each.is_owned.exchange(true)) continue;
        use = &each;
        return;
      }
    }
    ~Owner() {
      if (use != nullptr) use->is_owned.store(false);
      use = nullptr;
    }
    ThreadUse* use = nullptr;
  };
  thread_local Owner owner;
  return owner.use == nullptr ? nullptr : &owner.use->table;
}

}  // namespace

// While it exists, this thread may insert into the table: its construction closes an open queue,
// and Open fails while any thread has one. One that is made in a callback of another operation uses
// the thread's mark in its place: the outer operation has inserted what it had to before it called
// back.
class ArrivalTable::TableUse final {
 public:
  explicit TableUse(ArrivalTable& table)
      : thread_(ThisThreadsUse()),
        before_(thread_ == nullptr ? nullptr : thread_->load(std::memory_order_relaxed)) {
    Mark(&table);
    while (table.is_open_.load()) {
      Unmark();
      table.Close();
      Mark(&table);
    }
  }
  ~TableUse() { Unmark(); }

  TableUse(const TableUse&) = delete;
  TableUse& operator=(const TableUse&) = delete;

  // True if an operation uses that table.
  static bool IsUsed(const ArrivalTable* table) {
    if (other_uses.load() != 0) return true;
    for (const ThreadUse& each : thread_uses) {
      if (each.table.load() == table) return true;
    }
    return false;
  }

 private:
  // Sequentially consistent, as in Open: either this is seen there, or the open queue here.
  void Mark(const ArrivalTable* table) {
    if (thread_ != nullptr) {
      thread_->store(table);
    } else {
      other_uses.fetch_add(1);
    }
  }
  void Unmark() {
    if (thread_ != nullptr) {
      thread_->store(before_, std::memory_order_release);
    } else {
      other_uses.fetch_sub(1);
    }
  }

  std::atomic<const void*>* const thread_;
  const void* const before_;
};

ArrivalTable::ArrivalTable(const Clock& clock, const RendezvousLimits& limits)
    : clock_(clock),
      max_receives_(limits.max_pending_ops),
      table_(clock, limits, /*operations=*/nullptr, kPath, kShards),
      canceller_(std::make_shared<ReceiveCanceller>(
          [this](const RendezvousKey& key, uint64_t id) { return TakeCancelled(key, id); })) {}

ArrivalTable::~ArrivalTable() {
  {
    SpinLockHolder lock(&mu_);
    CloseLocked();
    is_over_ = true;
  }
  canceller_->Detach();
}

bool ArrivalTable::Open() {
  if (is_over_) return false;
  // An operation that begins to use the table from now on waits for the lock.
  is_open_.store(true);
  if (TableUse::IsUsed(this) || table_.send_count() != 0) {
    is_open_.store(false);
    return false;
  }
  may_have_older_ = true;
  taken_ = 0;
  searched_ = 0;
  return true;
}

void ArrivalTable::Close() {
  SpinLockHolder lock(&mu_);
  CloseLocked();
}

void ArrivalTable::CloseLocked() {
  if (!is_open_.load(std::memory_order_relaxed)) return;
  for (size_t i = head_; i < posted_.size(); ++i) {
    if (posted_[i] != nullptr) table_.AddReceive(std::move(posted_[i]));
  }
  posted_.clear();
  head_ = 0;
  posted_count_.store(0, std::memory_order_relaxed);
  next_deadline_ = absl::InfiniteFuture();
  is_open_.store(false);
}

void ArrivalTable::Pause() {
  if (taken_ >= uint64_t{8} * next_pause_) next_pause_ = kFirstPause;
  taken_ = 0;
  pause_.store(next_pause_, std::memory_order_relaxed);
  next_pause_ = std::min(2 * next_pause_, kMaxPause);
}

bool ArrivalTable::HasOlder() {
  // Nothing is added while the queue is open.
  if (may_have_older_) may_have_older_ = table_.waiting_count() != 0;
  return may_have_older_;
}

void ArrivalTable::SkipTaken() {
  while (head_ < posted_.size() && posted_[head_] == nullptr) ++head_;
  if (head_ < posted_.size()) return;
  posted_.clear();
  head_ = 0;
  next_deadline_ = absl::InfiniteFuture();
}

bool ArrivalTable::IsWorthOpening(size_t posts) {
  thread_local uint32_t unseen = 0;
  unseen += static_cast<uint32_t>(std::min<size_t>(posts, kMaxPause));
  const uint32_t pause = pause_.load(std::memory_order_relaxed);
  if (pause == 0) return true;
  if (unseen < kPostsPerLook) return false;
  pause_.store(pause - std::min(pause, unseen), std::memory_order_relaxed);
  unseen = 0;
  return false;
}

bool ArrivalTable::IsOpenFor(size_t receives) {
  if (!is_open_.load(std::memory_order_relaxed) && !Open()) {
    Pause();
    return false;
  }
  const size_t older = HasOlder() ? table_.waiting_count() : 0;
  return older + posted_count_.load(std::memory_order_relaxed) + receives <= max_receives_;
}

ArrivalTable::ItemPtr ArrivalTable::Push(RecvItem& item, int64_t now) {
  uint64_t id = 0;
  CancellationToken::CallbackId token = CancellationToken::kNoCallback;
  CancellationToken* const cancellation = item.args.cancellation;
  const absl::Time deadline = item.args.deadline;
  if (cancellation != nullptr || deadline != absl::InfiniteFuture()) {
    id = kPostedId | ++last_id_;
    next_deadline_ = std::min(next_deadline_, deadline);
  }
  if (cancellation != nullptr) {
    token = canceller_->Register(*cancellation, *item.key, id);
  }
  auto receive = std::make_unique<RendezvousItem>(*item.key, now, id, std::move(item.args),
                                                  std::move(item.done), token);
  if (cancellation != nullptr && token == CancellationToken::kNoCallback) return receive;
  if (head_ > posted_.size() / 2) {
    posted_.erase(posted_.begin(), posted_.begin() + static_cast<std::ptrdiff_t>(head_));
    next_text_ -= std::min(next_text_, head_);
    head_ = 0;
  }
  posted_.push_back(std::move(receive));
  posted_count_.store(posted_count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return nullptr;
}

ArrivalTable::ItemPtr ArrivalTable::TakeFromQueue(size_t index) {
  ItemPtr taken = std::move(posted_[index]);
  posted_count_.store(posted_count_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  SkipTaken();
  return taken;
}

ArrivalTable::ItemPtr ArrivalTable::TakeEarlier(const RendezvousKey& key) {
  for (size_t i = head_; i < posted_.size(); ++i) {
    if (posted_[i] != nullptr && posted_[i]->key == key) return TakeFromQueue(i);
  }
  return nullptr;
}

void ArrivalTable::EndCancelled(absl::Span<ItemPtr> receives) {
  for (ItemPtr& receive : receives) {
    LocalRendezvous::Complete(std::move(receive), LocalRendezvous::CancelledReceive(), Tensor(),
                              /*is_dead=*/false, "");
  }
}

bool ArrivalTable::Post(absl::Span<LocalRendezvous::RecvEntry> entries,
                        absl::FunctionRef<bool()> may_wait) {
  if (!is_open_.load(std::memory_order_relaxed) && !IsWorthOpening(entries.size())) return false;
  absl::InlinedVector<ItemPtr, 1> cancelled;
  {
    SpinLockHolder lock(&mu_);
    if (!IsOpenFor(entries.size()) || !may_wait()) return false;
    const int64_t now = clock_.CoarseNanos();
    for (LocalRendezvous::RecvEntry& entry : entries) {
      ItemPtr left = Push(*entry.item, now);
      if (left != nullptr) cancelled.push_back(std::move(left));
    }
  }
  EndCancelled(absl::MakeSpan(cancelled));
  return true;
}

size_t ArrivalTable::TakePosted(size_t max_count, MatchPosted match, ItemPtr* taken) {
  if (!has_posted()) return 0;
  SpinLockHolder lock(&mu_);
  if (QueueSize() == 0 || HasOlder()) return 0;
  const size_t count =
      match(absl::MakeConstSpan(posted_).subspan(head_, std::min(max_count, QueueSize())));
  for (size_t i = 0; i < count; ++i) taken[i] = std::move(posted_[head_ + i]);
  head_ += count;
  taken_ += count;
  posted_count_.store(posted_count_.load(std::memory_order_relaxed) - count,
                      std::memory_order_relaxed);
  SkipTaken();
  return count;
}

bool ArrivalTable::MatchLocked(ArrivalItem& item) {
  if (HasOlder() && table_.MatchArrival(item)) return true;
  const size_t end = std::min(posted_.size(), head_ + kWindow);
  for (size_t i = head_; i < end; ++i) {
    if (posted_[i] == nullptr || !(posted_[i]->key == *item.key)) continue;
    item.status = item.value->Match(posted_[i]->key, posted_[i]->receive.args, item.tensor);
    searched_ += i - head_;
    ++taken_;
    item.receive = TakeFromQueue(i);
    // The table finds it sooner.
    if (searched_ > kMaxSearched * (taken_ + kWindow)) {
      Pause();
      CloseLocked();
    }
    return true;
  }
  return false;
}

bool ArrivalTable::RecvOrDivert(const RendezvousKey& key, RecvArgs& args, RecvCallback& done,
                                LocalRendezvous::TakeValue take,
                                absl::FunctionRef<bool(LocalRendezvous::TakeEarlier)> divert) {
  if (is_open_.load(std::memory_order_relaxed)) {
    ItemPtr cancelled;
    bool is_done = false;
    {
      SpinLockHolder lock(&mu_);
      is_done = is_open_.load(std::memory_order_relaxed) && !HasOlder() && IsOpenFor(1);
      if (is_done) {
        const auto take_earlier = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return TakeEarlier(key); };
        if (divert(take_earlier)) return false;
        RecvItem item = {.key = &key, .args = std::move(args), .done = std::move(done)};
        cancelled = Push(item, clock_.CoarseNanos());
      }
    }
    if (cancelled != nullptr) EndCancelled(absl::MakeSpan(&cancelled, 1));
    if (is_done) return true;
  }
  const TableUse use(*this);
  return table_.RecvOrDivert(key, args, done, take, divert);
}

void ArrivalTable::RecvManyOrDivert(absl::Span<LocalRendezvous::RecvEntry> entries,
                                    LocalRendezvous::TakeEntry take,
                                    LocalRendezvous::DivertEntry divert,
                                    absl::FunctionRef<void()> settle) {
  if (is_open_.load(std::memory_order_relaxed)) {
    absl::InlinedVector<ItemPtr, 1> cancelled;
    bool is_done = false;
    {
      SpinLockHolder lock(&mu_);
      is_done =
          is_open_.load(std::memory_order_relaxed) && !HasOlder() && IsOpenFor(entries.size());
      const int64_t now = is_done ? clock_.CoarseNanos() : 0;
      for (size_t i = 0; is_done && i < entries.size(); ++i) {
        LocalRendezvous::RecvEntry& entry = entries[i];
        const auto take_earlier = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return TakeEarlier(*entry.item->key);
        };
        if (divert(entry, take_earlier)) continue;
        ItemPtr left = Push(*entry.item, now);
        if (left != nullptr) cancelled.push_back(std::move(left));
      }
    }
    if (is_done) {
      settle();
      LocalRendezvous::EndFailed(entries);
      return EndCancelled(absl::MakeSpan(cancelled));
    }
  }
  const TableUse use(*this);
  table_.RecvManyOrDivert(entries, take, divert, settle);
}

absl::Status ArrivalTable::Arrive(const RendezvousKey& key, bool is_dead,
                                  LocalRendezvous::IncomingValue& value) {
  if (is_open_.load(std::memory_order_relaxed)) {
    ArrivalItem item = {.key = &key, .is_dead = is_dead, .value = &value};
    bool is_matched = false;
    {
      SpinLockHolder lock(&mu_);
      if (is_open_.load(std::memory_order_relaxed)) {
        is_matched = MatchLocked(item);
        if (!is_matched) {
          Pause();
          CloseLocked();
        }
      }
    }
    if (is_matched) {
      LocalRendezvous::CompleteArrivals(absl::MakeSpan(&item, 1), kPath);
      return absl::OkStatus();
    }
  }
  const TableUse use(*this);
  return table_.Arrive(key, is_dead, value);
}

void ArrivalTable::ArriveMany(absl::Span<ArrivalItem> items, absl::FunctionRef<void()> settle) {
  size_t matched = 0;
  if (is_open_.load(std::memory_order_relaxed)) {
    SpinLockHolder lock(&mu_);
    const auto is_open = [this] { return is_open_.load(std::memory_order_relaxed); };
    while (matched < items.size() && is_open() && MatchLocked(items[matched])) ++matched;
    if (matched < items.size() && is_open()) {
      Pause();
      CloseLocked();
    }
  }
  if (matched < items.size()) {
    const TableUse use(*this);
    table_.MatchArrivals(items.subspan(matched));
  }
  settle();
  LocalRendezvous::CompleteArrivals(items, kPath);
}

std::optional<RendezvousKey> ArrivalTable::FindKey(absl::string_view text) const {
  if (is_open_.load(std::memory_order_relaxed)) {
    const uint64_t hash = RendezvousKey::HashOf(text);
    SpinLockHolder lock(&mu_);
    // Texts are mostly looked for in the order of the queue, before any of them is taken.
    if (next_text_ < head_ || next_text_ >= posted_.size()) next_text_ = head_;
    const size_t end = std::min(posted_.size(), next_text_ + kWindow);
    for (size_t i = next_text_; i < end; ++i) {
      if (posted_[i] == nullptr) continue;
      const RendezvousKey& key = posted_[i]->key;
      if (key.hash() != hash || key.text() != text) continue;
      next_text_ = i + 1;
      return key;
    }
    next_text_ = head_;
  }
  return table_.FindKey(text);
}

void ArrivalTable::TakeReceives(absl::FunctionRef<bool(const RendezvousKey&)> matches,
                                absl::FunctionRef<void(ItemPtr)> take) {
  Close();
  table_.TakeReceives(matches, take);
}

ArrivalTable::ItemPtr ArrivalTable::TakeCancelled(const RendezvousKey& key, uint64_t id) {
  Close();
  return table_.TakeReceive(key, id);
}

void ArrivalTable::StartAbort(const absl::Status& why) {
  {
    // A receive that is posted from now on finds the table aborted.
    SpinLockHolder lock(&mu_);
    CloseLocked();
    is_over_ = true;
  }
  table_.StartAbort(why);
}

size_t ArrivalTable::FailReceives(absl::FunctionRef<absl::Status(const RendezvousKey&)> verdict) {
  Close();
  return table_.FailReceives(verdict);
}

void ArrivalTable::DropSends(absl::FunctionRef<bool(const RendezvousKey&)> matches) {
  table_.DropSends(matches);
}

void ArrivalTable::Expire(absl::FunctionRef<std::string(const RendezvousKey&)> describe) {
  const absl::Time now = clock_.Now();
  {
    SpinLockHolder lock(&mu_);
    if (next_deadline_ <= now) CloseLocked();
  }
  table_.Expire(describe);
}

absl::Time ArrivalTable::NextDeadline() const {
  absl::Time next = table_.NextDeadline();
  SpinLockHolder lock(&mu_);
  return std::min(next, next_deadline_);
}

void ArrivalTable::ForEachPending(absl::Duration min_age,
                                  absl::FunctionRef<void(const PendingOp&)> visit) {
  Close();
  table_.ForEachPending(min_age, visit);
}

size_t ArrivalTable::waiting_count() const {
  return table_.waiting_count() + posted_count_.load(std::memory_order_relaxed);
}

TableSizes ArrivalTable::InnerTableSizes() const {
  TableSizes sizes = table_.InnerTableSizes();
  SpinLockHolder lock(&mu_);
  sizes["table.posted"] = posted_count_.load(std::memory_order_relaxed);
  return sizes;
}

}  // namespace ferry
