// SPDX-License-Identifier: Apache-2.0
// Two queues of frames, and dice.
#include "tests/support/faulty_control_channel.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "transport/inline_threshold.h"

namespace ferry {

struct WireFrame {
  uint16_t type = 0;
  std::string body;
  std::vector<std::shared_ptr<UniqueFd>> descriptors;
};

namespace {

// As in rendezvous/peer/peer_protocol.h: the bytes before the dimensions and the body of a transfer
// descriptor.
constexpr uint16_t kReadyToSend = 3;
// As in rendezvous/peer/frame_checksum.h.
constexpr uint16_t kChecksumBit = 0x8000;
constexpr size_t kReadyToSendHead = 24;
constexpr size_t kRankAt = 17;
// Frames that arrive together, at most.
constexpr size_t kMaxTogether = 80;

// In memory of exactly that size: a sanitizer detects reads beyond it.
std::vector<char> ExactCopy(const std::string& body) { return {body.begin(), body.end()}; }

}  // namespace

// One side's control channel. `inbox`: frames sent by the other side.
class FaultyWire::End final : public ControlChannel {
 public:
  End(FaultyWire* wire, PeerId peer) : wire(wire), peer_(peer) {}

  absl::Status Send(uint16_t type, absl::Span<const absl::string_view> parts,
                    absl::Span<const int> descriptors) override {
    FERRY_RETURN_IF_ERROR(Put(type, parts, descriptors));
    Kick();
    return absl::OkStatus();
  }
  absl::Status Append(uint16_t type, absl::Span<const absl::string_view> parts) override {
    return Put(type, parts, {});
  }
  void Kick() override {
    const std::shared_ptr<End> to = other.lock();
    if (to != nullptr && wire != nullptr && closed.ok()) {
      for (WireFrame& frame : appended) to->inbox.push_back(std::move(frame));
    }
    appended.clear();
  }
  absl::Status Put(uint16_t type, absl::Span<const absl::string_view> parts,
                   absl::Span<const int> descriptors) {
    FERRY_RETURN_IF_ERROR(CheckControlBody(parts));
    if (!closed.ok()) return closed;
    if (wire == nullptr || other.expired()) return PeerHasGone(peer_);
    if (wire->Chance(wire->faults_.refuse)) {
      ++wire->damaged_;
      return ControlQueueIsFull(peer_, 1, 1, 1);
    }
    ++wire->sent_[{type & ~kChecksumBit, wire->handled_}];
    WireFrame frame = {.type = type};
    for (const absl::string_view part : parts) absl::StrAppend(&frame.body, part);
    for (const int fd : descriptors) {
      frame.descriptors.push_back(std::make_shared<UniqueFd>(fcntl(fd, F_DUPFD_CLOEXEC, 0)));
    }
    appended.push_back(std::move(frame));
    return absl::OkStatus();
  }
  void Close(const absl::Status& why) override {
    if (closed.ok()) closed = why;
  }
  const PeerId& peer() const override { return peer_; }
  bool passes_descriptors() const override { return true; }
  size_t queued_bytes() const override {
    const std::shared_ptr<End> to = other.lock();
    if (wire == nullptr || to == nullptr) return 0;
    return to->inbox.size() >= wire->faults_.backlog_frames ? kEagerBacklog + 1 : 0;
  }
  bool is_all_read() const override {
    const std::shared_ptr<End> to = other.lock();
    return to != nullptr && to->inbox.empty() && appended.empty();
  }
  std::string Describe() const override { return "faulty"; }

  void Finish() {
    inbox.clear();
    if (handler == nullptr) return;
    std::exchange(handler, nullptr)->OnClosed(closed);
  }

  FaultyWire* wire;
  std::weak_ptr<End> other;
  std::shared_ptr<ControlHandler> handler;
  std::deque<WireFrame> inbox;
  // Until Kick: a frame for which it is forgotten never arrives.
  std::vector<WireFrame> appended;
  bool is_open = false;
  absl::Status closed;

 private:
  const PeerId peer_;
};

FaultyWire::FaultyWire(uint64_t seed, WireFaults faults) : random_(seed), faults_(faults) {}

FaultyWire::~FaultyWire() {
  Break();
  for (const auto& end : ends_) {
    if (end != nullptr) end->wire = nullptr;
  }
}

bool FaultyWire::Chance(int out_of_thousand) {
  return out_of_thousand > 0 && static_cast<int>(random_() % 1000) < out_of_thousand;
}

void FaultyWire::Open(std::shared_ptr<ControlHandler> a, PeerId a_peer,
                      std::shared_ptr<ControlHandler> b, PeerId b_peer, bool is_late) {
  ends_[0] = std::make_shared<End>(this, b_peer);
  ends_[1] = std::make_shared<End>(this, a_peer);
  ends_[0]->other = ends_[1];
  ends_[1]->other = ends_[0];
  ends_[0]->handler = std::move(a);
  ends_[1]->handler = std::move(b);
  if (is_late) return;
  for (const int first : {1, 0}) {
    ends_[first]->is_open = true;
    ends_[first]->handler->OnOpen(ends_[first]);
  }
}

bool FaultyWire::is_over() const {
  return ends_[0]->handler == nullptr && ends_[1]->handler == nullptr;
}

bool FaultyWire::is_ending() const {
  for (const auto& end : ends_) {
    if (end->handler == nullptr || !end->closed.ok()) return true;
  }
  return false;
}

bool FaultyWire::Step() {
  std::vector<End*> able;
  for (const auto& end : ends_) {
    if (end->handler == nullptr) continue;
    const std::shared_ptr<End> other = end->other.lock();
    const bool other_has_gone = other == nullptr || other->handler == nullptr;
    if (!end->is_open || !end->inbox.empty() || !end->closed.ok() || other_has_gone) {
      able.push_back(end.get());
    }
  }
  if (able.empty()) return false;
  End& end = *able[random_() % able.size()];
  if (!end.is_open) {
    end.is_open = true;
    end.handler->OnOpen(ends_[&end == ends_[1].get() ? 1 : 0]);
  } else if (!end.closed.ok()) {
    end.Finish();
  } else if (!end.inbox.empty()) {
    Deliver(end);
  } else {
    end.Close(PeerHasGone(end.peer()));
    end.Finish();
  }
  return true;
}

void FaultyWire::Damage(std::deque<WireFrame>& frames) {
  WireFrame& front = frames.front();
  const auto flip = [this, &front](size_t from) {
    if (front.body.size() <= from) return;
    ++damaged_;
    const size_t at = from + random_() % (front.body.size() - from);
    front.body[at] = static_cast<char>(front.body[at] ^ (1 << random_() % 8));
  };
  if (Chance(faults_.truncate) && !front.body.empty()) {
    ++damaged_;
    front.body.resize(random_() % front.body.size());
  }
  if (Chance(faults_.corrupt)) flip(0);
  if ((front.type & ~kChecksumBit) == kReadyToSend && front.body.size() > kReadyToSendHead &&
      Chance(faults_.corrupt_body)) {
    flip(kReadyToSendHead + 8u * static_cast<unsigned char>(front.body[kRankAt]));
  }
  if (frames.size() > 1 && Chance(faults_.reorder)) {
    ++damaged_;
    std::swap(frames[0], frames[1]);
  }
}

void FaultyWire::Deliver(End& end) {
  if (Chance(faults_.close)) return Break();
  Damage(end.inbox);
  WireFrame frame = std::move(end.inbox.front());
  end.inbox.pop_front();
  if (Chance(faults_.drop)) {
    ++damaged_;
    return;
  }
  if (Chance(faults_.duplicate)) {
    ++damaged_;
    ++duplicated_;
    end.inbox.push_front(frame);
  }
  std::vector<WireFrame> frames;
  if (frame.descriptors.empty() && Chance(faults_.together)) {
    frames.push_back(std::move(frame));
    const size_t most = 1 + random_() % kMaxTogether;
    while (frames.size() < most && !end.inbox.empty() && end.inbox.front().descriptors.empty()) {
      frames.push_back(std::move(end.inbox.front()));
      end.inbox.pop_front();
    }
  }
  // The first one's type, of several.
  handled_ = (frames.empty() ? frame : frames[0]).type & ~kChecksumBit;
  absl::Status status;
  if (frames.empty()) {
    std::vector<UniqueFd> descriptors;
    for (const auto& fd : frame.descriptors) {
      descriptors.emplace_back(fcntl(fd->get(), F_DUPFD_CLOEXEC, 0));
    }
    const std::vector<char> body = ExactCopy(frame.body);
    status =
        end.handler->OnFrame(frame.type, {body.data(), body.size()}, absl::MakeSpan(descriptors));
  } else {
    status = DeliverTogether(end, frames);
  }
  handled_ = 0;
  violation_.Update(status);
  if (!status.ok()) end.Close(status);
}

absl::Status FaultyWire::DeliverTogether(End& end, const std::vector<WireFrame>& frames) {
  std::vector<std::vector<char>> bodies;
  std::vector<ControlFrame> together;
  for (const WireFrame& frame : frames) {
    const std::vector<char>& body = bodies.emplace_back(ExactCopy(frame.body));
    together.push_back({.type = frame.type, .body = {body.data(), body.size()}});
  }
  return end.handler->OnFrames(together);
}

int64_t FaultyWire::sent(uint16_t type) const {
  int64_t count = 0;
  for (const auto& [types, sent] : sent_) count += types.first == type ? sent : 0;
  return count;
}

int64_t FaultyWire::sent_while_handling(uint16_t type, uint16_t handled) const {
  const auto found = sent_.find({type, handled});
  return found == sent_.end() ? 0 : found->second;
}

void FaultyWire::Break() {
  for (const auto& end : ends_) {
    if (end == nullptr || end->handler == nullptr) continue;
    end->Close(PeerHasGone(end->peer()));
    end->Finish();
  }
}

void FaultyWire::Kill(bool is_a) {
  End& killed = *ends_[is_a ? 0 : 1];
  End& other = *ends_[is_a ? 1 : 0];
  if (killed.handler == nullptr) return;
  const size_t arrives = random_() % (other.inbox.size() + 1);
  killed.Close(PeerHasGone(killed.peer()));
  killed.Finish();
  other.inbox.resize(std::min(arrives, other.inbox.size()));
}

}  // namespace ferry
