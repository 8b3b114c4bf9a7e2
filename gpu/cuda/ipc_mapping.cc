// SPDX-License-Identifier: Apache-2.0
// Opens and closes mappings, by the three export methods.
#include "gpu/cuda/ipc_mapping.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/cuda/ipc_export.h"

namespace ferry::cuda {
namespace {

// The driver takes a file descriptor as a pointer's value. Source: cuMemImportFromShareableHandle.
void* AsShareable(const UniqueFd& fd) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(fd.get()));
}

}  // namespace

IpcMapping::IpcMapping(std::shared_ptr<CudaDevice> device, ExportBy export_by, size_t bytes)
    : device_(std::move(device)), export_by_(export_by), bytes_(bytes) {}

absl::StatusOr<std::unique_ptr<IpcMapping>> IpcMapping::Open(std::shared_ptr<CudaDevice> device,
                                                             const IpcDescriptor& descriptor,
                                                             UniqueFd fd, ImportedPools* pools,
                                                             uint64_t peer) {
  const ScopedCurrent current(*device);
  if (descriptor.export_by != ExportBy::kLegacyHandle && !fd.valid()) {
    return absl::InvalidArgumentError("the peer's memory came without its descriptor");
  }
  std::unique_ptr<IpcMapping> mapping = absl::WrapUnique(
      new IpcMapping(std::move(device), descriptor.export_by, descriptor.allocation_bytes));
  switch (descriptor.export_by) {
    case ExportBy::kLegacyHandle:
      FERRY_RETURN_IF_ERROR(mapping->OpenLegacy(descriptor));
      return mapping;
    case ExportBy::kPoolPointer:
      FERRY_RETURN_IF_ERROR(mapping->OpenPool(descriptor, fd, pools, peer));
      return mapping;
    case ExportBy::kPosixFd:
      FERRY_RETURN_IF_ERROR(mapping->OpenVirtual(descriptor, fd));
      return mapping;
    case ExportBy::kNone:
      break;
  }
  return absl::InvalidArgumentError("the peer's memory is not exported");
}

absl::Status IpcMapping::OpenLegacy(const IpcDescriptor& descriptor) {
  FERRY_RETURN_IF_ERROR(device_->api().Has(CudaGroup::kIpc));
  IpcMemoryHandle handle = {};
  std::memcpy(handle.bytes, descriptor.handle.data(), sizeof(handle.bytes));
  const Result result =
      device_->table().ipc_open_memory_handle(&base_, handle, kIpcLazyEnablePeerAccess);
  if (result == kErrorAlreadyMapped) {
    return absl::AlreadyExistsError(
        absl::StrCat(device_->name(), ": older memory of the peer is still mapped in its place"));
  }
  if (result == kErrorPeerAccessUnsupported) {
    return absl::FailedPreconditionError(
        absl::StrCat(device_->name(), " cannot reach the memory of ", UuidText(descriptor.device),
                     ": the machine has no peer access between them"));
  }
  FERRY_RETURN_IF_ERROR(device_->Check(result, "cuIpcOpenMemHandle"));
  is_mapped_ = true;
  return absl::OkStatus();
}

absl::Status IpcMapping::OpenPool(const IpcDescriptor& descriptor, const UniqueFd& fd,
                                  ImportedPools* pools, uint64_t peer) {
  ImportedPools none;
  if (pools == nullptr) pools = &none;
  PoolPointerHandle handle = {};
  std::memcpy(handle.bytes, descriptor.handle.data(), sizeof(handle.bytes));
  absl::Status first;
  while (true) {
    absl::StatusOr<std::shared_ptr<const ImportedPool>> pool =
        pools->Import(device_, peer, descriptor.pool_id, fd);
    if (!pool.ok()) return first.ok() ? pool.status() : first;
    pool_ = *std::move(pool);
    const bool is_used_already = pool_.use_count() > 1;
    const absl::Status imported =
        device_->Check(device_->table().pool_import_pointer(&base_, pool_->get(), &handle),
                       "cuMemPoolImportPointer");
    if (imported.ok()) break;
    if (!is_used_already || !first.ok()) return first.ok() ? imported : first;
    // It may be another pool by now, with the handle of one that was destroyed.
    first = imported;
    pools->Forget(peer, descriptor.pool_id);
  }
  is_mapped_ = true;
  return absl::OkStatus();
}

absl::Status IpcMapping::OpenVirtual(const IpcDescriptor& descriptor, const UniqueFd& fd) {
  if (!device_->traits().has_virtual_memory) {
    return absl::FailedPreconditionError(
        absl::StrCat(device_->name(), " has no virtual memory management to import by"));
  }
  const CudaTable& table = device_->table();
  AllocationHandle handle = 0;
  FERRY_RETURN_IF_ERROR(CheckWithDescriptors(
      *device_, table.memory_import(&handle, AsShareable(fd), kHandleTypePosixFd),
      "cuMemImportFromShareableHandle"));
  const auto map = [&]() -> absl::Status {
    FERRY_RETURN_IF_ERROR(device_->Check(
        table.address_reserve(&base_, bytes_, /*alignment=*/0, /*wanted=*/0, /*flags=*/0),
        "cuMemAddressReserve"));
    is_reserved_ = true;
    FERRY_RETURN_IF_ERROR(device_->Check(
        table.memory_map(base_, bytes_, /*offset=*/0, handle, /*flags=*/0), "cuMemMap"));
    is_mapped_ = true;
    const AccessDescription access = {{kLocationTypeDevice, device_->ordinal()}, kAccessReadWrite};
    const Result result = table.memory_set_access(base_, bytes_, &access, 1);
    if (result == kErrorInvalidDevice) {
      return absl::FailedPreconditionError(
          absl::StrCat(device_->name(), " cannot reach the memory of ", UuidText(descriptor.device),
                       ": the machine has no peer access between them"));
    }
    return device_->Check(result, "cuMemSetAccess");
  };
  absl::Status status = map();
  // The mapping keeps the memory; without one it is freed with the handle.
  table.memory_release(handle);
  return status;
}

IpcMapping::~IpcMapping() {
  const ScopedCurrent current(*device_);
  const CudaTable& table = device_->table();
  switch (export_by_) {
    case ExportBy::kLegacyHandle:
      if (is_mapped_) table.ipc_close_memory_handle(base_);
      break;
    case ExportBy::kPoolPointer:
      if (is_mapped_) table.memory_free(base_);
      pool_ = nullptr;
      break;
    case ExportBy::kPosixFd:
      if (is_mapped_) table.memory_unmap(base_, bytes_);
      if (is_reserved_) table.address_free(base_, bytes_);
      break;
    case ExportBy::kNone:
      break;
  }
}

}  // namespace ferry::cuda
