// SPDX-License-Identifier: Apache-2.0
// Converts numbers to elements of types with a plain encoding.
#include "cli/fill.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/numbers.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/pattern.h"

namespace ferry::cli {
namespace {

// Upper half of the float, rounded to nearest, ties to even.
uint16_t ToBfloat16(double value) {
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  if (std::isnan(value)) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// IEEE 754 binary16: 1 + 5 + 10 bits. nearbyint rounds ties to even.
uint16_t ToHalf(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7E00;
  if (size >= 65520) return sign | 0x7C00;
  int exponent = size == 0 ? -15 : std::ilogb(size);
  if (exponent < -14) exponent = -15;
  const double unit = std::ldexp(1.0, (exponent < -14 ? -14 : exponent) - 10);
  const auto steps = static_cast<uint16_t>(std::nearbyint(size / unit));
  // Rounding up to the next power of two carries into the exponent.
  return sign | static_cast<uint16_t>(((exponent < -14 ? 0 : exponent + 14) << 10) + steps);
}

// The range of an integer type, as doubles. The largest integers are not representable: the bounds
// are below 2^63 and 2^64.
struct WholeRange {
  double least = 0;
  double most = 0;
  std::string text;
};

// Returns nullopt for a type that is not an integer.
std::optional<WholeRange> WholeRangeOf(DataType dtype) {
  const auto of = [](auto type) {
    using Limits = std::numeric_limits<decltype(type)>;
    const double end = std::ldexp(1.0, Limits::digits);
    const double most =
        Limits::digits <= std::numeric_limits<double>::digits ? end - 1 : std::nextafter(end, 0.0);
    return WholeRange{static_cast<double>(Limits::min()), most,
                      absl::StrCat(int64_t{Limits::min()}, " to ", uint64_t{Limits::max()})};
  };
  switch (dtype) {
    case DataType::kInt8:
      return of(int8_t{});
    case DataType::kUint8:
      return of(uint8_t{});
    case DataType::kInt16:
      return of(int16_t{});
    case DataType::kUint16:
      return of(uint16_t{});
    case DataType::kInt32:
      return of(int32_t{});
    case DataType::kUint32:
      return of(uint32_t{});
    case DataType::kInt64:
      return of(int64_t{});
    case DataType::kUint64:
      return of(uint64_t{});
    default:
      return std::nullopt;
  }
}

template <typename T>
void Store(void* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

}  // namespace

bool StoreNumber(DataType dtype, void* to, double value) {
  switch (dtype) {
    case DataType::kFloat:
      Store(to, static_cast<float>(value));
      return true;
    case DataType::kDouble:
      Store(to, value);
      return true;
    case DataType::kHalf:
      Store(to, ToHalf(value));
      return true;
    case DataType::kBfloat16:
      Store(to, ToBfloat16(value));
      return true;
    case DataType::kBool:
      Store(to, static_cast<uint8_t>(value != 0));
      return true;
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kInt16:
    case DataType::kUint16:
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kInt64:
    case DataType::kUint64: {
      const auto whole = value < 9.2e18 ? static_cast<uint64_t>(static_cast<int64_t>(value))
                                        : static_cast<uint64_t>(value);
      // Little-endian: the lowest bytes come first.
      std::memcpy(to, &whole, ElementBytes(dtype));
      return true;
    }
    default:
      return false;
  }
}

absl::StatusOr<DataType> ParseDtypeFlag(absl::string_view text) {
  const std::optional<DataType> dtype = ParseDataType(text);
  if (!dtype)
    return absl::InvalidArgumentError(absl::StrCat("--dtype: there is no type ", Quoted(text)));
  if (IsFixedSize(*dtype)) return *dtype;
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype: elements of ", text, " are of no fixed size"));
}

absl::StatusOr<Shape> ParseShapeFlag(absl::string_view text) {
  if (text == "scalar") return Shape();
  std::vector<int64_t> dims;
  for (const absl::string_view part : absl::StrSplit(text, 'x')) {
    const std::optional<int64_t> dim = ParseWhole(part, 0, std::numeric_limits<int64_t>::max());
    if (!dim) {
      return absl::InvalidArgumentError(
          absl::StrCat("--shape: ", Quoted(text), " is no shape such as 2x3 or scalar"));
    }
    dims.push_back(*dim);
  }
  absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (shape.ok()) return shape;
  return absl::InvalidArgumentError(absl::StrCat("--shape: ", shape.status().message()));
}

absl::Status CheckFill(DataType dtype, absl::string_view fill) {
  if (fill == "pattern" || fill == "zeros") return absl::OkStatus();
  double value = 0;
  if (fill != "seq" && fill != "ones" && !absl::SimpleAtod(fill, &value)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--fill: ", Quoted(fill), " is neither pattern, zeros, ones, seq nor a number"));
  }
  double room[2] = {};
  if (!StoreNumber(dtype, room, 1)) {
    return absl::InvalidArgumentError(absl::StrCat("--fill: elements of ", DataTypeName(dtype),
                                                   " can be filled with pattern and zeros only"));
  }
  const std::optional<WholeRange> range = WholeRangeOf(dtype);
  if (!range) return absl::OkStatus();
  if (value != std::trunc(value)) {
    return absl::InvalidArgumentError(absl::StrCat("--fill: ", fill, " is not a whole number, and ",
                                                   DataTypeName(dtype), " has no others"));
  }
  if (value >= range->least && value <= range->most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--fill: ", fill, " is not within ", DataTypeName(dtype), ", ", range->text));
}

absl::Status Fill(Tensor& tensor, absl::string_view fill, uint64_t pattern_seed) {
  FERRY_RETURN_IF_ERROR(CheckFill(tensor.dtype(), fill));
  char* const first = static_cast<char*>(tensor.mutable_data());
  if (fill == "pattern") {
    WritePattern(first, tensor.bytes(), pattern_seed, PatternMask(tensor.dtype()));
    return absl::OkStatus();
  }
  if (fill == "zeros") {
    if (tensor.bytes() > 0) std::memset(first, 0, tensor.bytes());
    return absl::OkStatus();
  }
  const bool is_seq = fill == "seq";
  double value = 1;
  if (!is_seq && fill != "ones") (void)absl::SimpleAtod(fill, &value);
  const size_t step = ElementBytes(tensor.dtype());
  for (int64_t i = 0; i < tensor.shape().element_count(); ++i) {
    StoreNumber(tensor.dtype(), first + i * step, is_seq ? static_cast<double>(i) : value);
  }
  return absl::OkStatus();
}

}  // namespace ferry::cli
