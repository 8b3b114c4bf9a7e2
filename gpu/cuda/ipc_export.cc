// SPDX-License-Identifier: Apache-2.0
// Export of device memory: handles, pool pointers and file descriptors.
#include "gpu/cuda/ipc_export.h"

#include <fcntl.h>

#include <cstring>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/file_limit.h"
#include "base/status_macros.h"

namespace ferry::cuda {
namespace {

// The driver does not guarantee it, and a child process would keep the memory.
UniqueFd CloseOnExec(int fd) {
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return UniqueFd(fd);
}

absl::StatusOr<UniqueFd> ExportVirtual(const CudaDevice& device, const MemoryPiece& piece) {
  AllocationHandle handle = 0;
  const CudaTable& table = device.table();
  FERRY_RETURN_IF_ERROR(device.Check(
      table.memory_retain_handle(&handle, reinterpret_cast<void*>(piece.base + piece.offset)),
      "cuMemRetainAllocationHandle"));
  absl::StatusOr<UniqueFd> fd = ExportHandle(device, handle);
  table.memory_release(handle);
  return fd;
}

absl::StatusOr<UniqueFd> ExportPool(const CudaDevice& device, MemoryPool pool) {
  int fd = -1;
  const Result result = device.table().pool_export(&fd, pool, kHandleTypePosixFd, /*flags=*/0);
  if (result != kSuccess)
    return CheckWithDescriptors(device, result, "cuMemPoolExportToShareableHandle");
  return CloseOnExec(fd);
}

absl::Status FillHandle(const CudaDevice& device, const MemoryPiece& piece,
                        IpcDescriptor& descriptor) {
  const CudaTable& table = device.table();
  if (descriptor.export_by == ExportBy::kLegacyHandle) {
    // Zeroed, so that bytes not written by the driver do not make equal handles differ.
    IpcMemoryHandle handle = {};
    FERRY_RETURN_IF_ERROR(
        device.Check(table.ipc_get_memory_handle(&handle, piece.base), "cuIpcGetMemHandle"));
    std::memcpy(descriptor.handle.data(), handle.bytes, sizeof(handle.bytes));
  } else if (descriptor.export_by == ExportBy::kPoolPointer) {
    PoolPointerHandle handle = {};
    FERRY_RETURN_IF_ERROR(
        device.Check(table.pool_export_pointer(&handle, piece.base), "cuMemPoolExportPointer"));
    std::memcpy(descriptor.handle.data(), handle.bytes, sizeof(handle.bytes));
  }
  return absl::OkStatus();
}

// A number for each handle of a pool that this process has exported memory of. The driver does not
// say when a pool is destroyed, so the number of a handle that it uses again is the same: the
// importer notices that (IpcMapping).
uint64_t PoolNumber(MemoryPool pool) {
  struct Numbers {
    absl::Mutex mu;
    absl::flat_hash_map<MemoryPool, uint64_t> of ABSL_GUARDED_BY(mu);
  };
  static Numbers& numbers = *new Numbers();
  absl::MutexLock lock(&numbers.mu);
  return numbers.of.try_emplace(pool, numbers.of.size() + 1).first->second;
}

absl::StatusOr<ExportedPiece> ExportPiece(const CudaDevice& device, const MemoryInfo& info,
                                          const MemoryPiece& piece) {
  ExportedPiece exported;
  IpcDescriptor& descriptor = exported.descriptor;
  descriptor.export_by = info.export_by;
  descriptor.device = device.uuid();
  if (piece.buffer_id == 0) {
    return absl::FailedPreconditionError(
        "the driver gives the allocation no id, by which a receiver would know it again");
  }
  descriptor.allocation_id = AllocationId(piece.buffer_id, piece.base, piece.allocation_bytes);
  descriptor.base = piece.base;
  descriptor.allocation_bytes = piece.allocation_bytes;
  descriptor.offset = piece.offset;
  descriptor.bytes = piece.bytes;
  // A pool's pointers can be exported only after the pool itself.
  if (info.export_by == ExportBy::kPosixFd) {
    FERRY_ASSIGN_OR_RETURN(exported.fd, ExportVirtual(device, piece));
  } else if (info.export_by == ExportBy::kPoolPointer) {
    FERRY_ASSIGN_OR_RETURN(exported.fd, ExportPool(device, info.pool));
    descriptor.pool_id = PoolNumber(info.pool);
  }
  FERRY_RETURN_IF_ERROR(FillHandle(device, piece, descriptor));
  return exported;
}

}  // namespace

absl::StatusOr<UniqueFd> ExportHandle(const CudaDevice& device, AllocationHandle handle) {
  const ScopedCurrent current(device);
  int fd = -1;
  const Result result = device.table().memory_export(&fd, handle, kHandleTypePosixFd, /*flags=*/0);
  if (result != kSuccess)
    return CheckWithDescriptors(device, result, "cuMemExportToShareableHandle");
  return CloseOnExec(fd);
}

absl::Status CheckWithDescriptors(const CudaDevice& device, Result result, const char* call) {
  if (result == kSuccess) return absl::OkStatus();
  const std::string why = WhyNoDescriptor();
  const absl::Status status = device.Check(result, call);
  return why.empty() ? status : absl::ResourceExhaustedError(absl::StrCat(status.message(), why));
}

absl::StatusOr<std::vector<ExportedPiece>> ExportMemory(const CudaDevice& device,
                                                        const void* pointer, size_t bytes) {
  const ScopedCurrent current(device);
  FERRY_ASSIGN_OR_RETURN(const MemoryInfo info, Classify(device, pointer, bytes));
  if (info.export_by == ExportBy::kNone) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no other process can open this ", MemoryKindName(info.kind), ": ", info.no_export_reason));
  }
  if (info.device != device.ordinal()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the memory is of gpu:", info.device, ", not of ", device.name()));
  }
  std::vector<ExportedPiece> pieces;
  for (const MemoryPiece& piece : info.pieces) {
    FERRY_ASSIGN_OR_RETURN(ExportedPiece exported, ExportPiece(device, info, piece));
    pieces.push_back(std::move(exported));
  }
  return pieces;
}

}  // namespace ferry::cuda
