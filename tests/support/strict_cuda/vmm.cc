// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: reservations, physical allocations, mappings, descriptors.
#include <fcntl.h>

#include <map>

#include "tests/support/strict_cuda/entry.h"
#include "tests/support/strict_cuda/memory.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

// One physical allocation, by its handle. References: the handle's own, and each retained one.
struct Allocation {
  std::shared_ptr<Backing> backing;
  int references = 1;
  bool is_rdma_capable = false;
};

// Guarded by the process's lock.
struct Tables {
  std::map<CUdeviceptr, size_t> reservations;
  std::map<CUmemGenericAllocationHandle, Allocation> allocations;
  CUmemGenericAllocationHandle next_handle = 0x5641000000000001;
};

Tables& TheTables() {
  static auto* const tables = new Tables;
  return *tables;
}

bool IsGranular(uint64_t value) { return value % kGranularity == 0; }

Allocation* FindAllocation(CUmemGenericAllocationHandle handle) {
  const auto found = TheTables().allocations.find(handle);
  return found == TheTables().allocations.end() || found->second.references == 0 ? nullptr
                                                                                 : &found->second;
}

// The reservation that holds all of it, or null.
const std::pair<const CUdeviceptr, size_t>* FindReservation(CUdeviceptr at, size_t bytes) {
  const auto& reservations = TheTables().reservations;
  auto after = reservations.upper_bound(at);
  if (after == reservations.begin()) return nullptr;
  --after;
  return at + bytes <= after->first + after->second ? &*after : nullptr;
}

CUmemGenericAllocationHandle NewHandle(std::shared_ptr<Backing> backing) {
  const CUmemGenericAllocationHandle handle = TheTables().next_handle++;
  TheTables().allocations[handle].backing = std::move(backing);
  return handle;
}

// The mappings that make up exactly [at, at + bytes); empty if there are no such.
std::vector<std::shared_ptr<Range>> MappingsOf(CUdeviceptr at, size_t bytes) {
  std::vector<std::shared_ptr<Range>> found;
  for (CUdeviceptr next = at; next < at + bytes;) {
    std::shared_ptr<Range> range = Find(next);
    if (range == nullptr || range->kind != Kind::kVmm || range->base != next ||
        range->base + range->bytes > at + bytes) {
      return {};
    }
    next += range->bytes;
    found.push_back(std::move(range));
  }
  return found;
}

CUresult CheckProp(const CUmemAllocationProp* prop) {
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!IsDevice(prop->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  const int types = prop->requestedHandleTypes;
  if ((types & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  const auto rdma =
      GetConfig().attributes.find(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  if (prop->allocFlags.gpuDirectRDMACapable != 0 && rdma != GetConfig().attributes.end() &&
      rdma->second == 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

}  // namespace

bool IsReserved(CUdeviceptr pointer, CUdeviceptr* base, size_t* bytes) {
  const auto* const reservation = FindReservation(pointer, 1);
  if (reservation == nullptr) return false;
  *base = reservation->first;
  *bytes = reservation->second;
  return true;
}

extern "C" {

STRICT_CUDA_EXPORT CUresult cuMemGetAllocationGranularity(size_t* granularity,
                                                          const CUmemAllocationProp* prop,
                                                          CUmemAllocationGranularity_flags option) {
  STRICT_CUDA_ENTER();
  if (granularity == nullptr || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult result = CheckProp(prop); result != 0) return result;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* pointer, size_t bytes,
                                                size_t alignment, CUdeviceptr address,
                                                unsigned long long flags) {  // NOLINT
  STRICT_CUDA_ENTER();
  if (pointer == nullptr || bytes == 0 || !IsGranular(bytes) || flags != 0 ||
      (alignment & (alignment - 1)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUdeviceptr at =
      TakeAddresses(bytes, alignment < kGranularity ? kGranularity : alignment, address);
  if (at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  TheTables().reservations[at] = bytes;
  *pointer = at;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
  STRICT_CUDA_ENTER();
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const auto found = TheTables().reservations.find(pointer);
  if (found == TheTables().reservations.end() || found->second != bytes) {
    Violation(Rule::kVmm, __func__, "0x%llx with %zu bytes is no reservation", pointer, bytes);
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (const std::shared_ptr<Range>& range : RangesOf(nullptr)) {
    if (range->kind != Kind::kVmm || range->reservation != pointer) continue;
    Violation(Rule::kVmm, __func__, "0x%llx is still mapped", range->base);
    return CUDA_ERROR_INVALID_VALUE;
  }
  TheTables().reservations.erase(found);
  GiveAddresses(pointer, bytes);
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                                        const CUmemAllocationProp* prop,
                                        unsigned long long flags) {  // NOLINT
  STRICT_CUDA_ENTER();
  if (handle == nullptr || bytes == 0 || !IsGranular(bytes) || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult result = CheckProp(prop); result != 0) return result;
  CheckImplicitSync(__func__);
  std::shared_ptr<Backing> backing = Backing::Create(PhysicalOf(prop->location.id), bytes,
                                                     "strict_cuda vmm", prop->requestedHandleTypes);
  if (backing == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  *handle = NewHandle(std::move(backing));
  TheTables().allocations[*handle].is_rdma_capable = prop->allocFlags.gpuDirectRDMACapable != 0;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  STRICT_CUDA_ENTER();
  // Does not synchronise: cuda.h states it (note_sync) for cuMemUnmap, which frees, and not for
  // this.
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  Allocation* const allocation = FindAllocation(handle);
  if (allocation == nullptr) {
    Violation(Rule::kDoubleFree, __func__, "handle 0x%llx is not held (any more)", handle);
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (--allocation->references > 0) return CUDA_SUCCESS;
  // Mappings keep the memory; the entry stays for cuMemRetainAllocationHandle.
  for (const std::shared_ptr<Range>& range : RangesOf(nullptr)) {
    if (range->kind == Kind::kVmm && range->handle == handle) return CUDA_SUCCESS;
  }
  TheTables().allocations.erase(handle);
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                                     CUmemGenericAllocationHandle handle,
                                     unsigned long long flags) {  // NOLINT
  STRICT_CUDA_ENTER();
  CheckImplicitSync(__func__);
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const Allocation* const allocation = FindAllocation(handle);
  const auto* const reservation = FindReservation(pointer, bytes);
  if (allocation == nullptr || reservation == nullptr || flags != 0 || offset != 0 ||
      !IsGranular(pointer) || bytes != allocation->backing->bytes()) {
    Violation(Rule::kVmm, __func__, "%zu bytes at 0x%llx, offset %zu: %s", bytes, pointer, offset,
              allocation == nullptr    ? "no such handle"
              : reservation == nullptr ? "not inside a reservation"
                                       : "not the whole allocation at offset 0, aligned");
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (const std::shared_ptr<Range>& range : RangesOf(nullptr)) {
    if (range->base < pointer + bytes && pointer < range->base + range->bytes) {
      Violation(Rule::kVmm, __func__, "0x%llx is mapped already", range->base);
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  auto range = std::make_shared<Range>();
  range->base = pointer;
  range->bytes = bytes;
  range->kind = Kind::kVmm;
  range->physical = allocation->backing->physical();
  range->backing = allocation->backing;
  range->host = allocation->backing->host();
  range->buffer_id = NextBufferId();
  range->handle = handle;
  range->handle_types = allocation->backing->handle_types();
  range->is_rdma_capable = allocation->is_rdma_capable;
  range->reservation = reservation->first;
  range->reservation_bytes = reservation->second;
  Insert(range);
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
  STRICT_CUDA_ENTER();
  CheckImplicitSync(__func__);
  std::vector<std::shared_ptr<Range>> mappings;
  {
    const std::lock_guard<std::mutex> lock(ProcessMutex());
    mappings = MappingsOf(pointer, bytes);
  }
  if (mappings.empty()) {
    Violation(Rule::kVmm, __func__, "%zu bytes at 0x%llx are not whole mappings", bytes, pointer);
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (const int physical : GetConfig().visible) {
    Context* const context = ActiveContextOf(physical);
    const bool can_use = context != nullptr && mappings.front()->access[physical] != 0;
    if (can_use) SynchronizeContext(*context);
  }
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  for (const std::shared_ptr<Range>& range : mappings) {
    Release(range, __func__);
    const auto held = TheTables().allocations.find(range->handle);
    if (held == TheTables().allocations.end() || held->second.references > 0) continue;
    bool is_mapped_elsewhere = false;
    for (const std::shared_ptr<Range>& other : RangesOf(nullptr)) {
      is_mapped_elsewhere |= other->kind == Kind::kVmm && other->handle == range->handle;
    }
    if (!is_mapped_elsewhere) TheTables().allocations.erase(held);
  }
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes,
                                           const CUmemAccessDesc* access, size_t count) {
  STRICT_CUDA_ENTER();
  if (access == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  CheckImplicitSync(__func__);
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const std::vector<std::shared_ptr<Range>> mappings = MappingsOf(pointer, bytes);
  if (mappings.empty()) {
    Violation(Rule::kVmm, __func__, "%zu bytes at 0x%llx are not whole mappings", bytes, pointer);
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count; ++i) {
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(access[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
    const int physical = PhysicalOf(access[i].location.id);
    for (const std::shared_ptr<Range>& range : mappings) {
      if (physical != range->physical && !GetConfig().peers[physical][range->physical]) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
      range->access[physical] = access[i].flags;
    }
  }
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemExportToShareableHandle(void* shareable,
                                                         CUmemGenericAllocationHandle handle,
                                                         CUmemAllocationHandleType type,
                                                         unsigned long long flags) {  // NOLINT
  STRICT_CUDA_ENTER();
  if (shareable == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const Allocation* const allocation = FindAllocation(handle);
  if (allocation == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      (allocation->backing->handle_types() & type) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int fd = fcntl(allocation->backing->fd(), F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(shareable) = fd;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                           void* os_handle,
                                                           CUmemAllocationHandleType type) {
  STRICT_CUDA_ENTER();
  if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CheckImplicitSync(__func__);
  // The descriptor itself, instead of a pointer.
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(os_handle));
  std::shared_ptr<Backing> backing = Backing::Import(fd);
  if (backing == nullptr || backing->handle_types() == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  *handle = NewHandle(std::move(backing));
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle,
                                                        void* address) {
  STRICT_CUDA_ENTER();
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const std::shared_ptr<Range> range = Find(reinterpret_cast<CUdeviceptr>(address));
  if (range == nullptr || range->kind != Kind::kVmm) return CUDA_ERROR_INVALID_VALUE;
  ++TheTables().allocations[range->handle].references;
  *handle = range->handle;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(
    CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  STRICT_CUDA_ENTER();
  if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const Allocation* const allocation = FindAllocation(handle);
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = CUmemAllocationProp{};
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->requestedHandleTypes =
      static_cast<CUmemAllocationHandleType>(allocation->backing->handle_types());
  prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop->location.id = OrdinalOf(allocation->backing->physical());
  return CUDA_SUCCESS;
}

}  // extern "C"

}  // namespace strict_cuda
