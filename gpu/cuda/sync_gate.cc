// SPDX-License-Identifier: Apache-2.0
// SyncGate: counts of work in flight and of waiting actions.
#include "gpu/cuda/sync_gate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry::cuda {

void SyncGate::BeginWork() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &SyncGate::is_open));
  ++work_count_;
}

void SyncGate::EndWork() {
  absl::MutexLock lock(&mu_);
  FERRY_CHECK(work_count_ > 0);
  --work_count_;
}

bool SyncGate::is_open_for(int device) const {
  const bool has_others =
      program_work_.size() > 1 || (program_work_.size() == 1 && !program_work_.contains(device));
  return !is_quiet_ && (!is_wanted_ || has_others);
}

void SyncGate::BeginProgramWork(int device) {
  absl::MutexLock lock(&mu_);
  const auto is_open = [this, device]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return is_open_for(device); };
  mu_.Await(absl::Condition(&is_open));
  ++work_count_;
  ++program_work_[device];
}

void SyncGate::EndProgramWork(int device) {
  absl::MutexLock lock(&mu_);
  const auto found = program_work_.find(device);
  FERRY_CHECK(found != program_work_.end() && work_count_ > 0);
  --work_count_;
  if (--found->second == 0) program_work_.erase(found);
}

absl::Status SyncGate::RunQuiesced(absl::Duration timeout, absl::string_view doing,
                                   absl::FunctionRef<void()> action) {
  bool has_to_wait = false;
  bool has_to_tell = false;
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    ++waiting_count_;
    has_to_wait = !is_free();
    is_quiet_ = is_quiet_ || !has_to_wait;
    is_wanted_ = is_wanted_ || has_to_wait;
  }
  if (has_to_wait) {
    TellListeners();
    absl::MutexLock lock(&mu_);
    if (mu_.AwaitWithTimeout(absl::Condition(this, &SyncGate::is_free), timeout)) {
      is_quiet_ = true;
    } else {
      status = absl::DeadlineExceededError(
          absl::StrCat("waited ", absl::FormatDuration(timeout), " to ", doing, ", and ",
                       work_count_, " pieces of NCCL's work were in flight all the time"));
    }
  }
  if (status.ok()) action();
  {
    absl::MutexLock lock(&mu_);
    --waiting_count_;
    if (status.ok()) is_quiet_ = false;
    // By the last one, even if it has not waited itself.
    if (waiting_count_ == 0) has_to_tell = std::exchange(is_wanted_, false);
  }
  if (has_to_tell) TellListeners();
  return status;
}

void SyncGate::Listen(std::weak_ptr<QuiesceListener> listener) {
  absl::MutexLock lock(&mu_);
  listeners_.erase(std::remove_if(listeners_.begin(), listeners_.end(),
                                  [](const auto& each) { return each.expired(); }),
                   listeners_.end());
  listeners_.push_back(std::move(listener));
}

void SyncGate::TellListeners() {
  std::vector<std::weak_ptr<QuiesceListener>> listeners;
  {
    absl::MutexLock lock(&mu_);
    listeners = listeners_;
  }
  for (const std::weak_ptr<QuiesceListener>& each : listeners) {
    if (const auto listener = each.lock()) listener->OnQuiesceRequested();
  }
}

bool SyncGate::is_quiesce_requested() const {
  absl::MutexLock lock(&mu_);
  return is_wanted_;
}

int SyncGate::work_count() const {
  absl::MutexLock lock(&mu_);
  return work_count_;
}

}  // namespace ferry::cuda
