// SPDX-License-Identifier: Apache-2.0
// Start, failure and completion of a run.
#include "tensorflow/worker/collectives/backend_run.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "tensorflow/worker/collectives/leader.h"

namespace ferry::worker {

BackendRun::BackendRun(std::shared_ptr<StepTransfers> transfers, CollectiveWork work,
                       RecvCallback done)
    : transfers_(std::move(transfers)), work_(std::move(work)), done_(std::move(done)) {}

void BackendRun::Start() {
  const auto self = shared_from_this();
  const auto cancelled = [] {
    return MakeDerived(absl::CancelledError("the collective was cancelled"));
  };
  token_ = work_.cancellation->Register([weak = weak_from_this(), cancelled] {
    if (const auto strong = weak.lock()) strong->Fail(cancelled());
  });
  if (token_ == CancellationToken::kNoCallback) {
    Fail(cancelled());
  } else if (absl::Status status = Issue(); !status.ok()) {
    Fail(std::move(status));
  }
  EndOne();
}

void BackendRun::EndOne() {
  if (under_way_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (token_ != CancellationToken::kNoCallback) work_.cancellation->Deregister(token_);
  OnEnd();
  absl::Status status = failure();
  RecvCallback done = std::move(done_);
  if (!status.ok()) return std::move(done)(std::move(status), {});
  std::move(done)(absl::OkStatus(), std::move(result_));
}

void BackendRun::Finish() {
  is_finished_.store(true, std::memory_order_release);
  cancellation_.Cancel();
}

void BackendRun::Fail(absl::Status why) {
  if (is_finished_.load(std::memory_order_acquire)) return;
  {
    absl::MutexLock lock(&mu_);
    const bool is_first = status_.ok();
    if (is_first || (IsDerived(status_) && !IsDerived(why))) status_ = why;
    has_failed_.store(true, std::memory_order_release);
    if (!is_first) return;
  }
  // Completes all pending receives.
  cancellation_.Cancel();
  OnFailed(why);
}

absl::Status BackendRun::failure() const {
  absl::MutexLock lock(&mu_);
  return status_;
}

absl::StatusOr<RendezvousKey> BackendRun::KeyOf(int from, int to, absl::string_view what) const {
  return CollectiveKey(*work_.node->devices, work_.members[static_cast<size_t>(from)],
                       work_.members[static_cast<size_t>(to)],
                       CollectiveEdge(work_.call.group_key, work_.call.instance_key, what));
}

const std::string& BackendRun::NameOf(int rank) const {
  const int member = work_.members[static_cast<size_t>(rank)];
  return (*work_.node->devices)[static_cast<size_t>(member)].name;
}

std::string BackendRun::Instance() const {
  return absl::StrCat("instance ", work_.call.instance_key, " of group ", work_.call.group_key);
}

absl::Status BackendRun::Explain(absl::Status status, absl::string_view about) const {
  constexpr absl::string_view kTimedOut = "Collective has timed out";
  if (!absl::IsDeadlineExceeded(status) || work_.deadline == absl::InfiniteFuture() ||
      absl::StrContains(status.message(), kTimedOut)) {
    return status;
  }
  return absl::DeadlineExceededError(absl::StrCat(kTimedOut, " during execution. ", about));
}

}  // namespace ferry::worker
