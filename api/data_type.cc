// SPDX-License-Identifier: Apache-2.0
// The public DataType has the values of the internal one.
#include <ferry/data_type.h>

#include <string>

#include "tensor/data_type.h"

namespace ferry::v0 {
namespace {

#define FERRY_SAME(name)                                                                     \
  static_assert(static_cast<int>(DataType::name) == static_cast<int>(ferry::DataType::name), \
                "a type has two numbers")
FERRY_SAME(kInvalid);
FERRY_SAME(kFloat);
FERRY_SAME(kDouble);
FERRY_SAME(kInt32);
FERRY_SAME(kUint8);
FERRY_SAME(kInt16);
FERRY_SAME(kInt8);
FERRY_SAME(kString);
FERRY_SAME(kComplex64);
FERRY_SAME(kInt64);
FERRY_SAME(kBool);
FERRY_SAME(kBfloat16);
FERRY_SAME(kUint16);
FERRY_SAME(kComplex128);
FERRY_SAME(kHalf);
FERRY_SAME(kUint32);
FERRY_SAME(kUint64);
FERRY_SAME(kFloat8E5m2);
FERRY_SAME(kFloat8E4m3fn);
FERRY_SAME(kFloat8E4m3fnuz);
FERRY_SAME(kFloat8E4m3b11fnuz);
FERRY_SAME(kFloat8E5m2fnuz);
FERRY_SAME(kInt4);
FERRY_SAME(kUint4);
FERRY_SAME(kInt2);
FERRY_SAME(kUint2);
FERRY_SAME(kFloat4E2m1fn);
#undef FERRY_SAME

}  // namespace

size_t ElementBytes(DataType type) {
  return ferry::ElementBytes(static_cast<ferry::DataType>(type));
}

std::string ToString(DataType type) {
  return std::string(ferry::DataTypeName(static_cast<ferry::DataType>(type)));
}

}  // namespace ferry::v0
