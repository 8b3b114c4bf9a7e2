// SPDX-License-Identifier: Apache-2.0
// Tensor: typed, shaped view of a shared buffer.
#ifndef FERRY_INCLUDE_FERRY_TENSOR_H_
#define FERRY_INCLUDE_FERRY_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include <ferry/data_type.h>
#include <ferry/device.h>
#include <ferry/namespace.h>

namespace ferry {
FERRY_NAMESPACE_BEGIN

// Elements are dense and row-major: the last dimension is contiguous. A shape is its extents;
// {} is a scalar. Cheap to copy: copies are views of one buffer, which is released with the last of
// them. Thread-safe as long as no thread writes the elements; a tensor that has been sent must not
// be written any more, since its receivers may read the same memory.
//
// Node::Allocate makes tensors that other processes of the host receive without a copy; those that
// are made here are copied on the way.
class Tensor {
 public:
  // An invalid tensor: is_valid() is false, and accessors return empty values.
  Tensor() = default;

  // Allocates on the heap, aligned to 64 bytes; the elements are uninitialized.
  //   Errors: INVALID_ARGUMENT for a type without a fixed size, a negative extent, or a size beyond
  //   the address space; RESOURCE_EXHAUSTED.
  static absl::StatusOr<Tensor> Allocate(DataType dtype, absl::Span<const int64_t> shape);
  // Wraps memory of the program on `device`, which stays valid until `release` is called: once, on
  // the thread that releases the last view.
  //   data: the first element, aligned to the element's size; a device address for a GPU.
  //   Errors: INVALID_ARGUMENT as Allocate, for memory that is not aligned or ends beyond the
  //   address space, or for what is no device; `release` is then destroyed without being called.
  static absl::StatusOr<Tensor> Wrap(DataType dtype, absl::Span<const int64_t> shape, void* data,
                                     absl::AnyInvocable<void() &&> release,
                                     Device device = Device::Host());
  // A tensor of byte strings, which are copied wherever they are sent.
  //   Errors: INVALID_ARGUMENT unless their number equals the shape's element count.
  static absl::StatusOr<Tensor> FromStrings(absl::Span<const int64_t> shape,
                                            std::vector<std::string> strings);

  bool is_valid() const { return impl_ != nullptr; }
  DataType dtype() const;
  // The extents, valid as long as this tensor.
  absl::Span<const int64_t> shape() const;
  int64_t element_count() const;
  // The size of all elements in bytes; for strings, of their characters.
  size_t size_bytes() const;
  // Where the elements are: the host or a GPU of this process.
  Device device() const;

  // The first element: a device address for a GPU's memory. Null for strings; may be null if
  // size_bytes() is 0.
  const void* data() const;
  // For filling a tensor that has not been sent.
  void* mutable_data();
  // REQUIRES: sizeof(T) is the element's size, and the elements are in host memory.
  template <typename T>
  absl::Span<const T> elements() const {
    return {static_cast<const T*>(data()), static_cast<size_t>(element_count())};
  }
  template <typename T>
  absl::Span<T> mutable_elements() {
    return {static_cast<T*>(mutable_data()), static_cast<size_t>(element_count())};
  }
  // Empty unless dtype() is kString.
  absl::Span<const std::string> strings() const;

  // Rows [first, first + count) of the first dimension; a view of the same buffer.
  //   Errors: OUT_OF_RANGE; INVALID_ARGUMENT for scalars, strings and invalid tensors.
  absl::StatusOr<Tensor> Slice(int64_t first, int64_t count) const;
  // The same elements in another shape.
  //   Errors: INVALID_ARGUMENT unless the element counts are equal.
  absl::StatusOr<Tensor> Reshape(absl::Span<const int64_t> shape) const;

 private:
  class Impl;
  friend class ApiAccess;

  std::shared_ptr<const Impl> impl_;
};

// "float[2,3]"; "no tensor" for an invalid one.
std::string ToString(const Tensor& tensor);

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_TENSOR_H_
