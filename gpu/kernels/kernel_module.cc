// SPDX-License-Identifier: Apache-2.0
// Loading and launching.
#include "gpu/kernels/kernel_module.h"

#include <algorithm>

#include "absl/memory/memory.h"

#include "base/status_macros.h"

namespace ferry::cuda {
namespace {

constexpr unsigned int kThreads = 256;
// Enough to fill any GPU; kernels go over the rest in steps of the grid.
constexpr size_t kMaxBlocks = 2048;

}  // namespace

absl::StatusOr<std::unique_ptr<KernelModule>> KernelModule::Load(
    std::shared_ptr<CudaDevice> device, absl::string_view image,
    absl::Span<const std::pair<const char*, Function*>> functions) {
  if (image.empty()) {
    return absl::UnimplementedError("this build of Ferry has no kernels: it was made without nvcc");
  }
  FERRY_RETURN_IF_ERROR(device->api().Has(CudaGroup::kModules));
  const ScopedCurrent current(*device);
  const CudaTable& table = device->table();
  std::unique_ptr<KernelModule> module = absl::WrapUnique(new KernelModule(device));
  FERRY_RETURN_IF_ERROR(
      device->Check(table.module_load_data(&module->module_, image.data()), "cuModuleLoadData"));
  for (const auto& [name, function] : functions) {
    FERRY_RETURN_IF_ERROR(
        device->Check(table.module_get_function(function, module->module_, name), name));
  }
  return module;
}

KernelModule::~KernelModule() {
  const ScopedCurrent current(*device_);
  if (module_ != nullptr) device_->table().module_unload(module_);
}

absl::Status KernelModule::Launch(Function function, Stream stream, size_t items,
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

}  // namespace ferry::cuda
