// SPDX-License-Identifier: Apache-2.0
// The frame format of ferry.v1.Control over a plain connection.
#ifndef FERRY_COORD_WIRE_DIRECT_FRAMES_H_
#define FERRY_COORD_WIRE_DIRECT_FRAMES_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace ferry::coord {

// The client's first bytes. The first one distinguishes it from HTTP/2, whose clients send "PRI".
inline constexpr absl::string_view kDirectPreface = "FERRYv1\n";

// Frames follow in either direction: a four-byte little-endian header, with the length in the
// lower 31 bits, and the content. A frame with the highest bit set is the last one of its
// direction: the server's says, as a v1::Reply, why the stream ends.
inline constexpr size_t kDirectHeaderBytes = 4;
inline constexpr size_t kMaxDirectFrameBytes = (size_t{1} << 31) - 1;

struct DirectHeader {
  size_t bytes = 0;
  bool is_last = false;
};

// REQUIRES: at most kMaxDirectFrameBytes; `out` has room for kDirectHeaderBytes.
inline void WriteDirectHeader(DirectHeader header, uint8_t* out) {
  const uint32_t word =
      static_cast<uint32_t>(header.bytes) | (header.is_last ? uint32_t{1} << 31 : 0);
  for (size_t i = 0; i < kDirectHeaderBytes; ++i) out[i] = static_cast<uint8_t>(word >> 8 * i);
}

// REQUIRES: at least kDirectHeaderBytes.
inline DirectHeader ReadDirectHeader(const char* bytes) {
  uint32_t word = 0;
  for (size_t i = 0; i < kDirectHeaderBytes; ++i) {
    word |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])) << 8 * i;
  }
  return {word & ~(uint32_t{1} << 31), (word >> 31) != 0};
}

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_DIRECT_FRAMES_H_
