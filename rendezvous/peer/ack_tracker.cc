// SPDX-License-Identifier: Apache-2.0
// Bookkeeping of answer counts and PING numbers.
#include "rendezvous/peer/ack_tracker.h"

#include <algorithm>

namespace ferry {

void AckTracker::Count(int64_t step_id) {
  ++answered_;
  if (recent_[latest_].step_id != step_id) {
    latest_ = 0;
    for (size_t i = 0; i < recent_.size(); ++i) {
      if (recent_[i].answered < recent_[latest_].answered) latest_ = i;
    }
    for (size_t i = 0; i < recent_.size(); ++i) {
      if (recent_[i].step_id == step_id && recent_[i].answered > 0) latest_ = i;
    }
    if (recent_[latest_].step_id != step_id) {
      forgotten_ = std::max(forgotten_, recent_[latest_].answered);
    }
  }
  recent_[latest_] = {step_id, answered_};
}

AckTracker::Flush AckTracker::Start(int64_t step_id) {
  uint64_t last = forgotten_;
  for (const Recent& each : recent_) {
    if (each.step_id == step_id && each.answered > 0) last = each.answered;
  }
  if (acknowledged_ >= last) return {};
  Flush flush = {.number = last,
                 .needs_ping = pinged_ < last || has_ping_failed_,
                 .is_awaited = !has_timed_out_};
  if (flush.needs_ping) {
    // One PING covers all answers so far.
    pinged_ = flush.number = answered_;
    has_ping_failed_ = false;
  }
  return flush;
}

void AckTracker::OnPingFailed(uint64_t number) {
  has_ping_failed_ = has_ping_failed_ || pinged_ == number;
}

void AckTracker::GiveUp(uint64_t number) {
  has_timed_out_ = has_timed_out_ || acknowledged_ < number;
}

absl::Status AckTracker::OnPong(uint64_t number) {
  if (number > pinged_) return absl::InvalidArgumentError("a PONG to no PING");
  acknowledged_ = std::max(acknowledged_, number);
  has_timed_out_ = false;
  return absl::OkStatus();
}

}  // namespace ferry
