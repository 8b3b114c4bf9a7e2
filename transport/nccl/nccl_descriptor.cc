// SPDX-License-Identifier: Apache-2.0
// Encoding: three numbers, and an optional message.
#include "transport/nccl/nccl_descriptor.h"

#include "base/byte_reader.h"
#include "base/status_macros.h"

namespace ferry {

std::string EncodeNcclTicket(const NcclDescriptor& ticket) {
  char room[16];
  ByteWriter writer(room, sizeof(room));
  writer.Put(ticket.key.id);
  writer.Put(ticket.key.source.value());
  writer.Put(ticket.key.destination.value());
  std::string body(writer.view());
  if (ticket.grant.has_value()) body += EncodeGrantMessage(*ticket.grant);
  return body;
}

absl::StatusOr<NcclDescriptor> DecodeNcclTicket(absl::string_view body) {
  ByteReader reader(body);
  NcclDescriptor ticket;
  ticket.key.id = reader.Get<uint64_t>();
  ticket.key.source = DeviceId(reader.Get<int32_t>());
  ticket.key.destination = DeviceId(reader.Get<int32_t>());
  if (reader.is_short()) return absl::InvalidArgumentError("a ticket of nccl's that is too short");
  if (reader.rest().empty()) return ticket;
  FERRY_ASSIGN_OR_RETURN(ticket.grant, DecodeGrantMessage(reader.rest()));
  const BatchAgreementMessage& grant = *ticket.grant;
  if (grant.kind != BatchAgreementMessageKind::kGrant || grant.from != ticket.key.source ||
      grant.to != ticket.key.destination) {
    return absl::InvalidArgumentError("a ticket of nccl's with a message that is not its grant");
  }
  return ticket;
}

}  // namespace ferry
