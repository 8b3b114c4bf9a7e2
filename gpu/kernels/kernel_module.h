// SPDX-License-Identifier: Apache-2.0
// KernelModule: compiled kernels on one device.
#ifndef FERRY_GPU_KERNELS_KERNEL_MODULE_H_
#define FERRY_GPU_KERNELS_KERNEL_MODULE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "gpu/cuda/cuda_device.h"
#include "gpu/kernels/embedded.h"

namespace ferry::cuda {

// Thread-safe.
class KernelModule final {
 public:
  // Loading may synchronize the device: not while NCCL work is in flight.
  //   compiled: its image is used, or if the driver rejects that, its older PTX, which the driver
  //   compiles: this may take seconds the first time.
  //   functions: the names of kernels, and where to store each.
  //   Errors: UNIMPLEMENTED if there are none or the driver loads no modules; INTERNAL with the
  //   driver's error for each, such as that it has no binary for the device, and the name of a
  //   missing kernel.
  static absl::StatusOr<std::unique_ptr<KernelModule>> Load(
      std::shared_ptr<CudaDevice> device, const CompiledKernels& compiled,
      absl::Span<const std::pair<const char*, Function*>> functions);
  ~KernelModule();

  KernelModule(const KernelModule&) = delete;
  KernelModule& operator=(const KernelModule&) = delete;

  // Returns once enqueued. One thread for each of `items`, up to the grid's limit; for no items
  // nothing is run.
  //   parameters: as for cuLaunchKernel.
  absl::Status Launch(Function function, Stream stream, size_t items, void** parameters) const;

  // Why the older PTX is in use; empty: the image is used.
  const std::string& why_ptx() const { return why_ptx_; }

 private:
  explicit KernelModule(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  absl::Status LoadOne(absl::string_view code,
                       absl::Span<const std::pair<const char*, Function*>> functions);

  const std::shared_ptr<CudaDevice> device_;
  Module module_ = nullptr;
  std::string why_ptx_;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_KERNELS_KERNEL_MODULE_H_
