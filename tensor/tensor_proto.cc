// SPDX-License-Identifier: Apache-2.0
// The encoding rules of TensorProto.
#include "tensor/tensor_proto.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/io/coded_stream.h>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensor/check_values.h"

namespace ferry {
namespace {

using tensorflow::TensorProto;

// The size of a length-delimited field with a number below 16 and `bytes` of content.
size_t FieldBytes(size_t bytes) {
  return 1 + google::protobuf::io::CodedOutputStream::VarintSize64(bytes) + bytes;
}

absl::StatusOr<Shape> ShapeFromProto(const tensorflow::TensorShapeProto& proto) {
  absl::InlinedVector<int64_t, 8> dims;
  for (const auto& dim : proto.dim()) dims.push_back(dim.size());
  return Shape::Create(dims);
}

// Writes `count` elements of type Element; `get(i)` returns value i, i < `given`.
template <typename Element, typename Get>
void Fill(void* out, int64_t count, int64_t given, Get get) {
  auto* elements = static_cast<Element*>(out);
  const int64_t own = std::min(count, given);
  for (int64_t i = 0; i < own; ++i) elements[i] = static_cast<Element>(get(static_cast<int>(i)));
  const Element rest = own == 0 ? Element() : elements[own - 1];
  std::fill(elements + own, elements + count, rest);
}

template <typename Element, typename Values>
void FillFrom(const Values& values, void* out, int64_t count) {
  Fill<Element>(out, count, values.size(), [&values](int i) { return values.Get(i); });
}

// Two of `values` make an element; an odd one at the end is ignored.
template <typename Part, typename Values>
void FillComplex(const Values& values, void* out, int64_t count) {
  struct Complex {
    Part real;
    Part imaginary;
  };
  auto* elements = static_cast<Complex*>(out);
  const int64_t own = std::min<int64_t>(count, values.size() / 2);
  for (int64_t i = 0; i < own; ++i) {
    const int at = static_cast<int>(2 * i);
    elements[i] = {values.Get(at), values.Get(at + 1)};
  }
  std::fill(elements + own, elements + count, own == 0 ? Complex{0, 0} : elements[own - 1]);
}

void FillValues(const TensorProto& proto, DataType type, void* out, int64_t count) {
  switch (type) {
    case DataType::kFloat:
      return FillFrom<float>(proto.float_val(), out, count);
    case DataType::kDouble:
      return FillFrom<double>(proto.double_val(), out, count);
    case DataType::kInt64:
      return FillFrom<int64_t>(proto.int64_val(), out, count);
    case DataType::kUint64:
      return FillFrom<uint64_t>(proto.uint64_val(), out, count);
    case DataType::kUint32:
      return FillFrom<uint32_t>(proto.uint32_val(), out, count);
    case DataType::kBool:
      return FillFrom<bool>(proto.bool_val(), out, count);
    case DataType::kComplex64:
      return FillComplex<float>(proto.scomplex_val(), out, count);
    case DataType::kComplex128:
      return FillComplex<double>(proto.dcomplex_val(), out, count);
    case DataType::kHalf:
    case DataType::kBfloat16:
      return FillFrom<uint16_t>(proto.half_val(), out, count);
    case DataType::kFloat8E5m2:
    case DataType::kFloat8E4m3fn:
    case DataType::kFloat8E4m3fnuz:
    case DataType::kFloat8E4m3b11fnuz:
    case DataType::kFloat8E5m2fnuz:
    case DataType::kFloat4E2m1fn: {
      const std::string& values = proto.float8_val();
      return Fill<uint8_t>(out, count, static_cast<int64_t>(values.size()),
                           [&values](int i) { return values[static_cast<size_t>(i)]; });
    }
    default:
      break;
  }
  // The remaining types are integers in int_val.
  switch (ElementBytes(type)) {
    case 1:
      return FillFrom<int8_t>(proto.int_val(), out, count);
    case 2:
      return FillFrom<int16_t>(proto.int_val(), out, count);
    default:
      return FillFrom<int32_t>(proto.int_val(), out, count);
  }
}

absl::Status BadContent(const TensorProto& proto, const Shape& shape) {
  return absl::InvalidArgumentError(absl::StrCat("tensor_content of ",
                                                 proto.tensor_content().size(),
                                                 " bytes is not that of string", ToString(shape)));
}

// Reads the string lengths in tensor_content and leaves `in` behind them. Checks that they add up
// to the rest of the content before anything is allocated.
absl::StatusOr<std::vector<uint32_t>> ReadLengths(const TensorProto& proto, const Shape& shape,
                                                  google::protobuf::io::CodedInputStream& in) {
  const std::string& content = proto.tensor_content();
  // Each length takes at least a byte.
  if (static_cast<uint64_t>(shape.element_count()) > content.size()) {
    return BadContent(proto, shape);
  }
  std::vector<uint32_t> lengths(static_cast<size_t>(shape.element_count()));
  uint64_t sum = 0;
  for (uint32_t& length : lengths) {
    uint64_t read = 0;
    // A length of more than 32 bits exceeds any content.
    if (!in.ReadVarint64(&read) || read > content.size()) return BadContent(proto, shape);
    length = static_cast<uint32_t>(read);
    sum += length;
  }
  if (sum != content.size() - static_cast<size_t>(in.CurrentPosition())) {
    return BadContent(proto, shape);
  }
  return lengths;
}

absl::Status CheckContentSize(const TensorProto& proto, const Shape& shape) {
  if (proto.tensor_content().size() <= kMaxTensorProtoBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor_content of ", proto.tensor_content().size(), " bytes, for string",
                   ToString(shape), "; a message has ", kMaxTensorProtoBytes, " at most"));
}

absl::StatusOr<Tensor> StringsFromProto(const TensorProto& proto, Shape shape, size_t max_bytes) {
  const int64_t count = shape.element_count();
  if (static_cast<uint64_t>(count) > max_bytes / sizeof(std::string)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("string", ToString(shape), " is over the limit of ", max_bytes, " bytes"));
  }
  std::vector<std::string> strings(static_cast<size_t>(count));
  if (count > 0 && !proto.tensor_content().empty()) {
    const std::string& content = proto.tensor_content();
    FERRY_RETURN_IF_ERROR(CheckContentSize(proto, shape));
    google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(content.data()),
                                              static_cast<int>(content.size()));
    FERRY_ASSIGN_OR_RETURN(const std::vector<uint32_t> lengths, ReadLengths(proto, shape, in));
    for (size_t i = 0; i < strings.size(); ++i) {
      if (!in.ReadString(&strings[i], static_cast<int>(lengths[i]))) {
        return BadContent(proto, shape);
      }
    }
  } else {
    const int given = proto.string_val_size();
    if (given > 0 && count > given) {
      // The last value is repeated, so its length times the count must be checked.
      const size_t last = proto.string_val(given - 1).size();
      if (last > 0 && static_cast<uint64_t>(count - given) > max_bytes / last) {
        return absl::ResourceExhaustedError(absl::StrCat("string", ToString(shape), " repeats ",
                                                         last, " bytes beyond the limit of ",
                                                         max_bytes));
      }
    }
    for (int64_t i = 0; i < count && given > 0; ++i) {
      strings[static_cast<size_t>(i)] =
          proto.string_val(static_cast<int>(std::min<int64_t>(i, given - 1)));
    }
  }
  return Tensor::OfStrings(std::move(shape), std::move(strings));
}

absl::StatusOr<DataType> TypeFromProto(const TensorProto& proto) {
  const std::optional<DataType> type = DataTypeOfNumber(proto.dtype());
  if (type.has_value()) return *type;
  return absl::InvalidArgumentError(
      absl::StrCat("a tensor of type ", proto.dtype(), " cannot be sent"));
}

// Checks that tensor_content, if present, has the size of the elements of a fixed-size type.
//   bytes: the size of all elements.
absl::Status CheckContentBytes(const TensorProto& proto, DataType type, const Shape& shape,
                               size_t bytes) {
  const size_t given = proto.tensor_content().size();
  if (bytes == 0 || given == 0 || given == bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor_content of ", given, " bytes; ",
                                                 DataTypeName(type), ToString(shape), " has ",
                                                 bytes));
}

}  // namespace

absl::Status CheckTensorProto(const TensorProto& proto) {
  FERRY_ASSIGN_OR_RETURN(const DataType type, TypeFromProto(proto));
  FERRY_ASSIGN_OR_RETURN(const Shape shape, ShapeFromProto(proto.tensor_shape()));
  if (type != DataType::kString) {
    FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(type, shape));
    FERRY_RETURN_IF_ERROR(CheckContentBytes(proto, type, shape, bytes));
    const std::string& content = proto.tensor_content();
    if (bytes == 0 || content.empty()) return absl::OkStatus();
    return CheckValues(type, content.data(), bytes, [type, &shape] {
      return absl::StrCat(DataTypeName(type), ToString(shape));
    });
  }
  const std::string& content = proto.tensor_content();
  if (shape.element_count() == 0 || content.empty()) return absl::OkStatus();
  FERRY_RETURN_IF_ERROR(CheckContentSize(proto, shape));
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(content.data()),
                                            static_cast<int>(content.size()));
  return ReadLengths(proto, shape, in).status();
}

absl::StatusOr<Tensor> TensorFromProto(const TensorProto& proto, size_t max_bytes) {
  FERRY_ASSIGN_OR_RETURN(const DataType type, TypeFromProto(proto));
  FERRY_ASSIGN_OR_RETURN(Shape shape, ShapeFromProto(proto.tensor_shape()));
  if (type == DataType::kString) return StringsFromProto(proto, std::move(shape), max_bytes);
  FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(type, shape));
  const std::string& content = proto.tensor_content();
  FERRY_RETURN_IF_ERROR(CheckContentBytes(proto, type, shape, bytes));
  if (bytes > max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(DataTypeName(type), ToString(shape), " has ",
                                                     bytes, " bytes, over the limit of ",
                                                     max_bytes));
  }
  const int64_t count = shape.element_count();
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(type, std::move(shape)));
  if (bytes == 0) return tensor;
  if (content.empty()) {
    FillValues(proto, type, tensor.mutable_data(), count);
  } else {
    FERRY_RETURN_IF_ERROR(CopyValues(
        type, content.data(), bytes, tensor.mutable_data(),
        [type, &tensor] { return absl::StrCat(DataTypeName(type), ToString(tensor.shape())); }));
  }
  return tensor;
}

void FillTensorHeader(const Tensor& tensor, TensorProto& proto) {
  proto.set_dtype(static_cast<tensorflow::DataType>(tensor.dtype()));
  for (const int64_t dim : tensor.shape().dims()) {
    proto.mutable_tensor_shape()->add_dim()->set_size(dim);
  }
  // Sets the field: scalars have a shape too.
  proto.mutable_tensor_shape();
}

absl::StatusOr<TensorProto> TensorToProto(const Tensor& tensor, size_t max_bytes) {
  if (!tensor.is_valid()) return absl::InvalidArgumentError("no tensor to encode");
  FERRY_RETURN_IF_ERROR(CheckOnHost(tensor, "encode"));
  TensorProto proto;
  FillTensorHeader(tensor, proto);
  // Each string has a tag and a length: 10^9 empty ones are 2 GB.
  size_t bytes = proto.ByteSizeLong();
  if (tensor.dtype() == DataType::kString) {
    for (const std::string& each : tensor.strings()) bytes += FieldBytes(each.size());
  } else if (tensor.bytes() > 0) {
    bytes += FieldBytes(tensor.bytes());
  }
  if (bytes > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(ToString(tensor), " takes ", bytes,
                                                   " bytes in a TensorProto, which holds ",
                                                   max_bytes, ". Send it in parts"));
  }
  if (tensor.dtype() == DataType::kString) {
    for (const std::string& each : tensor.strings()) proto.add_string_val(each);
  } else if (tensor.bytes() > 0) {
    proto.set_tensor_content(static_cast<const char*>(tensor.data()), tensor.bytes());
  }
  return proto;
}

}  // namespace ferry
