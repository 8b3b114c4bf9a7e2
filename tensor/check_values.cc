// SPDX-License-Identifier: Apache-2.0
// Bytes are checked in blocks, and one by one only in a block with an illegal one.
#include "tensor/check_values.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

constexpr uint64_t kIllegalBits = 0xfefefefefefefefe;
constexpr size_t kBlock = 1024;

// The widest vector of any x86-64 processor, at any address; others take it in parts.
using Lane = uint64_t __attribute__((vector_size(64), aligned(1), may_alias));

// Returns whether a byte of the block is neither 0 nor 1. Two sums do not wait for each other.
inline __attribute__((always_inline)) bool LookAtBlock(const uint8_t* block) {
  const auto* lanes = reinterpret_cast<const Lane*>(block);
  Lane even = lanes[0];
  Lane odd = lanes[1];
  for (size_t i = 2; i < kBlock / sizeof(Lane); i += 2) {
    even |= lanes[i];
    odd |= lanes[i + 1];
  }
  even |= odd;
  uint64_t all = 0;
  for (size_t i = 0; i < sizeof(Lane) / sizeof(uint64_t); ++i) all |= even[i];
  return (all & kIllegalBits) != 0;
}

// The first bytes that are whole blocks of booleans.
inline __attribute__((always_inline)) size_t SkipBlocks(const uint8_t* bytes, size_t count) {
  size_t at = 0;
  while (count - at >= kBlock && !LookAtBlock(bytes + at)) at += kBlock;
  return at;
}

using SkipFunction = size_t (*)(const uint8_t*, size_t);

size_t SkipPlain(const uint8_t* bytes, size_t count) { return SkipBlocks(bytes, count); }

#if defined(__x86_64__)

__attribute__((target("avx512f"))) size_t Skip512(const uint8_t* bytes, size_t count) {
  return SkipBlocks(bytes, count);
}

__attribute__((target("avx2"))) size_t Skip256(const uint8_t* bytes, size_t count) {
  return SkipBlocks(bytes, count);
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

}  // namespace

std::optional<size_t> FindNonBoolean(const void* first, size_t count) {
  const auto* const bytes = static_cast<const uint8_t*>(first);
  size_t at = 0;
  if (count >= kBlock) {
    static const SkipFunction skip = ChooseSkip();
    at = skip(bytes, count);
  }
  for (; count - at >= sizeof(uint64_t); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, sizeof(word));
    if ((word & kIllegalBits) != 0) break;
  }
  for (; at < count; ++at) {
    if (bytes[at] > 1) return at;
  }
  return std::nullopt;
}

absl::Status CheckValues(DataType dtype, const void* first, size_t bytes,
                         absl::FunctionRef<std::string()> describe) {
  if (!HasIllegalBits(dtype)) return absl::OkStatus();
  const std::optional<size_t> wrong = FindNonBoolean(first, bytes);
  if (!wrong.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("element ", *wrong, " of ", describe(), " is ",
                                                 int{static_cast<const uint8_t*>(first)[*wrong]},
                                                 ", and a boolean is 0 or 1"));
}

absl::Status CheckValues(const Tensor& tensor) {
  if (!HasIllegalBits(tensor.dtype()) || !tensor.is_on_host()) return absl::OkStatus();
  return CheckValues(tensor.dtype(), tensor.data(), tensor.bytes(),
                     [&tensor] { return ToString(tensor); });
}

}  // namespace ferry
