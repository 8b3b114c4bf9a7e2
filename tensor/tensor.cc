// SPDX-License-Identifier: Apache-2.0
// Views of buffers.
#include "tensor/tensor.h"

#include <cstring>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry {
namespace {

// Strings are not contiguous bytes: the buffer holds string objects, and data() is the first one.
class StringBuffer final : public Buffer {
 public:
  explicit StringBuffer(std::vector<std::string> strings)
      : Buffer(nullptr, 0), strings_(std::move(strings)) {}

  const std::vector<std::string>& strings() const { return strings_; }

 private:
  const std::vector<std::string> strings_;
};

}  // namespace

absl::StatusOr<size_t> TensorBytes(DataType dtype, const Shape& shape) {
  if (!IsFixedSize(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat(DataTypeName(dtype), " elements have no fixed size"));
  }
  size_t bytes = 0;
  const bool overflows = __builtin_mul_overflow(static_cast<size_t>(shape.element_count()),
                                                ElementBytes(dtype), &bytes);
  if (overflows || bytes > static_cast<size_t>(std::numeric_limits<int64_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat(DataTypeName(dtype), ToString(shape), " has more bytes than can be counted"));
  }
  return bytes;
}

absl::StatusOr<Tensor> Tensor::Create(DataType dtype, Shape shape, std::shared_ptr<Buffer> buffer,
                                      size_t offset_bytes) {
  FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(dtype, shape));
  if (buffer == nullptr) return absl::InvalidArgumentError("a tensor without a buffer");
  if (offset_bytes % ElementBytes(dtype) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("offset ", offset_bytes, " is no multiple of a ",
                                                   DataTypeName(dtype), " element's ",
                                                   ElementBytes(dtype), " bytes"));
  }
  if (offset_bytes > buffer->bytes() || bytes > buffer->bytes() - offset_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(DataTypeName(dtype), ToString(shape), " takes ",
                                                   bytes, " bytes from offset ", offset_bytes,
                                                   "; the buffer has ", buffer->bytes()));
  }
  return Tensor(dtype, std::move(shape), bytes, std::move(buffer), offset_bytes);
}

Tensor::Tensor(DataType dtype, Shape&& shape, size_t bytes, std::shared_ptr<Buffer>&& buffer,
               size_t offset_bytes)
    : dtype_(dtype),
      shape_(std::move(shape)),
      buffer_(std::move(buffer)),
      offset_bytes_(offset_bytes),
      bytes_(bytes),
      data_(buffer_->data() == nullptr ? nullptr
                                       : static_cast<char*>(buffer_->data()) + offset_bytes) {}

absl::StatusOr<Tensor> Tensor::Allocate(DataType dtype, Shape shape) {
  FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(dtype, shape));
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, AllocateHeapBuffer(bytes));
  // Made in its place: moving it costs as much as the rest.
  absl::StatusOr<Tensor> tensor(absl::in_place);
  tensor->dtype_ = dtype;
  tensor->shape_ = std::move(shape);
  tensor->bytes_ = bytes;
  tensor->data_ = buffer->data();
  tensor->buffer_ = std::move(buffer);
  return tensor;
}

absl::StatusOr<Tensor> Tensor::OfStrings(Shape shape, std::vector<std::string> strings) {
  if (static_cast<int64_t>(strings.size()) != shape.element_count()) {
    return absl::InvalidArgumentError(
        absl::StrCat(strings.size(), " strings for shape ", ToString(shape)));
  }
  Tensor tensor;
  tensor.dtype_ = DataType::kString;
  tensor.shape_ = std::move(shape);
  for (const std::string& each : strings) tensor.bytes_ += each.size();
  tensor.buffer_ = std::make_shared<StringBuffer>(std::move(strings));
  return tensor;
}

absl::Span<const std::string> Tensor::strings() const {
  FERRY_CHECK(dtype_ == DataType::kString);
  return static_cast<const StringBuffer&>(*buffer_).strings();
}

absl::StatusOr<Tensor> Tensor::Slice(int64_t first, int64_t count) const {
  if (!IsFixedSize(dtype_) || shape_.rank() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(ToString(*this), " has no rows to slice"));
  }
  if (first < 0 || count < 0 || first > shape_.dim(0) || count > shape_.dim(0) - first) {
    return absl::OutOfRangeError(
        absl::StrCat("rows ", first, " to ", first, " + ", count, " of ", ToString(*this)));
  }
  absl::InlinedVector<int64_t, 4> dims(shape_.dims().begin(), shape_.dims().end());
  const size_t row_bytes = shape_.dim(0) == 0 ? 0 : bytes_ / static_cast<size_t>(shape_.dim(0));
  dims[0] = count;
  FERRY_ASSIGN_OR_RETURN(Shape shape, Shape::Create(dims));
  return Create(dtype_, std::move(shape), buffer_,
                offset_bytes_ + static_cast<size_t>(first) * row_bytes);
}

absl::StatusOr<Tensor> Tensor::Reshape(Shape shape) const {
  if (!is_valid() || shape.element_count() != shape_.element_count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot give ", ToString(*this), " the shape ", ToString(shape)));
  }
  Tensor tensor = *this;
  tensor.shape_ = std::move(shape);
  return tensor;
}

absl::Status CheckOnHost(const Tensor& tensor, absl::string_view doing) {
  if (tensor.is_on_host()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot ", doing, " ", ToString(tensor), " in the memory of ",
                   ToString(tensor.location()), "; copy it to the host first"));
}

bool IsEqual(const Tensor& a, const Tensor& b) {
  FERRY_CHECK(a.is_on_host() && b.is_on_host());
  if (a.dtype() != b.dtype()) return false;
  if (!a.is_valid()) return true;
  if (!(a.shape() == b.shape())) return false;
  if (a.dtype() == DataType::kString) return a.strings() == b.strings();
  return a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

std::string ToString(const Tensor& tensor) {
  if (!tensor.is_valid()) return "no tensor";
  return absl::StrCat(DataTypeName(tensor.dtype()), ToString(tensor.shape()));
}

}  // namespace ferry
