// SPDX-License-Identifier: Apache-2.0
// Frames, acknowledgements and streams of a session.
#include "coord/grpc_control_session.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "coord/errors.h"
#include "coord/grpc_bytes.h"

namespace ferry::coord {
namespace {

// Replies are gathered into one frame up to about this size.
constexpr size_t kFrameBytes = size_t{1} << 20;
// A client that does not acknowledge is cut off when this much waits for it.
constexpr size_t kMaxRetainedBytes = size_t{1} << 30;
// ServerFrame.blob: field 15, length-delimited.
constexpr uint8_t kBlobTag = 15 << 3 | 2;

grpc::ByteBuffer WithBlob(const v1::ServerFrame& frame, const grpc::Slice& blob) {
  std::string head = frame.SerializeAsString();
  head.push_back(static_cast<char>(kBlobTag));
  uint64_t size = blob.size();
  for (; size >= 0x80; size >>= 7) head.push_back(static_cast<char>(size | 0x80));
  head.push_back(static_cast<char>(size));
  const grpc::Slice slices[] = {grpc::Slice(head), blob};
  return grpc::ByteBuffer(slices, 2);
}

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

ControlSession::ControlSession(uint64_t id, Edge& edge, SharedBlobs& blobs, const v1::Hello& hello,
                               std::string observed_address)
    : id_(id),
      edge_(edge),
      blobs_(blobs),
      node_(hello.node()),
      has_node_(hello.has_node()),
      observed_address_(std::move(observed_address)),
      detached_since_(SteadyClock().Now()) {
  if (has_node_) task_ = TaskId(node_.node_id());
}

void ControlSession::Attach(FrameSink& sink, uint64_t acked_sequence, v1::Welcome welcome) {
  absl::MutexLock lock(&mu_);
  if (sink_ != nullptr) {
    sink_->Finish(absl::AbortedError("the client has attached by another stream"));
  }
  if (is_closed_) {
    sink.Finish(absl::AbortedError("the session is closed"));
    sink_ = nullptr;
    return;
  }
  sink_ = &sink;
  is_writing_ = false;
  detached_since_ = absl::InfiniteFuture();
  ForgetAckedLocked(acked_sequence);
  sent_ = 0;
  welcome.set_session_id(id_);
  welcome.set_received_request_id(received_request_id_);
  welcome_ = std::move(welcome);
  WriteNextLocked();
}

void ControlSession::Detach(FrameSink& sink) {
  absl::MutexLock lock(&mu_);
  if (sink_ != &sink) return;
  sink_ = nullptr;
  is_writing_ = false;
  detached_since_ = SteadyClock().Now();
}

void ControlSession::OnWritten(FrameSink& sink) {
  absl::MutexLock lock(&mu_);
  if (sink_ != &sink) return;
  is_writing_ = false;
  WriteNextLocked();
}

void ControlSession::OnFrame(v1::ClientFrame& frame) {
  {
    absl::MutexLock lock(&mu_);
    if (is_closed_) return;
    ForgetAckedLocked(frame.acked_sequence());
    if (frame.requests().empty()) return;
    // Requests that were sent again although they had arrived are not done twice. What is new gets
    // its place among the parked ones before it can be answered.
    auto& requests = *frame.mutable_requests();
    int kept = 0;
    for (int i = 0; i < requests.size(); ++i) {
      if (requests[i].id() <= received_request_id_) continue;
      received_request_id_ = requests[i].id();
      waits_.emplace(requests[i].id(), kNoWait);
      requests.SwapElements(kept++, i);
    }
    requests.DeleteSubrange(kept, requests.size() - kept);
  }
  Executed executed;
  edge_.strand().Run([&](Coordinator& coordinator) {
    for (v1::Request& request : *frame.mutable_requests()) {
      Execute(coordinator, request, executed);
    }
  });
  TellAll(std::move(executed));
}

void ControlSession::TellAll(Executed executed) {
  std::vector<WaitId> orphans;
  std::vector<Store::Watch> orphan_watches;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [request_id, wait] : executed.waits) {
      // Not there any more: answered already.
      const auto parked = waits_.find(request_id);
      if (parked != waits_.end()) parked->second = wait;
      if (is_closed_) orphans.push_back(wait);
    }
    for (const auto& [request_id, watch] : executed.watches) {
      watches_.emplace(request_id, watch);
      if (is_closed_) orphan_watches.push_back(watch);
    }
    for (Item& item : executed.items) {
      if (!item.event.has_value()) waits_.erase(item.reply.request_id());
      pending_.push_back(std::move(item));
    }
    WriteNextLocked();
  }
  if (orphans.empty() && orphan_watches.empty()) return;
  edge_.strand().Run([&](Coordinator& coordinator) {
    for (const WaitId wait : orphans) coordinator.Cancel(wait);
    for (const Store::Watch watch : orphan_watches) coordinator.store().RemoveWatch(watch);
  });
}

void ControlSession::Tell(Item item) {
  absl::MutexLock lock(&mu_);
  if (!item.event.has_value()) waits_.erase(item.reply.request_id());
  if (is_closed_) return;
  pending_.push_back(std::move(item));
  WriteNextLocked();
}

void ControlSession::WriteNextLocked() {
  if (sink_ == nullptr || is_writing_) return;
  if (welcome_.has_value()) {
    v1::ServerFrame frame;
    *frame.mutable_welcome() = *std::exchange(welcome_, std::nullopt);
    is_writing_ = true;
    sink_->Write(SerializeMessage(frame));
    return;
  }
  if (sent_ == frames_.size()) {
    if (pending_.empty()) {
      if (!finish_with_.ok()) sink_->Finish(finish_with_);
      return;
    }
    BuildFrameLocked();
  }
  if (retained_bytes_ > kMaxRetainedBytes) {
    sink_->Finish(absl::ResourceExhaustedError(
        absl::StrCat(retained_bytes_, " bytes wait for a client that does not acknowledge any")));
    sink_ = nullptr;
    detached_since_ = SteadyClock().Now();
    return;
  }
  is_writing_ = true;
  sink_->Write(frames_[sent_++].buffer);
}

void ControlSession::BuildFrameLocked() {
  v1::ServerFrame frame;
  frame.set_sequence(++last_sequence_);
  size_t bytes = 0;
  size_t taken = 0;
  std::optional<grpc::Slice> blob;
  while (taken < pending_.size() && bytes < kFrameBytes && !blob.has_value()) {
    // A blob belongs to the frame's only reply.
    if (pending_[taken].blob.has_value() && taken > 0) break;
    Item& item = pending_[taken++];
    blob = std::move(item.blob);
    if (item.event.has_value()) {
      bytes += item.event->ByteSizeLong();
      *frame.add_events() = *std::move(item.event);
    } else {
      bytes += item.reply.ByteSizeLong();
      *frame.add_replies() = std::move(item.reply);
    }
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(taken));
  Frame built{last_sequence_, 0,
              blob.has_value() ? WithBlob(frame, *blob) : SerializeMessage(frame)};
  // Shared bytes are there once, however many sessions wait to send them.
  built.bytes = built.buffer.Length() - (blob.has_value() ? blob->size() : 0);
  retained_bytes_ += built.bytes;
  frames_.push_back(std::move(built));
}

void ControlSession::ForgetAckedLocked(uint64_t sequence) {
  while (!frames_.empty() && frames_.front().sequence <= sequence) {
    retained_bytes_ -= frames_.front().bytes;
    frames_.pop_front();
    if (sent_ > 0) --sent_;
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
    for (const auto& [request_id, wait] : waits_) {
      if (wait != kNoWait) waits.push_back(wait);
    }
    for (const auto& [request_id, watch] : watches_) watches.push_back(watch);
    watches_.clear();
    pending_.clear();
    frames_.clear();
  }
  edge_.strand().Run([&](Coordinator& coordinator) {
    for (const WaitId wait : waits) coordinator.Cancel(wait);
    for (const Store::Watch watch : watches) coordinator.store().RemoveWatch(watch);
  });
  return waits.size();
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
