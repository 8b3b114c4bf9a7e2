// SPDX-License-Identifier: Apache-2.0
// KeepingLane: a lane without another end, whose frames a test looks at.
#ifndef FERRY_TESTS_RENDEZVOUS_KEEPING_LANE_H_
#define FERRY_TESTS_RENDEZVOUS_KEEPING_LANE_H_

#include <functional>
#include <string>
#include <vector>

#include "rendezvous/peer/lane_protocol.h"

namespace ferry {

// Keeps what is sent, and calls somebody at each frame.
class KeepingLane final : public Lane {
 public:
  explicit KeepingLane(LanePeer peer) : peer_(peer) {}

  absl::Status Send(uint16_t type, absl::Span<const absl::string_view> parts,
                    absl::Span<const int> descriptors) override {
    if (!refusal.ok()) return refusal;
    // With or without a seal.
    if (!keeps_pings && (type & 0xff) == static_cast<uint16_t>(LaneMessage::kPing)) {
      return absl::OkStatus();
    }
    types.push_back(static_cast<LaneMessage>(type));
    bodies.emplace_back();
    for (const absl::string_view part : parts) bodies.back().append(part.data(), part.size());
    if (on_send) on_send(types.back());
    return absl::OkStatus();
  }
  void Close(const absl::Status& why) override {
    if (refusal.ok()) refusal = why;
  }
  const LanePeer& peer() const override { return peer_; }
  bool passes_descriptors() const override { return true; }
  std::string Describe() const override { return "kept"; }

  std::function<void(LaneMessage)> on_send;
  bool keeps_pings = true;
  // What Send says, if it is an error.
  absl::Status refusal;
  std::vector<LaneMessage> types;
  std::vector<std::string> bodies;

 private:
  const LanePeer peer_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_RENDEZVOUS_KEEPING_LANE_H_
