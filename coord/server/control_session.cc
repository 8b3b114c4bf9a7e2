// SPDX-License-Identifier: Apache-2.0
// Frames, acknowledgements and streams of a session.
#include "coord/server/control_session.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "coord/core/errors.h"
#include "coord/wire/bytes.h"

namespace ferry::coord {
namespace {

// A client that does not acknowledge is disconnected when this much is retained for it; its
// requests are rejected before that (MostBehind).
constexpr size_t kMaxRetainedBytes = size_t{3} << 30;
// The number of requests executed while holding the executor's lock.
constexpr int kRequestsAtOnce = 64;
// Limits how often pieces of a large frame count as signs of life.
constexpr absl::Duration kAlivePeriod = absl::Milliseconds(200);

}  // namespace

grpc::Slice SharedBlobs::SliceOf(const TopologyExchange::Result& topology) {
  absl::MutexLock lock(&mu_);
  if (topology != topology_) {
    topology_ = topology;
    auto* keep = new TopologyExchange::Result(topology);
    slice_ = grpc::Slice(
        const_cast<char*>(topology->bytes.data()), topology->bytes.size(),
        [](void* held) { delete static_cast<TopologyExchange::Result*>(held); }, keep);
  }
  return slice_;
}

void WriteCoalescer::Add(std::shared_ptr<ControlSession> session) {
  absl::MutexLock lock(&mu_);
  sessions_.push_back(std::move(session));
}

void WriteCoalescer::Flush() {
  std::vector<std::shared_ptr<ControlSession>> sessions;
  {
    absl::MutexLock lock(&mu_);
    sessions.swap(sessions_);
  }
  for (const auto& session : sessions) session->Flush();
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

ControlSession::ControlSession(uint64_t id, ControlShared& shared, const v1::Hello& hello,
                               std::string observed_address)
    : id_(id),
      shared_(shared),
      node_(hello.node()),
      has_node_(hello.has_node()),
      opening_(hello.has_node() ? hello.opening() : 0),
      observed_address_(std::move(observed_address)),
      detached_since_(SteadyClock().Now()) {
  if (has_node_) task_ = TaskId(node_.node_id());
}

void ControlSession::Attach(FrameSink& sink, uint64_t acked_sequence, v1::Welcome welcome) {
  absl::MutexLock lock(&mu_);
  if (sink_ != nullptr) {
    // Not final: a late stream may be an attempt that the client had abandoned before this one.
    sink_->Finish(absl::UnavailableError("the client has attached by another stream"));
  }
  if (is_closed_ || !overflow_.ok()) {
    sink.Finish(is_closed_ ? absl::AbortedError("the session is closed") : overflow_);
    sink_ = nullptr;
    return;
  }
  FERRY_LOG_DEBUG(kCoord, "client connected: session={:x} {} address={}", id_,
                  has_node_ ? absl::StrCat("task=", node_.node_id()) : "tool", observed_address_);
  sink_ = &sink;
  is_writing_ = false;
  detached_since_ = absl::InfiniteFuture();
  outbox_.Acknowledge(acked_sequence);
  outbox_.Rewind();
  welcome.set_session_id(id_);
  welcome.set_received_request_id(received_request_id_);
  welcome_ = std::make_unique<v1::Welcome>(std::move(welcome));
  WriteNextLocked();
}

void ControlSession::Detach(FrameSink& sink) {
  std::vector<WaitId> withdrawn;
  {
    absl::MutexLock lock(&mu_);
    if (sink_ != &sink) return;
    FERRY_LOG_DEBUG(kCoord, "client disconnected: session={:x} {} address={}", id_,
                    has_node_ ? absl::StrCat("task=", node_.node_id()) : "tool", observed_address_);
    sink_ = nullptr;
    is_writing_ = false;
    detached_since_ = SteadyClock().Now();
    for (const auto& [request_id, wait] : waits_) {
      if (WaitIds::Kind(wait) == WaitKind::kFailJoining) withdrawn.push_back(wait);
    }
  }
  if (withdrawn.empty()) return;
  // Other requests wait for the session to reconnect. But a process that could not join has
  // probably ended, and must not fail the processes of a corrected start.
  shared_.edge.strand().Run([&withdrawn](Coordinator& coordinator) {
    for (const WaitId wait : withdrawn) coordinator.Cancel(wait);
  });
}

void ControlSession::OnWritten(FrameSink& sink) {
  absl::MutexLock lock(&mu_);
  if (sink_ != &sink) return;
  is_writing_ = false;
  WriteNextLocked();
}

void ControlSession::NoteAlive() {
  if (!has_node_) return;
  const int64_t now = absl::ToUnixNanos(SteadyClock().CoarseNow());
  if (now - last_alive_ < absl::ToInt64Nanoseconds(kAlivePeriod)) return;
  last_alive_ = now;
  if (last_heartbeat_ != 0) last_heartbeat_ = now;
  shared_.edge.strand().Run([&](Coordinator& coordinator) {
    coordinator.NoteAlive(task_, Incarnation(node_.incarnation()));
  });
}

absl::Status ControlSession::OnFrame(v1::ClientFrame& frame) {
  size_t behind = 0;
  {
    absl::MutexLock lock(&mu_);
    if (is_closed_) return absl::OkStatus();
    outbox_.Acknowledge(frame.acked_sequence());
    if (frame.requests().empty()) return absl::OkStatus();
    behind = outbox_.retained_bytes();
    // Skips requests that were resent although they had been received.
    auto& requests = *frame.mutable_requests();
    int kept = 0;
    for (int i = 0; i < requests.size(); ++i) {
      if (requests[i].id() <= received_request_id_) continue;
      received_request_id_ = requests[i].id();
      if (i != kept) requests.SwapElements(kept, i);
      ++kept;
    }
    if (kept < requests.size()) requests.DeleteSubrange(kept, requests.size() - kept);
  }
  for (int first = 0; first < frame.requests_size(); first += kRequestsAtOnce) {
    const int end = std::min(first + kRequestsAtOnce, frame.requests_size());
    Executed executed;
    executed.behind = behind;
    shared_.edge.strand().Run([&](Coordinator& coordinator) {
      for (int i = first; i < end; ++i) Execute(coordinator, *frame.mutable_requests(i), executed);
      NoteParked(coordinator, executed);
    });
    behind = executed.behind;
    if (executed.replies.empty()) continue;
    absl::MutexLock lock(&mu_);
    if (is_closed_) break;
    AddLocked(executed);
  }
  absl::MutexLock lock(&mu_);
  if (!is_closed_) WriteNextLocked();
  return absl::OkStatus();
}

void ControlSession::AddLocked(Executed& executed) {
  if (!overflow_.ok()) return;
  auto shared = executed.shared.begin();
  for (size_t i = 0; i < executed.replies.size(); ++i) {
    if (shared != executed.shared.end() && shared->first == i) {
      outbox_.Add(std::move(executed.replies[i]), (shared++)->second);
    } else {
      outbox_.Add(executed.replies[i]);
    }
  }
  BoundLocked();
}

void ControlSession::BoundLocked() {
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

void ControlSession::NoteParked(Coordinator& coordinator, const Executed& executed) {
  for (const auto& [request_id, wait] : executed.waits) NoteParked(coordinator, request_id, wait);
  if (executed.watches.empty()) return;
  absl::MutexLock lock(&mu_);
  for (const auto& [request_id, watch] : executed.watches) {
    if (is_closed_) {
      coordinator.store().RemoveWatch(watch);
    } else {
      watches_.emplace(request_id, watch);
    }
  }
}

void ControlSession::NoteParked(Coordinator& coordinator, uint64_t request_id, WaitId wait) {
  if (wait == kNoWait) return;
  absl::MutexLock lock(&mu_);
  if (is_closed_) {
    coordinator.Cancel(wait);
  } else {
    waits_[request_id] = wait;
  }
}

void ControlSession::Tell(v1::Reply reply, const SharedBytes* shared) {
  absl::MutexLock lock(&mu_);
  waits_.erase(reply.request_id());
  if (is_closed_ || !overflow_.ok()) return;
  if (shared != nullptr) {
    outbox_.Add(std::move(reply), *shared);
  } else {
    outbox_.Add(reply);
  }
  BoundLocked();
  FlushLaterLocked();
}

void ControlSession::Tell(v1::Event event, const grpc::Slice& value) {
  absl::MutexLock lock(&mu_);
  if (is_closed_ || !overflow_.ok()) return;
  if (value.size() > 0) {
    outbox_.Add(std::move(event), value);
  } else {
    outbox_.Add(event);
  }
  BoundLocked();
  FlushLaterLocked();
}

void ControlSession::FlushLaterLocked() {
  if (is_in_gather_) return;
  is_in_gather_ = true;
  shared_.gather->Add(shared_from_this());
}

void ControlSession::Flush() {
  absl::MutexLock lock(&mu_);
  is_in_gather_ = false;
  WriteNextLocked();
}

void ControlSession::WriteNextLocked() {
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

void ControlSession::FinishWhenDrained(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  finish_with_ = why;
  WriteNextLocked();
}

size_t ControlSession::Close(const absl::Status& why) {
  std::vector<WaitId> waits;
  std::vector<Store::Watch> watches;
  {
    absl::MutexLock lock(&mu_);
    if (is_closed_) return 0;
    is_closed_ = true;
    if (sink_ != nullptr) sink_->Finish(why);
    sink_ = nullptr;
    detached_since_ = SteadyClock().Now();
    for (const auto& [request_id, wait] : waits_) {
      if (wait != kNoWait) waits.push_back(wait);
    }
    for (const auto& [request_id, watch] : watches_) watches.push_back(watch);
    watches_.clear();
    outbox_.Clear();
  }
  shared_.edge.strand().Run([&](Coordinator& coordinator) {
    for (const WaitId wait : waits) coordinator.Cancel(wait);
    for (const Store::Watch watch : watches) coordinator.store().RemoveWatch(watch);
  });
  return waits.size();
}

size_t ControlSession::CountWatches() const {
  absl::MutexLock lock(&mu_);
  return watches_.size();
}

size_t ControlSession::Behind() const {
  absl::MutexLock lock(&mu_);
  return outbox_.retained_bytes();
}

bool ControlSession::IsOver() const {
  absl::MutexLock lock(&mu_);
  return is_closed_ || !overflow_.ok();
}

absl::Time ControlSession::detached_since() const {
  absl::MutexLock lock(&mu_);
  return detached_since_;
}

void ControlSession::NoteLeft() {
  absl::MutexLock lock(&mu_);
  has_left_ = true;
}

bool ControlSession::has_left() const {
  absl::MutexLock lock(&mu_);
  return has_left_;
}

}  // namespace ferry::coord
