// SPDX-License-Identifier: Apache-2.0
// C++ element types, and the dispatch from DataType to them.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_ELEMENT_TYPES_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_ELEMENT_TYPES_H_

#include <complex>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <Eigen/Core>

#include "tensor/data_type.h"

namespace ferry::worker {

using Half = Eigen::half;
using Bfloat16 = Eigen::bfloat16;
using Complex64 = std::complex<float>;
using Complex128 = std::complex<double>;

template <typename T>
inline constexpr bool kIsSmallFloat = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>;
template <typename T>
inline constexpr bool kIsComplex = std::is_same_v<T, Complex64> || std::is_same_v<T, Complex128>;
template <typename T>
inline constexpr bool kIsFloat = kIsSmallFloat<T> || std::is_floating_point_v<T>;

// A contiguous row of elements, for Eigen expressions.
template <typename T>
using Elements = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;
template <typename T>
using ConstElements = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;
// One element, repeated.
template <typename T>
auto Repeated(T value, int64_t count) {
  return Eigen::Array<T, Eigen::Dynamic, 1>::Constant(count, value);
}

// A type as a value.
template <typename T>
struct TypeTag {
  using Type = T;
};
template <typename... T>
struct TypeSet {};

using RealTypes = TypeSet<Bfloat16, Half, float, double>;
using ComplexTypes = TypeSet<Complex64, Complex128>;
using SignedTypes = TypeSet<int8_t, int16_t, int32_t, int64_t>;
using UnsignedTypes = TypeSet<uint8_t, uint16_t, uint32_t, uint64_t>;

template <typename... A, typename... B>
TypeSet<A..., B...> operator+(TypeSet<A...>, TypeSet<B...>) {
  return {};
}

using OrderedTypes = decltype(RealTypes() + SignedTypes() + UnsignedTypes());
using NumberTypes = decltype(OrderedTypes() + ComplexTypes());

template <typename T>
constexpr DataType kDataTypeOf = [] {
  if constexpr (std::is_same_v<T, Bfloat16>) return DataType::kBfloat16;
  if constexpr (std::is_same_v<T, Half>) return DataType::kHalf;
  if constexpr (std::is_same_v<T, float>) return DataType::kFloat;
  if constexpr (std::is_same_v<T, double>) return DataType::kDouble;
  if constexpr (std::is_same_v<T, Complex64>) return DataType::kComplex64;
  if constexpr (std::is_same_v<T, Complex128>) return DataType::kComplex128;
  if constexpr (std::is_same_v<T, int8_t>) return DataType::kInt8;
  if constexpr (std::is_same_v<T, int16_t>) return DataType::kInt16;
  if constexpr (std::is_same_v<T, int32_t>) return DataType::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return DataType::kInt64;
  if constexpr (std::is_same_v<T, uint8_t>) return DataType::kUint8;
  if constexpr (std::is_same_v<T, uint16_t>) return DataType::kUint16;
  if constexpr (std::is_same_v<T, uint32_t>) return DataType::kUint32;
  if constexpr (std::is_same_v<T, uint64_t>) return DataType::kUint64;
  if constexpr (std::is_same_v<T, bool>) return DataType::kBool;
}();

// Calls function(TypeTag<T>()) for the T of the set that is stored in tensors of `dtype`. Returns
// false if there is none.
template <typename... T, typename Function>
bool WithType(TypeSet<T...>, DataType dtype, Function&& function) {
  return ((dtype == kDataTypeOf<T> && (function(TypeTag<T>()), true)) || ...);
}

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_ELEMENT_TYPES_H_
