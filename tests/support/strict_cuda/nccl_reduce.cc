// SPDX-License-Identifier: Apache-2.0
// Element by element, in the type of the elements.
#include "tests/support/strict_cuda/nccl_reduce.h"

#include <cstdint>
#include <cstring>

namespace strict_cuda {
namespace {

// Computed as floats, and rounded after each operation, as a GPU does.
class Bfloat16 final {
 public:
  Bfloat16() = default;
  explicit Bfloat16(float value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    const bool is_number = value == value;
    bits_ = static_cast<uint16_t>((is_number ? bits + 0x7fff + ((bits >> 16) & 1) : bits) >> 16);
    if (!is_number) bits_ |= 0x40;
  }
  explicit Bfloat16(int value) : Bfloat16(static_cast<float>(value)) {}
  operator float() const {  // NOLINT: it stands for one
    const uint32_t bits = static_cast<uint32_t>(bits_) << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }

 private:
  uint16_t bits_ = 0;
};

#if defined(__clang__) && __clang_major__ < 15
// Older clangs have no such type for x86. They only check this file; GCC builds it.
using Float16 = float;
#else
using Float16 = _Float16;
#endif

template <typename T>
T Apply(ncclRedOp_t op, T a, T b) {
  switch (op) {
    case ncclProd:
      return static_cast<T>(a * b);
    case ncclMax:
      return a < b ? b : a;
    case ncclMin:
      return b < a ? b : a;
    case ncclSum:
    case ncclAvg:
      return static_cast<T>(a + b);
  }
  return a;
}

template <typename T, typename Function>
void ForEach(std::string& into, const Function& function) {
  for (size_t at = 0; at + sizeof(T) <= into.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, into.data() + at, sizeof(T));
    value = function(value, at);
    std::memcpy(into.data() + at, &value, sizeof(T));
  }
}

// Calls `function` with a value of the C++ type.
template <typename Function>
bool WithType(ncclDataType_t type, const Function& function) {
  switch (type) {
    case ncclInt8:
      return function(int8_t{});
    case ncclUint8:
      return function(uint8_t{});
    case ncclInt32:
      return function(int32_t{});
    case ncclUint32:
      return function(uint32_t{});
    case ncclInt64:
      return function(int64_t{});
    case ncclUint64:
      return function(uint64_t{});
    case ncclFloat32:
      return function(float{});
    case ncclFloat64:
      return function(double{});
    case ncclFloat16:
      return function(Float16{});
    case ncclBfloat16:
      return function(Bfloat16{});
    default:
      return false;
  }
}

}  // namespace

bool IsReducible(ncclDataType_t type) {
  return WithType(type, [](auto) { return true; });
}

void Reduce(ncclDataType_t type, ncclRedOp_t op, const std::string& from, std::string& into) {
  WithType(type, [&](auto zero) {
    using T = decltype(zero);
    ForEach<T>(into, [&](T value, size_t at) {
      T other;
      std::memcpy(&other, from.data() + at, sizeof(T));
      return Apply<T>(op, value, other);
    });
    return true;
  });
}

void Divide(ncclDataType_t type, int by, std::string& values) {
  WithType(type, [&](auto zero) {
    using T = decltype(zero);
    ForEach<T>(values,
               [by](T value, size_t) { return static_cast<T>(value / static_cast<T>(by)); });
    return true;
  });
}

}  // namespace strict_cuda
