// SPDX-License-Identifier: Apache-2.0
// Bytes are checked in blocks, and individually only in a block with an illegal one. A copy checks
// the bytes while they are in registers, so that memory is read once.
#include "tensor/check_values.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

constexpr uint64_t kIllegalBits = 0xfefefefefefefefe;
constexpr size_t kBlock = 1024;

// The widest vector of any x86-64 processor, unaligned; other processors split it.
using Vector = uint64_t __attribute__((vector_size(64), aligned(1), may_alias));

// Returns whether a byte of the block is neither 0 nor 1, and copies the block if `to` is not
// null. Two accumulators, so that neither waits for the other.
template <bool kCopies>
inline __attribute__((always_inline)) bool LookAtBlock(const uint8_t* block, uint8_t* to) {
  const auto* lanes = reinterpret_cast<const Vector*>(block);
  auto* copies = reinterpret_cast<Vector*>(to);
  Vector even = {};
  Vector odd = {};
  for (size_t i = 0; i < kBlock / sizeof(Vector); i += 2) {
    const Vector first = lanes[i];
    const Vector second = lanes[i + 1];
    even |= first;
    odd |= second;
    if constexpr (kCopies) {
      copies[i] = first;
      copies[i + 1] = second;
    }
  }
  even |= odd;
  uint64_t all = 0;
  for (size_t i = 0; i < sizeof(Vector) / sizeof(uint64_t); ++i) all |= even[i];
  return (all & kIllegalBits) != 0;
}

// Returns the length of the prefix that is whole blocks of booleans; copies it to `to` if not
// null.
inline __attribute__((always_inline)) size_t SkipBlocks(const uint8_t* bytes, size_t count,
                                                        uint8_t* to) {
  size_t at = 0;
  if (to == nullptr) {
    while (count - at >= kBlock && !LookAtBlock<false>(bytes + at, nullptr)) at += kBlock;
  } else {
    while (count - at >= kBlock && !LookAtBlock<true>(bytes + at, to + at)) at += kBlock;
  }
  return at;
}

using SkipFunction = size_t (*)(const uint8_t*, size_t, uint8_t*);

size_t SkipPlain(const uint8_t* bytes, size_t count, uint8_t* to) {
  return SkipBlocks(bytes, count, to);
}

#if defined(__x86_64__)

__attribute__((target("avx512f"))) size_t Skip512(const uint8_t* bytes, size_t count, uint8_t* to) {
  return SkipBlocks(bytes, count, to);
}

__attribute__((target("avx2"))) size_t Skip256(const uint8_t* bytes, size_t count, uint8_t* to) {
  return SkipBlocks(bytes, count, to);
}

SkipFunction ChooseSkip() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return Skip512;
  if (__builtin_cpu_supports("avx2")) return Skip256;
  return SkipPlain;
}

#else

SkipFunction ChooseSkip() { return SkipPlain; }

#endif

// Returns the index of the first byte that is neither 0 nor 1, or `count`. Copies the bytes before
// it to `to`, if not null.
inline size_t SkipBooleans(const uint8_t* bytes, size_t count, uint8_t* to) {
  size_t at = 0;
  if (count >= kBlock) {
    static const SkipFunction skip = ChooseSkip();
    at = skip(bytes, count, to);
  }
  for (; count - at >= sizeof(uint64_t); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, sizeof(word));
    if ((word & kIllegalBits) != 0) break;
    if (to != nullptr) std::memcpy(to + at, &word, sizeof(word));
  }
  for (; at < count && bytes[at] <= 1; ++at) {
    if (to != nullptr) to[at] = bytes[at];
  }
  return at;
}

absl::Status NotABoolean(size_t at, uint8_t value, absl::FunctionRef<std::string()> describe) {
  return absl::InvalidArgumentError(absl::StrCat("element ", at, " of ", describe(), " is ",
                                                 int{value}, ", and a boolean is 0 or 1"));
}

}  // namespace

std::optional<size_t> FindNonBoolean(const void* first, size_t count) {
  const size_t at = SkipBooleans(static_cast<const uint8_t*>(first), count, nullptr);
  return at < count ? std::optional<size_t>(at) : std::nullopt;
}

absl::Status CheckValues(DataType dtype, const void* first, size_t bytes,
                         absl::FunctionRef<std::string()> describe) {
  if (!HasIllegalBits(dtype)) return absl::OkStatus();
  const auto* const from = static_cast<const uint8_t*>(first);
  const size_t at = SkipBooleans(from, bytes, nullptr);
  return at == bytes ? absl::OkStatus() : NotABoolean(at, from[at], describe);
}

absl::Status CopyValues(DataType dtype, const void* from, size_t bytes, void* to,
                        absl::FunctionRef<std::string()> describe) {
  if (!HasIllegalBits(dtype)) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  const auto* const first = static_cast<const uint8_t*>(from);
  const size_t at = SkipBooleans(first, bytes, static_cast<uint8_t*>(to));
  return at == bytes ? absl::OkStatus() : NotABoolean(at, first[at], describe);
}

absl::Status CheckValues(const Tensor& tensor) {
  if (!HasIllegalBits(tensor.dtype()) || !tensor.is_on_host()) return absl::OkStatus();
  return CheckValues(tensor.dtype(), tensor.data(), tensor.bytes(),
                     [&tensor] { return ToString(tensor); });
}

}  // namespace ferry
