// SPDX-License-Identifier: Apache-2.0
// What a hand-over of memory says.
#ifndef FERRY_TRANSPORT_SHM_SHM_TICKET_H_
#define FERRY_TRANSPORT_SHM_SHM_TICKET_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ferry {

struct ShmTicket {
  uint32_t segment = 0;
  uint32_t generation = 0;
  // Of the tensor's first element, in the segment.
  uint64_t offset = 0;
  // Of a segment that the peer has not heard of, whose descriptor comes along; else 0.
  uint64_t segment_bytes = 0;
};

std::string EncodeShmTicket(const ShmTicket& ticket);
//   Errors: INVALID_ARGUMENT.
absl::StatusOr<ShmTicket> DecodeShmTicket(absl::string_view body);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_SHM_SHM_TICKET_H_
