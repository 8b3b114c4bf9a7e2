// SPDX-License-Identifier: Apache-2.0
// Counting work in flight.
#include "gpu/cuda/sync_gate.h"

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

absl::Status SyncGate::RunQuietly(absl::Duration patience, absl::string_view doing,
                                  absl::FunctionRef<void()> action) {
  {
    absl::MutexLock lock(&mu_);
    ++waiting_count_;
    const bool is_free = mu_.AwaitWithTimeout(absl::Condition(this, &SyncGate::is_free), patience);
    --waiting_count_;
    if (!is_free) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited ", absl::FormatDuration(patience), " to ", doing, ", and ",
                       work_count_, " NCCL transfers were in flight all the time"));
    }
    is_quiet_ = true;
  }
  action();
  absl::MutexLock lock(&mu_);
  is_quiet_ = false;
  return absl::OkStatus();
}

bool SyncGate::is_quiet_wanted() const {
  absl::MutexLock lock(&mu_);
  return waiting_count_ > 0;
}

int SyncGate::work_count() const {
  absl::MutexLock lock(&mu_);
  return work_count_;
}

}  // namespace ferry::cuda
