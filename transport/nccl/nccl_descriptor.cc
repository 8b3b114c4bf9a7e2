// SPDX-License-Identifier: Apache-2.0
// Encoding: three numbers, and an optional message or offer.
#include "transport/nccl/nccl_descriptor.h"

#include "absl/strings/str_cat.h"

#include "base/byte_reader.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

// In place of the kind of a message.
constexpr uint16_t kOffer = 0x100;

}  // namespace

std::string EncodeNcclDescriptor(const NcclDescriptor& descriptor) {
  char room[16];
  ByteWriter writer(room, sizeof(room));
  writer.Put(descriptor.key.id);
  writer.Put(descriptor.key.source.value());
  writer.Put(descriptor.key.destination.value());
  std::string body(writer.view());
  if (descriptor.grant.has_value()) body += EncodeGrantMessage(*descriptor.grant);
  if (descriptor.offer.has_value()) {
    char offer_room[14];
    ByteWriter offer(offer_room, sizeof(offer_room));
    offer.Put(kOffer);
    offer.Put(descriptor.offer->id);
    offer.Put(descriptor.offer->generation);
    absl::StrAppend(&body, offer.view());
  }
  return body;
}

absl::StatusOr<NcclDescriptor> DecodeNcclDescriptor(absl::string_view body) {
  ByteReader reader(body);
  NcclDescriptor descriptor;
  descriptor.key.id = reader.Get<uint64_t>();
  descriptor.key.source = DeviceId(reader.Get<int32_t>());
  descriptor.key.destination = DeviceId(reader.Get<int32_t>());
  if (reader.is_short())
    return absl::InvalidArgumentError("a descriptor of nccl's that is too short");
  if ((descriptor.key.id & kWindowTransferBit) != 0)
    return absl::InvalidArgumentError("a descriptor of nccl's with an id that no tensor has");
  if (reader.rest().empty()) return descriptor;
  if (ByteReader offer(reader.rest()); offer.Get<uint16_t>() == kOffer) {
    CommunicatorName name;
    name.id = offer.Get<uint64_t>();
    name.generation = offer.Get<uint32_t>();
    if (offer.is_short() || !offer.rest().empty()) {
      return absl::InvalidArgumentError("a descriptor of nccl's with a malformed offer");
    }
    descriptor.offer = name;
    return descriptor;
  }
  FERRY_ASSIGN_OR_RETURN(descriptor.grant, DecodeGrantMessage(reader.rest()));
  const BatchAgreementMessage& grant = *descriptor.grant;
  if (grant.kind != BatchAgreementMessageKind::kGrant || grant.from != descriptor.key.source ||
      grant.to != descriptor.key.destination) {
    return absl::InvalidArgumentError(
        "a descriptor of nccl's with a message that is not its grant");
  }
  return descriptor;
}

std::string EncodeNcclPeer(const NcclPeerDescriptor& peer) {
  char room[12];
  ByteWriter writer(room, sizeof(room));
  writer.Put(peer.version);
  if (peer.put_bytes > 0) writer.Put(peer.put_bytes);
  return std::string(writer.view());
}

absl::StatusOr<NcclPeerDescriptor> DecodeNcclPeer(absl::string_view descriptor) {
  ByteReader reader(descriptor);
  NcclPeerDescriptor peer = {.version = reader.Get<int32_t>()};
  if (!reader.is_short() && peer.version > 0) {
    if (reader.rest().size() >= sizeof(peer.put_bytes)) peer.put_bytes = reader.Get<uint64_t>();
    return peer;
  }
  return absl::InvalidArgumentError(absl::StrCat("a descriptor of nccl's of ", descriptor.size(),
                                                 " bytes that begins with no version"));
}

}  // namespace ferry
