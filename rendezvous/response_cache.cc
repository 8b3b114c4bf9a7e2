// SPDX-License-Identifier: Apache-2.0
// Entries by request id, and a list of kept ones in order of arrival.
#include "rendezvous/response_cache.h"

#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "rendezvous/recent_request_ids.h"
#include "rendezvous/value.h"

namespace ferry {

class ResponseCache::Core final : public std::enable_shared_from_this<ResponseCache::Core> {
 public:
  explicit Core(ResponseCacheLimits limits) : limits_(limits), forgotten_(limits.max_forgotten) {}

  bool Attach(int64_t request_id, int64_t step_id, CancellationToken* cancellation,
              ServedCallback done) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::Status status;
    ServedValue value;
    std::optional<Entry> dropped;
    {
      absl::MutexLock lock(&mu_);
      auto found = entries_.find(request_id);
      if (found == entries_.end()) status = MakeRoomLocked(request_id, dropped);
      const bool is_first = status.ok() && found == entries_.end();
      if (!is_first && status.ok() && found->second.is_ready) {
        value = found->second.value;
      } else if (status.ok()) {
        Waiter waiter{.id = ++last_waiter_, .cancellation = cancellation, .done = std::move(done)};
        if (cancellation != nullptr) {
          waiter.token = cancellation->Register(
              [self = weak_from_this(), request_id, waiter_id = waiter.id]() {
                if (const auto core = self.lock(); core != nullptr) {
                  core->Detach(request_id, waiter_id);
                }
              });
        }
        if (cancellation == nullptr || waiter.token != CancellationToken::kNoCallback) {
          if (is_first) found = entries_.emplace(request_id, Entry{.step_id = step_id}).first;
          found->second.waiters.push_back(std::move(waiter));
          return is_first;
        }
        done = std::move(waiter.done);
        status = Cancelled();
      }
    }
    std::move(done)(std::move(status), std::move(value));
    return false;
  }

  void Complete(int64_t request_id, const absl::Status& status, ServedValue value)
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<Waiter> waiters;
    // Their tensors are released after the lock.
    std::vector<Entry> dropped;
    {
      absl::MutexLock lock(&mu_);
      const auto found = entries_.find(request_id);
      if (found == entries_.end() || found->second.is_ready) return;
      Entry& entry = found->second;
      waiters.swap(entry.waiters);
      const size_t bytes = value.tensor.is_valid() ? value.tensor.bytes() : 0;
      if (!status.ok()) {
        entries_.erase(found);
      } else if (entry.is_over || bytes > limits_.max_bytes) {
        forgotten_.TrackUnique(request_id, "").IgnoreError();
        entries_.erase(found);
      } else {
        value.require_ack = true;
        entry.is_ready = true;
        entry.value = value;
        entry.bytes = bytes;
        bytes_ += bytes;
        entry.position = kept_.insert(kept_.end(), request_id);
        while (bytes_ > limits_.max_bytes) dropped.push_back(TakeLocked(kept_.front()));
      }
    }
    for (Waiter& waiter : waiters) End(std::move(waiter), status, value);
  }

  void MarkFinished(int64_t request_id) ABSL_LOCKS_EXCLUDED(mu_) {
    std::optional<Entry> dropped;
    absl::MutexLock lock(&mu_);
    const auto found = entries_.find(request_id);
    if (found != entries_.end() && found->second.is_ready) dropped = TakeLocked(request_id);
  }

  void CleanupStep(int64_t step_id) ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<Entry> dropped;
    absl::MutexLock lock(&mu_);
    std::vector<int64_t> ready;
    for (auto& [request_id, entry] : entries_) {
      if (entry.step_id != step_id) continue;
      entry.is_over = true;
      if (entry.is_ready) ready.push_back(request_id);
    }
    for (const int64_t request_id : ready) dropped.push_back(TakeLocked(request_id));
  }

  void EndAll() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::flat_hash_map<int64_t, Entry> entries;
    {
      absl::MutexLock lock(&mu_);
      entries.swap(entries_);
      kept_.clear();
      bytes_ = 0;
    }
    for (auto& [request_id, entry] : entries) {
      for (Waiter& waiter : entry.waiters) {
        End(std::move(waiter), absl::CancelledError("the worker's response cache is deleted"), {});
      }
    }
  }

  size_t entry_count() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return entries_.size();
  }
  size_t bytes() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return bytes_;
  }
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    size_t ready = 0;
    size_t ready_bytes = 0;
    size_t waiters = 0;
    for (const auto& [request_id, entry] : entries_) {
      ready += entry.is_ready ? 1 : 0;
      ready_bytes += entry.is_ready ? entry.bytes : 0;
      waiters += entry.waiters.size();
    }
    return {{"cache.entries", entries_.size()},
            {"cache.kept", kept_.size()},
            {"cache.ready", ready},
            {"cache.ready_bytes", ready_bytes},
            {"cache.bytes", bytes_},
            {"cache.waiters", waiters}};
  }

 private:
  struct Waiter {
    uint64_t id = 0;
    CancellationToken* cancellation = nullptr;
    CancellationToken::CallbackId token = CancellationToken::kNoCallback;
    ServedCallback done;
  };

  struct Entry {
    int64_t step_id = 0;
    bool is_ready = false;
    // Its step has been cleaned up.
    bool is_over = false;
    ServedValue value;
    size_t bytes = 0;
    std::list<int64_t>::iterator position;
    std::vector<Waiter> waiters;
  };

  static absl::Status Cancelled() {
    return MakeDerived(absl::CancelledError("RecvTensor is cancelled."));
  }

  static void End(Waiter waiter, const absl::Status& status, const ServedValue& value) {
    if (waiter.token != CancellationToken::kNoCallback)
      waiter.cancellation->Deregister(waiter.token);
    std::move(waiter.done)(status, value);
  }

  // OK if one more entry fits; a kept one may be evicted for it, into `dropped`.
  absl::Status MakeRoomLocked(int64_t request_id, std::optional<Entry>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (forgotten_.Contains(request_id)) {
      return absl::AbortedError(absl::StrCat(
          "The same RecvTensor (GrpcWorker) request was received twice. The request id is ",
          request_id,
          "; its value was marked as received, or its step is over, or it was the "
          "oldest when ResponseCacheLimits were reached"));
    }
    if (entries_.size() < limits_.max_entries) return absl::OkStatus();
    if (kept_.empty()) {
      return absl::ResourceExhaustedError(absl::StrCat(entries_.size(),
                                                       " requests for tensors wait, the limit "
                                                       "(ResponseCacheLimits::max_entries)"));
    }
    dropped = TakeLocked(kept_.front());
    return absl::OkStatus();
  }

  // REQUIRES: the entry is ready.
  Entry TakeLocked(int64_t request_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = entries_.find(request_id);
    Entry entry = std::move(found->second);
    entries_.erase(found);
    kept_.erase(entry.position);
    bytes_ -= entry.bytes;
    forgotten_.TrackUnique(request_id, "").IgnoreError();
    return entry;
  }

  // The value stays for a retry.
  void Detach(int64_t request_id, uint64_t waiter_id) ABSL_LOCKS_EXCLUDED(mu_) {
    std::optional<Waiter> detached;
    {
      absl::MutexLock lock(&mu_);
      const auto found = entries_.find(request_id);
      if (found == entries_.end()) return;
      std::vector<Waiter>& waiters = found->second.waiters;
      for (auto it = waiters.begin(); it != waiters.end(); ++it) {
        if (it->id != waiter_id) continue;
        detached = std::move(*it);
        waiters.erase(it);
        break;
      }
    }
    if (detached.has_value()) End(*std::move(detached), Cancelled(), {});
  }

  const ResponseCacheLimits limits_;
  // Never held while calling out. Lock order: this, then a cancellation's or the ids'.
  mutable absl::Mutex mu_;
  uint64_t last_waiter_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<int64_t, Entry> entries_ ABSL_GUARDED_BY(mu_);
  // The ready entries, oldest first.
  std::list<int64_t> kept_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  RecentRequestIds forgotten_;
};

ResponseCache::ResponseCache(ResponseCacheLimits limits) : core_(std::make_shared<Core>(limits)) {}

ResponseCache::~ResponseCache() { core_->EndAll(); }

bool ResponseCache::Attach(int64_t request_id, int64_t step_id, CancellationToken* cancellation,
                           ServedCallback done) {
  return core_->Attach(request_id, step_id, cancellation, std::move(done));
}

void ResponseCache::Complete(int64_t request_id, const absl::Status& status, ServedValue value) {
  core_->Complete(request_id, status, std::move(value));
}

void ResponseCache::MarkFinished(int64_t request_id) { core_->MarkFinished(request_id); }
void ResponseCache::CleanupStep(int64_t step_id) { core_->CleanupStep(step_id); }
size_t ResponseCache::entry_count() const { return core_->entry_count(); }
size_t ResponseCache::bytes() const { return core_->bytes(); }
TableSizes ResponseCache::InnerTableSizes() const { return core_->InnerTableSizes(); }

}  // namespace ferry
