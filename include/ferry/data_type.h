// SPDX-License-Identifier: Apache-2.0
// DataType: the type of a tensor's elements.
#ifndef FERRY_INCLUDE_FERRY_DATA_TYPE_H_
#define FERRY_INCLUDE_FERRY_DATA_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include <ferry/namespace.h>

namespace ferry {
FERRY_NAMESPACE_BEGIN

// The values are part of the wire protocol. Types narrower than a byte take one byte each.
enum class DataType : uint8_t {
  kInvalid = 0,
  kFloat = 1,  // 32 bits
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kString = 7,  // byte strings of any length, in host memory
  kComplex64 = 8,
  kInt64 = 9,
  kBool = 10,  // one byte, 0 or 1
  kBfloat16 = 14,
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
  kInt4 = 29,
  kUint4 = 30,
  kInt2 = 31,
  kUint2 = 32,
  kFloat4E2m1fn = 33,
};

// Bytes of one element; 0 for kString, whose elements differ in size, and for kInvalid.
size_t ElementBytes(DataType type);

// "float", "bfloat16", ...; "invalid" for unknown values.
std::string ToString(DataType type);

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_DATA_TYPE_H_
