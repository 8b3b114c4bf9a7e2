// SPDX-License-Identifier: Apache-2.0
// DataType: what the elements of a tensor are.
#ifndef FERRY_TENSOR_DATA_TYPE_H_
#define FERRY_TENSOR_DATA_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>

#include "absl/strings/string_view.h"

namespace ferry {

// The numbers are TensorFlow's, as they are on the wire. Source: tensorflow/core/framework/
// types.proto. Resources, variants and reference types have no content that could be sent.
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
  // Elements of less than a byte take one each, as in TensorFlow's memory.
  kInt4 = 29,
  kUint4 = 30,
  kInt2 = 31,
  kUint2 = 32,
  kFloat4E2m1fn = 33,
};

// Bytes of one element; 0 for kString, whose elements differ, and for kInvalid.
size_t ElementBytes(DataType type);

// Whether the elements are bytes in a row, which any transport can move: all but kString.
inline bool IsFixedSize(DataType type) { return ElementBytes(type) != 0; }

// "float", "bfloat16", ...; "invalid" for what is not listed.
absl::string_view DataTypeName(DataType type);
// The type of that name, or of a number on the wire; nothing for kInvalid and what is not listed.
std::optional<DataType> ParseDataType(absl::string_view name);
std::optional<DataType> DataTypeOfNumber(int number);

std::ostream& operator<<(std::ostream& out, DataType type);

}  // namespace ferry

#endif  // FERRY_TENSOR_DATA_TYPE_H_
