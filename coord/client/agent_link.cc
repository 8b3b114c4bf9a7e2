// SPDX-License-Identifier: Apache-2.0
// Streams, and resending.
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

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(20);
constexpr absl::Duration kLongestBackoff = absl::Seconds(2);
// The coordinator enforces the deadline and knows the missing nodes; only if it is gone does the
// agent answer instead, later by this margin: as long as the wait itself, within these bounds.
constexpr absl::Duration kLeastAnswerMargin = absl::Seconds(2);
constexpr absl::Duration kMostAnswerMargin = absl::Seconds(5);
// Received bytes that no other traffic has acknowledged are acknowledged by a frame of its own.
constexpr size_t kAckBytes = size_t{1} << 20;
constexpr size_t kRequestsPerFrame = 256;
// The overhead of a request: its id, tag and length; the same for the acknowledgement.
constexpr size_t kRequestHeadBytes = 32;

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
      started_(SteadyClock().Now()),
      last_contact_(started_),
      next_attempt_(started_),
      backoff_(kFirstBackoff),
      random_(static_cast<uint32_t>(absl::ToUnixNanos(started_))),
      opening_(RandomId()),
      thread_("ferry-agent", [this] { Keep(); }) {}

AgentLink::~AgentLink() {
  Ready ready;
  {
    absl::MutexLock lock(&mu_);
    is_closing_ = true;
    LoseLocked(absl::CancelledError("the agent is being closed"), ready);
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
      deadline = started_ + options_.connect_timeout;
      const absl::Time now = SteadyClock().Now();
      if (now >= deadline) return absl::DeadlineExceededError(OutOfReachLocked(now));
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
  LoseLocked(why, deferred_);
  changed_.Wake();
}

void AgentLink::StartJoining() {
  absl::MutexLock lock(&mu_);
  is_joining_ = true;
  changed_.Wake();
}

void AgentLink::StopJoining() {
  absl::MutexLock lock(&mu_);
  is_joining_ = false;
}

void AgentLink::NoteJobError(const absl::Status& error) {
  absl::MutexLock lock(&mu_);
  if (job_error_.ok()) job_error_ = error;
  changed_.Wake();
}

std::string AgentLink::OutOfReachLocked(absl::Time now) const {
  return absl::StrCat("the coordinator at ", options_.coordinator, " has been out of reach for ",
                      ShortDuration(now - last_contact_), " (",
                      last_failure_.ok() ? "no answer from there yet" : last_failure_.message(),
                      "); is it running, and is the address right?");
}

uint64_t AgentLink::SendLocked(v1::Request request) {
  request.set_id(++last_request_id_);
  outgoing_.push_back(std::move(request));
  WriteLocked();
  return last_request_id_;
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
  const uint64_t id = last_request_id_ + 1;
  pending_.emplace(id,
                   Pending{now, deadline, std::move(what), HasEffect(request), std::move(done)});
  deadlines_.emplace(deadline, id);
  if (deadline < next_look_) {
    next_look_ = deadline;
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
  const size_t bytes = request.ByteSizeLong() + 2 * kRequestHeadBytes;
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
  loop_->WantThread();
  absl::MutexLock lock(&mu_);
  subscriptions_.emplace(last_request_id_ + 1,
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
    const bool owes_ack = unacked_bytes_ >= kAckBytes;
    if (written_ == outgoing_.size() && !owes_ack) return;
    v1::ClientFrame frame;
    frame.set_acked_sequence(received_sequence_);
    unacked_bytes_ = 0;
    const size_t most = MaxFrameBytesLocked();
    size_t bytes = kRequestHeadBytes;
    for (size_t n = 0; n < kRequestsPerFrame && bytes < kAckBytes && written_ < outgoing_.size();
         ++n) {
      const v1::Request& request = outgoing_[written_];
      bytes += request.ByteSizeLong() + kRequestHeadBytes;
      if (n > 0 && bytes > most) break;
      ++written_;
      *frame.add_requests() = request;
    }
    doubtful_ = std::max(doubtful_, written_);
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
  frame.mutable_hello()->set_acked_sequence(received_sequence_);
  if (options_.hello.has_node()) {
    frame.mutable_hello()->set_opening(opening_);
    frame.mutable_hello()->set_attempt(++attempt_);
  }
  // Sent once connected.
  is_writing_ = !stream_->Write(frame);
  return stream_;
}

void AgentLink::ForgetArrivedLocked(uint64_t id) {
  while (!outgoing_.empty() && outgoing_.front().id() <= id) {
    outgoing_.pop_front();
    if (written_ > 0) --written_;
    if (doubtful_ > 0) --doubtful_;
  }
}

bool AgentLink::TakeBackLocked(uint64_t id) {
  const auto found =
      std::lower_bound(outgoing_.begin() + static_cast<ptrdiff_t>(doubtful_), outgoing_.end(), id,
                       [](const v1::Request& request, uint64_t id) { return request.id() < id; });
  if (found == outgoing_.end() || found->id() != id) return false;
  outgoing_.erase(found);
  return true;
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
    last_contact_ = SteadyClock().Now();
    if (frame.has_welcome()) {
      ForgetArrivedLocked(frame.welcome().received_request_id());
      written_ = 0;
      doubtful_ = 0;
      // The others have not arrived; requests whose timeout has been reported are dropped, not
      // executed late.
      std::erase_if(outgoing_,
                    [this](const v1::Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                      return HasEffect(request) && pending_.count(request.id()) == 0;
                    });
      welcome_ = std::move(*frame.mutable_welcome());
      is_attached_ = true;
      FERRY_LOG_INFO(kCoord, "connected to the coordinator: coordinator={} session={:x}",
                     options_.coordinator, welcome_->session_id());
      backoff_ = kFirstBackoff;
      WriteLocked();
      changed_.Wake();
      return;
    }
    // Resent although it had arrived: its acknowledgement was lost with the old stream.
    if (frame.sequence() <= received_sequence_) return;
    received_sequence_ = frame.sequence();
    unacked_bytes_ += frame.ByteSizeLong();
    for (v1::Reply& reply : *frame.mutable_replies()) {
      ForgetArrivedLocked(reply.request_id());
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
        if (job_error_.ok()) {
          job_error_ = absl::Status(static_cast<absl::StatusCode>(event.code()), event.message());
          FERRY_LOG_INFO(kCoord, "job failed: {}", job_error_);
        }
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
      last_contact_ = std::max(last_contact_, was_silent ? stream.last_bytes() : now);
    }
    stream_ = nullptr;
    is_attached_ = false;
    is_writing_ = false;
    written_ = 0;
    const absl::Time now = SteadyClock().Now();
    last_failure_ =
        status.ok() ? absl::UnavailableError("the coordinator ended the connection") : status;
    if (was_attached) {
      FERRY_LOG_INFO(kCoord, "connection to the coordinator closed: coordinator={}: {}",
                     options_.coordinator, last_failure_);
    } else {
      FERRY_LOG_DEBUG(kCoord, "connection to the coordinator failed: coordinator={}: {}",
                      options_.coordinator, last_failure_);
    }
    if (IsFinal(last_failure_) && lost_.ok()) {
      LoseLocked(last_failure_, deferred_);
    } else if (!job_error_.ok() && !was_attached && lost_.ok()) {
      // One more attempt, in case of a transient network failure, was enough.
      LoseLocked(job_error_, deferred_);
    }
    if (!was_attached && lost_.ok() && options_.on_attempt_failed) {
      deferred_.push_back([this, why = last_failure_]() { options_.on_attempt_failed(why); });
    }
    // Jitter, so that a thousand nodes do not reconnect at the same instant.
    next_attempt_ = now + backoff_ * (0.5 + 0.5 * (random_() % 1024) / 1024.0);
    backoff_ = std::min(backoff_ * 2, kLongestBackoff);
  }
  changed_.Wake();
}

void AgentLink::LoseLocked(const absl::Status& why, Ready& ready) {
  const bool is_first = lost_.ok();
  if (is_first && !is_closing_) {
    FERRY_LOG_INFO(kCoord, "coordinator lost: coordinator={}: {}", options_.coordinator, why);
  }
  if (is_first) lost_ = why;
  while (!pending_.empty()) EndLocked(pending_.begin(), why, ready);
  outgoing_.clear();
  written_ = 0;
  doubtful_ = 0;
  if (stream_ != nullptr) stream_->Close(absl::CancelledError("the agent has stopped waiting"));
  if (is_first && !is_closing_ && options_.on_lost) {
    ready.push_back([this, why]() { options_.on_lost(why); });
  }
}

}  // namespace ferry::coord
