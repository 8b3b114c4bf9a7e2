// SPDX-License-Identifier: Apache-2.0
// RecordingControlChannel: a control channel without another end, whose frames a test inspects.
#ifndef FERRY_TESTS_RENDEZVOUS_RECORDING_CONTROL_CHANNEL_H_
#define FERRY_TESTS_RENDEZVOUS_RECORDING_CONTROL_CHANNEL_H_

#include <functional>
#include <string>
#include <vector>

#include "rendezvous/peer/peer_protocol.h"

namespace ferry {

// Records sent frames, and runs a callback at each.
class RecordingControlChannel final : public ControlChannel {
 public:
  explicit RecordingControlChannel(PeerId peer) : peer_(peer) {}

  absl::Status Send(uint16_t type, absl::Span<const absl::string_view> parts,
                    absl::Span<const int> descriptors) override {
    if (!refusal.ok()) return refusal;
    // With or without a checksum.
    if (!keeps_pings && (type & 0xff) == static_cast<uint16_t>(PeerMessageType::kPing)) {
      return absl::OkStatus();
    }
    types.push_back(static_cast<PeerMessageType>(type));
    bodies.emplace_back();
    for (const absl::string_view part : parts) bodies.back().append(part.data(), part.size());
    if (on_send) on_send(types.back());
    return absl::OkStatus();
  }
  void Kick() override { ++kicks; }
  void Close(const absl::Status& why) override {
    if (refusal.ok()) refusal = why;
  }
  const PeerId& peer() const override { return peer_; }
  bool passes_descriptors() const override { return true; }
  std::string Describe() const override { return "kept"; }

  std::function<void(PeerMessageType)> on_send;
  bool keeps_pings = true;
  // The result of Send, if it is an error.
  absl::Status refusal;
  int kicks = 0;
  std::vector<PeerMessageType> types;
  std::vector<std::string> bodies;

 private:
  const PeerId peer_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_RENDEZVOUS_RECORDING_CONTROL_CHANNEL_H_
