// SPDX-License-Identifier: Apache-2.0
// KernelModule: loading and launching.
#include "gpu/kernels/kernel_module.h"

#include <algorithm>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry::cuda {
namespace {

constexpr unsigned int kThreads = 256;
// Enough to fill any GPU; kernels process the rest in strides of the grid.
constexpr size_t kMaxBlocks = 2048;

}  // namespace

absl::StatusOr<std::unique_ptr<KernelModule>> KernelModule::Load(
    std::shared_ptr<CudaDevice> device, const CompiledKernels& compiled,
    absl::Span<const std::pair<const char*, Function*>> functions) {
  if (compiled.empty()) {
    return absl::UnimplementedError(
        "this build of Ferry has no kernels: it was made without nvcc and gpu/kernels/*.ptx");
  }
  FERRY_RETURN_IF_ERROR(device->api().Has(CudaGroup::kModules));
  std::unique_ptr<KernelModule> module = absl::WrapUnique(new KernelModule(std::move(device)));
  const absl::Status loaded = module->LoadOne(compiled.image, functions);
  if (loaded.ok()) return module;
  if (compiled.older_ptx.empty()) return loaded;
  // A driver accepts no binaries, and no PTX, of a toolkit with a later major version than its own.
  module->why_ptx_ = std::string(loaded.message());
  const absl::Status made = module->LoadOne(compiled.older_ptx, functions);
  if (made.ok()) return module;
  return absl::Status(loaded.code(), absl::StrCat(loaded.message(), "; as PTX: ", made.message()));
}

absl::Status KernelModule::LoadOne(absl::string_view code,
                                   absl::Span<const std::pair<const char*, Function*>> functions) {
  const ScopedCurrent current(*device_);
  const CudaTable& table = device_->table();
  FERRY_RETURN_IF_ERROR(
      device_->Check(table.module_load_data(&module_, code.data()), "cuModuleLoadData"));
  for (const auto& [name, function] : functions) {
    const absl::Status found =
        device_->Check(table.module_get_function(function, module_, name), name);
    if (found.ok()) continue;
    table.module_unload(std::exchange(module_, nullptr));
    return found;
  }
  return absl::OkStatus();
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
