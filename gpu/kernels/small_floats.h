// SPDX-License-Identifier: Apache-2.0
// half and bfloat16 as bits, and their conversion to float: for GPUs and for the host alike.
#ifndef FERRY_GPU_KERNELS_SMALL_FLOATS_H_
#define FERRY_GPU_KERNELS_SMALL_FLOATS_H_

#include <cstdint>
#include <cstring>

// Marks a function of both host and device.
#if defined(__CUDACC__)
#define FERRY_BOTH __host__ __device__ inline
// For loops with hundreds of instances: each thread processes few elements, and is memory-bound.
#define FERRY_ROLLED _Pragma("unroll 1")
#else
#define FERRY_BOTH inline
#define FERRY_ROLLED
#endif

namespace ferry::cuda {

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <typename To, typename From>
FERRY_BOTH To BitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

FERRY_BOTH float ToFloat(Float16 half) {
  const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000u) << 16;
  const uint32_t exponent = (half.bits >> 10) & 0x1fu;
  const uint32_t mantissa = half.bits & 0x3ffu;
  if (exponent == 0) {
    // A subnormal, in units of 2^-24.
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return BitsAs<float>(sign | BitsAs<uint32_t>(magnitude));
  }
  if (exponent == 0x1f) {
    const uint32_t quiet = mantissa == 0 ? 0 : 0x400000u;
    return BitsAs<float>(sign | 0x7f800000u | quiet | (mantissa << 13));
  }
  return BitsAs<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Rounds to nearest, ties to even.
FERRY_BOTH Float16 ToFloat16(float value) {
  const uint32_t all = BitsAs<uint32_t>(value);
  const uint32_t sign = (all >> 16) & 0x8000u;
  const uint32_t bits = all & 0x7fffffffu;
  uint32_t half = 0;
  if (bits > 0x7f800000u) {
    half = 0x7e00u;  // not a number
  } else if (bits >= 0x47800000u) {
    half = 0x7c00u;  // 65536 and more
  } else if (bits >= 0x38800000u) {
    // Rounds to nearest, ties to even; may carry up to infinity.
    half = (bits - 0x38000000u + 0xfffu + ((bits >> 13) & 1)) >> 13;
  } else if (bits >= 0x33000000u) {
    // A subnormal, in units of 2^-24.
    const uint32_t mantissa = (bits & 0x7fffffu) | 0x800000u;
    const uint32_t shift = 126 - (bits >> 23);
    const uint32_t cut = mantissa & ((1u << shift) - 1);
    const uint32_t middle = 1u << (shift - 1);
    half = mantissa >> shift;
    if (cut > middle || (cut == middle && (half & 1) != 0)) ++half;
  }
  return Float16{static_cast<uint16_t>(sign | half)};
}

FERRY_BOTH float ToFloat(BFloat16 value) {
  return BitsAs<float>(static_cast<uint32_t>(value.bits) << 16);
}

FERRY_BOTH BFloat16 ToBrain16(float value) {
  const uint32_t bits = BitsAs<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  const bool is_number = (bits & 0x7fffffffu) <= 0x7f800000u;
  return BFloat16{static_cast<uint16_t>(is_number ? rounded : sign | 0x7fc0u)};
}

}  // namespace ferry::cuda

#endif  // FERRY_GPU_KERNELS_SMALL_FLOATS_H_
