// SPDX-License-Identifier: Apache-2.0
// TransportNumbers: which transports two processes have in common, and how the peer numbers them.
#ifndef FERRY_RENDEZVOUS_PEER_TRANSPORT_NUMBERS_H_
#define FERRY_RENDEZVOUS_PEER_TRANSPORT_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "transport/transports.h"

namespace ferry {

// Transports are matched by name. A number in a message is a position, from 1, in the list that the
// message's sender has announced in HELLO, so that the lists of two processes may differ. Immutable
// after construction.
class TransportNumbers final {
 public:
  TransportNumbers() = default;
  //   peer: from its HELLO, which has checked it.
  TransportNumbers(const TransportList& own, absl::Span<const TransportDescription> peer);

  // The transports of this process's list that the peer has too.
  TransportSet common() const { return common_; }
  // The index in this process's list of the transport with that number in a message of the peer.
  //   Errors: INVALID_ARGUMENT naming the number, if the peer has announced no such transport, or
  //   announced one that this process lacks and must not use it.
  absl::StatusOr<size_t> IndexOf(uint8_t number) const;

 private:
  struct Peers {
    std::string name;
    std::optional<size_t> index;
  };

  TransportSet common_ = TransportSet::None();
  // By number, from 1.
  std::vector<Peers> peers_;
};

// The number of the transport at that index of this process's list, in messages that it sends.
inline uint8_t NumberOfTransport(size_t index) { return static_cast<uint8_t>(index + 1); }

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_TRANSPORT_NUMBERS_H_
