// SPDX-License-Identifier: Apache-2.0
// Calls, frames, streams, and the thread "ferry-agent".
#include "coord/client/agent_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/random_id.h"
#include "base/text.h"
#include "coord/wire/control_limits.h"

namespace ferry::coord {
namespace {

// The coordinator enforces the deadline and knows the missing nodes; only if it is gone does the
// agent answer instead, later by this margin: as long as the wait itself, within these bounds.
constexpr absl::Duration kLeastAnswerMargin = absl::Seconds(2);
constexpr absl::Duration kMostAnswerMargin = absl::Seconds(5);
// A coordinator that is well may be silent for less.
constexpr absl::Duration kTellingSilence = absl::Milliseconds(100);

// Errors after which it must not reconnect: the coordinator has decided.
bool IsFinal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

// Requests that execute immediately, so that cancelling them would come too late.
bool HasEffect(const v1::Request& request) {
  switch (request.op_case()) {
    case v1::Request::kPut:
    case v1::Request::kDelete:
    case v1::Request::kIncrement:
    case v1::Request::kCompareAndSet:
    case v1::Request::kCancelBarrier:
    case v1::Request::kReportError:
    case v1::Request::kLeave:
    case v1::Request::kEndJob:
      return true;
    default:
      return false;
  }
}

}  // namespace

AgentLink::AgentLink(AgentLinkOptions options, std::shared_ptr<SocketLoop> loop)
    : options_(std::move(options)),
      loop_(std::move(loop)),
      reconnect_({.coordinator = options_.coordinator,
                  .connect_timeout = options_.connect_timeout,
                  .reconnect_timeout = options_.reconnect_timeout},
                 SteadyClock().Now()),
      opening_(RandomId()),
      thread_("ferry-agent", [this] { Keep(); }) {}

AgentLink::~AgentLink() {
  Ready ready;
  {
    absl::MutexLock lock(&mu_);
    is_closing_ = true;
    MarkLostLocked(absl::CancelledError("the agent is being closed"), ready);
    changed_.Wake();
  }
  for (auto& callback : ready) std::move(callback)();
  thread_.Join();
  while (true) {
    const uint32_t turn = changed_.turn();
    {
      absl::MutexLock lock(&mu_);
      if (stream_count_ == 0) return;
    }
    changed_.WaitUntil(turn, absl::InfiniteFuture());
  }
}

absl::StatusOr<v1::Welcome> AgentLink::WaitUntilAttached() {
  while (true) {
    const uint32_t turn = changed_.turn();
    absl::Time deadline;
    {
      absl::MutexLock lock(&mu_);
      if (welcome_.has_value()) return *welcome_;
      if (!lost_.ok()) return lost_;
      deadline = reconnect_.connect_deadline();
      const absl::Time now = SteadyClock().Now();
      if (now >= deadline) return absl::DeadlineExceededError(reconnect_.OutOfReachText(now));
    }
    changed_.WaitUntil(turn, deadline);
  }
}

bool AgentLink::is_attached() {
  absl::MutexLock lock(&mu_);
  return is_attached_;
}

void AgentLink::GiveUp(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  if (!lost_.ok()) return;
  lost_ = why;
  MarkLostLocked(why, deferred_);
  changed_.Wake();
}

void AgentLink::StartJoining() {
  absl::MutexLock lock(&mu_);
  reconnect_.SetJoining(true);
  changed_.Wake();
}

void AgentLink::StopJoining() {
  absl::MutexLock lock(&mu_);
  reconnect_.SetJoining(false);
}

void AgentLink::NoteJobError(const absl::Status& error) {
  absl::MutexLock lock(&mu_);
  reconnect_.NoteJobError(error);
  changed_.Wake();
}

uint64_t AgentLink::SendLocked(v1::Request request) {
  const uint64_t id = outbox_.Add(std::move(request));
  WriteLocked();
  return id;
}

uint64_t AgentLink::Call(v1::Request request, absl::Duration timeout, std::string what,
                         ReplyCallback done, bool keeps_time) {
  absl::MutexLock lock(&mu_);
  if (!lost_.ok()) {
    deferred_.push_back([done = std::move(done), why = lost_]() mutable { std::move(done)(why); });
    changed_.Wake();
    return 0;
  }
  if (absl::Status fits = CheckSizeLocked(request); !fits.ok()) {
    deferred_.push_back([done = std::move(done), fits]() mutable { std::move(done)(fits); });
    changed_.Wake();
    return 0;
  }
  const absl::Time now = SteadyClock().Now();
  const absl::Duration margin = keeps_time
                                    ? absl::ZeroDuration()
                                    : std::clamp(timeout, kLeastAnswerMargin, kMostAnswerMargin);
  const absl::Time deadline = now + timeout + margin;
  const uint64_t id = outbox_.next_id();
  pending_.emplace(id,
                   Pending{now, deadline, std::move(what), HasEffect(request), std::move(done)});
  deadlines_.emplace(deadline, id);
  if (deadline < next_wakeup_) {
    next_wakeup_ = deadline;
    changed_.Wake();
  }
  return SendLocked(std::move(request));
}

size_t AgentLink::MaxFrameBytesLocked() const {
  const uint64_t told = welcome_.has_value() ? welcome_->max_frame_bytes() : 0;
  return told > 0 ? told : kMaxDirectFrameBytes;
}

absl::Status AgentLink::CheckSizeLocked(const v1::Request& request) const {
  const int keys = std::max(
      {request.put().entries_size(), request.get().keys_size(), request.delete_().keys_size()});
  if (keys > kMaxKeys) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a request has ", keys, " keys; ", kMaxKeys, " are allowed"));
  }
  const size_t bytes = request.ByteSizeLong() + 2 * AgentOutbox::kRequestHeadBytes;
  if (bytes <= MaxFrameBytesLocked()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "a request of ", bytes, " bytes is more than the coordinator at ", options_.coordinator,
      " takes at once, ", MaxFrameBytesLocked(), " bytes (its --max-frame-bytes)"));
}

void AgentLink::Defer(absl::AnyInvocable<void() &&> callback) {
  absl::MutexLock lock(&mu_);
  deferred_.push_back(std::move(callback));
  changed_.Wake();
}

uint64_t AgentLink::Subscribe(v1::Request request, EventCallback on_event) {
  loop_->RequestThread();
  absl::MutexLock lock(&mu_);
  subscriptions_.emplace(outbox_.next_id(),
                         std::make_shared<const EventCallback>(std::move(on_event)));
  return SendLocked(std::move(request));
}

void AgentLink::Unsubscribe(uint64_t request_id) {
  absl::MutexLock lock(&mu_);
  subscriptions_.erase(request_id);
  if (!lost_.ok()) return;
  v1::Request cancel;
  cancel.mutable_cancel()->set_request_id(request_id);
  SendLocked(std::move(cancel));
}

void AgentLink::StartHeartbeats() {
  absl::MutexLock lock(&mu_);
  has_heartbeats_ = true;
  next_heartbeat_ = SteadyClock().Now();
  changed_.Wake();
}

void AgentLink::StopHeartbeats() {
  absl::MutexLock lock(&mu_);
  has_heartbeats_ = false;
}

void AgentLink::SetProgress(uint64_t progress) {
  absl::MutexLock lock(&mu_);
  progress_ = progress;
}

void AgentLink::WriteLocked() {
  while (stream_ != nullptr && is_attached_ && !is_writing_) {
    v1::ClientFrame frame;
    if (!outbox_.Next(MaxFrameBytesLocked(), frame)) return;
    // Write does not call back synchronously.
    is_writing_ = !stream_->Write(frame);
  }
}

void AgentLink::OnWritten(AgentStream& stream) {
  absl::MutexLock lock(&mu_);
  if (stream_.get() != &stream) return;
  is_writing_ = false;
  WriteLocked();
}

std::shared_ptr<AgentStream> AgentLink::AttachLocked() {
  FERRY_LOG_DEBUG(kCoord, "connecting to the coordinator: coordinator={}", options_.coordinator);
  ++stream_count_;
  is_attached_ = false;
  stream_ = std::make_shared<AgentStream>(*loop_, static_cast<AgentStream::Owner&>(*this));
  v1::ClientFrame frame;
  *frame.mutable_hello() = options_.hello;
  frame.mutable_hello()->set_session_id(welcome_.has_value() ? welcome_->session_id() : 0);
  frame.mutable_hello()->set_acked_sequence(outbox_.received_sequence());
  if (options_.hello.has_node()) {
    frame.mutable_hello()->set_opening(opening_);
    frame.mutable_hello()->set_attempt(++attempt_);
  }
  // Sent once connected.
  is_writing_ = !stream_->Write(frame);
  return stream_;
}

void AgentLink::EndLocked(std::map<uint64_t, Pending>::iterator pending,
                          absl::StatusOr<v1::Reply> reply, Ready& ready) {
  deadlines_.erase({pending->second.deadline, pending->first});
  ready.push_back([done = std::move(pending->second.done), reply = std::move(reply)]() mutable {
    std::move(done)(std::move(reply));
  });
  pending_.erase(pending);
}

void AgentLink::OnFrame(AgentStream& stream, v1::ServerFrame& frame) {
  Ready ready;
  {
    absl::MutexLock lock(&mu_);
    if (stream_.get() != &stream) return;
    reconnect_.NoteContact(SteadyClock().Now());
    if (frame.has_welcome()) {
      // Requests whose timeout has been reported are dropped, not executed late.
      outbox_.Resume(frame.welcome().received_request_id(),
                     [this](const v1::Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                       return !HasEffect(request) || pending_.count(request.id()) > 0;
                     });
      welcome_ = std::move(*frame.mutable_welcome());
      is_attached_ = true;
      FERRY_LOG_INFO(kCoord, "connected to the coordinator: coordinator={} session={:x}",
                     options_.coordinator, welcome_->session_id());
      reconnect_.NoteWelcome(absl::Milliseconds(welcome_->heartbeat_timeout_ms()));
      WriteLocked();
      changed_.Wake();
      return;
    }
    if (!outbox_.Receive(frame)) return;
    for (v1::Reply& reply : *frame.mutable_replies()) {
      outbox_.ForgetArrived(reply.request_id());
      const auto pending = pending_.find(reply.request_id());
      if (pending == pending_.end()) continue;
      if (reply.has_blob()) {
        // Passed on as the message, which such a reply does not have.
        reply.set_message(std::move(*frame.mutable_blob()));
      }
      EndLocked(pending, std::move(reply), ready);
    }
    for (v1::Event& event : *frame.mutable_events()) {
      const auto subscription = subscriptions_.find(event.request_id());
      if (subscription != subscriptions_.end()) {
        ready.push_back(
            [callback = subscription->second, event = std::move(event)]() { (*callback)(event); });
      } else if (event.kind() == v1::Event::JOB_ERROR) {
        const absl::Status error(static_cast<absl::StatusCode>(event.code()), event.message());
        if (reconnect_.NoteJobError(error)) FERRY_LOG_INFO(kCoord, "job failed: {}", error);
        if (options_.on_event) {
          ready.push_back([this, event = std::move(event)]() { options_.on_event(event); });
        }
      }
    }
    WriteLocked();
  }
  for (auto& callback : ready) std::move(callback)();
}

void AgentLink::OnEnded(AgentStream& stream, const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  --stream_count_;
  if (stream_.get() == &stream) {
    const bool was_attached = is_attached_;
    // It was reachable until now, unless heartbeats were not answered.
    if (was_attached) {
      const absl::Time now = SteadyClock().Now();
      const bool was_silent =
          has_heartbeats_ && now - stream.last_bytes() > 2 * HeartbeatPeriodLocked();
      reconnect_.NoteContact(was_silent ? stream.last_bytes() : now);
    }
    stream_ = nullptr;
    is_attached_ = false;
    is_writing_ = false;
    outbox_.Rewind();
    const absl::Time now = SteadyClock().Now();
    const absl::Status why =
        status.ok() ? absl::UnavailableError("the coordinator ended the connection") : status;
    reconnect_.NoteEnd(why, now);
    if (was_attached) {
      FERRY_LOG_INFO(kCoord, "connection to the coordinator closed: coordinator={}: {}",
                     options_.coordinator, why);
    } else {
      FERRY_LOG_DEBUG(kCoord, "connection to the coordinator failed: coordinator={}: {}",
                      options_.coordinator, why);
    }
    if (IsFinal(why) && lost_.ok()) {
      MarkLostLocked(why, deferred_);
    } else if (!reconnect_.job_error().ok() && !was_attached && lost_.ok()) {
      // One more attempt, in case of a transient network failure, was enough.
      MarkLostLocked(reconnect_.job_error(), deferred_);
    }
    if (!was_attached && lost_.ok() && options_.on_attempt_failed) {
      deferred_.push_back([this, why]() { options_.on_attempt_failed(why); });
    }
  }
  changed_.Wake();
}

void AgentLink::MarkLostLocked(const absl::Status& why, Ready& ready) {
  const bool is_first = lost_.ok();
  if (is_first && !is_closing_) {
    FERRY_LOG_INFO(kCoord, "coordinator lost: coordinator={}: {}", options_.coordinator, why);
  }
  if (is_first) lost_ = why;
  while (!pending_.empty()) EndLocked(pending_.begin(), why, ready);
  outbox_.Clear();
  if (stream_ != nullptr) stream_->Close(absl::CancelledError("the agent has stopped waiting"));
  if (is_first && !is_closing_ && options_.on_lost) {
    ready.push_back([this, why]() { options_.on_lost(why); });
  }
}

// Four within the time after which this node would count as dead.
absl::Duration AgentLink::HeartbeatPeriodLocked() const {
  return absl::Milliseconds(welcome_->heartbeat_timeout_ms()) / 4;
}

void AgentLink::HeartbeatLocked(absl::Time now) {
  next_heartbeat_ = now + HeartbeatPeriodLocked();
  FERRY_LOG_TRACE(kCoord, "heartbeat sent: coordinator={}", options_.coordinator);
  v1::Request request;
  request.mutable_heartbeat()->set_progress(progress_);
  const uint64_t id = outbox_.next_id();
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
      absl::StrAppend(&why, "; ", reconnect_.OutOfReachText(now));
    } else if (now - pending->second.since < kTellingSilence) {
      absl::StrAppend(&why, "; the coordinator at ", options_.coordinator,
                      " has not answered within that time");
    } else if (stream_->last_bytes() < pending->second.since) {
      absl::StrAppend(&why, "; the coordinator at ", options_.coordinator, " has said nothing for ",
                      ShortDuration(now - stream_->last_bytes()),
                      ", although the connection is there: it hangs, or the network does");
    }
    const uint64_t id = pending->first;
    const bool is_taken_back = outbox_.TakeBack(id);
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

void AgentLink::Keep() {
  keeper_ = std::this_thread::get_id();
  mu_.Lock();
  while (!is_closing_) {
    const uint32_t turn = changed_.turn();
    // Until it sleeps, any thread may wake it.
    next_wakeup_ = absl::InfiniteFuture();
    const absl::Time now = SteadyClock().Now();
    Ready ready = std::exchange(deferred_, {});
    ExpireLocked(now, ready);
    absl::Time wake = deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
    if (lost_.ok()) {
      const absl::Time lost_at = reconnect_.LostAt();
      if (!is_attached_ && now >= lost_at) {
        MarkLostLocked(reconnect_.LostError(now), ready);
      } else if (stream_ == nullptr) {
        if (reconnect_.next_attempt() <= now) {
          attempt_began_ = now;
          const std::shared_ptr<AgentStream> stream = AttachLocked();
          mu_.Unlock();
          stream->Open(options_.coordinator, loop_);
          mu_.Lock();
        }
        wake = std::min({wake, reconnect_.next_attempt(), lost_at});
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
    next_wakeup_ = wake;
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
