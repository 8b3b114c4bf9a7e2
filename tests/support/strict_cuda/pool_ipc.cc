// SPDX-License-Identifier: Apache-2.0
// Pools and their memory between processes.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/support/strict_cuda/entry.h"
#include "tests/support/strict_cuda/machine.h"
#include "tests/support/strict_cuda/memory.h"
#include "tests/support/strict_cuda/pools.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

// In the file whose descriptor stands for the pool, and in the data of a pointer.
struct Ticket {
  uint64_t magic;
  uint64_t id;
};
constexpr uint64_t kPoolMagic = 0x504f4f4c53545249;
constexpr uint64_t kPointerMagic = 0x5054524c53545249;

CUresult Import(PoolHandle& pool, const Export& entry, CUdeviceptr* pointer) {
  auto range = std::make_shared<Range>();
  range->backing = Backing::ImportFrom(entry.owner.pid, entry.fd);
  if (range->backing == nullptr || range->backing->inode() != entry.inode) {
    return CUDA_ERROR_MAP_FAILED;
  }
  range->base = TakeAddresses(range->backing->bytes(), kGranularity, 0);
  if (range->base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  range->bytes = entry.bytes;
  range->kind = Kind::kImportedPool;
  range->physical = entry.device;
  range->host = range->backing->host();
  range->buffer_id = NextBufferId();
  range->pool = &pool;
  range->import_id = entry.id;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  std::copy(std::begin(pool.access), std::end(pool.access), std::begin(range->access));
  Insert(range);
  *pointer = range->base;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

STRICT_CUDA_EXPORT CUresult cuMemPoolExportToShareableHandle(void* handle, CUmemoryPool pool,
                                                             CUmemAllocationHandleType type,
                                                             unsigned long long flags) {  // NOLINT
  STRICT_CUDA_ENTER();
  if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = CheckPool(pool, __func__); result != 0) return result;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  if (type == CU_MEM_HANDLE_TYPE_NONE || pool->handle_types != type || pool->is_imported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (pool->id == 0) {
    const MachineLock machine_lock;
    Export* const entry = NewExport();
    if (entry == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    entry->kind = ExportKind::kPool;
    entry->device = pool->physical;
    entry->handle_types = pool->handle_types;
    pool->id = entry->id;
  }
  const int fd = memfd_create("strict_cuda pool", MFD_CLOEXEC);
  const Ticket rts = {kPoolMagic, pool->id};
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (pwrite(fd, &rts, sizeof(rts), 0) != sizeof(rts)) {
    close(fd);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *static_cast<int*>(handle) = fd;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult
cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* handle, CUmemAllocationHandleType type,
                                   unsigned long long flags) {  // NOLINT
  STRICT_CUDA_ENTER();
  if (pool == nullptr || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The descriptor itself, instead of a pointer.
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(handle));
  Ticket rts = {};
  if (pread(fd, &rts, sizeof(rts), 0) != sizeof(rts) || rts.magic != kPoolMagic) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const MachineLock machine_lock;
  const Export* const entry = FindExport(rts.id);
  if (entry == nullptr || entry->kind != ExportKind::kPool || !IsAlive(entry->owner)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (GetConfig().pool_imports_once && IsPoolImported(rts.id)) return CUDA_ERROR_INVALID_VALUE;
  *pool = NewPool(entry->device, entry->handle_types);
  (*pool)->is_imported = true;
  (*pool)->id = rts.id;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data,
                                                   CUdeviceptr pointer) {
  STRICT_CUDA_ENTER();
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const std::shared_ptr<Range> range = Find(pointer);
  if (range == nullptr || range->kind != Kind::kPool || range->base != pointer ||
      range->free_pending || range->pool->handle_types == CU_MEM_HANDLE_TYPE_NONE ||
      range->pool->id == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const MachineLock machine_lock;
  Export* entry = FindExport(range->export_id);
  if (entry == nullptr) {
    entry = NewExport();
    if (entry == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    entry->kind = ExportKind::kPoolPointer;
    entry->fd = range->backing->fd();
    entry->device = range->physical;
    entry->inode = range->backing->inode();
    entry->bytes = range->bytes;
    entry->backing_bytes = range->backing->bytes();
    entry->pool_id = range->pool->id;
    entry->is_ready = *range->ready;
    range->export_id = entry->id;
  }
  const Ticket rts = {kPointerMagic, entry->id};
  std::memcpy(data->reserved, &rts, sizeof(rts));
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr* pointer, CUmemoryPool pool,
                                                   CUmemPoolPtrExportData* data) {
  STRICT_CUDA_ENTER();
  if (pointer == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = CheckPool(pool, __func__); result != 0) return result;
  CheckImplicitSync(__func__);
  Ticket rts = {};
  std::memcpy(&rts, data->reserved, sizeof(rts));
  if (rts.magic != kPointerMagic || !pool->is_imported) return CUDA_ERROR_INVALID_VALUE;
  Export entry = {};
  {
    const MachineLock lock;
    Export* const found = FindExport(rts.id);
    if (found == nullptr || found->kind != ExportKind::kPoolPointer || found->pool_id != pool->id ||
        found->gone || !IsAlive(found->owner)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!found->importers.Add(Self())) return CUDA_ERROR_OUT_OF_MEMORY;
    entry = *found;
  }
  const CUresult result = Import(*pool, entry, pointer);
  if (result == CUDA_SUCCESS) return result;
  const MachineLock lock;
  if (Export* const found = FindExport(rts.id); found != nullptr) {
    found->importers.Remove(Self());
  }
  return result;
}

}  // extern "C"

}  // namespace strict_cuda
