// SPDX-License-Identifier: Apache-2.0
// 24 bytes.
#include "transport/shm/shm_ticket.h"

#include "absl/status/status.h"

#include "transport/lane/bytes.h"

namespace ferry {

std::string EncodeShmTicket(const ShmTicket& ticket) {
  char room[24];
  ByteWriter writer(room, sizeof(room));
  writer.Put(ticket.segment);
  writer.Put(ticket.generation);
  writer.Put(ticket.offset);
  writer.Put(ticket.segment_bytes);
  return std::string(writer.view());
}

absl::StatusOr<ShmTicket> DecodeShmTicket(absl::string_view body) {
  ByteReader reader(body);
  ShmTicket ticket;
  ticket.segment = reader.Get<uint32_t>();
  ticket.generation = reader.Get<uint32_t>();
  ticket.offset = reader.Get<uint64_t>();
  ticket.segment_bytes = reader.Get<uint64_t>();
  if (reader.is_short() || !reader.rest().empty()) {
    return absl::InvalidArgumentError("a hand-over of memory that is not 24 bytes long");
  }
  return ticket;
}

}  // namespace ferry
