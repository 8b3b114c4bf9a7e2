// SPDX-License-Identifier: Apache-2.0
// Words in arithmetic progression, modulo 2^64.
#include "cli/pattern.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

#include "tensor/check_values.h"
#include "tensor/checksum.h"

namespace ferry::cli {
namespace {

// 2^64 divided by the golden ratio: odd, and its first multiples differ in all bytes.
constexpr uint64_t kStride = 0x9E3779B97F4A7C15;
constexpr size_t kWord = sizeof(uint64_t);
// Words compared between checks for errors.
constexpr size_t kBlock = 512;

}  // namespace

uint64_t PatternSeed(absl::string_view name, uint64_t step, uint64_t round) {
  const std::string text = absl::StrCat(step, "/", round, "/", name);
  return Checksum(text.data(), text.size());
}

uint64_t PatternMask(DataType dtype) {
  return HasIllegalBits(dtype) ? 0x0101010101010101 : ~uint64_t{0};
}

void WritePattern(void* to, size_t bytes, uint64_t seed, uint64_t mask) {
  char* const out = static_cast<char*>(to);
  const size_t words = bytes / kWord;
  for (size_t i = 0; i < words; ++i) {
    const uint64_t word = (seed + i * kStride) & mask;
    std::memcpy(out + i * kWord, &word, kWord);
  }
  const uint64_t last = (seed + words * kStride) & mask;
  if (bytes % kWord != 0) std::memcpy(out + words * kWord, &last, bytes % kWord);
}

size_t CountPatternErrors(const void* from, size_t bytes, uint64_t seed, size_t* first_wrong,
                          uint64_t mask) {
  const char* const in = static_cast<const char*>(from);
  size_t errors = 0;
  const auto look_closely = [&](size_t begin, size_t end) {
    for (size_t at = begin; at < end; ++at) {
      const uint64_t word = (seed + at / kWord * kStride) & mask;
      char expected[kWord];
      std::memcpy(expected, &word, kWord);
      if (in[at] == expected[at % kWord]) continue;
      if (errors++ == 0 && first_wrong != nullptr) *first_wrong = at;
    }
  };
  const size_t words = bytes / kWord;
  for (size_t begin = 0; begin < words; begin += kBlock) {
    const size_t end = begin + kBlock < words ? begin + kBlock : words;
    uint64_t difference = 0;
    for (size_t i = begin; i < end; ++i) {
      uint64_t word = 0;
      std::memcpy(&word, in + i * kWord, kWord);
      difference |= word ^ ((seed + i * kStride) & mask);
    }
    if (difference != 0) look_closely(begin * kWord, end * kWord);
  }
  look_closely(words * kWord, bytes);
  return errors;
}

uint64_t ReadEveryByte(const void* from, size_t bytes) {
  const char* const in = static_cast<const char*>(from);
  const size_t words = bytes / kWord;
  // Independent accumulators: a single one would take a cycle per word.
  constexpr size_t kLanes = 8;
  uint64_t lanes[kLanes] = {};
  size_t at = 0;
  for (; at + kLanes <= words; at += kLanes) {
    uint64_t eight[kLanes];
    std::memcpy(eight, in + at * kWord, sizeof(eight));
    for (size_t i = 0; i < kLanes; ++i) lanes[i] ^= eight[i];
  }
  uint64_t all = 0;
  for (const uint64_t lane : lanes) all ^= lane;
  for (; at < words; ++at) {
    uint64_t word = 0;
    std::memcpy(&word, in + at * kWord, kWord);
    all ^= word;
  }
  uint64_t rest = 0;
  std::memcpy(&rest, in + words * kWord, bytes % kWord);
  return all ^ rest;
}

}  // namespace ferry::cli
