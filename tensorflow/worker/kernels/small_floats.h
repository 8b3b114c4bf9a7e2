// SPDX-License-Identifier: Apache-2.0
// Array conversions of half and bfloat16 to and from float.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_SMALL_FLOATS_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_SMALL_FLOATS_H_

#include <algorithm>
#include <cstdint>

#include "tensorflow/worker/kernels/element_types.h"

namespace ferry::worker {

// Uses the CPU's conversion instructions if available.
void ToFloats(const Half* from, float* to, int64_t count);
void ToFloats(const Bfloat16* from, float* to, int64_t count);
// Rounds to nearest, ties to even.
void FromFloats(const float* from, Half* to, int64_t count);
void FromFloats(const float* from, Bfloat16* to, int64_t count);

// Calls piece(at, count) for blocks of an array so short that they and their floats fit into the L1
// cache.
inline constexpr int64_t kFloatPiece = 1024;
template <typename Piece>
void ForEachPiece(int64_t count, Piece&& piece) {
  for (int64_t at = 0; at < count; at += kFloatPiece) piece(at, std::min(kFloatPiece, count - at));
}

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_SMALL_FLOATS_H_
