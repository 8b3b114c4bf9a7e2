// SPDX-License-Identifier: Apache-2.0
// DeviceExecutor: the thread's loop of functions, events and sleep.
#include "gpu/cuda/device_executor.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"

namespace ferry::cuda {
namespace {

constexpr absl::Duration kShortestSleep = absl::Microseconds(20);

// The executor whose thread this is.
thread_local const DeviceExecutor* own_executor = nullptr;

void KeepForEver(DeviceExecutor::Watched watched) {
  static auto* const kMu = new absl::Mutex;
  static auto* const kKept = new std::vector<DeviceExecutor::Watched>;
  absl::MutexLock lock(kMu);
  kKept->push_back(std::move(watched));
}

const StreamPosition& PositionOf(const DeviceExecutor::Watched& watched) {
  return watched.event != nullptr ? watched.event->position() : watched.position;
}

// By stream: the smallest sequence number of an event that may be pending.
using PendingPositions = absl::flat_hash_map<Stream, uint64_t>;

void AddPending(const StreamPosition& position, PendingPositions& pending) {
  if (position.sequence == 0) return;
  const auto [first, is_new] = pending.try_emplace(position.stream, position.sequence);
  if (!is_new) first->second = std::min(first->second, position.sequence);
}

// Returns whether `watched` has completed, without asking the driver if an earlier event of its
// stream is in `pending`.
//   is_exempt: ask in any case. The order of a stream's events has exceptions (StreamPosition).
absl::StatusOr<bool> Query(const DeviceExecutor::Watched& watched, PendingPositions& pending,
                           bool is_exempt) {
  if (watched.check_wanted != nullptr) FERRY_RETURN_IF_ERROR(watched.check_wanted());
  const StreamPosition& position = PositionOf(watched);
  const auto first = position.sequence == 0 ? pending.end() : pending.find(position.stream);
  if (first != pending.end() && first->second < position.sequence && !is_exempt) return false;
  absl::StatusOr<bool> is_done =
      watched.event != nullptr ? watched.event->IsDone() : watched.is_done();
  if (is_done.ok() && !*is_done) {
    AddPending(position, pending);
  } else if (first != pending.end() && first->second == position.sequence) {
    pending.erase(first);
  }
  return is_done;
}

}  // namespace

DeviceExecutor::DeviceExecutor(std::shared_ptr<CudaDevice> device, DeviceExecutorOptions options,
                               const Clock& clock)
    : device_(std::move(device)), options_(std::move(options)), clock_(clock) {
  std::string name = options_.thread_name.empty() ? absl::StrCat("ferry-dev", device_->ordinal())
                                                  : options_.thread_name;
  thread_ = std::make_unique<Thread>(std::move(name), [this] { Run(); });
}

DeviceExecutor::~DeviceExecutor() { Stop(); }

void DeviceExecutor::Stop() {
  {
    absl::MutexLock lock(&mu_);
    is_stopping_ = true;
  }
  thread_->Join();
}

bool DeviceExecutor::is_own_thread() const { return own_executor == this; }

absl::Status DeviceExecutor::Admit(size_t max_waiting) {
  // Work on the thread may continue whatever the limits, since it may have to release memory. It is
  // processed before the thread ends.
  if (is_own_thread()) {
    waiting_count_.fetch_add(1, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  if (is_stopping_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the executor of ", device_->name(), " has been stopped"));
  }
  if (waiting_count_.load(std::memory_order_relaxed) >= max_waiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat(max_waiting, " operations of ", device_->name(),
                     " wait already (DeviceExecutorOptions::max_waiting)"));
  }
  waiting_count_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status DeviceExecutor::Post(Work work) {
  absl::MutexLock lock(&mu_);
  FERRY_RETURN_IF_ERROR(Admit(options_.max_waiting));
  work_.push_back(std::move(work));
  return absl::OkStatus();
}

absl::Status DeviceExecutor::PostAlways(Work work) {
  absl::MutexLock lock(&mu_);
  FERRY_RETURN_IF_ERROR(Admit(std::numeric_limits<size_t>::max()));
  work_.push_back(std::move(work));
  return absl::OkStatus();
}

absl::Status DeviceExecutor::PostAndWait(std::function<absl::Status()> work, absl::Duration timeout,
                                         absl::string_view what) {
  struct Job {
    absl::Mutex mu;
    bool is_done ABSL_GUARDED_BY(mu) = false;
    bool is_abandoned ABSL_GUARDED_BY(mu) = false;
    absl::Status status ABSL_GUARDED_BY(mu);
  };
  auto job = std::make_shared<Job>();
  FERRY_RETURN_IF_ERROR(Post([job, work = std::move(work)] {
    // Holding the lock keeps the caller's frame, which `work` may refer to, alive.
    absl::MutexLock lock(&job->mu);
    if (job->is_abandoned) return;
    job->status = work();
    job->is_done = true;
  }));
  absl::MutexLock lock(&job->mu);
  if (job->mu.AwaitWithTimeout(absl::Condition(&job->is_done), timeout)) return job->status;
  job->is_abandoned = true;
  return absl::DeadlineExceededError(absl::StrCat(device_->name(), " has not got to ", what,
                                                  " within ", absl::FormatDuration(timeout)));
}

absl::Status DeviceExecutor::Watch(Watched watched, DoneCallback done) {
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    status = Admit(options_.max_waiting);
    if (status.ok()) {
      added_.push_back({std::move(watched), std::move(done)});
      return status;
    }
    if (watched.keep == nullptr) return status;
    if (!is_stopping_) {
      // The device may be using it, whatever the limit.
      waiting_count_.fetch_add(1, std::memory_order_relaxed);
      watched.check_wanted = nullptr;
      added_.push_back({std::move(watched), nullptr});
      return status;
    }
  }
  const ScopedCurrent current(*device_);
  const absl::StatusOr<bool> is_done =
      watched.event != nullptr ? watched.event->IsDone() : watched.is_done();
  if (is_done.ok() && !*is_done) KeepForEver(std::move(watched));
  return status;
}

bool DeviceExecutor::Poll(std::vector<Entry>& entries, size_t turn) {
  const absl::Time now = clock_.Now();
  std::vector<std::pair<DoneCallback, absl::Status>> ready;
  // A query costs about a microsecond, and thousands of tensors may be behind one kernel.
  PendingPositions pending;
  for (const Entry& entry : entries) AddPending(PositionOf(entry.watched), pending);
  const Entry* const exempt = entries.empty() ? nullptr : &entries[turn % entries.size()];
  size_t kept = 0;
  for (Entry& entry : entries) {
    const absl::StatusOr<bool> is_done = Query(entry.watched, pending, &entry == exempt);
    const bool is_over = !is_done.ok() || *is_done;
    if (is_over) {
      if (entry.done) ready.emplace_back(std::move(entry.done), is_done.status());
      // Destroyed here, and with it what `keep` holds.
      const Entry ended = std::move(entry);
      waiting_count_.fetch_sub(1, std::memory_order_relaxed);
      continue;
    }
    if (entry.done && now >= entry.watched.deadline) {
      ready.emplace_back(std::move(entry.done),
                         absl::DeadlineExceededError(
                             absl::StrCat(device_->name(), " has not finished ", entry.watched.what,
                                          " in time; its memory is kept until it has")));
      entry.done = nullptr;
    }
    if (&entries[kept] != &entry) entries[kept] = std::move(entry);
    ++kept;
  }
  const bool has_ended = kept < entries.size();
  entries.resize(kept);
  for (auto& [done, status] : ready) std::move(done)(std::move(status));
  return has_ended || !ready.empty();
}

void DeviceExecutor::EndAll(std::vector<Entry>& entries) {
  for (Entry& entry : entries) {
    if (entry.done) {
      std::move(entry.done)(absl::UnavailableError(
          absl::StrCat(device_->name(), " has not finished ", entry.watched.what, " within ",
                       absl::FormatDuration(options_.drain), " of its executor's end")));
    }
    // The device may still write there, so the memory must never be reused.
    KeepForEver(std::move(entry.watched));
  }
  entries.clear();
}

void DeviceExecutor::Run() {
  own_executor = this;
  const ScopedCurrent current(*device_);
  std::vector<Entry> entries;
  absl::Time last_news = SteadyClock().Now();
  absl::Time drain_end = absl::InfiniteFuture();
  absl::Duration sleep = kShortestSleep;
  for (size_t turn = 0;; ++turn) {
    std::deque<Work> work;
    bool is_stopping = false;
    bool has_news = false;
    {
      absl::MutexLock lock(&mu_);
      has_news = !work_.empty() || !added_.empty();
      work.swap(work_);
      std::move(added_.begin(), added_.end(), std::back_inserter(entries));
      added_.clear();
      is_stopping = is_stopping_;
    }
    for (Work& each : work) {
      std::move(each)();
      each = nullptr;
      waiting_count_.fetch_sub(1, std::memory_order_relaxed);
    }
    has_news = Poll(entries, turn) || has_news;
    const absl::Time now = SteadyClock().Now();
    if (has_news) {
      last_news = now;
      sleep = kShortestSleep;
      continue;
    }
    if (is_stopping) {
      if (drain_end == absl::InfiniteFuture()) drain_end = now + options_.drain;
      if (now >= drain_end) EndAll(entries);
      // Callbacks may have added more.
      absl::MutexLock lock(&mu_);
      if (!work_.empty() || !added_.empty()) continue;
      if (entries.empty()) return;
    }
    if (!entries.empty() && now - last_news < options_.spin) continue;
    if (is_stopping) {
      // Nothing can be added any more, so there is no wakeup to wait for.
      absl::SleepFor(sleep);
    } else {
      absl::MutexLock lock(&mu_);
      mu_.AwaitWithTimeout(absl::Condition(this, &DeviceExecutor::has_news),
                           entries.empty() ? absl::InfiniteDuration() : sleep);
    }
    // An event is noticed late by at most an eighth of what it took.
    sleep = std::clamp((SteadyClock().Now() - last_news) / 8, kShortestSleep,
                       std::max(kShortestSleep, options_.longest_sleep));
  }
}

}  // namespace ferry::cuda
