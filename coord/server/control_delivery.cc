// SPDX-License-Identifier: Apache-2.0
// Streams, acknowledgements, deferred requests and outgoing messages of a session.
#include "coord/server/control_delivery.h"

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "coord/core/errors.h"
#include "coord/wire/bytes.h"

namespace ferry::coord {
namespace {

// A client that does not acknowledge is disconnected when this much is retained for it; its
// requests are rejected before that (MaxBacklogBytes).
constexpr size_t kMaxRetainedBytes = size_t{3} << 30;

}  // namespace

void WriteCoalescer::Add(std::shared_ptr<ControlDelivery> delivery) {
  absl::MutexLock lock(&mu_);
  deliveries_.push_back(std::move(delivery));
}

void WriteCoalescer::Flush() {
  std::vector<std::shared_ptr<ControlDelivery>> deliveries;
  {
    absl::MutexLock lock(&mu_);
    deliveries.swap(deliveries_);
  }
  for (const auto& delivery : deliveries) delivery->Flush();
}

v1::Reply MakeReply(uint64_t request_id, const absl::Status& status) {
  v1::Reply reply;
  reply.set_request_id(request_id);
  if (status.ok()) return reply;
  reply.set_code(static_cast<int>(status.code()));
  reply.set_message(std::string(status.message()));
  if (std::string missing = GetMissingTasks(status); !missing.empty()) {
    reply.set_missing_nodes(std::move(missing));
  }
  return reply;
}

ControlDelivery::ControlDelivery(std::shared_ptr<WriteCoalescer> coalescer)
    : coalescer_(std::move(coalescer)), detached_since_(SteadyClock().Now()) {}

bool ControlDelivery::Attach(FrameSink& sink, uint64_t acked_sequence, v1::Welcome welcome) {
  absl::MutexLock lock(&mu_);
  if (sink_ != nullptr) {
    // Not final: a late stream may be an attempt that the client had abandoned before this one.
    sink_->Finish(absl::UnavailableError("the client has attached by another stream"));
  }
  if (is_closed_ || !overflow_.ok()) {
    sink.Finish(is_closed_ ? absl::AbortedError("the session is closed") : overflow_);
    sink_ = nullptr;
    return false;
  }
  sink_ = &sink;
  is_writing_ = false;
  detached_since_ = absl::InfiniteFuture();
  outbox_.Acknowledge(acked_sequence);
  outbox_.Rewind();
  welcome.set_received_request_id(received_request_id_);
  welcome_ = std::make_unique<v1::Welcome>(std::move(welcome));
  WriteNextLocked();
  return true;
}

bool ControlDelivery::Detach(FrameSink& sink, std::vector<WaitId>& withdrawn) {
  absl::MutexLock lock(&mu_);
  if (sink_ != &sink) return false;
  sink_ = nullptr;
  is_writing_ = false;
  detached_since_ = SteadyClock().Now();
  // Other requests wait for the session to reconnect. But a process that could not join has
  // probably ended, and must not fail the processes of a corrected start.
  for (const auto& [request_id, wait] : waits_) {
    if (WaitIds::Kind(wait) == WaitKind::kFailJoining) withdrawn.push_back(wait);
  }
  return true;
}

void ControlDelivery::OnWritten(FrameSink& sink) {
  absl::MutexLock lock(&mu_);
  if (sink_ != &sink) return;
  is_writing_ = false;
  WriteNextLocked();
}

std::optional<size_t> ControlDelivery::Receive(v1::ClientFrame& frame) {
  absl::MutexLock lock(&mu_);
  if (is_closed_) return std::nullopt;
  outbox_.Acknowledge(frame.acked_sequence());
  if (frame.requests().empty()) return std::nullopt;
  auto& requests = *frame.mutable_requests();
  int kept = 0;
  for (int i = 0; i < requests.size(); ++i) {
    if (requests[i].id() <= received_request_id_) continue;
    received_request_id_ = requests[i].id();
    if (i != kept) requests.SwapElements(kept, i);
    ++kept;
  }
  if (kept < requests.size()) requests.DeleteSubrange(kept, requests.size() - kept);
  return outbox_.retained_bytes();
}

bool ControlDelivery::Add(RequestResults& results) {
  absl::MutexLock lock(&mu_);
  if (is_closed_) return false;
  if (!overflow_.ok()) return true;
  auto shared = results.shared.begin();
  for (size_t i = 0; i < results.replies.size(); ++i) {
    if (shared != results.shared.end() && shared->first == i) {
      outbox_.Add(std::move(results.replies[i]), (shared++)->second);
    } else {
      outbox_.Add(results.replies[i]);
    }
  }
  LimitBacklogLocked();
  return true;
}

void ControlDelivery::Write() {
  absl::MutexLock lock(&mu_);
  if (!is_closed_) WriteNextLocked();
}

void ControlDelivery::LimitBacklogLocked() {
  if (outbox_.retained_bytes() <= kMaxRetainedBytes) return;
  overflow_ = absl::ResourceExhaustedError(
      absl::StrCat("over ", kMaxRetainedBytes >> 30,
                   " GiB wait for a client that does not acknowledge them; watch fewer keys"));
  outbox_.Clear();
  if (sink_ == nullptr) return;
  sink_->Finish(overflow_);
  sink_ = nullptr;
  detached_since_ = SteadyClock().Now();
}

void ControlDelivery::Defer(Coordinator& coordinator, const RequestResults& results) {
  for (const auto& [request_id, wait] : results.waits) Defer(coordinator, request_id, wait);
  if (results.watches.empty()) return;
  absl::MutexLock lock(&mu_);
  for (const auto& [request_id, watch] : results.watches) {
    if (is_closed_) {
      coordinator.store().RemoveWatch(watch);
    } else {
      watches_.emplace(request_id, watch);
    }
  }
}

void ControlDelivery::Defer(Coordinator& coordinator, uint64_t request_id, WaitId wait) {
  if (wait == kNoWait) return;
  absl::MutexLock lock(&mu_);
  if (is_closed_) {
    coordinator.Cancel(wait);
  } else {
    waits_[request_id] = wait;
  }
}

void ControlDelivery::Send(v1::Reply reply, const SharedBytes* shared) {
  absl::MutexLock lock(&mu_);
  waits_.erase(reply.request_id());
  if (is_closed_ || !overflow_.ok()) return;
  if (shared != nullptr) {
    outbox_.Add(std::move(reply), *shared);
  } else {
    outbox_.Add(reply);
  }
  LimitBacklogLocked();
  FlushLaterLocked();
}

void ControlDelivery::Send(v1::Event event, const grpc::Slice& value) {
  absl::MutexLock lock(&mu_);
  if (is_closed_ || !overflow_.ok()) return;
  if (value.size() > 0) {
    outbox_.Add(std::move(event), value);
  } else {
    outbox_.Add(event);
  }
  LimitBacklogLocked();
  FlushLaterLocked();
}

void ControlDelivery::FlushLaterLocked() {
  if (is_in_coalescer_) return;
  is_in_coalescer_ = true;
  coalescer_->Add(shared_from_this());
}

void ControlDelivery::Flush() {
  absl::MutexLock lock(&mu_);
  is_in_coalescer_ = false;
  WriteNextLocked();
}

void ControlDelivery::WriteNextLocked() {
  while (sink_ != nullptr && !is_writing_) {
    grpc::ByteBuffer buffer;
    if (welcome_ != nullptr) {
      v1::ServerFrame frame;
      frame.set_allocated_welcome(welcome_.release());
      buffer = SerializeMessage(frame);
    } else if (!outbox_.Next(buffer)) {
      if (!finish_with_.ok()) sink_->Finish(finish_with_);
      return;
    }
    is_writing_ = !sink_->Write(buffer);
  }
}

void ControlDelivery::FinishWhenDrained(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  finish_with_ = why;
  WriteNextLocked();
}

ControlDelivery::Cancelled ControlDelivery::Find(uint64_t request_id) {
  Cancelled cancelled;
  absl::MutexLock lock(&mu_);
  if (const auto wait = waits_.find(request_id); wait != waits_.end()) {
    cancelled.wait = wait->second;
  }
  if (const auto watch = watches_.find(request_id); watch != watches_.end()) {
    cancelled.watch = watch->second;
    watches_.erase(watch);
  }
  return cancelled;
}

ControlDelivery::Deferred ControlDelivery::Close(const absl::Status& why) {
  Deferred deferred;
  absl::MutexLock lock(&mu_);
  if (is_closed_) return deferred;
  is_closed_ = true;
  if (sink_ != nullptr) sink_->Finish(why);
  sink_ = nullptr;
  detached_since_ = SteadyClock().Now();
  for (const auto& [request_id, wait] : waits_) {
    if (wait != kNoWait) deferred.waits.push_back(wait);
  }
  for (const auto& [request_id, watch] : watches_) deferred.watches.push_back(watch);
  watches_.clear();
  outbox_.Clear();
  return deferred;
}

size_t ControlDelivery::watch_count() const {
  absl::MutexLock lock(&mu_);
  return watches_.size();
}

size_t ControlDelivery::behind() const {
  absl::MutexLock lock(&mu_);
  return outbox_.retained_bytes();
}

bool ControlDelivery::is_over() const {
  absl::MutexLock lock(&mu_);
  return is_closed_ || !overflow_.ok();
}

absl::Time ControlDelivery::detached_since() const {
  absl::MutexLock lock(&mu_);
  return detached_since_;
}

}  // namespace ferry::coord
