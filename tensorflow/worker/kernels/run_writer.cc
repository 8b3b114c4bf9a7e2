// SPDX-License-Identifier: Apache-2.0
// Copies rows of elements.
#include "tensorflow/worker/kernels/run_writer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "tensor/copy.h"

namespace ferry::worker {

absl::StatusOr<RunWriter> RunWriter::Create(const KernelContext& context, DataType dtype,
                                            const Shape& shape) {
  RunWriter writer;
  writer.dtype_ = dtype;
  writer.shape_ = shape;
  if (dtype == DataType::kString) {
    FERRY_RETURN_IF_ERROR(CheckStrings(context, shape));
    writer.strings_.resize(static_cast<size_t>(shape.element_count()));
    return writer;
  }
  FERRY_ASSIGN_OR_RETURN(writer.tensor_, context.Allocate(dtype, shape));
  return writer;
}

void RunWriter::Copy(int64_t at, const Tensor& from, int64_t first, int64_t count) {
  if (dtype_ == DataType::kString) {
    std::copy_n(from.strings().begin() + first, count, strings_.begin() + at);
    return;
  }
  const size_t element_bytes = ElementBytes(dtype_);
  const size_t bytes = static_cast<size_t>(count) * element_bytes;
  if (bytes == 0) return;
  CopyBytes(static_cast<char*>(tensor_.mutable_data()) + static_cast<size_t>(at) * element_bytes,
            static_cast<const char*>(from.data()) + static_cast<size_t>(first) * element_bytes,
            bytes);
}

absl::StatusOr<Tensor> RunWriter::Finish() && {
  if (dtype_ == DataType::kString) return Tensor::OfStrings(shape_, std::move(strings_));
  return std::move(tensor_);
}

absl::Status CheckStrings(const KernelContext& context, const Shape& shape) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(shape.element_count()), kStringBytes, &bytes)) {
    bytes = std::numeric_limits<size_t>::max();
  }
  return context.CheckBytes(bytes);
}

}  // namespace ferry::worker
