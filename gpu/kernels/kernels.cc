// SPDX-License-Identifier: Apache-2.0
// Loading and launching.
#include "gpu/kernels/kernels.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/memory/memory.h"

#include "base/status_macros.h"

namespace ferry::cuda {
namespace {

constexpr unsigned int kThreads = 256;
// Enough to fill any GPU; kernels go over the rest in steps of the grid.
constexpr size_t kMaxBlocks = 2048;

size_t WordsOf(size_t bytes) { return (bytes + 7) / 8; }

}  // namespace

Kernels::Kernels(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

absl::StatusOr<std::unique_ptr<Kernels>> Kernels::Load(std::shared_ptr<CudaDevice> device,
                                                       absl::string_view image) {
  if (image.empty()) {
    return absl::UnimplementedError("this build of Ferry has no kernels: it was made without nvcc");
  }
  FERRY_RETURN_IF_ERROR(device->api().Has(CudaGroup::kModules));
  const ScopedCurrent current(*device);
  const CudaTable& table = device->table();
  std::unique_ptr<Kernels> kernels = absl::WrapUnique(new Kernels(device));
  FERRY_RETURN_IF_ERROR(
      device->Check(table.module_load_data(&kernels->module_, image.data()), "cuModuleLoadData"));
  const std::pair<const char*, Function*> functions[] = {
      {"ferry_pattern_fill", &kernels->fill_},
      {"ferry_pattern_compare", &kernels->compare_},
      {"ferry_checksum", &kernels->checksum_},
      {"ferry_scale_add", &kernels->scale_add_},
  };
  for (const auto& [name, function] : functions) {
    FERRY_RETURN_IF_ERROR(
        device->Check(table.module_get_function(function, kernels->module_, name), name));
  }
  return kernels;
}

Kernels::~Kernels() {
  const ScopedCurrent current(*device_);
  if (module_ != nullptr) device_->table().module_unload(module_);
}

absl::Status Kernels::Launch(Function function, Stream stream, size_t items,
                             void** parameters) const {
  if (items == 0) return absl::OkStatus();
  const ScopedCurrent current(*device_);
  const auto blocks =
      static_cast<unsigned int>(std::min((items + kThreads - 1) / kThreads, kMaxBlocks));
  return device_->Check(
      device_->table().launch_kernel(function, blocks, 1, 1, kThreads, 1, 1, /*shared_bytes=*/0,
                                     stream, parameters, /*extra=*/nullptr),
      "cuLaunchKernel");
}

absl::Status Kernels::FillPattern(Stream stream, DevicePointer to, size_t bytes,
                                  uint64_t seed) const {
  uint64_t count = bytes;
  void* parameters[] = {&to, &count, &seed};
  return Launch(fill_, stream, WordsOf(bytes), parameters);
}

absl::Status Kernels::ComparePattern(Stream stream, DevicePointer from, size_t bytes, uint64_t seed,
                                     DevicePointer wrong) const {
  uint64_t count = bytes;
  void* parameters[] = {&from, &count, &seed, &wrong};
  return Launch(compare_, stream, WordsOf(bytes), parameters);
}

absl::Status Kernels::Checksum(Stream stream, DevicePointer from, size_t bytes,
                               DevicePointer sum) const {
  uint64_t count = bytes;
  void* parameters[] = {&from, &count, &sum};
  return Launch(checksum_, stream, WordsOf(bytes), parameters);
}

absl::Status Kernels::ScaleAdd(Stream stream, DevicePointer to, DevicePointer from, size_t count,
                               float scale) const {
  uint64_t elements = count;
  void* parameters[] = {&to, &from, &elements, &scale};
  return Launch(scale_add_, stream, count, parameters);
}

}  // namespace ferry::cuda
