// SPDX-License-Identifier: Apache-2.0
// Kernels: the parameters of each kernel.
#include "gpu/kernels/kernels.h"

#include <utility>

#include "absl/memory/memory.h"

#include "base/status_macros.h"

namespace ferry::cuda {
namespace {

size_t WordsOf(size_t bytes) { return (bytes + 7) / 8; }

}  // namespace

absl::StatusOr<std::unique_ptr<Kernels>> Kernels::Load(std::shared_ptr<CudaDevice> device,
                                                       const CompiledKernels& compiled) {
  std::unique_ptr<Kernels> kernels = absl::WrapUnique(new Kernels());
  const std::pair<const char*, Function*> functions[] = {
      {"ferry_pattern_fill", &kernels->fill_},
      {"ferry_pattern_compare", &kernels->compare_},
      {"ferry_checksum", &kernels->checksum_},
      {"ferry_scale_add", &kernels->scale_add_},
  };
  FERRY_ASSIGN_OR_RETURN(kernels->module_,
                         KernelModule::Load(std::move(device), compiled, functions));
  return kernels;
}

absl::Status Kernels::FillPattern(Stream stream, DevicePointer to, size_t bytes,
                                  uint64_t seed) const {
  uint64_t count = bytes;
  void* parameters[] = {&to, &count, &seed};
  return module_->Launch(fill_, stream, WordsOf(bytes), parameters);
}

absl::Status Kernels::ComparePattern(Stream stream, DevicePointer from, size_t bytes, uint64_t seed,
                                     DevicePointer wrong) const {
  uint64_t count = bytes;
  void* parameters[] = {&from, &count, &seed, &wrong};
  return module_->Launch(compare_, stream, WordsOf(bytes), parameters);
}

absl::Status Kernels::Checksum(Stream stream, DevicePointer from, size_t bytes,
                               DevicePointer sum) const {
  uint64_t count = bytes;
  void* parameters[] = {&from, &count, &sum};
  return module_->Launch(checksum_, stream, WordsOf(bytes), parameters);
}

absl::Status Kernels::ScaleAdd(Stream stream, DevicePointer to, DevicePointer from, size_t count,
                               float scale) const {
  uint64_t elements = count;
  void* parameters[] = {&to, &from, &elements, &scale};
  return module_->Launch(scale_add_, stream, count, parameters);
}

}  // namespace ferry::cuda
