// SPDX-License-Identifier: Apache-2.0
// The steps of a communicator's end.
#include "gpu/communicator/communicator_end.h"

#include "absl/strings/str_cat.h"

#include "base/logging.h"

namespace ferry {

void CommunicatorEnd::Begin(bool is_idle) {
  FERRY_CHECK(state_ == State::kOpen);
  if (!is_idle) return BeginRevoking();
  deadline_ = clock_.Now() + options_.finalize_timeout;
  if (const absl::Status begun = calls_.Finalize(); !begun.ok()) {
    // NCCL refuses what has an error, and has not begun to finalize it.
    problem_ = begun;
    return BeginRevoking();
  }
  state_ = State::kFinalizing;
}

void CommunicatorEnd::BeginRevoking() {
  state_ = State::kAborting;
  if (!calls_.CanRevoke()) return;
  deadline_ = clock_.Now() + options_.revoke_timeout;
  if (const absl::Status begun = calls_.Revoke(); !begun.ok()) return Abandon(begun);
  state_ = State::kRevoking;
}

void CommunicatorEnd::BeginUninitialized() {
  FERRY_CHECK(state_ == State::kOpen);
  state_ = State::kStopped;
}

void CommunicatorEnd::Poll() {
  if (!is_waiting()) return;
  if (state_ == State::kStopped) return PollOthers();
  const bool is_finalizing = state_ == State::kFinalizing;
  const absl::StatusOr<bool> settled = calls_.IsSettled();
  if (!settled.ok()) return Abandon(settled.status());
  if (*settled) {
    state_ = is_finalizing ? State::kDestroying : State::kStopped;
    return;
  }
  if (clock_.Now() < deadline_) return;
  Abandon(absl::DeadlineExceededError(absl::StrCat(
      is_finalizing ? "ncclCommFinalize" : "ncclCommRevoke", " has not completed within ",
      absl::FormatDuration(is_finalizing ? options_.finalize_timeout : options_.revoke_timeout))));
}

void CommunicatorEnd::AwaitOthers() {
  if (state_ == State::kDestroying || state_ == State::kStopped) calls_.ReportStopped();
  if (state_ != State::kStopped) return;
  awaits_others_ = true;
  deadline_ = clock_.Now() + options_.others_timeout;
  PollOthers();
}

void CommunicatorEnd::PollOthers() {
  if (calls_.HaveOthersStopped()) {
    state_ = State::kAborting;
  } else if (clock_.Now() >= deadline_) {
    Abandon(absl::DeadlineExceededError(absl::StrCat(
        "waited ", absl::FormatDuration(options_.others_timeout), " for ", calls_.DescribeOthers(),
        " to stop their operations on it; kernels of theirs that still run read freed memory")));
  }
}

void CommunicatorEnd::GiveUp(const absl::Status& why) {
  FERRY_CHECK(state_ != State::kOpen && state_ != State::kEnded);
  Abandon(why);
}

void CommunicatorEnd::Abandon(const absl::Status& why) {
  state_ = State::kAborting;
  if (problem_.ok()) problem_ = why;
}

void CommunicatorEnd::Free() {
  FERRY_CHECK(state_ != State::kOpen && state_ != State::kEnded && !is_waiting());
  if (state_ == State::kDestroying) {
    if (const absl::Status destroyed = calls_.Destroy(); !destroyed.ok()) Abandon(destroyed);
  }
  if (state_ == State::kAborting || state_ == State::kStopped) {
    const absl::Status aborted = calls_.Abort();
    if (problem_.ok()) problem_ = aborted;
  }
  state_ = State::kEnded;
  // Without effect if it has been reported before.
  calls_.ReportStopped();
}

}  // namespace ferry
