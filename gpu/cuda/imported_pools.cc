// SPDX-License-Identifier: Apache-2.0
// Imports pools by their file descriptors.
#include "gpu/cuda/imported_pools.h"

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/cuda/ipc_export.h"

namespace ferry::cuda {

ImportedPool::~ImportedPool() {
  const ScopedCurrent current(*device_);
  device_->table().pool_destroy(pool_);
}

absl::StatusOr<std::shared_ptr<const ImportedPool>> ImportedPools::Import(
    std::shared_ptr<CudaDevice> device, uint64_t peer, uint64_t pool_id, const UniqueFd& fd) {
  if (!device->traits().has_pools) {
    return absl::FailedPreconditionError(
        absl::StrCat(device->name(), " has no memory pools to import into"));
  }
  absl::erase_if(pools_, [](const auto& each) { return each.second.expired(); });
  const std::pair key(peer, pool_id);
  if (const auto found = pools_.find(key); found != pools_.end()) return found->second.lock();
  const CudaTable& table = device->table();
  // The driver takes a file descriptor as a pointer's value.
  void* const shareable = reinterpret_cast<void*>(static_cast<uintptr_t>(fd.get()));
  MemoryPool imported = nullptr;
  FERRY_RETURN_IF_ERROR(
      CheckWithDescriptors(*device, table.pool_import(&imported, shareable, kHandleTypePosixFd, 0),
                           "cuMemPoolImportFromShareableHandle"));
  auto pool = std::make_shared<const ImportedPool>(device, imported);
  const AccessDescription access = {{kLocationTypeDevice, device->ordinal()}, kAccessReadWrite};
  FERRY_RETURN_IF_ERROR(
      device->Check(table.pool_set_access(imported, &access, 1), "cuMemPoolSetAccess"));
  if (pool_id != 0) pools_.emplace(key, pool);
  return pool;
}

}  // namespace ferry::cuda
