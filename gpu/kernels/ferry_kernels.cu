// SPDX-License-Identifier: Apache-2.0
// Kernels for the tool's checks (a pattern that cannot be right by chance, and a sum over memory),
// and for the arithmetic of graphs, whose loops are in elements.h. Word i of the pattern is
// seed + i * kStride, as in cli/pattern.h.
#include <cstdint>

#include "gpu/kernels/cast_elements.h"
#include "gpu/kernels/elements.h"

namespace {

constexpr uint64_t kStride = 0x9E3779B97F4A7C15ull;

__device__ uint64_t FirstIndex() {
  return static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ uint64_t IndexStep() { return static_cast<uint64_t>(gridDim.x) * blockDim.x; }

__device__ unsigned char PatternByte(uint64_t at, uint64_t seed) {
  const uint64_t word = seed + at / 8 * kStride;
  return static_cast<unsigned char>(word >> (at % 8 * 8));
}

__device__ void AddTo(uint64_t* sum, uint64_t value) {
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  if (value != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(value));
  }
}

}  // namespace

extern "C" {

// to: u8[bytes], aligned to 8.
__global__ void ferry_pattern_fill(unsigned char* to, uint64_t bytes, uint64_t seed) {
  const uint64_t words = bytes / 8;
  for (uint64_t i = FirstIndex(); i < words; i += IndexStep()) {
    reinterpret_cast<uint64_t*>(to)[i] = seed + i * kStride;
  }
  for (uint64_t at = words * 8 + FirstIndex(); at < bytes; at += IndexStep()) {
    to[at] = PatternByte(at, seed);
  }
}

// Adds the number of bytes that differ from the pattern to `wrong`.
//   from: u8[bytes], aligned to 8. wrong: u64[1].
__global__ void ferry_pattern_compare(const unsigned char* from, uint64_t bytes, uint64_t seed,
                                      uint64_t* wrong) {
  const uint64_t words = bytes / 8;
  uint64_t found = 0;
  for (uint64_t i = FirstIndex(); i < words; i += IndexStep()) {
    const uint64_t difference = reinterpret_cast<const uint64_t*>(from)[i] ^ (seed + i * kStride);
    for (int byte = 0; byte < 8; ++byte) found += ((difference >> (byte * 8)) & 0xff) != 0;
  }
  for (uint64_t at = words * 8 + FirstIndex(); at < bytes; at += IndexStep()) {
    found += from[at] != PatternByte(at, seed);
  }
  AddTo(wrong, found);
}

// Adds word[i] * (2 i + 1) over all words to `sum`, the last one padded with zeros: a changed,
// shifted or swapped word changes it.
//   from: u8[bytes], aligned to 8. sum: u64[1].
__global__ void ferry_checksum(const unsigned char* from, uint64_t bytes, uint64_t* sum) {
  const uint64_t words = bytes / 8;
  uint64_t own = 0;
  for (uint64_t i = FirstIndex(); i < words; i += IndexStep()) {
    own += reinterpret_cast<const uint64_t*>(from)[i] * (2 * i + 1);
  }
  if (FirstIndex() == 0 && bytes % 8 != 0) {
    uint64_t last = 0;
    for (uint64_t at = words * 8; at < bytes; ++at) {
      last |= static_cast<uint64_t>(from[at]) << (at % 8 * 8);
    }
    own += last * (2 * words + 1);
  }
  AddTo(sum, own);
}

// to[i] = scale * to[i] + from[i]
//   to, from: f32[count].
__global__ void ferry_scale_add(float* to, const float* from, uint64_t count, float scale) {
  for (uint64_t i = FirstIndex(); i < count; i += IndexStep()) to[i] = scale * to[i] + from[i];
}

__global__ void ferry_binary(ferry::cuda::BinaryCall call) {
  ferry::cuda::RunBinary(call, FirstIndex(), IndexStep());
}

__global__ void ferry_unary(ferry::cuda::UnaryCall call) {
  ferry::cuda::RunUnary(call, FirstIndex(), IndexStep());
}

__global__ void ferry_cast(ferry::cuda::CastCall call) {
  ferry::cuda::RunCast(call, FirstIndex(), IndexStep());
}

__global__ void ferry_fill(ferry::cuda::FillCall call) {
  ferry::cuda::RunFill(call, FirstIndex(), IndexStep());
}

}  // extern "C"
