// SPDX-License-Identifier: Apache-2.0
// Numbers requests and makes frames of them.
#include "coord/client/agent_outbox.h"

#include <algorithm>
#include <utility>

namespace ferry::coord {
namespace {

// Received bytes that no other traffic has acknowledged are acknowledged by a frame of its own.
constexpr size_t kAckBytes = size_t{1} << 20;
constexpr size_t kRequestsPerFrame = 256;

}  // namespace

uint64_t AgentOutbox::Add(v1::Request request) {
  request.set_id(++last_id_);
  requests_.push_back(std::move(request));
  return last_id_;
}

bool AgentOutbox::TakeBack(uint64_t id) {
  const auto found = std::lower_bound(
      requests_.begin() + static_cast<ptrdiff_t>(maybe_received_), requests_.end(), id,
      [](const v1::Request& request, uint64_t id) { return request.id() < id; });
  if (found == requests_.end() || found->id() != id) return false;
  requests_.erase(found);
  return true;
}

bool AgentOutbox::Next(size_t max_bytes, v1::ClientFrame& frame) {
  if (written_ == requests_.size() && unacked_bytes_ < kAckBytes) return false;
  frame.set_acked_sequence(received_sequence_);
  unacked_bytes_ = 0;
  size_t bytes = kRequestHeadBytes;
  for (size_t n = 0; n < kRequestsPerFrame && bytes < kAckBytes && written_ < requests_.size();
       ++n) {
    const v1::Request& request = requests_[written_];
    bytes += request.ByteSizeLong() + kRequestHeadBytes;
    if (n > 0 && bytes > max_bytes) break;
    ++written_;
    *frame.add_requests() = request;
  }
  maybe_received_ = std::max(maybe_received_, written_);
  return true;
}

void AgentOutbox::ForgetArrived(uint64_t id) {
  while (!requests_.empty() && requests_.front().id() <= id) {
    requests_.pop_front();
    if (written_ > 0) --written_;
    if (maybe_received_ > 0) --maybe_received_;
  }
}

void AgentOutbox::Resume(uint64_t received_id,
                         absl::FunctionRef<bool(const v1::Request&)> is_wanted) {
  ForgetArrived(received_id);
  written_ = 0;
  maybe_received_ = 0;
  std::erase_if(requests_, [is_wanted](const v1::Request& request) { return !is_wanted(request); });
}

void AgentOutbox::Clear() {
  requests_.clear();
  written_ = 0;
  maybe_received_ = 0;
}

bool AgentOutbox::Receive(const v1::ServerFrame& frame) {
  if (frame.sequence() <= received_sequence_) return false;
  received_sequence_ = frame.sequence();
  unacked_bytes_ += frame.ByteSizeLong();
  return true;
}

}  // namespace ferry::coord
