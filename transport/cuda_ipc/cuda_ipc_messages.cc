// SPDX-License-Identifier: Apache-2.0
// Fields of fixed size, in the order of the structs.
#include "transport/cuda_ipc/cuda_ipc_messages.h"

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "transport/lane/bytes.h"

namespace ferry {
namespace {

constexpr uint8_t kHasFd = 1;
constexpr uint8_t kIsKept = 2;
constexpr size_t kMaxRefusal = 1024;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a cuda_ipc ", what, " that is none"));
}

}  // namespace

unsigned char CudaIpcProbeByte(uint32_t seed, size_t index) {
  const uint32_t mixed = (seed + static_cast<uint32_t>(index)) * 2654435761u;
  return static_cast<unsigned char>(mixed >> 24);
}

std::string EncodeCudaIpcProbe(const CudaIpcProbe& probe) {
  std::string room(
      16 + cuda::kIpcDescriptorBytes + probe.events.size() * sizeof(cuda::IpcEventHandle), '\0');
  ByteWriter writer(room.data(), room.size());
  writer.Put(probe.pair.source);
  writer.Put(probe.pair.destination);
  writer.Put(probe.seed);
  writer.Put(static_cast<uint16_t>(probe.events.size()));
  writer.PutBytes(cuda::EncodeIpcDescriptor(probe.memory));
  for (const cuda::IpcEventHandle& event : probe.events) writer.Put(event);
  FERRY_CHECK(!writer.has_overflown());
  return std::string(writer.view());
}

absl::StatusOr<CudaIpcProbe> DecodeCudaIpcProbe(absl::string_view body) {
  ByteReader reader(body);
  CudaIpcProbe probe;
  probe.pair.source = reader.Get<uint16_t>();
  probe.pair.destination = reader.Get<uint16_t>();
  probe.seed = reader.Get<uint32_t>();
  const auto events = reader.Get<uint16_t>();
  const absl::string_view memory = reader.GetBytes(cuda::kIpcDescriptorBytes);
  if (reader.is_short() || events > kMaxCudaIpcEvents) return Malformed("probe");
  FERRY_ASSIGN_OR_RETURN(probe.memory, cuda::DecodeIpcDescriptor(memory));
  for (int i = 0; i < events; ++i) probe.events.push_back(reader.Get<cuda::IpcEventHandle>());
  if (reader.is_short() || !reader.rest().empty() || probe.memory.bytes != kCudaIpcProbeBytes) {
    return Malformed("probe");
  }
  return probe;
}

std::string EncodeCudaIpcProbed(const CudaIpcProbed& probed) {
  std::string room(8 + kMaxRefusal, '\0');
  ByteWriter writer(room.data(), room.size());
  writer.Put(probed.pair.source);
  writer.Put(probed.pair.destination);
  writer.PutText(absl::string_view(probed.refusal).substr(0, kMaxRefusal));
  return std::string(writer.view());
}

absl::StatusOr<CudaIpcProbed> DecodeCudaIpcProbed(absl::string_view body) {
  ByteReader reader(body);
  CudaIpcProbed probed;
  probed.pair.source = reader.Get<uint16_t>();
  probed.pair.destination = reader.Get<uint16_t>();
  probed.refusal = std::string(reader.GetText());
  if (reader.is_short() || !reader.rest().empty()) return Malformed("answer to a probe");
  return probed;
}

std::string EncodeCudaIpcTicket(const CudaIpcTicket& ticket) {
  std::string room(24 + ticket.pieces.size() * (1 + cuda::kIpcDescriptorBytes), '\0');
  ByteWriter writer(room.data(), room.size());
  writer.Put(ticket.pair.source);
  writer.Put(ticket.pair.destination);
  writer.Put(ticket.ready.slot);
  writer.Put(ticket.ready.sequence);
  writer.Put(static_cast<uint16_t>(ticket.pieces.size()));
  for (const CudaIpcPiece& piece : ticket.pieces) {
    writer.Put(static_cast<uint8_t>((piece.has_fd ? kHasFd : 0) | (piece.is_kept ? kIsKept : 0)));
    writer.PutBytes(cuda::EncodeIpcDescriptor(piece.memory));
  }
  FERRY_CHECK(!writer.has_overflown());
  return std::string(writer.view());
}

absl::StatusOr<CudaIpcTicket> DecodeCudaIpcTicket(absl::string_view body) {
  ByteReader reader(body);
  CudaIpcTicket ticket;
  ticket.pair.source = reader.Get<uint16_t>();
  ticket.pair.destination = reader.Get<uint16_t>();
  ticket.ready.slot = reader.Get<uint32_t>();
  ticket.ready.sequence = reader.Get<uint64_t>();
  const auto pieces = reader.Get<uint16_t>();
  if (reader.is_short() || pieces > kMaxCudaIpcPieces) return Malformed("ticket");
  for (int i = 0; i < pieces; ++i) {
    CudaIpcPiece piece;
    const auto flags = reader.Get<uint8_t>();
    const absl::string_view memory = reader.GetBytes(cuda::kIpcDescriptorBytes);
    if (reader.is_short()) return Malformed("ticket");
    FERRY_ASSIGN_OR_RETURN(piece.memory, cuda::DecodeIpcDescriptor(memory));
    piece.has_fd = (flags & kHasFd) != 0;
    piece.is_kept = (flags & kIsKept) != 0;
    ticket.pieces.push_back(piece);
  }
  if (!reader.rest().empty()) return Malformed("ticket");
  return ticket;
}

}  // namespace ferry
