// SPDX-License-Identifier: Apache-2.0
// DataType: the element type of a tensor.
#ifndef FERRY_TENSOR_DATA_TYPE_H_
#define FERRY_TENSOR_DATA_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>

#include "absl/strings/string_view.h"

namespace ferry {

// The values are TensorFlow's wire values. Source: tensorflow/core/framework/types.proto.
// Resources, variants and reference types have no content that could be sent.
enum class DataType : uint8_t {
  kInvalid = 0,
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kString = 7,
  kComplex64 = 8,
  kInt64 = 9,
  kBool = 10,
  kQint8 = 11,
  kQuint8 = 12,
  kQint32 = 13,
  kBfloat16 = 14,
  kQint16 = 15,
  kQuint16 = 16,
  kUint16 = 17,
  kComplex128 = 18,
  kHalf = 19,
  kUint32 = 22,
  kUint64 = 23,
  kFloat8E5m2 = 24,
  kFloat8E4m3fn = 25,
  kFloat8E4m3fnuz = 26,
  kFloat8E4m3b11fnuz = 27,
  kFloat8E5m2fnuz = 28,
  // Types narrower than a byte take one byte each, as in TensorFlow's memory.
  kInt4 = 29,
  kUint4 = 30,
  kInt2 = 31,
  kUint2 = 32,
  kFloat4E2m1fn = 33,
};

// Bytes of one element; 0 for kString, whose elements vary in size, and for kInvalid.
size_t ElementBytes(DataType type);

// True if the elements are contiguous bytes, which any transport can move: all types but kString.
inline bool IsFixedSize(DataType type) { return ElementBytes(type) != 0; }

// "float", "bfloat16", ...; "invalid" for unknown values.
absl::string_view DataTypeName(DataType type);
// Returns the type of that name, or of that wire number; nullopt for kInvalid and unknown ones.
std::optional<DataType> ParseDataType(absl::string_view name);
std::optional<DataType> DataTypeOfNumber(int number);

std::ostream& operator<<(std::ostream& out, DataType type);

}  // namespace ferry

#endif  // FERRY_TENSOR_DATA_TYPE_H_
