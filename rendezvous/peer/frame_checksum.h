// SPDX-License-Identifier: Apache-2.0
// Seals: a checksum at the end of each frame of a control channel, so that no changed one is
// believed.
#ifndef FERRY_RENDEZVOUS_PEER_FRAME_CHECKSUM_H_
#define FERRY_RENDEZVOUS_PEER_FRAME_CHECKSUM_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "transport/control/control_channel.h"

namespace ferry {

// Set in the type of a frame that has one. All frames of a side have one or none has, so that this
// bit cannot change unseen either.
inline constexpr uint16_t kSealBit = 0x8000;
// XXH3 of the body before it, with the type as the seed.
inline constexpr size_t kSealBytes = 8;

inline bool IsSealed(uint16_t type) { return (type & kSealBit) != 0; }

// What sends through it sends sealed frames through `lane`.
std::shared_ptr<ControlChannel> MakeSealingLane(std::shared_ptr<ControlChannel> channel);

// Takes the seal off a frame: `type` and `body` are then what was sent.
//   Errors: DATA_LOSS naming the message and its sender, for one that has changed on its way, or
//   has no seal.
absl::Status Unseal(const PeerId& sender, uint16_t& type, absl::string_view& body);

// Of what has changed between here and `peer`: what to do about it, for people.
std::string WhatToDoAboutDamage(const PeerId& peer);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_FRAME_CHECKSUM_H_
