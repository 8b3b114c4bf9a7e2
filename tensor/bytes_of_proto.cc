// SPDX-License-Identifier: Apache-2.0
// Overflow-checked size arithmetic.
#include "tensor/bytes_of_proto.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "tensor/data_type.h"

namespace ferry {
namespace {

constexpr size_t kTooMany = static_cast<size_t>(-1);

size_t MultiplyBytes(size_t a, size_t b) {
  if (a == 0 || b == 0) return 0;
  return a > kTooMany / b ? kTooMany : a * b;
}

}  // namespace

size_t DecodedBytes(const tensorflow::TensorProto& proto) {
  const std::optional<DataType> type = DataTypeOfNumber(proto.dtype());
  if (!type.has_value()) return 0;
  size_t count = 1;
  bool is_empty = false;
  for (const auto& dim : proto.tensor_shape().dim()) {
    if (dim.size() < 0) return 0;
    if (dim.size() == 0) {
      is_empty = true;
    } else {
      count = MultiplyBytes(count, static_cast<size_t>(dim.size()));
    }
  }
  // A shape whose element count overflows counts as zero elements, as one with a negative
  // dimension does: it is invalid, and every decoder rejects it.
  if (is_empty || count == kTooMany) return 0;
  if (*type != DataType::kString) return MultiplyBytes(count, ElementBytes(*type));
  size_t bytes = AddBytes(MultiplyBytes(count, sizeof(std::string)), proto.tensor_content().size());
  const int given = proto.string_val_size();
  const auto own = static_cast<int>(std::min<size_t>(count, static_cast<size_t>(given)));
  for (int i = 0; i < own; ++i) bytes = AddBytes(bytes, proto.string_val(i).size());
  // The last value stands for the missing ones.
  if (own > 0) {
    bytes = AddBytes(
        bytes, MultiplyBytes(count - static_cast<size_t>(own), proto.string_val(own - 1).size()));
  }
  return bytes;
}

}  // namespace ferry
