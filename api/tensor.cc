// SPDX-License-Identifier: Apache-2.0
// The public Tensor is a shared, immutable internal one.
#include <ferry/tensor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "api/api_access.h"
#include "base/status_macros.h"
#include "tensor/tensor.h"

namespace ferry::v0 {

class Tensor::Impl final {
 public:
  explicit Impl(ferry::Tensor inner) : tensor(std::move(inner)) {}

  // Its elements may be written through every view of its buffer.
  mutable ferry::Tensor tensor;
};

absl::StatusOr<Tensor> Tensor::Allocate(DataType dtype, absl::Span<const int64_t> shape) {
  FERRY_ASSIGN_OR_RETURN(Shape extents, Shape::Create(shape));
  FERRY_ASSIGN_OR_RETURN(
      ferry::Tensor tensor,
      ferry::Tensor::Allocate(static_cast<ferry::DataType>(dtype), std::move(extents)));
  return ApiAccess::Wrap(std::move(tensor));
}

absl::StatusOr<Tensor> Tensor::Wrap(DataType dtype, absl::Span<const int64_t> shape, void* data,
                                    absl::AnyInvocable<void() &&> release, Device device) {
  FERRY_ASSIGN_OR_RETURN(Shape extents, Shape::Create(shape));
  const auto type = static_cast<ferry::DataType>(dtype);
  FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(type, extents));
  const size_t alignment = ferry::ElementBytes(type);
  if (bytes > 0 && (data == nullptr || reinterpret_cast<uintptr_t>(data) % alignment != 0)) {
    return absl::InvalidArgumentError("the memory to wrap is null, or not aligned to its elements");
  }
  if (device.index < 0 || (device.kind != DeviceKind::kGpu && device != Device::Host())) {
    return absl::InvalidArgumentError(absl::StrCat("the memory to wrap is that of ",
                                                   ToString(device),
                                                   ", and a node has \"host:0\" and GPUs"));
  }
  if (bytes > std::numeric_limits<uintptr_t>::max() - reinterpret_cast<uintptr_t>(data)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", bytes, " bytes to wrap end beyond the address space"));
  }
  // Nothing below fails, so that `release` is called only for a tensor that was returned.
  std::shared_ptr<Buffer> buffer =
      WrapForeignBuffer(data, bytes, std::move(release), ApiAccess::Unwrap(device));
  FERRY_ASSIGN_OR_RETURN(ferry::Tensor tensor,
                         ferry::Tensor::Create(type, std::move(extents), std::move(buffer)));
  return ApiAccess::Wrap(std::move(tensor));
}

absl::StatusOr<Tensor> Tensor::FromStrings(absl::Span<const int64_t> shape,
                                           std::vector<std::string> strings) {
  FERRY_ASSIGN_OR_RETURN(Shape extents, Shape::Create(shape));
  FERRY_ASSIGN_OR_RETURN(ferry::Tensor tensor,
                         ferry::Tensor::OfStrings(std::move(extents), std::move(strings)));
  return ApiAccess::Wrap(std::move(tensor));
}

DataType Tensor::dtype() const {
  return is_valid() ? static_cast<DataType>(impl_->tensor.dtype()) : DataType::kInvalid;
}

absl::Span<const int64_t> Tensor::shape() const {
  return is_valid() ? impl_->tensor.shape().dims() : absl::Span<const int64_t>();
}

int64_t Tensor::element_count() const {
  return is_valid() ? impl_->tensor.shape().element_count() : 0;
}

size_t Tensor::size_bytes() const { return is_valid() ? impl_->tensor.bytes() : 0; }

Device Tensor::device() const {
  return is_valid() ? ApiAccess::Wrap(impl_->tensor.location()) : Device::Host();
}

const void* Tensor::data() const {
  return dtype() == DataType::kString || !is_valid() ? nullptr : impl_->tensor.data();
}

void* Tensor::mutable_data() {
  return dtype() == DataType::kString || !is_valid() ? nullptr : impl_->tensor.mutable_data();
}

absl::Span<const std::string> Tensor::strings() const {
  return dtype() == DataType::kString ? impl_->tensor.strings() : absl::Span<const std::string>();
}

absl::StatusOr<Tensor> Tensor::Slice(int64_t first, int64_t count) const {
  if (!is_valid()) return absl::InvalidArgumentError("an invalid tensor has no rows");
  FERRY_ASSIGN_OR_RETURN(ferry::Tensor rows, impl_->tensor.Slice(first, count));
  return ApiAccess::Wrap(std::move(rows));
}

absl::StatusOr<Tensor> Tensor::Reshape(absl::Span<const int64_t> shape) const {
  if (!is_valid()) return absl::InvalidArgumentError("an invalid tensor has no shape");
  FERRY_ASSIGN_OR_RETURN(Shape extents, Shape::Create(shape));
  FERRY_ASSIGN_OR_RETURN(ferry::Tensor view, impl_->tensor.Reshape(std::move(extents)));
  return ApiAccess::Wrap(std::move(view));
}

std::string ToString(const Tensor& tensor) { return ferry::ToString(ApiAccess::Unwrap(tensor)); }

ferry::Tensor ApiAccess::Unwrap(const Tensor& tensor) {
  return tensor.is_valid() ? tensor.impl_->tensor : ferry::Tensor();
}

Tensor ApiAccess::Wrap(ferry::Tensor tensor) {
  Tensor result;
  if (tensor.is_valid()) {
    result.impl_ = std::make_shared<const Tensor::Impl>(std::move(tensor));
  }
  return result;
}

}  // namespace ferry::v0
