// SPDX-License-Identifier: Apache-2.0
// The part of protocol buffers' wire format that a client of the control stream needs.
#include "benchmarks/support/control_frames.h"

#include <vector>

#include <grpcpp/support/slice.h>

#include "coord/wire/bytes.h"

namespace ferry::bench {
namespace {

// Tags of the fields in proto/ferry_control.proto: number << 3 | wire type.
constexpr uint8_t kFrameHello = 1 << 3 | 2;
constexpr uint8_t kFrameAckedSequence = 2 << 3;
constexpr uint8_t kFrameRequests = 3 << 3 | 2;
constexpr uint8_t kRequestId = 1 << 3;
constexpr uint8_t kServerSequence = 2 << 3;
constexpr uint8_t kServerReplies = 3 << 3 | 2;
constexpr uint8_t kServerBlob = 15 << 3 | 2;
constexpr uint8_t kReplyCode = 2 << 3;
constexpr int kInternal = 13;

void AppendVarint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

size_t VarintBytes(uint64_t value) {
  size_t bytes = 1;
  for (; value >= 0x80; value >>= 7) ++bytes;
  return bytes;
}

bool TakeVarint(absl::string_view& bytes, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const uint8_t byte = static_cast<uint8_t>(bytes[0]);
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// One varint or length-delimited field; the frames have no others at their top.
bool TakeField(absl::string_view& bytes, uint64_t& tag, uint64_t& value,
               absl::string_view& content) {
  if (!TakeVarint(bytes, tag) || !TakeVarint(bytes, value)) return false;
  if ((tag & 7) == 0) return true;
  if ((tag & 7) != 2 || value > bytes.size()) return false;
  content = bytes.substr(0, value);
  bytes.remove_prefix(value);
  return true;
}

int CodeOf(absl::string_view reply) {
  uint64_t tag = 0;
  uint64_t value = 0;
  // The id comes first and the code, if any, after it.
  if (!TakeVarint(reply, tag) || !TakeVarint(reply, value)) return 0;
  if (reply.empty() || static_cast<uint8_t>(reply[0]) != kReplyCode) return 0;
  reply.remove_prefix(1);
  return TakeVarint(reply, value) ? static_cast<int>(value) : kInternal;
}

// The fields before the blob.
ScannedFrame ScanHead(absl::string_view rest) {
  ScannedFrame frame;
  while (!rest.empty()) {
    if (static_cast<uint8_t>(rest[0]) == kServerBlob) {
      frame.has_blob = true;
      break;
    }
    uint64_t tag = 0;
    uint64_t value = 0;
    absl::string_view content;
    if (!TakeField(rest, tag, value, content)) {
      frame.code = kInternal;
      break;
    }
    if (tag == kServerSequence) frame.sequence = value;
    if (tag == kServerReplies) {
      ++frame.replies;
      if (frame.code == 0) frame.code = CodeOf(content);
    }
  }
  return frame;
}

}  // namespace

void AppendHello(const v1::Hello& hello, std::string& frame) {
  frame.push_back(static_cast<char>(kFrameHello));
  AppendVarint(hello.ByteSizeLong(), frame);
  hello.AppendToString(&frame);
}

void AppendAck(uint64_t sequence, std::string& frame) {
  frame.push_back(static_cast<char>(kFrameAckedSequence));
  AppendVarint(sequence, frame);
}

void AppendRequest(uint64_t id, absl::string_view op, std::string& frame) {
  frame.push_back(static_cast<char>(kFrameRequests));
  AppendVarint(1 + VarintBytes(id) + op.size(), frame);
  frame.push_back(static_cast<char>(kRequestId));
  AppendVarint(id, frame);
  frame.append(op.data(), op.size());
}

grpc::ByteBuffer ToBuffer(absl::string_view bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

std::string BlobOf(const ScannedFrame& frame) {
  v1::ServerFrame parsed;
  grpc::ByteBuffer bytes = frame.bytes;
  return coord::ParseMessage(bytes, parsed) ? parsed.blob() : "";
}

ScannedFrame ScanFrame(const grpc::ByteBuffer& buffer) {
  // A blob is the last field and large: it is not joined only to be skipped. The fields before it
  // are in the first slice.
  std::vector<grpc::Slice> slices;
  if (buffer.Dump(&slices).ok() && slices.size() > 1) {
    ScannedFrame frame = ScanHead(coord::View(slices[0]));
    frame.bytes = buffer;
    if (frame.has_blob) return frame;
  }
  const grpc::Slice whole = coord::Flatten(buffer);
  ScannedFrame frame = ScanHead(coord::View(whole));
  frame.bytes = buffer;
  return frame;
}

ScannedFrame ScanFrame(absl::string_view bytes) { return ScanHead(bytes); }

}  // namespace ferry::bench
