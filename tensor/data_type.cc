// SPDX-License-Identifier: Apache-2.0
// The table of types.
#include "tensor/data_type.h"

namespace ferry {
namespace {

struct Row {
  DataType type;
  uint8_t bytes;
  absl::string_view name;
};

constexpr Row kRows[] = {
    {DataType::kFloat, 4, "float"},
    {DataType::kDouble, 8, "double"},
    {DataType::kInt32, 4, "int32"},
    {DataType::kUint8, 1, "uint8"},
    {DataType::kInt16, 2, "int16"},
    {DataType::kInt8, 1, "int8"},
    {DataType::kString, 0, "string"},
    {DataType::kComplex64, 8, "complex64"},
    {DataType::kInt64, 8, "int64"},
    {DataType::kBool, 1, "bool"},
    {DataType::kQint8, 1, "qint8"},
    {DataType::kQuint8, 1, "quint8"},
    {DataType::kQint32, 4, "qint32"},
    {DataType::kBfloat16, 2, "bfloat16"},
    {DataType::kQint16, 2, "qint16"},
    {DataType::kQuint16, 2, "quint16"},
    {DataType::kUint16, 2, "uint16"},
    {DataType::kComplex128, 16, "complex128"},
    {DataType::kHalf, 2, "half"},
    {DataType::kUint32, 4, "uint32"},
    {DataType::kUint64, 8, "uint64"},
    {DataType::kFloat8E5m2, 1, "float8_e5m2"},
    {DataType::kFloat8E4m3fn, 1, "float8_e4m3fn"},
    {DataType::kFloat8E4m3fnuz, 1, "float8_e4m3fnuz"},
    {DataType::kFloat8E4m3b11fnuz, 1, "float8_e4m3b11fnuz"},
    {DataType::kFloat8E5m2fnuz, 1, "float8_e5m2fnuz"},
    {DataType::kInt4, 1, "int4"},
    {DataType::kUint4, 1, "uint4"},
    {DataType::kInt2, 1, "int2"},
    {DataType::kUint2, 1, "uint2"},
    {DataType::kFloat4E2m1fn, 1, "float4_e2m1fn"},
};

const Row* Find(DataType type) {
  for (const Row& row : kRows) {
    if (row.type == type) return &row;
  }
  return nullptr;
}

}  // namespace

size_t ElementBytes(DataType type) {
  const Row* row = Find(type);
  return row == nullptr ? 0 : row->bytes;
}

absl::string_view DataTypeName(DataType type) {
  const Row* row = Find(type);
  return row == nullptr ? "invalid" : row->name;
}

std::optional<DataType> ParseDataType(absl::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

std::optional<DataType> DataTypeOfNumber(int number) {
  if (number < 0 || number > 255) return std::nullopt;
  const Row* row = Find(static_cast<DataType>(number));
  if (row == nullptr) return std::nullopt;
  return row->type;
}

std::ostream& operator<<(std::ostream& out, DataType type) { return out << DataTypeName(type); }

}  // namespace ferry
