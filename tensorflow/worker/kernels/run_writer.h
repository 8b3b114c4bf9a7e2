// SPDX-License-Identifier: Apache-2.0
// RunWriter: a new tensor that is filled with rows of elements of others, whatever their type.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_RUN_WRITER_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_RUN_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "tensorflow/worker/kernel.h"

namespace ferry::worker {

// Bytes that a string takes besides those of its characters.
inline constexpr size_t kStringBytes = sizeof(std::string);

// Whether there may be a tensor of so many strings.
//   Errors: as of KernelContext::Allocate.
absl::Status CheckStrings(const KernelContext& context, const Shape& shape);

// Not thread-safe.
class RunWriter final {
 public:
  //   Errors: as of KernelContext::Allocate.
  static absl::StatusOr<RunWriter> Create(const KernelContext& context, DataType dtype,
                                          const Shape& shape);

  // Elements [first, first + count) of `from` become those from `at` on. REQUIRES: both have them,
  // and `from` has this type.
  void Copy(int64_t at, const Tensor& from, int64_t first, int64_t count);
  // REQUIRES: every element has been written.
  absl::StatusOr<Tensor> Finish() &&;

 private:
  RunWriter() = default;

  DataType dtype_ = DataType::kInvalid;
  Shape shape_;
  // One of the two.
  Tensor tensor_;
  std::vector<std::string> strings_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_RUN_WRITER_H_
