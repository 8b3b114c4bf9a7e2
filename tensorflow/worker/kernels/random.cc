// SPDX-License-Identifier: Apache-2.0
// Philox: ten rounds per block.
#include "tensorflow/worker/kernels/random.h"

namespace ferry::worker {

Philox::Block Philox::Next() {
  constexpr int kRounds = 10;
  // Constants of the paper: multipliers, and for the keys the golden ratio and sqrt(3) - 1.
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;
  constexpr uint32_t kWeyl1 = 0xBB67AE85;
  Block block = {static_cast<uint32_t>(place_), static_cast<uint32_t>(place_ >> 32),
                 static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)};
  uint32_t key0 = key_[0];
  uint32_t key1 = key_[1];
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = kMultiplier0 * block[0];
    const uint64_t product1 = kMultiplier1 * block[2];
    block = {
        static_cast<uint32_t>(product1 >> 32) ^ block[1] ^ key0, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ block[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  Skip(1);
  return block;
}

void Philox::Skip(uint64_t count) {
  if (__builtin_add_overflow(place_, count, &place_)) ++stream_;
}

}  // namespace ferry::worker
