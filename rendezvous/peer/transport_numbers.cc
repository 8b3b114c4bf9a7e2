// SPDX-License-Identifier: Apache-2.0
// Matching of transports by name.
#include "rendezvous/peer/transport_numbers.h"

#include "absl/strings/str_cat.h"

namespace ferry {

TransportNumbers::TransportNumbers(const TransportList& own,
                                   absl::Span<const TransportDescription> peer) {
  peers_.reserve(peer.size());
  for (const TransportDescription& each : peer) {
    Peers peers = {.name = each.name, .index = std::nullopt};
    for (size_t i = 0; i < own.size(); ++i) {
      if (own[i]->name() == each.name) peers.index = i;
    }
    if (peers.index.has_value()) common_.Add(*peers.index);
    peers_.push_back(std::move(peers));
  }
}

absl::StatusOr<size_t> TransportNumbers::IndexOf(uint8_t number) const {
  if (number == 0 || number > peers_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a message for transport ", number,
                                                   " of its sender, which has announced ",
                                                   peers_.size(), " in its HELLO"));
  }
  const Peers& found = peers_[number - 1u];
  if (found.index.has_value()) return *found.index;
  return absl::InvalidArgumentError(absl::StrCat("a message for transport ", number,
                                                 " of its sender, which is ", found.name,
                                                 ", which this process does not have"));
}

}  // namespace ferry
