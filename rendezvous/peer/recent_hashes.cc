// SPDX-License-Identifier: Apache-2.0
// Two generations of bits.
#include "rendezvous/peer/recent_hashes.h"

#include <algorithm>

#include "absl/numeric/bits.h"

namespace ferry {
namespace {

constexpr size_t kBitsPerHash = 16;
constexpr size_t kBitsPerWord = 64;

}  // namespace

RecentHashes::RecentHashes(size_t count) : count_(count) {}

bool RecentHashes::Add(uint64_t hash) {
  if (newer_.empty()) {
    // A power of two.
    newer_.resize(std::max<size_t>(absl::bit_ceil(count_ * kBitsPerHash) / kBitsPerWord, 1));
    older_.resize(newer_.size());
  }
  // The multiplication spreads hashes that differ in a few bits.
  const uint64_t spread = (hash * 0x9E3779B97F4A7C15) >> 16;
  const size_t word = (spread / kBitsPerWord) & (newer_.size() - 1);
  const uint64_t bit = uint64_t{1} << (spread % kBitsPerWord);
  if (((newer_[word] | older_[word]) & bit) != 0) return true;
  if (newer_count_ == count_) {
    newer_.swap(older_);
    std::fill(newer_.begin(), newer_.end(), 0);
    newer_count_ = 0;
  }
  newer_[word] |= bit;
  ++newer_count_;
  return false;
}

std::string RecentHashes::State() const {
  std::string state;
  const auto add = [&state](const void* data, size_t bytes) {
    state.append(static_cast<const char*>(data), bytes);
  };
  add(&newer_count_, sizeof(newer_count_));
  add(newer_.data(), newer_.size() * sizeof(uint64_t));
  add(older_.data(), older_.size() * sizeof(uint64_t));
  return state;
}

}  // namespace ferry
