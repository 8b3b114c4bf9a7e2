// SPDX-License-Identifier: Apache-2.0
// Bytes are checked in blocks, and one by one only in a block with an illegal one.
#include "tensor/check_values.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

constexpr uint64_t kIllegalBits = 0xfefefefefefefefe;
constexpr size_t kBlock = 256;

// Sixteen bytes, which every x86-64 processor handles at once, at any address.
using Lane = uint64_t __attribute__((vector_size(16), aligned(1), may_alias));

// True if a byte of the block is neither 0 nor 1. Four accumulators avoid a dependency chain.
bool HasNonBoolean(const uint8_t* block) {
  const auto* lanes = reinterpret_cast<const Lane*>(block);
  Lane sums[4] = {lanes[0], lanes[1], lanes[2], lanes[3]};
  for (size_t i = 4; i < kBlock / sizeof(Lane); i += 4) {
    for (size_t k = 0; k < 4; ++k) sums[k] |= lanes[i + k];
  }
  const Lane all = (sums[0] | sums[1]) | (sums[2] | sums[3]);
  return ((all[0] | all[1]) & kIllegalBits) != 0;
}

}  // namespace

std::optional<size_t> FindNonBoolean(const void* first, size_t count) {
  const auto* const bytes = static_cast<const uint8_t*>(first);
  size_t at = 0;
  while (count - at >= kBlock && !HasNonBoolean(bytes + at)) at += kBlock;
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

absl::Status CheckValues(DataType dtype, const void* first, size_t bytes, const std::string& what) {
  if (!HasIllegalBits(dtype)) return absl::OkStatus();
  const std::optional<size_t> wrong = FindNonBoolean(first, bytes);
  if (!wrong.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("element ", *wrong, " of ", what, " is ",
                                                 int{static_cast<const uint8_t*>(first)[*wrong]},
                                                 ", and a boolean is 0 or 1"));
}

absl::Status CheckValues(const Tensor& tensor) {
  if (!HasIllegalBits(tensor.dtype()) || !tensor.is_on_host()) return absl::OkStatus();
  // The text is built only when it is needed.
  if (!FindNonBoolean(tensor.data(), tensor.bytes()).has_value()) return absl::OkStatus();
  return CheckValues(tensor.dtype(), tensor.data(), tensor.bytes(), ToString(tensor));
}

}  // namespace ferry
