// SPDX-License-Identifier: Apache-2.0
// Tensor: typed, shaped view of a shared buffer.
#ifndef FERRY_TENSOR_TENSOR_H_
#define FERRY_TENSOR_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "tensor/buffer.h"
#include "tensor/data_type.h"
#include "tensor/shape.h"

namespace ferry {

// Cheap to copy: copies are views of one buffer. Thread-safe as long as no thread writes the
// elements; a tensor that has been sent must not be written any more. Elements are row-major and
// dense.
class Tensor {
 public:
  // An invalid tensor, as dead values carry: is_valid() is false, and nothing else may be called.
  // Not defaulted: {} would zero-fill all members first, which costs a tenth of an exchange.
  Tensor() {}  // NOLINT(modernize-use-equals-default)

  // A view of `shape` elements in `buffer`, from `offset_bytes` on.
  //   Errors: INVALID_ARGUMENT for a type that is not of fixed size, a null buffer, an offset that
  //   is no multiple of the element's size, or elements beyond the buffer's end.
  static absl::StatusOr<Tensor> Create(DataType dtype, Shape shape, std::shared_ptr<Buffer> buffer,
                                       size_t offset_bytes = 0);
  // Allocates on the heap; the elements are undefined.
  //   Errors: INVALID_ARGUMENT as above, or for a size beyond the address space;
  //   RESOURCE_EXHAUSTED.
  static absl::StatusOr<Tensor> Allocate(DataType dtype, Shape shape);
  // Makes a tensor of strings, which live in host memory of one process and are serialised for
  // transfer.
  //   Errors: INVALID_ARGUMENT unless their number matches the shape.
  static absl::StatusOr<Tensor> OfStrings(Shape shape, std::vector<std::string> strings);

  bool is_valid() const { return dtype_ != DataType::kInvalid; }
  DataType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  // The size of all elements; for strings, of their characters.
  size_t bytes() const { return bytes_; }

  // The location of the elements; invalid tensors and strings report the host.
  TensorLocation location() const {
    return buffer_ == nullptr ? TensorLocation() : buffer_->location();
  }
  bool is_on_host() const { return location().space == MemorySpace::kHost; }

  // The first element. REQUIRES: dtype() is of fixed size. May be null when bytes() is 0. A device
  // address for device memory.
  const void* data() const { return data_; }
  // For filling a tensor that is not shared yet.
  void* mutable_data() { return data_; }
  // REQUIRES: sizeof(T) is the element size, and the tensor is on the host.
  template <typename T>
  absl::Span<const T> elements() const {
    return {static_cast<const T*>(data()), static_cast<size_t>(shape_.element_count())};
  }
  // REQUIRES: dtype() is kString.
  absl::Span<const std::string> strings() const;

  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }
  size_t offset_bytes() const { return offset_bytes_; }

  // Rows [first, first + count) of the first dimension; a view of the same buffer.
  //   Errors: OUT_OF_RANGE; INVALID_ARGUMENT for scalars and strings.
  absl::StatusOr<Tensor> Slice(int64_t first, int64_t count) const;
  // The same elements in another shape.
  //   Errors: INVALID_ARGUMENT unless the element counts are equal.
  absl::StatusOr<Tensor> Reshape(Shape shape) const;

 private:
  // REQUIRES: the buffer holds `bytes` from the offset on.
  Tensor(DataType dtype, Shape&& shape, size_t bytes, std::shared_ptr<Buffer>&& buffer,
         size_t offset_bytes);

  DataType dtype_ = DataType::kInvalid;
  Shape shape_;
  std::shared_ptr<Buffer> buffer_;
  size_t offset_bytes_ = 0;
  size_t bytes_ = 0;
  // The buffer's data plus the offset, cached.
  void* data_ = nullptr;
};

// The bytes of `shape` elements of a fixed-size type.
//   Errors: INVALID_ARGUMENT for another type, or on overflow.
absl::StatusOr<size_t> TensorBytes(DataType dtype, const Shape& shape);

// Returns OK, or FAILED_PRECONDITION if the elements are in device memory. Call it before reading
// them on the host.
//   doing: the operation for the error text, such as "encode".
absl::Status CheckOnHost(const Tensor& tensor, absl::string_view doing);

// Same type, shape and content. REQUIRES: both are on the host.
bool IsEqual(const Tensor& a, const Tensor& b);

// "float[2,3]", "no tensor".
std::string ToString(const Tensor& tensor);

}  // namespace ferry

#endif  // FERRY_TENSOR_TENSOR_H_
