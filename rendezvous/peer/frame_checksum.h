// SPDX-License-Identifier: Apache-2.0
// Frame checksums: one at the end of each frame of a control channel, so that a corrupted frame
// is never processed.
#ifndef FERRY_RENDEZVOUS_PEER_FRAME_CHECKSUM_H_
#define FERRY_RENDEZVOUS_PEER_FRAME_CHECKSUM_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "transport/control/control_channel.h"

namespace ferry {

// Set in the type of a checksummed frame. A side checksums all of its frames or none, so a
// corrupted checksum bit is detected too.
inline constexpr uint16_t kChecksumBit = 0x8000;
// XXH3 of the preceding body, seeded with the type.
inline constexpr size_t kChecksumBytes = 8;

inline bool IsChecksummed(uint16_t type) { return (type & kChecksumBit) != 0; }

// Returns a channel that sends checksummed frames through `channel`.
std::shared_ptr<ControlChannel> MakeChecksummedChannel(std::shared_ptr<ControlChannel> channel);

// Verifies and removes a frame's checksum: `type` and `body` are then as sent.
//   Errors: DATA_LOSS naming the message and its sender, if the frame was corrupted in transit or
//   has no checksum.
absl::Status RemoveChecksum(const PeerId& sender, uint16_t& type, absl::string_view& body);

// Human-readable advice for corruption between this process and `peer`.
std::string WhatToDoAboutDamage(const PeerId& peer);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_FRAME_CHECKSUM_H_
