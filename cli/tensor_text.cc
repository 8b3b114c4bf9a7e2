// SPDX-License-Identifier: Apache-2.0
// Formats elements of every type, with brackets around rows.
#include "cli/tensor_text.h"

#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/text.h"

namespace ferry::cli {
namespace {

float FromBfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// IEEE 754 binary16.
float FromHalf(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  float size = 0;
  if (exponent == 31) {
    size = fraction == 0 ? HUGE_VALF : NAN;
  } else if (exponent == 0) {
    size = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    size = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -size : size;
}

// Enough digits to distinguish typical values.
std::string FloatText(float value) { return absl::StrFormat("%.7g", value); }
std::string DoubleText(double value) { return absl::StrFormat("%.15g", value); }

}  // namespace

std::string ElementText(const Tensor& tensor, int64_t index) {
  const auto at = static_cast<size_t>(index);
  switch (tensor.dtype()) {
    case DataType::kFloat:
      return FloatText(tensor.elements<float>()[at]);
    case DataType::kDouble:
      return DoubleText(tensor.elements<double>()[at]);
    case DataType::kHalf:
      return FloatText(FromHalf(tensor.elements<uint16_t>()[at]));
    case DataType::kBfloat16:
      return FloatText(FromBfloat16(tensor.elements<uint16_t>()[at]));
    case DataType::kComplex64: {
      const auto parts = static_cast<const float*>(tensor.data());
      return absl::StrCat("(", FloatText(parts[2 * at]), ", ", FloatText(parts[2 * at + 1]), ")");
    }
    case DataType::kComplex128: {
      const auto parts = static_cast<const double*>(tensor.data());
      return absl::StrCat("(", DoubleText(parts[2 * at]), ", ", DoubleText(parts[2 * at + 1]), ")");
    }
    case DataType::kBool:
      return tensor.elements<uint8_t>()[at] != 0 ? "true" : "false";
    case DataType::kInt8:
    case DataType::kQint8:
      return absl::StrCat(static_cast<int>(tensor.elements<int8_t>()[at]));
    case DataType::kUint8:
    case DataType::kQuint8:
      return absl::StrCat(static_cast<int>(tensor.elements<uint8_t>()[at]));
    case DataType::kInt16:
    case DataType::kQint16:
      return absl::StrCat(tensor.elements<int16_t>()[at]);
    case DataType::kUint16:
    case DataType::kQuint16:
      return absl::StrCat(tensor.elements<uint16_t>()[at]);
    case DataType::kInt32:
    case DataType::kQint32:
      return absl::StrCat(tensor.elements<int32_t>()[at]);
    case DataType::kUint32:
      return absl::StrCat(tensor.elements<uint32_t>()[at]);
    case DataType::kInt64:
      return absl::StrCat(tensor.elements<int64_t>()[at]);
    case DataType::kUint64:
      return absl::StrCat(tensor.elements<uint64_t>()[at]);
    case DataType::kString:
      return Quoted(tensor.strings()[at]);
    default:
      return "?";
  }
}

std::string TensorText(const Tensor& tensor, int64_t max_elements) {
  std::string text = absl::StrCat(ToString(tensor), " ");
  const absl::Span<const int64_t> dims = tensor.shape().dims();
  const int64_t count = tensor.shape().element_count();
  if (count == 0) return absl::StrCat(text, "[]");
  // Elements per row for each dimension, the last dimension first.
  std::vector<int64_t> row_sizes;
  int64_t size = 1;
  for (size_t i = dims.size(); i > 0; --i) row_sizes.push_back(size *= dims[i - 1]);
  const int64_t shown = count < max_elements ? count : max_elements;
  for (int64_t i = 0; i < shown; ++i) {
    if (i > 0) absl::StrAppend(&text, ", ");
    for (const int64_t row : row_sizes) {
      if (i % row == 0) text += '[';
    }
    absl::StrAppend(&text, ElementText(tensor, i));
    for (const int64_t row : row_sizes) {
      if ((i + 1) % row == 0) text += ']';
    }
  }
  if (shown < count) absl::StrAppend(&text, ", ... ", count - shown, " more");
  return text;
}

}  // namespace ferry::cli
