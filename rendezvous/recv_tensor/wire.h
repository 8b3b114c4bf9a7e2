// SPDX-License-Identifier: Apache-2.0
// Hand-written protocol buffer fields, and copying of content out of messages.
#ifndef FERRY_RENDEZVOUS_RECV_TENSOR_WIRE_H_
#define FERRY_RENDEZVOUS_RECV_TENSOR_WIRE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include "tensor/closable_writer.h"

namespace ferry::wire {

using google::protobuf::internal::WireFormatLite;

inline constexpr uint32_t Tag(int field, WireFormatLite::WireType type) {
  return static_cast<uint32_t>(field) << 3 | static_cast<uint32_t>(type);
}
inline constexpr uint32_t VarintTag(int field) {
  return Tag(field, WireFormatLite::WIRETYPE_VARINT);
}
inline constexpr uint32_t BytesTag(int field) {
  return Tag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

inline void AppendVarint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}
inline size_t VarintBytes(uint64_t value) {
  size_t bytes = 1;
  for (; value >= 0x80; value >>= 7) ++bytes;
  return bytes;
}

enum class CopyResult { kCopied, kTooShort, kClosed };

// Copies `bytes` from `in` to `out`, in pieces; `gate`, which may be null, can be closed after
// each.
inline CopyResult CopyOut(google::protobuf::io::CodedInputStream& in, size_t bytes, void* out,
                          ClosableWriter* gate) {
  // 0.1 ms of copying.
  constexpr size_t kPieceBytes = size_t{1} << 20;
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const size_t piece = std::min(bytes, kPieceBytes);
    bool is_read = false;
    const auto copy = [&in, &is_read, to, piece] {
      is_read = in.ReadRaw(to, static_cast<int>(piece));
    };
    if (gate == nullptr) {
      copy();
    } else if (!gate->Pass(copy)) {
      return CopyResult::kClosed;
    }
    if (!is_read) return CopyResult::kTooShort;
    to += piece;
    bytes -= piece;
  }
  return CopyResult::kCopied;
}

}  // namespace ferry::wire

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_WIRE_H_
