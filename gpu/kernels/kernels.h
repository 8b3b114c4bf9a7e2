// SPDX-License-Identifier: Apache-2.0
// Kernels: Ferry's own kernels, for creating and verifying data on a device.
#ifndef FERRY_GPU_KERNELS_KERNELS_H_
#define FERRY_GPU_KERNELS_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu/cuda/cuda_device.h"
#include "gpu/kernels/embedded.h"
#include "gpu/kernels/kernel_module.h"

namespace ferry::cuda {

// Loaded for one device. Launches return once enqueued; thread-safe. Memory is aligned to 8.
class Kernels final {
 public:
  // As KernelModule::Load.
  static absl::StatusOr<std::unique_ptr<Kernels>> Load(
      std::shared_ptr<CudaDevice> device, const CompiledKernels& compiled = EmbeddedKernels());

  // Sets word i of `to` to seed + i * 0x9E3779B97F4A7C15, as cli/pattern.h does on the host.
  //   to: u8[bytes].
  absl::Status FillPattern(Stream stream, DevicePointer to, size_t bytes, uint64_t seed) const;
  // Adds to `wrong` the number of bytes that differ from the pattern.
  //   from: u8[bytes]. wrong: u64[1] on the device.
  absl::Status ComparePattern(Stream stream, DevicePointer from, size_t bytes, uint64_t seed,
                              DevicePointer wrong) const;
  // Adds to `sum` the sum of word[i] * (2 i + 1), modulo 2^64, the last word padded with zeros.
  //   from: u8[bytes]. sum: u64[1] on the device.
  absl::Status Checksum(Stream stream, DevicePointer from, size_t bytes, DevicePointer sum) const;
  // to[i] = scale * to[i] + from[i].
  //   to, from: f32[count].
  absl::Status ScaleAdd(Stream stream, DevicePointer to, DevicePointer from, size_t count,
                        float scale) const;

  // As KernelModule::why_ptx.
  const std::string& why_ptx() const { return module_->why_ptx(); }

 private:
  Kernels() = default;

  // Constant after Load.
  std::unique_ptr<KernelModule> module_;
  Function fill_ = nullptr;
  Function compare_ = nullptr;
  Function checksum_ = nullptr;
  Function scale_add_ = nullptr;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_KERNELS_KERNELS_H_
