// SPDX-License-Identifier: Apache-2.0
// The driver's attributes of a pointer. Booleans are written as one byte and bit masks as four: a
// caller whose variable is wider must have cleared it.
#include <cstring>

#include "tests/support/strict_cuda/entry.h"
#include "tests/support/strict_cuda/memory.h"
#include "tests/support/strict_cuda/pools.h"

namespace strict_cuda {
namespace {

template <typename Value>
CUresult Put(void* data, const Value& value) {
  // A pointer is a value here as well. NOLINTNEXTLINE(bugprone-sizeof-expression)
  std::memcpy(data, &value, sizeof(Value));
  return CUDA_SUCCESS;
}

bool IsHost(const Range& range) {
  return range.kind == Kind::kHost || range.kind == Kind::kRegistered;
}

// Bits that cuMemExportToShareableHandle or the pool's export take.
int HandleTypesOf(const Range& range) {
  if (range.kind == Kind::kVmm) return range.handle_types;
  if (range.kind == Kind::kPool) return range.pool->handle_types;
  return CU_MEM_HANDLE_TYPE_NONE;
}

int AccessOf(const Range& range) {
  const Context* const context = CurrentContext();
  if (IsHost(range) || range.kind == Kind::kManaged) return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (context == nullptr) return CU_MEM_ACCESS_FLAGS_PROT_NONE;
  if (range.kind == Kind::kVmm || range.pool != nullptr) return range.access[context->physical];
  const bool own = context->physical == range.physical;
  return own || context->peer_enabled[range.physical] ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                      : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

CUresult Tell(const Range& range, CUdeviceptr pointer, CUpointer_attribute attribute, void* data) {
  const bool is_host = IsHost(range);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      // None for memory that belongs to no context: VMM and pools.
      return Put(data, range.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Put(data, is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return Put(data, pointer);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!is_host && range.kind != Kind::kManaged) return CUDA_ERROR_INVALID_VALUE;
      return Put(data, pointer);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return Put(data, range.sync_memops);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return Put(data, range.buffer_id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return Put(data, range.kind == Kind::kManaged);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: {
      const int ordinal = OrdinalOf(range.physical);
      // On a device that this process does not see: the one that opened it.
      return Put(data, ordinal < 0 && range.context != nullptr ? range.context->ordinal : ordinal);
    }
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return Put(data, range.kind == Kind::kDevice);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return Put(data, range.kind == Kind::kVmm ? range.reservation : range.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return Put(data, range.kind == Kind::kVmm ? range.reservation_bytes : ToldBytes(range));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return Put(data, true);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return Put(data, HandleTypesOf(range));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return Put(data, range.is_rdma_capable);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return Put(data, AccessOf(range));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return Put(data, range.pool);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return Put(data, ToldBytes(range));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return Put(data, range.base);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return Put(data, range.backing == nullptr ? range.buffer_id : range.backing->inode());
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// The attributes of a reserved address at which nothing is mapped.
CUresult TellReserved(CUdeviceptr pointer, CUpointer_attribute attribute, void* data) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (!IsReserved(pointer, &base, &bytes)) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Put(data, CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return Put(data, CurrentContext() == nullptr ? 0 : CurrentContext()->ordinal);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return Put(data, base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return Put(data, bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return Put(data, false);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

size_t SizeOf(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return 4;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return 1;
    default:
      return 8;
  }
}

}  // namespace

extern "C" {

STRICT_CUDA_EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                                  CUdeviceptr pointer) {
  STRICT_CUDA_ENTER();
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const std::shared_ptr<Range> range = Find(pointer);
  return range == nullptr ? TellReserved(pointer, attribute, data)
                          : Tell(*range, pointer, attribute, data);
}

// Never fails for an unknown pointer: the results are then empty, the ordinal -2.
STRICT_CUDA_EXPORT CUresult cuPointerGetAttributes(unsigned int count,
                                                   CUpointer_attribute* attributes, void** data,
                                                   CUdeviceptr pointer) {
  STRICT_CUDA_ENTER();
  if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const std::shared_ptr<Range> range = Find(pointer);
  for (unsigned int i = 0; i < count; ++i) {
    const CUresult told = range == nullptr ? TellReserved(pointer, attributes[i], data[i])
                                           : Tell(*range, pointer, attributes[i], data[i]);
    if (told == CUDA_SUCCESS) continue;
    std::memset(data[i], 0, SizeOf(attributes[i]));
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) Put(data[i], -2);
  }
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                                  CUdeviceptr pointer) {
  STRICT_CUDA_ENTER();
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const std::shared_ptr<Range> range = Find(pointer);
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int flag = 0;
  std::memcpy(&flag, value, sizeof(flag));
  range->sync_memops = flag != 0;
  return CUDA_SUCCESS;
}

}  // extern "C"

}  // namespace strict_cuda
