// SPDX-License-Identifier: Apache-2.0
// The thread "ferry-agent": connecting, heartbeats and deadlines.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/text.h"
#include "coord/client/agent_link.h"

namespace ferry::coord {
namespace {

// How long a coordinator may be unreachable when the job has failed. All that is left is to leave.
constexpr absl::Duration kPatienceAfterError = absl::Seconds(3);
// A coordinator that is well may be silent for less.
constexpr absl::Duration kTellingSilence = absl::Milliseconds(100);

}  // namespace

// Four within the time after which this node would count as dead.
absl::Duration AgentLink::HeartbeatPeriodLocked() const {
  return absl::Milliseconds(welcome_->heartbeat_timeout_ms()) / 4;
}

void AgentLink::HeartbeatLocked(absl::Time now) {
  next_heartbeat_ = now + HeartbeatPeriodLocked();
  FERRY_LOG_TRACE(kCoord, "heartbeat sent: coordinator={}", options_.coordinator);
  v1::Request request;
  request.mutable_heartbeat()->set_progress(progress_);
  const uint64_t id = last_request_id_ + 1;
  const absl::Time deadline = absl::InfiniteFuture();
  // The answer is a sign of life by itself; an error means that the job is over for this node.
  pending_.emplace(id, Pending{now, deadline, "heartbeat", /*has_effect=*/false,
                               [this](absl::StatusOr<v1::Reply> reply) {
                                 if (!reply.ok() || reply->code() == 0) return;
                                 StopHeartbeats();
                                 const absl::Status error(
                                     static_cast<absl::StatusCode>(reply->code()),
                                     reply->message());
                                 NoteJobError(error);
                                 if (options_.on_lost) options_.on_lost(error);
                               }});
  deadlines_.emplace(deadline, id);
  SendLocked(std::move(request));
}

void AgentLink::ExpireLocked(absl::Time now, Ready& ready) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const auto pending = pending_.find(deadlines_.begin()->second);
    std::string why = absl::StrCat("waited ", ShortDuration(now - pending->second.since), " for ",
                                   pending->second.what);
    if (!is_attached_) {
      absl::StrAppend(&why, "; ", OutOfReachLocked(now));
    } else if (now - pending->second.since < kTellingSilence) {
      absl::StrAppend(&why, "; the coordinator at ", options_.coordinator,
                      " has not answered within that time");
    } else if (stream_->last_bytes() < pending->second.since) {
      absl::StrAppend(&why, "; the coordinator at ", options_.coordinator, " has said nothing for ",
                      ShortDuration(now - stream_->last_bytes()),
                      ", although the connection is there: it hangs, or the network does");
    }
    const uint64_t id = pending->first;
    const bool is_taken_back = TakeBackLocked(id);
    if (is_taken_back) {
      absl::StrAppend(&why, "; it was not sent, and will not be");
    } else if (pending->second.has_effect) {
      absl::StrAppend(&why, "; it was sent, and may still take effect");
    }
    EndLocked(pending, absl::DeadlineExceededError(why), ready);
    if (is_taken_back) continue;
    // Cancel it: it need not stay pending there.
    v1::Request cancel;
    cancel.mutable_cancel()->set_request_id(id);
    SendLocked(std::move(cancel));
  }
}

absl::Time AgentLink::LostAtLocked() const {
  absl::Duration timeout =
      options_.reconnect_timeout > absl::ZeroDuration() ? options_.reconnect_timeout
      : welcome_.has_value() ? absl::Milliseconds(welcome_->heartbeat_timeout_ms())
                             : options_.connect_timeout;
  if (!job_error_.ok()) timeout = std::min(timeout, kPatienceAfterError);
  const absl::Time lost_at = last_contact_ + timeout;
  return is_joining_ ? std::min(lost_at, started_ + options_.connect_timeout) : lost_at;
}

absl::Status AgentLink::LostErrorLocked(absl::Time now) const {
  if (!job_error_.ok()) return job_error_;
  if (is_joining_ && now >= started_ + options_.connect_timeout) {
    return absl::DeadlineExceededError(absl::StrCat("waited ", ShortDuration(now - started_),
                                                    " for the other nodes to join; ",
                                                    OutOfReachLocked(now)));
  }
  // Never reached: the caller's timeout has passed.
  return welcome_.has_value() ? absl::UnavailableError(OutOfReachLocked(now))
                              : absl::DeadlineExceededError(OutOfReachLocked(now));
}

void AgentLink::Keep() {
  keeper_ = std::this_thread::get_id();
  mu_.Lock();
  while (!is_closing_) {
    const uint32_t turn = changed_.turn();
    // Until it sleeps, any thread may wake it.
    next_look_ = absl::InfiniteFuture();
    const absl::Time now = SteadyClock().Now();
    Ready ready = std::exchange(deferred_, {});
    ExpireLocked(now, ready);
    absl::Time wake = deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
    if (lost_.ok()) {
      const absl::Time lost_at = LostAtLocked();
      if (!is_attached_ && now >= lost_at) {
        LoseLocked(LostErrorLocked(now), ready);
      } else if (stream_ == nullptr) {
        if (next_attempt_ <= now) {
          attempt_began_ = now;
          const std::shared_ptr<AgentStream> stream = AttachLocked();
          mu_.Unlock();
          stream->Open(options_.coordinator, loop_);
          mu_.Lock();
        }
        wake = std::min({wake, next_attempt_, lost_at});
      } else if (!is_attached_) {
        const absl::Time too_long = attempt_began_ + options_.connect_attempt_timeout;
        if (too_long <= now) {
          attempt_began_ = absl::InfiniteFuture();
          stream_->Close(absl::UnavailableError(
              absl::StrCat("the connection was there, but no Welcome came within ",
                           absl::FormatDuration(options_.connect_attempt_timeout))));
          wake = std::min(wake, now + absl::Seconds(1));
        } else {
          wake = std::min(wake, too_long);
        }
        wake = std::min(wake, lost_at);
      } else if (has_heartbeats_) {
        if (next_heartbeat_ <= now) HeartbeatLocked(now);
        // At least the time for a heartbeat to be sent and answered.
        const absl::Duration most =
            std::max(options_.idle_timeout, HeartbeatPeriodLocked() + options_.idle_timeout / 2);
        const absl::Time silent_at = stream_->last_bytes() + most;
        if (silent_at <= now) {
          stream_->Close(absl::UnavailableError(absl::StrCat(
              "the coordinator has answered no heartbeat for ", absl::FormatDuration(most))));
          wake = std::min(wake, now + absl::Seconds(1));
        } else {
          wake = std::min({wake, next_heartbeat_, silent_at});
        }
      }
    }
    if (!ready.empty()) {
      mu_.Unlock();
      for (auto& callback : ready) std::move(callback)();
      mu_.Lock();
      continue;
    }
    if (!deferred_.empty() || is_closing_) continue;
    next_look_ = wake;
    mu_.Unlock();
    changed_.WaitUntil(turn, wake);
    mu_.Lock();
  }
  // Deferred callbacks must still run.
  Ready ready = std::exchange(deferred_, {});
  mu_.Unlock();
  for (auto& callback : ready) std::move(callback)();
}

}  // namespace ferry::coord
