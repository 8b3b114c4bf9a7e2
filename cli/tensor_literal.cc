// SPDX-License-Identifier: Apache-2.0
// Parses nested JSON lists, and the header of NumPy files.
#include "cli/tensor_literal.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "cli/fill.h"
#include "tensor/check_values.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

// Limit on the nesting of rows.
constexpr int kMaxDepth = 64;

bool Fits(const WantedTensor& wanted, const std::vector<int64_t>& dims) {
  if (!wanted.dims.has_value()) return true;
  if (wanted.dims->size() != dims.size()) return false;
  for (size_t i = 0; i < dims.size(); ++i) {
    if ((*wanted.dims)[i] >= 0 && (*wanted.dims)[i] != dims[i]) return false;
  }
  return true;
}

absl::Status CheckShape(const WantedTensor& wanted, const std::vector<int64_t>& dims) {
  if (Fits(wanted, dims)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("its shape is [", absl::StrJoin(dims, ","),
                                                 "], and ", ToString(wanted), " is wanted"));
}

// Derives the shape from the first elements, and collects all elements in row-major order.
absl::Status Flatten(const Json& json, size_t depth, std::vector<int64_t>& dims,
                     std::vector<const Json*>& leaves) {
  if (!json.is_array()) {
    if (depth < dims.size()) return absl::InvalidArgumentError("a number stands beside a list");
    leaves.push_back(&json);
    return absl::OkStatus();
  }
  if (depth >= kMaxDepth) return absl::InvalidArgumentError("lists are nested too deeply");
  if (depth == dims.size()) {
    if (!leaves.empty()) return absl::InvalidArgumentError("a list stands beside a number");
    dims.push_back(static_cast<int64_t>(json.size()));
  }
  if (dims[depth] != static_cast<int64_t>(json.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("a row of ", json.size(), " stands beside one of ", dims[depth]));
  }
  for (const Json& each : json) FERRY_RETURN_IF_ERROR(Flatten(each, depth + 1, dims, leaves));
  return absl::OkStatus();
}

bool IsWholeType(DataType dtype) {
  switch (dtype) {
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kInt16:
    case DataType::kUint16:
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kInt64:
    case DataType::kUint64:
      return true;
    default:
      return false;
  }
}

bool IsSigned(DataType dtype) {
  return dtype == DataType::kInt8 || dtype == DataType::kInt16 || dtype == DataType::kInt32 ||
         dtype == DataType::kInt64;
}

// Stores an integer, little-endian; returns false if it is out of the type's range.
bool StoreWhole(DataType dtype, const Json& json, void* to) {
  const size_t bits = ElementBytes(dtype) * 8;
  if (json.is_number_unsigned()) {
    const uint64_t value = json.get<uint64_t>();
    const size_t value_bits = IsSigned(dtype) ? bits - 1 : bits;
    if (value_bits < 64 && value >> value_bits != 0) return false;
    std::memcpy(to, &value, ElementBytes(dtype));
    return true;
  }
  if (!json.is_number_integer() || !IsSigned(dtype)) return false;
  const int64_t value = json.get<int64_t>();
  if (bits < 64 && value < -(int64_t{1} << (bits - 1))) return false;
  std::memcpy(to, &value, ElementBytes(dtype));
  return true;
}

bool StoreElement(DataType dtype, const Json& json, void* to) {
  if (IsWholeType(dtype)) return StoreWhole(dtype, json, to);
  if (dtype == DataType::kBool) {
    return json.is_boolean() && StoreNumber(dtype, to, json.get<bool>() ? 1 : 0);
  }
  if (json.is_number()) return StoreNumber(dtype, to, json.get<double>());
  // JSON cannot express NaN and infinity.
  double value = 0;
  return json.is_string() && absl::SimpleAtod(json.get<std::string>(), &value) &&
         StoreNumber(dtype, to, value);
}

absl::Status NoSuchElement(const Json& json, DataType dtype) {
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(json.dump(-1, ' ', false, Json::error_handler_t::replace)), " is no ",
                   DataTypeName(dtype)));
}

absl::StatusOr<Json> ReadJson(absl::string_view text, DataType dtype) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  Json json = Json::parse(trimmed.begin(), trimmed.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_discarded()) return json;
  if (dtype == DataType::kString) return Json(std::string(text));
  double value = 0;
  if (absl::SimpleAtod(trimmed, &value)) return Json(std::string(trimmed));
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(text), " is neither a number nor a list such as [[1, 2], [3, 4]]"));
}

// Returns the value of `key` in a NumPy file's header, up to `end`.
absl::string_view HeaderValue(absl::string_view header, absl::string_view key, char end) {
  const size_t at = header.find(absl::StrCat("'", key, "':"));
  if (at == absl::string_view::npos) return "";
  absl::string_view rest = header.substr(at + key.size() + 3);
  rest = absl::StripLeadingAsciiWhitespace(rest);
  return rest.substr(0, rest.find(end));
}

const char* NumpyName(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat:
      return "f4";
    case DataType::kDouble:
      return "f8";
    case DataType::kHalf:
      return "f2";
    case DataType::kInt8:
      return "i1";
    case DataType::kInt16:
      return "i2";
    case DataType::kInt32:
      return "i4";
    case DataType::kInt64:
      return "i8";
    case DataType::kUint8:
      return "u1";
    case DataType::kUint16:
      return "u2";
    case DataType::kUint32:
      return "u4";
    case DataType::kUint64:
      return "u8";
    case DataType::kBool:
      return "b1";
    case DataType::kComplex64:
      return "c8";
    case DataType::kComplex128:
      return "c16";
    default:
      return "";
  }
}

constexpr absl::string_view kNumpyMagic("\x93NUMPY", 6);

// Consumes the header of `content`.
// Source: numpy.lib.format, "Format Version 1.0" and "2.0".
absl::StatusOr<std::vector<int64_t>> TakeNumpyHeader(absl::string_view& content, DataType dtype) {
  const absl::Status broken = absl::InvalidArgumentError("its NumPy header is broken");
  if (content.size() < 12) return broken;
  const bool is_first = content[6] == 1;
  const size_t length_bytes = is_first ? 2 : 4;
  uint32_t length = 0;
  std::memcpy(&length, content.data() + 8, length_bytes);
  if (content.size() - 8 - length_bytes < length) return broken;
  const absl::string_view header = content.substr(8 + length_bytes, length);
  content.remove_prefix(8 + length_bytes + length);
  absl::string_view name = HeaderValue(header, "descr", ',');
  if (name.size() < 4) return broken;
  name = name.substr(1, name.size() - 2);
  if (name[0] == '>') return absl::InvalidArgumentError("its numbers are big endian");
  if (name.substr(1) != NumpyName(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("it holds ", Quoted(name), ", and ", DataTypeName(dtype), " is wanted"));
  }
  if (!absl::StartsWith(HeaderValue(header, "fortran_order", ','), "False")) {
    return absl::InvalidArgumentError("it is in Fortran's order; save it in C's");
  }
  absl::string_view shape = HeaderValue(header, "shape", ')');
  if (shape.empty() || shape[0] != '(') return broken;
  std::vector<int64_t> dims;
  for (const absl::string_view part : absl::StrSplit(shape.substr(1), ',')) {
    const absl::string_view digits = absl::StripAsciiWhitespace(part);
    if (digits.empty()) continue;
    int64_t dim = 0;
    if (!absl::SimpleAtoi(digits, &dim) || dim < 0) return broken;
    dims.push_back(dim);
  }
  return dims;
}

// Derives the shape of `bytes` bytes without a header.
absl::StatusOr<std::vector<int64_t>> ShapeOfBytes(size_t bytes, const WantedTensor& wanted) {
  const size_t each = ElementBytes(wanted.dtype);
  if (bytes % each != 0) {
    return absl::InvalidArgumentError(absl::StrCat("its ", bytes, " bytes are no multiple of the ",
                                                   each, " of a ", DataTypeName(wanted.dtype)));
  }
  const auto count = static_cast<int64_t>(bytes / each);
  if (!wanted.dims.has_value()) return std::vector<int64_t>{count};
  std::vector<int64_t> dims = *wanted.dims;
  int64_t known = 1;
  int64_t* unknown = nullptr;
  for (int64_t& dim : dims) {
    if (dim >= 0) {
      known = dim == 0 || known > count / dim ? (dim == 0 ? 0 : count + 1) : known * dim;
    } else if (unknown == nullptr) {
      unknown = &dim;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(ToString(wanted), " has several unknown dimensions; use a .npy file"));
    }
  }
  if (unknown != nullptr && known > 0) *unknown = count / known;
  const bool fits = unknown != nullptr ? known > 0 && count % known == 0 : known == count;
  if (fits) return dims;
  return absl::InvalidArgumentError(
      absl::StrCat("it holds ", count, " elements, which are no ", ToString(wanted)));
}

}  // namespace

std::string ToString(const WantedTensor& wanted) {
  if (!wanted.dims.has_value()) return absl::StrCat(DataTypeName(wanted.dtype), " of any shape");
  return absl::StrCat(DataTypeName(wanted.dtype), "[",
                      absl::StrJoin(*wanted.dims, ",",
                                    [](std::string* out, int64_t dim) {
                                      absl::StrAppend(out, dim < 0 ? "?" : absl::StrCat(dim));
                                    }),
                      "]");
}

absl::StatusOr<Tensor> ParseTensor(absl::string_view text, const WantedTensor& wanted) {
  FERRY_ASSIGN_OR_RETURN(const Json json, ReadJson(text, wanted.dtype));
  std::vector<int64_t> dims;
  std::vector<const Json*> leaves;
  FERRY_RETURN_IF_ERROR(Flatten(json, 0, dims, leaves));
  FERRY_RETURN_IF_ERROR(CheckShape(wanted, dims));
  FERRY_ASSIGN_OR_RETURN(Shape shape, Shape::Create(dims));
  if (wanted.dtype == DataType::kString) {
    std::vector<std::string> strings;
    for (const Json* leaf : leaves) {
      strings.push_back(leaf->is_string() ? leaf->get<std::string>() : leaf->dump());
    }
    return Tensor::OfStrings(std::move(shape), std::move(strings));
  }
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(wanted.dtype, std::move(shape)));
  char* to = static_cast<char*>(tensor.mutable_data());
  for (const Json* leaf : leaves) {
    if (!StoreElement(wanted.dtype, *leaf, to)) return NoSuchElement(*leaf, wanted.dtype);
    to += ElementBytes(wanted.dtype);
  }
  return tensor;
}

absl::StatusOr<Tensor> ReadTensorFile(const std::string& path, const WantedTensor& wanted) {
  if (!IsFixedSize(wanted.dtype)) {
    return absl::InvalidArgumentError("strings do not come out of files; write them down");
  }
  FERRY_ASSIGN_OR_RETURN(const std::string whole, ReadWholeFile(path));
  absl::string_view content = whole;
  std::vector<int64_t> dims;
  if (absl::StartsWith(content, kNumpyMagic)) {
    FERRY_ASSIGN_OR_RETURN(dims, TakeNumpyHeader(content, wanted.dtype));
    FERRY_RETURN_IF_ERROR(CheckShape(wanted, dims));
  } else {
    FERRY_ASSIGN_OR_RETURN(dims, ShapeOfBytes(content.size(), wanted));
  }
  FERRY_ASSIGN_OR_RETURN(Shape shape, Shape::Create(dims));
  FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(wanted.dtype, shape));
  if (bytes != content.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it holds ", content.size(), " bytes of elements instead of ", bytes));
  }
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(wanted.dtype, std::move(shape)));
  if (bytes > 0) std::memcpy(tensor.mutable_data(), content.data(), bytes);
  FERRY_RETURN_IF_ERROR(CheckValues(tensor));
  return tensor;
}

constexpr size_t kMostFileBytes = size_t{4} << 30;

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  struct Close {
    void operator()(std::FILE* file) const {
      if (file != stdin) std::fclose(file);
    }
  };
  const std::unique_ptr<std::FILE, Close> file(path == "-" ? stdin
                                                           : std::fopen(path.c_str(), "rb"));
  const auto error = [&path](int number) {
    const std::string text =
        absl::StrCat("cannot read ", Quoted(path), ": ", std::strerror(number));
    return number == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
  };
  if (file == nullptr) return error(errno);
  std::string content;
  std::vector<char> piece(size_t{1} << 20);
  while (const size_t count = std::fread(piece.data(), 1, piece.size(), file.get())) {
    content.append(piece.data(), count);
    // A device or a pipe may be endless.
    if (content.size() > kMostFileBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(Quoted(path), " has more than ", kMostFileBytes, " bytes"));
    }
  }
  if (std::ferror(file.get()) != 0) return error(errno);
  return content;
}

}  // namespace ferry::cli
