// SPDX-License-Identifier: Apache-2.0
// Wire format: fixed-size fields, in the order of the structs.
#include "transport/cuda_ipc/cuda_ipc_messages.h"

#include "absl/strings/str_cat.h"

#include "base/byte_reader.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

constexpr uint8_t kHasFd = 1;
constexpr uint8_t kIsKept = 2;
constexpr uint8_t kMayStayOpen = 4;
constexpr uint8_t kHasPoolId = 8;
constexpr uint8_t kVersion = 2;
constexpr uint8_t kKeepsForeignMemory = 1;
constexpr uint8_t kHoldsLifelines = 2;
constexpr size_t kMaxText = 1024;
// Everything but texts, events and pieces.
constexpr size_t kFixedBytes = 64;
constexpr size_t kPieceBytes = 1 + cuda::kIpcDescriptorBytes + sizeof(uint64_t);

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a cuda_ipc ", what, " that is none"));
}

void Put(ByteWriter& writer, const GpuPair& pair) {
  writer.Put(pair.source);
  writer.Put(pair.destination);
}

void Put(ByteWriter& writer, const cuda::EventTicket& ticket) {
  writer.Put(ticket.slot);
  writer.Put(ticket.sequence);
}

void Put(ByteWriter& writer, const CudaIpcPiece& piece) {
  const bool has_pool_id = piece.memory.pool_id != 0;
  writer.Put(static_cast<uint8_t>((piece.has_fd ? kHasFd : 0) | (piece.is_kept ? kIsKept : 0) |
                                  (piece.may_stay_open ? kMayStayOpen : 0) |
                                  (has_pool_id ? kHasPoolId : 0)));
  writer.PutBytes(cuda::EncodeIpcDescriptor(piece.memory));
  if (has_pool_id) writer.Put(piece.memory.pool_id);
}

GpuPair GetPair(ByteReader& reader) {
  GpuPair pair;
  pair.source = reader.Get<uint16_t>();
  pair.destination = reader.Get<uint16_t>();
  return pair;
}

cuda::EventTicket GetTicket(ByteReader& reader) {
  cuda::EventTicket ticket;
  ticket.slot = reader.Get<uint32_t>();
  ticket.sequence = reader.Get<uint64_t>();
  return ticket;
}

absl::StatusOr<CudaIpcPiece> GetPiece(ByteReader& reader) {
  CudaIpcPiece piece;
  const auto flags = reader.Get<uint8_t>();
  const absl::string_view memory = reader.GetBytes(cuda::kIpcDescriptorBytes);
  FERRY_ASSIGN_OR_RETURN(piece.memory, cuda::DecodeIpcDescriptor(memory));
  piece.has_fd = (flags & kHasFd) != 0;
  piece.is_kept = (flags & kIsKept) != 0;
  piece.may_stay_open = (flags & kMayStayOpen) != 0;
  if ((flags & kHasPoolId) != 0) piece.memory.pool_id = reader.Get<uint64_t>();
  if (reader.is_short()) return Malformed("piece");
  return piece;
}

// Encodes a message of this kind, whose fields `put` writes.
template <typename Function>
std::string Encode(CudaIpcMessage kind, size_t more, Function put) {
  std::string room(kFixedBytes + more, '\0');
  ByteWriter writer(room.data(), room.size());
  writer.Put(kind);
  put(writer);
  FERRY_CHECK(!writer.has_overflown());
  return std::string(writer.view());
}

uint8_t VersionOf(absl::string_view descriptor) {
  return descriptor.empty() ? 0 : static_cast<uint8_t>(descriptor[0]);
}

}  // namespace

std::string EncodeCudaIpcPeer() { return std::string(1, static_cast<char>(kVersion)); }

bool MayKeepForeignMemory(absl::string_view descriptor) {
  return VersionOf(descriptor) >= kKeepsForeignMemory;
}

bool HoldsLifelines(absl::string_view descriptor) {
  return VersionOf(descriptor) >= kHoldsLifelines;
}

absl::StatusOr<CudaIpcMessage> KindOfCudaIpc(absl::string_view body) {
  ByteReader reader(body);
  const auto kind = reader.Get<uint8_t>();
  if (kind < static_cast<uint8_t>(CudaIpcMessage::kProbe) ||
      kind > static_cast<uint8_t>(CudaIpcMessage::kRefused)) {
    return Malformed("message");
  }
  return static_cast<CudaIpcMessage>(kind);
}

unsigned char CudaIpcProbeByte(uint32_t seed, size_t index) {
  const uint32_t mixed = (seed + static_cast<uint32_t>(index)) * 2654435761u;
  return static_cast<unsigned char>(mixed >> 24);
}

std::string EncodeCudaIpcProbe(const CudaIpcProbe& probe) {
  const size_t more = kPieceBytes + probe.events.size() * sizeof(cuda::IpcEventHandle);
  return Encode(CudaIpcMessage::kProbe, more, [&probe](ByteWriter& writer) {
    Put(writer, probe.pair);
    writer.Put(probe.seed);
    writer.Put(static_cast<uint16_t>(probe.events.size()));
    writer.PutBytes(cuda::EncodeIpcDescriptor(probe.memory));
    for (const cuda::IpcEventHandle& event : probe.events) writer.Put(event);
  });
}

absl::StatusOr<CudaIpcProbe> DecodeCudaIpcProbe(absl::string_view body) {
  ByteReader reader(body);
  reader.Get<uint8_t>();
  CudaIpcProbe probe;
  probe.pair = GetPair(reader);
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
  return Encode(CudaIpcMessage::kProbed, 2 * kMaxText, [&probed](ByteWriter& writer) {
    Put(writer, probed.pair);
    writer.Put(probed.seed);
    writer.PutText(absl::string_view(probed.refusal).substr(0, kMaxText));
    writer.PutText(absl::string_view(probed.events_unavailable_reason).substr(0, kMaxText));
  });
}

absl::StatusOr<CudaIpcProbed> DecodeCudaIpcProbed(absl::string_view body) {
  ByteReader reader(body);
  reader.Get<uint8_t>();
  CudaIpcProbed probed;
  probed.pair = GetPair(reader);
  probed.seed = reader.Get<uint32_t>();
  probed.refusal = std::string(reader.GetText());
  probed.events_unavailable_reason = std::string(reader.GetText());
  if (reader.is_short() || !reader.rest().empty()) return Malformed("answer to a probe");
  return probed;
}

std::string EncodeCudaIpcDescriptor(const CudaIpcDescriptor& descriptor) {
  std::string room(kFixedBytes + kMaxText + descriptor.pieces.size() * kPieceBytes, '\0');
  ByteWriter writer(room.data(), room.size());
  Put(writer, descriptor.pair);
  Put(writer, descriptor.ready);
  writer.PutText(absl::string_view(descriptor.why_staged).substr(0, kMaxText));
  writer.Put(static_cast<uint16_t>(descriptor.pieces.size()));
  for (const CudaIpcPiece& piece : descriptor.pieces) Put(writer, piece);
  FERRY_CHECK(!writer.has_overflown());
  return std::string(writer.view());
}

absl::StatusOr<CudaIpcDescriptor> DecodeCudaIpcDescriptor(absl::string_view body) {
  ByteReader reader(body);
  CudaIpcDescriptor descriptor;
  descriptor.pair = GetPair(reader);
  descriptor.ready = GetTicket(reader);
  descriptor.why_staged = std::string(reader.GetText());
  const auto pieces = reader.Get<uint16_t>();
  if (reader.is_short() || pieces > kMaxCudaIpcPieces) return Malformed("descriptor");
  for (int i = 0; i < pieces; ++i) {
    FERRY_ASSIGN_OR_RETURN(const CudaIpcPiece piece, GetPiece(reader));
    descriptor.pieces.push_back(piece);
  }
  if (!reader.rest().empty()) return Malformed("descriptor");
  return descriptor;
}

std::string EncodeCudaIpcSlice(const CudaIpcSlice& slice) {
  return Encode(CudaIpcMessage::kSlice, kPieceBytes, [&slice](ByteWriter& writer) {
    writer.Put(slice.id);
    Put(writer, slice.pair);
    writer.Put(slice.offset);
    Put(writer, slice.ready);
    Put(writer, slice.piece);
  });
}

absl::StatusOr<CudaIpcSlice> DecodeCudaIpcSlice(absl::string_view body) {
  ByteReader reader(body);
  reader.Get<uint8_t>();
  CudaIpcSlice slice;
  slice.id = reader.Get<uint64_t>();
  slice.pair = GetPair(reader);
  slice.offset = reader.Get<uint64_t>();
  slice.ready = GetTicket(reader);
  FERRY_ASSIGN_OR_RETURN(slice.piece, GetPiece(reader));
  if (reader.is_short() || !reader.rest().empty() || !slice.piece.is_kept ||
      slice.piece.memory.bytes == 0) {
    return Malformed("slice");
  }
  return slice;
}

std::string EncodeCudaIpcTaken(const CudaIpcTaken& taken) {
  return Encode(CudaIpcMessage::kTaken, 0, [&taken](ByteWriter& writer) {
    writer.Put(taken.id);
    writer.Put(taken.offset);
  });
}

absl::StatusOr<CudaIpcTaken> DecodeCudaIpcTaken(absl::string_view body) {
  ByteReader reader(body);
  reader.Get<uint8_t>();
  CudaIpcTaken taken;
  taken.id = reader.Get<uint64_t>();
  taken.offset = reader.Get<uint64_t>();
  if (reader.is_short() || !reader.rest().empty()) return Malformed("receipt of a slice");
  return taken;
}

std::string EncodeCudaIpcFailed(const CudaIpcFailed& failed) {
  return Encode(CudaIpcMessage::kFailed, kMaxText, [&failed](ByteWriter& writer) {
    writer.Put(failed.id);
    writer.PutText(absl::string_view(failed.why).substr(0, kMaxText));
  });
}

absl::StatusOr<CudaIpcFailed> DecodeCudaIpcFailed(absl::string_view body) {
  ByteReader reader(body);
  reader.Get<uint8_t>();
  CudaIpcFailed failed;
  failed.id = reader.Get<uint64_t>();
  failed.why = std::string(reader.GetText());
  if (reader.is_short() || !reader.rest().empty()) return Malformed("failure");
  return failed;
}

std::string EncodeCudaIpcWanted(const CudaIpcWanted& wanted) {
  return Encode(CudaIpcMessage::kWanted, 0, [&wanted](ByteWriter& writer) {
    Put(writer, wanted.pair);
    writer.Put(wanted.allocation_id);
  });
}

absl::StatusOr<CudaIpcWanted> DecodeCudaIpcWanted(absl::string_view body) {
  ByteReader reader(body);
  reader.Get<uint8_t>();
  CudaIpcWanted wanted;
  wanted.pair = GetPair(reader);
  wanted.allocation_id = reader.Get<uint64_t>();
  if (reader.is_short() || !reader.rest().empty()) return Malformed("request for a segment");
  return wanted;
}

std::string EncodeCudaIpcReclaim(const CudaIpcReclaim& reclaim) {
  return Encode(CudaIpcMessage::kReclaim, 0, [&reclaim](ByteWriter& writer) {
    Put(writer, reclaim.pair);
    writer.Put(reclaim.allocation_id);
  });
}

std::string EncodeCudaIpcReclaimed(const CudaIpcReclaim& reclaimed) {
  return Encode(CudaIpcMessage::kReclaimed, 0, [&reclaimed](ByteWriter& writer) {
    Put(writer, reclaimed.pair);
    writer.Put(reclaimed.allocation_id);
  });
}

absl::StatusOr<CudaIpcReclaim> DecodeCudaIpcReclaim(absl::string_view body) {
  ByteReader reader(body);
  reader.Get<uint8_t>();
  CudaIpcReclaim reclaim;
  reclaim.pair = GetPair(reader);
  reclaim.allocation_id = reader.Get<uint64_t>();
  if (reader.is_short() || !reader.rest().empty()) return Malformed("request to close memory");
  return reclaim;
}

std::string EncodeCudaIpcRefused(const CudaIpcRefused& refused) {
  return Encode(CudaIpcMessage::kRefused, kMaxText, [&refused](ByteWriter& writer) {
    writer.Put(refused.id);
    writer.PutText(absl::string_view(refused.why).substr(0, kMaxText));
  });
}

absl::StatusOr<CudaIpcRefused> DecodeCudaIpcRefused(absl::string_view body) {
  ByteReader reader(body);
  reader.Get<uint8_t>();
  CudaIpcRefused refused;
  refused.id = reader.Get<uint64_t>();
  refused.why = std::string(reader.GetText());
  if (reader.is_short() || !reader.rest().empty()) return Malformed("refusal");
  return refused;
}

std::string EncodeCudaIpcSegment(const CudaIpcSegment& segment) {
  return Encode(CudaIpcMessage::kSegment, kPieceBytes, [&segment](ByteWriter& writer) {
    Put(writer, segment.pair);
    writer.PutBytes(cuda::EncodeIpcDescriptor(segment.memory));
  });
}

absl::StatusOr<CudaIpcSegment> DecodeCudaIpcSegment(absl::string_view body) {
  ByteReader reader(body);
  reader.Get<uint8_t>();
  CudaIpcSegment segment;
  segment.pair = GetPair(reader);
  const absl::string_view memory = reader.GetBytes(cuda::kIpcDescriptorBytes);
  if (reader.is_short() || !reader.rest().empty()) return Malformed("segment");
  FERRY_ASSIGN_OR_RETURN(segment.memory, cuda::DecodeIpcDescriptor(memory));
  return segment;
}

}  // namespace ferry
