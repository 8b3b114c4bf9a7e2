// SPDX-License-Identifier: Apache-2.0
// RunWriter: fills a new tensor with rows of other tensors' elements, of any type.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_RUN_WRITER_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_RUN_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "tensorflow/worker/kernel.h"

namespace ferry::worker {

// Bytes per string besides its characters.
inline constexpr size_t kStringBytes = sizeof(std::string);

// Checks the size limit for a tensor of that many strings.
//   Errors: as KernelContext::Allocate.
absl::Status CheckStrings(const KernelContext& context, const Shape& shape);

// Not thread-safe.
class RunWriter final {
 public:
  //   Errors: as KernelContext::Allocate.
  static absl::StatusOr<RunWriter> Create(const KernelContext& context, DataType dtype,
                                          const Shape& shape);

  // Copies elements [first, first + count) of `from` to position `at`. REQUIRES: both ranges exist,
  // and `from` has this type.
  void Copy(int64_t at, const Tensor& from, int64_t first, int64_t count);
  // REQUIRES: every element has been written.
  absl::StatusOr<Tensor> Finish() &&;

 private:
  RunWriter() = default;

  DataType dtype_ = DataType::kInvalid;
  Shape shape_;
  // Only one of the two is used.
  Tensor tensor_;
  std::vector<std::string> strings_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_RUN_WRITER_H_
