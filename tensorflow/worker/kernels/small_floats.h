// SPDX-License-Identifier: Apache-2.0
// Arrays of half and bfloat16 to and from floats.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_SMALL_FLOATS_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_SMALL_FLOATS_H_

#include <algorithm>
#include <cstdint>

#include "tensorflow/worker/kernels/element_types.h"

namespace ferry::worker {

// With the processor's own instructions for it, if it has them.
void ToFloats(const Half* from, float* to, int64_t count);
void ToFloats(const Bfloat16* from, float* to, int64_t count);
// To the nearest, to even if it is halfway.
void FromFloats(const float* from, Half* to, int64_t count);
void FromFloats(const float* from, Bfloat16* to, int64_t count);

// Calls piece(at, count) for pieces of an array so short that they and their floats stay in the
// first cache.
inline constexpr int64_t kFloatPiece = 1024;
template <typename Piece>
void ForEachPiece(int64_t count, Piece&& piece) {
  for (int64_t at = 0; at < count; at += kFloatPiece) piece(at, std::min(kFloatPiece, count - at));
}

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_SMALL_FLOATS_H_
