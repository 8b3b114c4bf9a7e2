// SPDX-License-Identifier: Apache-2.0
// Array conversions between small floats and float.
#include "tensorflow/worker/kernels/small_floats.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace ferry::worker {
namespace {

void ToFloatsPlainly(const Half* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

void FromFloatsPlainly(const float* from, Half* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Half>(from[i]);
}

#if defined(__x86_64__)
constexpr int64_t kLanes = 8;

// clang 14 does not support checking for F16C by name. F16C also needs AVX state enabled by the OS.
bool HasHalves() {
  static const bool kHas = [] {
    unsigned int a = 0;
    unsigned int b = 0;
    unsigned int c = 0;
    unsigned int d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0 &&
           __builtin_cpu_supports("avx") != 0;
  }();
  return kHas;
}

// Returns the number of elements converted.
__attribute__((target("f16c,avx"))) int64_t ToFloatsInLanes(const Half* from, float* to,
                                                            int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
  return i;
}

__attribute__((target("f16c,avx"))) int64_t FromFloatsInLanes(const float* from, Half* to,
                                                              int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
  return i;
}
#else
bool HasHalves() { return false; }
int64_t ToFloatsInLanes(const Half*, float*, int64_t) { return 0; }
int64_t FromFloatsInLanes(const float*, Half*, int64_t) { return 0; }
#endif

}  // namespace

void ToFloats(const Half* from, float* to, int64_t count) {
  const int64_t done = HasHalves() ? ToFloatsInLanes(from, to, count) : 0;
  ToFloatsPlainly(from + done, to + done, count - done);
}

void FromFloats(const float* from, Half* to, int64_t count) {
  const int64_t done = HasHalves() ? FromFloatsInLanes(from, to, count) : 0;
  FromFloatsPlainly(from + done, to + done, count - done);
}

void ToFloats(const Bfloat16* from, float* to, int64_t count) {
  const uint16_t* const source = reinterpret_cast<const uint16_t*>(from);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = uint32_t{source[i]} << 16;
    std::memcpy(to + i, &bits, sizeof(bits));
  }
}

void FromFloats(const float* from, Bfloat16* to, int64_t count) {
  uint16_t* const target = reinterpret_cast<uint16_t*>(to);
  constexpr uint32_t kInfinity = 0x7f800000;
  constexpr uint32_t kNone = 0x7fc0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, from + i, sizeof(bits));
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    // The sign, and a NaN pattern that survives the loss of the low bits.
    const uint32_t none = (bits >> 16 & 0x8000) | kNone;
    target[i] = static_cast<uint16_t>((bits & 0x7fffffff) > kInfinity ? none : rounded);
  }
}

}  // namespace ferry::worker
