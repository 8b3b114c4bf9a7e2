// SPDX-License-Identifier: Apache-2.0
// Assigns tensors to connections.
#include "transport/tcp/tcp_sender.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"

namespace ferry {

void TcpSender::Expose(uint64_t id, const Tensor& tensor, const TensorLocation&,
                       ExposeCallback done) {
  auto transfer = std::make_shared<OutgoingBytes>();
  transfer->id = id;
  transfer->tensor = tensor;
  absl::Status status;
  std::shared_ptr<SliceWriter> near;
  std::vector<std::shared_ptr<SliceWriter>> kicked;
  {
    absl::MutexLock lock(&mu_);
    status = aborted_;
    const bool is_alone = under_way_.empty();
    if (status.ok()) under_way_.insert(id);
    if (status.ok() && is_alone && is_near_idle_ && tensor.bytes() <= kNearBytes) {
      is_near_idle_ = false;
      near = near_;
      near_queue_.push_back(std::move(transfer));
    } else if (status.ok()) {
      queue_.push_back(std::move(transfer));
      // Wake no more threads than there are slices. Busy ones fetch more by themselves.
      size_t slices = std::max<size_t>(1, (tensor.bytes() + kSliceBytes - 1) / kSliceBytes);
      for (; slices > 0 && !idle_.empty(); --slices) {
        kicked.push_back(std::move(idle_.back()));
        idle_.pop_back();
      }
      if (writers_.empty() && is_near_idle_) kicked.push_back(near_);
    }
  }
  if (!status.ok()) return std::move(done)(std::move(status));
  for (const auto& writer : kicked) writer->Kick();
  std::move(done)(TransferDescriptor{.body = near != nullptr ? std::string(kComesNear) : ""});
  // Overlaps with the wake-up of the receiver.
  if (near != nullptr) near->Advance();
}

void TcpSender::Release(uint64_t id) {
  absl::MutexLock lock(&mu_);
  under_way_.erase(id);
}

std::string TcpSender::Obstacle() const {
  std::vector<std::shared_ptr<SliceWriter>> writers;
  {
    absl::MutexLock lock(&mu_);
    writers = writers_;
    if (near_ != nullptr) writers.push_back(near_);
  }
  for (const auto& writer : writers) {
    if (std::string obstacle = writer->Obstacle(); !obstacle.empty()) return obstacle;
  }
  return "";
}

void TcpSender::Abort(const absl::Status& why) {
  std::vector<std::shared_ptr<SliceWriter>> writers;
  std::shared_ptr<SliceWriter> near;
  Transfers dropped;
  Transfers dropped_near;
  {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) aborted_ = why;
    writers.swap(writers_);
    near.swap(near_);
    idle_.clear();
    is_near_idle_ = false;
    under_way_.clear();
    dropped.swap(queue_);
    dropped_near.swap(near_queue_);
  }
  if (near != nullptr) near->Stop();
  for (const auto& writer : writers) writer->Stop();
}

void TcpSender::AddConnection(DataConnection connection) {
  std::shared_ptr<SliceWriter> writer;
  {
    absl::MutexLock lock(&mu_);
    if (!aborted_.ok()) return;
    const bool is_near = connection.index == kNearConnection && near_ == nullptr;
    writer = std::make_shared<SliceWriter>(is_near ? event_loop_ : plane_.loop(connection.index),
                                           std::move(connection.socket), weak_from_this());
    if (is_near) {
      near_ = writer;
    } else {
      writers_.push_back(writer);
    }
  }
  writer->Start();
}

bool TcpSender::NextOf(Transfers& queue, Slice& slice) {
  while (!queue.empty()) {
    const std::shared_ptr<OutgoingBytes>& front = queue.front();
    const size_t total = front->tensor.bytes();
    const size_t offset = front->next.fetch_add(kSliceBytes, std::memory_order_relaxed);
    if (offset < total) {
      slice = {front, offset, std::min(kSliceBytes, total - offset)};
      return true;
    }
    queue.pop_front();
  }
  return false;
}

bool TcpSender::NextSlice(SliceWriter& writer, Slice& slice) {
  absl::MutexLock lock(&mu_);
  if (&writer == near_.get()) {
    // The only connection so far sends everything.
    const bool has_more = NextOf(near_queue_, slice) || (writers_.empty() && NextOf(queue_, slice));
    is_near_idle_ = !has_more;
    return has_more;
  }
  const auto idle =
      absl::c_find_if(idle_, [&writer](const auto& each) { return each.get() == &writer; });
  if (NextOf(queue_, slice)) {
    // It was not kicked.
    if (idle != idle_.end()) idle_.erase(idle);
    return true;
  }
  // Last in, first out: the most recently busy thread is warm.
  if (idle == idle_.end() && aborted_.ok()) idle_.push_back(writer.shared_from_this());
  return false;
}

}  // namespace ferry
