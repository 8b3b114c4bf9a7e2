// SPDX-License-Identifier: Apache-2.0
// cuMemAlloc and its kin, pinned, registered and managed host memory.
#include <sys/mman.h>

#include <cstring>

#include "tests/support/strict_cuda/blocks.h"
#include "tests/support/strict_cuda/entry.h"
#include "tests/support/strict_cuda/machine.h"
#include "tests/support/strict_cuda/memory.h"
#include "tests/support/strict_cuda/stream.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

// Unwritten memory is not zero.
constexpr unsigned char kPoison = 0xDB;

CUresult NewDeviceRange(Context& context, size_t bytes, std::shared_ptr<Range>* made) {
  auto range = std::make_shared<Range>();
  range->bytes = bytes;
  range->physical = context.physical;
  range->context = &context;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  if (bytes <= kMaxInBlock) {
    if (!TakeFromBlock(*range)) return CUDA_ERROR_OUT_OF_MEMORY;
    std::memset(range->host, kPoison, bytes);
  } else {
    const size_t rounded = RoundUp(bytes, kGranularity);
    range->backing = Backing::Create(context.physical, rounded, "strict_cuda memory");
    if (range->backing == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    range->base = TakeAddresses(rounded, kGranularity, 0);
    if (range->base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    range->host = range->backing->host();
  }
  range->buffer_id = NextBufferId();
  Insert(range);
  *made = range;
  return CUDA_SUCCESS;
}

// Host memory that the driver knows, at its own address.
void InsertHost(Context& context, void* at, size_t bytes, Kind kind) {
  auto range = std::make_shared<Range>();
  range->base = reinterpret_cast<CUdeviceptr>(at);
  range->bytes = bytes;
  range->kind = kind;
  range->physical = context.physical;
  range->context = &context;
  range->host = static_cast<char*>(at);
  range->buffer_id = NextBufferId();
  Insert(range);
}

CUresult NewHostRange(Context& context, void** pointer, size_t bytes, Kind kind) {
  void* const at = mmap(nullptr, RoundUp(bytes, 4096), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  InsertHost(context, at, bytes, kind);
  *pointer = at;
  return CUDA_SUCCESS;
}

// The range that begins at `pointer`; otherwise a violation, and null.
std::shared_ptr<Range> FindToFree(CUdeviceptr pointer, const char* call) {
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const std::shared_ptr<Range> range = Find(pointer);
  if (range != nullptr && range->base == pointer && !range->free_pending) return range;
  Violation(Rule::kDoubleFree, call, "0x%llx is %s", pointer,
            range == nullptr         ? "not allocated (any more)"
            : range->base != pointer ? "inside an allocation, not its start"
                                     : "being freed by cuMemFreeAsync");
  return nullptr;
}

void SynchronizeDeviceOf(const Range& range) {
  Context* const context = ActiveContextOf(range.physical);
  if (context != nullptr) SynchronizeContext(*context);
  if (range.context != nullptr && range.context != context) SynchronizeContext(*range.context);
}

}  // namespace

extern "C" {

STRICT_CUDA_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  STRICT_CUDA_ENTER();
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  CheckImplicitSync(__func__);
  std::shared_ptr<Range> range;
  if (const CUresult result = NewDeviceRange(*context, bytes, &range); result != 0) return result;
  *pointer = range->base;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
  STRICT_CUDA_ENTER();
  if (pointer == 0) return CUDA_SUCCESS;
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  CheckImplicitSync(__func__);
  const std::shared_ptr<Range> range = FindToFree(pointer, __func__);
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (range->kind == Kind::kImported) {
    Violation(Rule::kIpcDoubleClose, __func__, "0x%llx was opened: it is closed, not freed",
              pointer);
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (range->kind != Kind::kDevice && range->kind != Kind::kPool &&
      range->kind != Kind::kImportedPool && range->kind != Kind::kManaged) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SynchronizeDeviceOf(*range);
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  Release(range, __func__);
  if (range->kind == Kind::kManaged) munmap(range->host, RoundUp(range->bytes, 4096));
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  STRICT_CUDA_ENTER();
  if (free_bytes == nullptr || total_bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  const MachineLock lock;
  *free_bytes = FreeMemory(context->physical);
  *total_bytes = GetConfig().memory_bytes;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes,
                                                    CUdeviceptr pointer) {
  STRICT_CUDA_ENTER();
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const std::shared_ptr<Range> range = Find(pointer);
  if (range == nullptr || range->kind == Kind::kRegistered) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = range->base;
  if (bytes != nullptr) *bytes = ToldBytes(*range);
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
  STRICT_CUDA_ENTER();
  if (pointer == nullptr || bytes == 0 || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  CheckImplicitSync(__func__);
  return NewHostRange(*context, pointer, bytes, Kind::kHost);
}

STRICT_CUDA_EXPORT CUresult cuMemFreeHost(void* pointer) {
  STRICT_CUDA_ENTER();
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  CheckImplicitSync(__func__);
  const std::shared_ptr<Range> range = FindToFree(reinterpret_cast<CUdeviceptr>(pointer), __func__);
  if (range == nullptr || range->kind != Kind::kHost) return CUDA_ERROR_INVALID_VALUE;
  SynchronizeDeviceOf(*range);
  {
    const std::lock_guard<std::mutex> lock(ProcessMutex());
    Release(range, __func__);
  }
  munmap(pointer, RoundUp(range->bytes, 4096));
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned int flags) {
  STRICT_CUDA_ENTER();
  if (pointer == nullptr || bytes == 0 || flags > 15) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  CheckImplicitSync(__func__);
  const auto base = reinterpret_cast<CUdeviceptr>(pointer);
  if (IsDeviceAddress(base)) return CUDA_ERROR_INVALID_VALUE;
  // Pages are pinned whole, and must be there.
  unsigned char in_core = 0;
  for (CUdeviceptr page = base & ~CUdeviceptr{4095}; page < base + bytes; page += 4096) {
    if (mincore(reinterpret_cast<void*>(page), 1, &in_core) != 0) return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  for (const std::shared_ptr<Range>& range : RangesOf(nullptr)) {
    if (range->base < base + bytes && base < range->base + range->bytes) {
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
  }
  InsertHost(*context, pointer, bytes, Kind::kRegistered);
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemHostUnregister(void* pointer) {
  STRICT_CUDA_ENTER();
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  CheckImplicitSync(__func__);
  std::shared_ptr<Range> range;
  {
    const std::lock_guard<std::mutex> lock(ProcessMutex());
    range = Find(reinterpret_cast<CUdeviceptr>(pointer));
  }
  if (range == nullptr || range->kind != Kind::kRegistered || range->host != pointer) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  SynchronizeDeviceOf(*range);
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  Release(range, __func__);
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host,
                                                         unsigned int flags) {
  STRICT_CUDA_ENTER();
  if (device == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const std::shared_ptr<Range> range = Find(reinterpret_cast<CUdeviceptr>(host));
  if (range == nullptr || (range->kind != Kind::kHost && range->kind != Kind::kRegistered)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *device = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes,
                                              unsigned int flags) {
  STRICT_CUDA_ENTER();
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  CheckImplicitSync(__func__);
  void* at = nullptr;
  if (const CUresult result = NewHostRange(*context, &at, bytes, Kind::kManaged); result != 0) {
    return result;
  }
  *pointer = reinterpret_cast<CUdeviceptr>(at);
  return CUDA_SUCCESS;
}

}  // extern "C"

}  // namespace strict_cuda
