// SPDX-License-Identifier: Apache-2.0
// Pools: making them, their attributes, and memory in stream order.
#include "tests/support/strict_cuda/pools.h"

#include <algorithm>
#include <set>

#include "tests/support/strict_cuda/entry.h"
#include "tests/support/strict_cuda/machine.h"
#include "tests/support/strict_cuda/memory.h"
#include "tests/support/strict_cuda/stream.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

std::set<PoolHandle*>& Pools() {
  static auto* const pools = new std::set<PoolHandle*>;
  return *pools;
}

PoolHandle* DefaultPoolOf(int physical) {
  static PoolHandle* pools[kMaxDevices] = {};
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  if (pools[physical] == nullptr) {
    pools[physical] = NewPool(physical, CU_MEM_HANDLE_TYPE_NONE);
    pools[physical]->is_default = true;
  }
  return pools[physical];
}

CUresult Allocate(CUdeviceptr* pointer, size_t bytes, PoolHandle& pool, StreamHandle& stream,
                  const char* call) {
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (pool.is_imported) {
    Violation(Rule::kPoolImportedAlloc, call, "the pool is another process's");
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto range = std::make_shared<Range>();
  const size_t rounded = RoundUp(bytes, kGranularity);
  range->backing = Backing::Create(pool.physical, rounded, "strict_cuda pool memory");
  if (range->backing == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  range->base = TakeAddresses(rounded, kGranularity, 0);
  if (range->base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  range->bytes = bytes;
  range->kind = Kind::kPool;
  range->physical = pool.physical;
  range->host = range->backing->host();
  range->buffer_id = NextBufferId();
  range->pool = &pool;
  range->ready = std::make_shared<std::atomic<bool>>(false);
  {
    const std::lock_guard<std::mutex> lock(ProcessMutex());
    std::copy(std::begin(pool.access), std::end(pool.access), std::begin(range->access));
    pool.used_bytes += bytes;
    pool.used_high_bytes = std::max(pool.used_high_bytes, pool.used_bytes);
    Insert(range);
  }
  *pointer = range->base;
  Enqueue(stream, Task::kKernel, [range] {
    *range->ready = true;
    const std::lock_guard<std::mutex> lock(ProcessMutex());
    const MachineLock machine_lock;
    if (Export* const entry = FindExport(range->export_id); entry != nullptr) {
      entry->is_ready = true;
    }
  });
  return CUDA_SUCCESS;
}

}  // namespace

PoolHandle* NewPool(int physical, int handle_types) {
  auto* const pool = new PoolHandle;
  pool->physical = physical;
  pool->handle_types = handle_types;
  pool->access[physical] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  Pools().insert(pool);
  return pool;
}

CUresult CheckPool(CUmemoryPool pool, const char* call) {
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  if (Pools().count(pool) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!pool->destroyed) return CUDA_SUCCESS;
  Violation(Rule::kUseAfterDestroy, call, "pool %p was destroyed", static_cast<void*>(pool));
  return CUDA_ERROR_INVALID_VALUE;
}

bool IsPoolImported(uint64_t id) {
  return std::any_of(Pools().begin(), Pools().end(), [id](const PoolHandle* pool) {
    return pool->is_imported && !pool->destroyed && pool->id == id;
  });
}

extern "C" {

STRICT_CUDA_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  STRICT_CUDA_ENTER();
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *pool = DefaultPoolOf(PhysicalOf(device));
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  STRICT_CUDA_ENTER();
  return cuDeviceGetDefaultMemPool(pool, device);
}

STRICT_CUDA_EXPORT CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
  STRICT_CUDA_ENTER();
  if (pool == nullptr || props == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(props->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE &&
      props->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  for (const unsigned char byte : props->reserved) {
    if (byte != 0) return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  *pool = NewPool(PhysicalOf(props->location.id), props->handleTypes);
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  STRICT_CUDA_ENTER();
  if (const CUresult result = CheckPool(pool, __func__); result != 0) return result;
  if (pool->is_default) return CUDA_ERROR_INVALID_VALUE;
  CheckImplicitSync(__func__);
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  pool->destroyed = true;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes_to_keep) {
  STRICT_CUDA_ENTER();
  (void)bytes_to_keep;  // nothing is kept
  CheckImplicitSync(__func__);
  return CheckPool(pool, __func__);
}

STRICT_CUDA_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                                  void* value) {
  STRICT_CUDA_ENTER();
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = CheckPool(pool, __func__); result != 0) return result;
  if (attribute < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
      attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    pool->release_threshold = *static_cast<uint64_t*>(value);
  }
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                                  void* value) {
  STRICT_CUDA_ENTER();
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = CheckPool(pool, __func__); result != 0) return result;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(value) = 1;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *static_cast<uint64_t*>(value) = pool->release_threshold;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *static_cast<uint64_t*>(value) = pool->used_bytes;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *static_cast<uint64_t*>(value) = pool->used_high_bytes;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

STRICT_CUDA_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access,
                                               size_t count) {
  STRICT_CUDA_ENTER();
  if (access == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = CheckPool(pool, __func__); result != 0) return result;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  for (size_t i = 0; i < count; ++i) {
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(access[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
    const int physical = PhysicalOf(access[i].location.id);
    if (physical == pool->physical) {
      // Its own device cannot be shut out.
      if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_VALUE;
      continue;
    }
    if (!GetConfig().peers[physical][pool->physical]) return CUDA_ERROR_INVALID_DEVICE;
    pool->access[physical] = access[i].flags;
    for (const std::shared_ptr<Range>& range : RangesOf(nullptr)) {
      if (range->pool == pool) range->access[physical] = access[i].flags;
    }
  }
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t bytes,
                                                    CUmemoryPool pool, CUstream handle) {
  STRICT_CUDA_ENTER();
  if (const CUresult result = CheckPool(pool, __func__); result != 0) return result;
  StreamHandle* stream = nullptr;
  if (const CUresult result = FindStream(handle, __func__, &stream); result != 0) return result;
  return Allocate(pointer, bytes, *pool, *stream, __func__);
}

STRICT_CUDA_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream handle) {
  STRICT_CUDA_ENTER();
  StreamHandle* stream = nullptr;
  if (const CUresult result = FindStream(handle, __func__, &stream); result != 0) return result;
  return Allocate(pointer, bytes, *DefaultPoolOf(stream->context->physical), *stream, __func__);
}

STRICT_CUDA_EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
  STRICT_CUDA_ENTER();
  if (pointer == 0) return CUDA_SUCCESS;
  StreamHandle* stream = nullptr;
  if (const CUresult result = FindStream(handle, __func__, &stream); result != 0) return result;
  std::shared_ptr<Range> range;
  {
    const std::lock_guard<std::mutex> lock(ProcessMutex());
    range = Find(pointer);
    if (range == nullptr || range->base != pointer || range->free_pending) {
      Violation(Rule::kDoubleFree, __func__, "0x%llx is not allocated (any more), or not its start",
                pointer);
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (range->kind != Kind::kPool && range->kind != Kind::kImportedPool &&
        range->kind != Kind::kDevice) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    range->free_pending = true;
  }
  Enqueue(*stream, Task::kKernel, [range] {
    const std::lock_guard<std::mutex> lock(ProcessMutex());
    if (range->pool != nullptr && range->kind == Kind::kPool) {
      range->pool->used_bytes -= range->bytes;
    }
    Release(range, "cuMemFreeAsync");
  });
  return CUDA_SUCCESS;
}

}  // extern "C"

}  // namespace strict_cuda
