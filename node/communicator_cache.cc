// SPDX-License-Identifier: Apache-2.0
// CommunicatorCache: acquire, release and eviction.
#include "node/communicator_cache.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(1);
// Assumed size of a communicator whose memory use cannot be measured.
constexpr uint64_t kLeastBytes = uint64_t{16} << 20;
// Maximum time to wait for another rank to decide whether it evicts one.
constexpr absl::Duration kLeavingTimeout = absl::Seconds(2);
// Maximum time to wait for NCCL to end one whose memory is needed.
constexpr absl::Duration kEndTimeout = absl::Seconds(2);

absl::Status LeavingError() { return absl::FailedPreconditionError("this node is leaving"); }

}  // namespace

CommunicatorCache::CommunicatorCache(UseRecordStore& use_record_store, uint64_t budget_bytes,
                                     std::function<uint64_t(int ordinal)> free_bytes)
    : use_record_store_(use_record_store),
      budget_bytes_(budget_bytes),
      free_bytes_(std::move(free_bytes)) {}

CommunicatorUseRecord CommunicatorCache::UseRecordOf(const CommunicatorKey& key, int rank) {
  return CommunicatorUseRecord(key, rank, use_record_store_, SteadyClock(), [this, &key] {
    absl::SleepFor(kLook);
    return CheckAlive(key);
  });
}

absl::Status CommunicatorCache::Stop(absl::Duration timeout) {
  const absl::Time deadline = SteadyClock().Now() + timeout;
  absl::btree_map<std::string, Entry> ended;
  {
    absl::MutexLock lock(&mu_);
    is_stopped_ = true;
    ended.swap(entries_);
  }
  // Each on a thread of its own: the end of one may wait for a rank whose end of another waits.
  for (auto& [name, entry] : ended) BeginEnd(std::move(entry.communicator));
  bool has_calls = false;
  {
    // Calls in progress use what is destroyed next. They end soon: CheckAlive fails.
    absl::MutexLock lock(&mu_);
    const auto is_left = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return entered_.empty(); };
    has_calls = !mu_.AwaitWithTimeout(absl::Condition(&is_left), deadline - SteadyClock().Now());
  }
  const bool has_ended = threads_.StopWithin(deadline - SteadyClock().Now()).empty();
  if (has_ended && !has_calls) return absl::OkStatus();
  {
    absl::MutexLock lock(&mu_);
    self_ = shared_from_this();
  }
  return absl::UnavailableError(
      absl::StrCat(has_ended ? "a call that makes or releases a communicator has not returned"
                             : "a communicator of its program's has not ended",
                   " within ", absl::FormatDuration(timeout), ": NCCL does not release it"));
}

absl::Status CommunicatorCache::Enter(const std::string& name, absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  const auto is_free = [this, &name]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !entered_.contains(name); };
  if (!mu_.AwaitWithTimeout(absl::Condition(&is_free), timeout)) {
    return absl::DeadlineExceededError(
        absl::StrCat("another thread has been making it for over ", absl::FormatDuration(timeout)));
  }
  entered_.insert(name);
  return absl::OkStatus();
}

void CommunicatorCache::Exit(const std::string& name) {
  bool was_missed = false;
  {
    absl::MutexLock lock(&mu_);
    entered_.erase(name);
    was_missed = missed_.erase(name) > 0;
  }
  if (was_missed) ScheduleSweep();
}

std::shared_ptr<NcclCommunicator> CommunicatorCache::Share(const std::string& name, Entry& entry) {
  entry.is_idle = false;
  entry.handle_number = ++count_;
  NcclCommunicator* const lent = entry.communicator.get();
  std::shared_ptr<NcclCommunicator> handle(
      lent, [self = shared_from_this(), name, number = entry.handle_number,
             communicator = entry.communicator](NcclCommunicator*) mutable {
        self->OnLastReference(name, number, std::move(communicator));
      });
  entry.handle = handle;
  return handle;
}

std::shared_ptr<NcclCommunicator> CommunicatorCache::Extract(const std::string& name) {
  absl::MutexLock lock(&mu_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) return nullptr;
  std::shared_ptr<NcclCommunicator> communicator = std::move(found->second.communicator);
  entries_.erase(found);
  return communicator;
}

absl::StatusOr<std::shared_ptr<NcclCommunicator>> CommunicatorCache::Acquire(
    const CommunicatorKey& key, int rank, int ordinal, absl::Duration timeout, Make make) {
  const std::string name = absl::StrCat(key.prefix(), rank);
  const absl::Time deadline = SteadyClock().Now() + timeout;
  if (const absl::Status entered = Enter(name, timeout); !entered.ok()) {
    return absl::Status(entered.code(), absl::StrCat(key.Describe(), ": ", entered.message()));
  }
  // Destroyed after Exit: its user may release it meanwhile, and returning it enters again.
  std::shared_ptr<NcclCommunicator> handle;
  const absl::Cleanup exits = [this, &name] { Exit(name); };
  return AcquireEntered(name, key, rank, ordinal, deadline, make, handle);
}

absl::StatusOr<std::shared_ptr<NcclCommunicator>> CommunicatorCache::AcquireEntered(
    const std::string& name, const CommunicatorKey& key, int rank, int ordinal, absl::Time deadline,
    Make make, std::shared_ptr<NcclCommunicator>& handle) {
  std::shared_ptr<NcclCommunicator> known;
  bool is_used = false;
  {
    absl::MutexLock lock(&mu_);
    FERRY_RETURN_IF_ERROR(CheckAliveLocked(key));
    if (const auto found = entries_.find(name); found != entries_.end()) {
      known = found->second.communicator;
      handle = found->second.handle.lock();
      is_used = !found->second.is_idle;
    }
  }
  CommunicatorUseRecord use_record = UseRecordOf(key, rank);
  if (known == nullptr && budget_bytes_ > 0) {
    uint64_t usual = 0;
    {
      absl::MutexLock lock(&mu_);
      for (const auto& [other, entry] : entries_) {
        if (entry.ordinal == ordinal) usual = std::max(usual, entry.bytes);
      }
    }
    MakeRoom(ordinal, usual);
  }
  // It may have been invalidated on all ranks since: another rank has ended or evicted it.
  FERRY_ASSIGN_OR_RETURN(const uint32_t generation,
                         is_used ? use_record.Generation() : use_record.Begin(deadline));
  if (known != nullptr) {
    if (known->get() != nullptr && generation <= known->generation() && known->Check().ok()) {
      if (handle != nullptr) return handle;
      known->Listen([] {});
      absl::MutexLock lock(&mu_);
      return Share(name, entries_.find(name)->second);
    }
    // Its current user keeps it; this call creates the next one.
    known = nullptr;
    EndWithin(std::min(kEndTimeout, deadline - SteadyClock().Now()), Extract(name));
  }
  const uint64_t free_before = free_bytes_(ordinal);
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> made = make();
  if (!made.ok()) {
    use_record.End().IgnoreError();
    return made;
  }
  const uint64_t free_after = free_bytes_(ordinal);
  uint64_t bytes = kLeastBytes;
  if (free_after > 0 && free_before > free_after) {
    bytes = std::max(bytes, free_before - free_after);
  }
  absl::MutexLock lock(&mu_);
  // `made` is destroyed after the lock is released.
  if (is_stopped_) return LeavingError();
  Entry entry{.key = key, .rank = rank, .ordinal = ordinal, .bytes = bytes};
  entry.communicator = *std::move(made);
  return Share(name, entries_.insert_or_assign(name, std::move(entry)).first->second);
}

void CommunicatorCache::OnLastReference(const std::string& name, uint64_t handle_number,
                                        std::shared_ptr<NcclCommunicator> communicator) {
  Enter(name, absl::InfiniteDuration()).IgnoreError();
  std::optional<Entry> entry;
  bool can_be_kept = budget_bytes_ > 0;
  {
    absl::MutexLock lock(&mu_);
    const auto found = entries_.find(name);
    // Otherwise it has been acquired again, or replaced by a newer one.
    if (found != entries_.end() && found->second.handle_number == handle_number) {
      entry = found->second;
      can_be_kept = can_be_kept && CheckAliveLocked(entry->key).ok();
    }
  }
  if (!entry.has_value()) return Exit(name);
  CommunicatorUseRecord use_record = UseRecordOf(entry->key, entry->rank);
  can_be_kept = can_be_kept && communicator->CheckReusable().ok();
  // If the store cannot be reached, the other ranks could never end it.
  if (use_record.End().ok() && can_be_kept) {
    communicator->Listen([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->ScheduleSweep();
    });
    absl::MutexLock lock(&mu_);
    if (const auto found = entries_.find(name); found != entries_.end()) {
      found->second.is_idle = true;
      found->second.idle_since = ++count_;
    }
  } else {
    Extract(name);
    entry->communicator = nullptr;
    // Aborts it, and notifies the other ranks.
    communicator = nullptr;
  }
  entry->communicator = nullptr;
  communicator = nullptr;
  Exit(name);
  MakeRoom(entry->ordinal, 0);
}

absl::Status CommunicatorCache::CheckAlive(const CommunicatorKey& key) {
  absl::MutexLock lock(&mu_);
  return CheckAliveLocked(key);
}

bool CommunicatorCache::HasDied(const CommunicatorMember& member) {
  absl::MutexLock lock(&mu_);
  return std::any_of(dead_.begin(), dead_.end(),
                     [&member](const Dead& dead) { return dead.is_dead(member); });
}

absl::Status CommunicatorCache::CheckAliveLocked(const CommunicatorKey& key) const {
  if (is_stopped_) return LeavingError();
  for (const Dead& dead : dead_) {
    for (int rank = 0; rank < key.size(); ++rank) {
      if (!dead.is_dead(key.member(rank))) continue;
      return absl::Status(dead.why.code(),
                          absl::StrCat(key.DescribeRank(rank), " of ", key.Describe(),
                                       " is gone: ", dead.why.message()));
    }
  }
  return absl::OkStatus();
}

void CommunicatorCache::MakeRoom(int ordinal, uint64_t bytes) {
  absl::flat_hash_set<std::string> tried;
  while (true) {
    std::optional<Entry> oldest;
    std::string name;
    {
      absl::MutexLock lock(&mu_);
      uint64_t used = bytes;
      for (const auto& [other, entry] : entries_) {
        if (entry.ordinal != ordinal) continue;
        used += entry.bytes;
        if (!entry.is_idle || entered_.contains(other) || tried.contains(other)) continue;
        if (!oldest.has_value() || entry.idle_since < oldest->idle_since) {
          oldest = entry;
          name = other;
        }
      }
      if (used <= budget_bytes_ || !oldest.has_value() || is_stopped_) return;
      entered_.insert(name);
    }
    tried.insert(name);
    const absl::StatusOr<bool> is_over = UseRecordOf(oldest->key, oldest->rank)
                                             .TryEndForAll(oldest->communicator->generation(),
                                                           SteadyClock().Now() + kLeavingTimeout);
    oldest.reset();
    if (is_over.ok() && *is_over) EndWithin(kEndTimeout, Extract(name));
    Exit(name);
  }
}

std::shared_ptr<const absl::Notification> CommunicatorCache::BeginEnd(
    std::shared_ptr<NcclCommunicator> communicator) {
  auto is_over = std::make_shared<absl::Notification>();
  const bool has_begun =
      threads_.Run("ferry-kept", [is_over, communicator = std::move(communicator)]() mutable {
        communicator = nullptr;
        is_over->Notify();
      });
  if (!has_begun) is_over->Notify();
  return is_over;
}

void CommunicatorCache::EndWithin(absl::Duration timeout,
                                  std::shared_ptr<NcclCommunicator> communicator) {
  BeginEnd(std::move(communicator))->WaitForNotificationWithTimeout(timeout);
}

void CommunicatorCache::Forget(std::function<bool(const CommunicatorMember&)> is_dead,
                               absl::Status why) {
  {
    absl::MutexLock lock(&mu_);
    dead_.push_back({std::move(is_dead), std::move(why)});
  }
  ScheduleSweep();
}

void CommunicatorCache::ScheduleSweep() {
  if (is_sweep_scheduled_.exchange(true)) return;
  threads_.Run("ferry-kept", [this] {
    is_sweep_scheduled_ = false;
    Sweep();
  });
}

void CommunicatorCache::Sweep() {
  std::vector<std::string> idle;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [name, entry] : entries_) {
      if (entered_.contains(name)) {
        // Its thread may have looked before what this looks for, and may be about to make it idle.
        missed_.insert(name);
      } else if (entry.is_idle) {
        idle.push_back(name);
      }
    }
  }
  // All at once: the end of one may wait for a rank whose end of another waits.
  std::vector<std::pair<std::string, std::shared_ptr<const absl::Notification>>> ending;
  for (const std::string& name : idle) {
    std::shared_ptr<NcclCommunicator> communicator;
    bool is_over = false;
    {
      absl::MutexLock lock(&mu_);
      const auto found = entries_.find(name);
      if (found == entries_.end() || !found->second.is_idle) continue;
      if (!entered_.insert(name).second) {
        missed_.insert(name);
        continue;
      }
      communicator = found->second.communicator;
      is_over = !CheckAliveLocked(found->second.key).ok();
    }
    is_over = is_over || !communicator->Check().ok();
    communicator = nullptr;
    if (is_over) {
      ending.emplace_back(name, BeginEnd(Extract(name)));
    } else {
      Exit(name);
    }
  }
  const absl::Time deadline = SteadyClock().Now() + kEndTimeout;
  for (const auto& [name, has_ended] : ending) {
    has_ended->WaitForNotificationWithTimeout(deadline - SteadyClock().Now());
    Exit(name);
  }
}

}  // namespace ferry
