// SPDX-License-Identifier: Apache-2.0
// Loops over elements, compiled both for GPU kernels and for the tests' fake driver: one source, so
// that they cannot differ. Each thread processes every `step`-th element from `first` on.
#ifndef FERRY_GPU_KERNELS_ELEMENTS_H_
#define FERRY_GPU_KERNELS_ELEMENTS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gpu/kernels/small_floats.h"

namespace ferry::cuda {

// The numbers are part of the kernels' interface; those of types are TensorFlow's.
enum class ElementType : uint32_t {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kHalf = 19,
  kUint32 = 22,
  kUint64 = 23,
};
enum class BinaryOp : uint32_t { kAdd, kSub, kMul, kDiv, kMax, kMin };
enum class UnaryOp : uint32_t { kNeg, kSqrt };

inline constexpr uint32_t kMaxBroadcastRank = 8;

// out[i] = x[..] op y[..], for floats and int64; kDiv for floats only. The positions in x and y are
// computed from i by the extents, the last of them innermost, and strides, in elements; 0 where a
// tensor is broadcast. `out` may be x or y if that one is not broadcast.
struct BinaryCall {
  const void* x;
  const void* y;
  void* out;
  uint64_t count;
  BinaryOp op;
  ElementType type;
  uint32_t rank;  // at least 1
  uint32_t unused;
  uint64_t extents[kMaxBroadcastRank];
  uint64_t x_strides[kMaxBroadcastRank];
  uint64_t y_strides[kMaxBroadcastRank];
};

// out[i] = op x[i], for floats and, for kNeg, int64.
struct UnaryCall {
  const void* x;
  void* out;
  uint64_t count;
  UnaryOp op;
  ElementType type;
};

// out[i] = x[i] as another type. `truncates`: excess mantissa bits are cut off, not rounded.
struct CastCall {
  const void* x;
  void* out;
  uint64_t count;
  ElementType from;
  ElementType to;
  uint32_t truncates;
  uint32_t unused;
};

// All elements are equal: the one at `value`, or if that is null the first bytes of `element`.
struct FillCall {
  const void* value;
  void* out;
  uint64_t count;
  uint64_t element_bytes;  // 1, 2, 4, 8 or 16
  uint64_t element[2];
};

// Returns 0 for a number that is not a type.
FERRY_BOTH uint64_t BytesOf(ElementType type) {
  switch (type) {
    case ElementType::kUint8:
    case ElementType::kInt8:
    case ElementType::kBool:
      return 1;
    case ElementType::kInt16:
    case ElementType::kUint16:
    case ElementType::kHalf:
    case ElementType::kBfloat16:
      return 2;
    case ElementType::kFloat:
    case ElementType::kInt32:
    case ElementType::kUint32:
      return 4;
    case ElementType::kDouble:
    case ElementType::kInt64:
    case ElementType::kUint64:
      return 8;
  }
  return 0;
}

// Conversion to the type of computation, and back.
FERRY_BOTH float Widened(Float16 x) { return ToFloat(x); }
FERRY_BOTH float Widened(BFloat16 x) { return ToFloat(x); }
FERRY_BOTH float Widened(float x) { return x; }
FERRY_BOTH double Widened(double x) { return x; }
// Unsigned, so that overflow wraps around.
FERRY_BOTH uint64_t Widened(int64_t x) { return static_cast<uint64_t>(x); }

FERRY_BOTH void Narrow(float x, Float16& out) { out = ToFloat16(x); }
FERRY_BOTH void Narrow(float x, BFloat16& out) { out = ToBrain16(x); }
FERRY_BOTH void Narrow(float x, float& out) { out = x; }
FERRY_BOTH void Narrow(double x, double& out) { out = x; }
FERRY_BOTH void Narrow(uint64_t x, int64_t& out) { out = static_cast<int64_t>(x); }

FERRY_BOTH float Root(float x) { return sqrtf(x); }
FERRY_BOTH double Root(double x) { return sqrt(x); }
FERRY_BOTH float Quotient(float x, float y) { return x / y; }
FERRY_BOTH double Quotient(double x, double y) { return x / y; }
FERRY_BOTH uint64_t Root(uint64_t) { return 0; }
FERRY_BOTH uint64_t Quotient(uint64_t, uint64_t) { return 0; }
// Integers are compared with their sign.
FERRY_BOTH bool IsLess(float x, float y) { return x < y; }
FERRY_BOTH bool IsLess(double x, double y) { return x < y; }
FERRY_BOTH bool IsLess(uint64_t x, uint64_t y) {
  return static_cast<int64_t>(x) < static_cast<int64_t>(y);
}

template <BinaryOp kOp, typename Wide>
FERRY_BOTH Wide Combined(Wide x, Wide y) {
  if constexpr (kOp == BinaryOp::kAdd) return x + y;
  if constexpr (kOp == BinaryOp::kSub) return x - y;
  if constexpr (kOp == BinaryOp::kMul) return x * y;
  if constexpr (kOp == BinaryOp::kDiv) return Quotient(x, y);
  if constexpr (kOp == BinaryOp::kMax || kOp == BinaryOp::kMin) {
    // NaN propagates.
    if (x != x) return x;
    if (y != y) return y;
    if constexpr (kOp == BinaryOp::kMax) return IsLess(x, y) ? y : x;
    return IsLess(y, x) ? y : x;
  }
}

// Computes the positions in x and y of the operands of element `i`.
FERRY_BOTH void FindPlaces(const BinaryCall& call, uint64_t i, uint64_t& x, uint64_t& y) {
  x = 0;
  y = 0;
  FERRY_ROLLED
  for (uint32_t dim = call.rank; dim-- > 1;) {
    const uint64_t extent = call.extents[dim];
    // 64-bit division takes several times as long.
    const bool is_small = (i | extent) <= 0xffffffffu;
    const uint64_t rest =
        is_small ? static_cast<uint32_t>(i) / static_cast<uint32_t>(extent) : i / extent;
    const uint64_t index = i - rest * extent;
    x += index * call.x_strides[dim];
    y += index * call.y_strides[dim];
    i = rest;
  }
  x += i * call.x_strides[0];
  y += i * call.y_strides[0];
}

template <BinaryOp kOp, typename T>
FERRY_BOTH void BinaryLoop(const BinaryCall& call, uint64_t first, uint64_t step) {
  const T* const xs = static_cast<const T*>(call.x);
  const T* const ys = static_cast<const T*>(call.y);
  T* const out = static_cast<T*>(call.out);
  FERRY_ROLLED
  for (uint64_t i = first; i < call.count; i += step) {
    uint64_t x = 0;
    uint64_t y = 0;
    FindPlaces(call, i, x, y);
    Narrow(Combined<kOp>(Widened(xs[x]), Widened(ys[y])), out[i]);
  }
}

template <typename T>
FERRY_BOTH void BinaryOf(const BinaryCall& call, uint64_t first, uint64_t step) {
  switch (call.op) {
    case BinaryOp::kAdd:
      return BinaryLoop<BinaryOp::kAdd, T>(call, first, step);
    case BinaryOp::kSub:
      return BinaryLoop<BinaryOp::kSub, T>(call, first, step);
    case BinaryOp::kMul:
      return BinaryLoop<BinaryOp::kMul, T>(call, first, step);
    case BinaryOp::kDiv:
      return BinaryLoop<BinaryOp::kDiv, T>(call, first, step);
    case BinaryOp::kMax:
      return BinaryLoop<BinaryOp::kMax, T>(call, first, step);
    case BinaryOp::kMin:
      return BinaryLoop<BinaryOp::kMin, T>(call, first, step);
  }
}

FERRY_BOTH void RunBinary(const BinaryCall& call, uint64_t first, uint64_t step) {
  switch (call.type) {
    case ElementType::kHalf:
      return BinaryOf<Float16>(call, first, step);
    case ElementType::kBfloat16:
      return BinaryOf<BFloat16>(call, first, step);
    case ElementType::kFloat:
      return BinaryOf<float>(call, first, step);
    case ElementType::kDouble:
      return BinaryOf<double>(call, first, step);
    case ElementType::kInt64:
      return BinaryOf<int64_t>(call, first, step);
    default:
      return;
  }
}

template <typename T>
FERRY_BOTH void UnaryOf(const UnaryCall& call, uint64_t first, uint64_t step) {
  const T* const x = static_cast<const T*>(call.x);
  T* const out = static_cast<T*>(call.out);
  if (call.op == UnaryOp::kNeg) {
    FERRY_ROLLED
    for (uint64_t i = first; i < call.count; i += step) Narrow(-Widened(x[i]), out[i]);
  } else {
    FERRY_ROLLED
    for (uint64_t i = first; i < call.count; i += step) Narrow(Root(Widened(x[i])), out[i]);
  }
}

FERRY_BOTH void RunUnary(const UnaryCall& call, uint64_t first, uint64_t step) {
  switch (call.type) {
    case ElementType::kHalf:
      return UnaryOf<Float16>(call, first, step);
    case ElementType::kBfloat16:
      return UnaryOf<BFloat16>(call, first, step);
    case ElementType::kFloat:
      return UnaryOf<float>(call, first, step);
    case ElementType::kDouble:
      return UnaryOf<double>(call, first, step);
    case ElementType::kInt64:
      return UnaryOf<int64_t>(call, first, step);
    default:
      return;
  }
}

FERRY_BOTH void RunFill(const FillCall& call, uint64_t first, uint64_t step) {
  const unsigned char* const element = call.value != nullptr
                                           ? static_cast<const unsigned char*>(call.value)
                                           : reinterpret_cast<const unsigned char*>(call.element);
  // Whole elements; a byte at a time would be as correct, but slower.
  uint64_t low = 0;
  uint64_t high = 0;
  memcpy(&low, element, call.element_bytes < 8 ? call.element_bytes : 8);
  if (call.element_bytes == 16) memcpy(&high, element + 8, 8);
  FERRY_ROLLED
  for (uint64_t at = first; at < call.count; at += step) {
    switch (call.element_bytes) {
      case 1:
        static_cast<uint8_t*>(call.out)[at] = static_cast<uint8_t>(low);
        break;
      case 2:
        static_cast<uint16_t*>(call.out)[at] = static_cast<uint16_t>(low);
        break;
      case 4:
        static_cast<uint32_t*>(call.out)[at] = static_cast<uint32_t>(low);
        break;
      case 8:
        static_cast<uint64_t*>(call.out)[at] = low;
        break;
      case 16:
        static_cast<uint64_t*>(call.out)[2 * at] = low;
        static_cast<uint64_t*>(call.out)[2 * at + 1] = high;
        break;
      default:
        return;
    }
  }
}

}  // namespace ferry::cuda

#endif  // FERRY_GPU_KERNELS_ELEMENTS_H_
