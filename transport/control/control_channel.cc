// SPDX-License-Identifier: Apache-2.0
// Peer names, and the checks shared by implementations.
#include "transport/control/control_channel.h"

#include "absl/strings/str_cat.h"

namespace ferry {

std::string Describe(const PeerId& peer) { return absl::StrCat("node ", peer.node_id); }

absl::Status CheckControlBody(absl::Span<const absl::string_view> parts, size_t max_body) {
  size_t bytes = 0;
  for (const absl::string_view part : parts) bytes += part.size();
  return bytes <= max_body ? absl::OkStatus() : ControlBodyIsTooLarge(bytes, max_body);
}

absl::Status ControlBodyIsTooLarge(size_t bytes, size_t max_body) {
  return absl::InvalidArgumentError(
      absl::StrCat("a message of ", bytes, " bytes; this control channel takes ", max_body));
}

absl::Status ControlQueueIsFull(const PeerId& peer, size_t bytes, size_t frames, size_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat(Describe(peer), " is not reading its messages: ", bytes, " bytes in ", frames,
                   " messages wait for it, and the limit is ", limit,
                   ". Is it stopped, or overloaded? If it only is slow: raise "
                   "--peer-queue-bytes, or have fewer transfers in flight"));
}

absl::Status PeerHasGone(const PeerId& peer) {
  return absl::UnavailableError(
      absl::StrCat(Describe(peer), " has closed its connection: it left, or has died"));
}

}  // namespace ferry
