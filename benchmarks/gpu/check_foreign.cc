// SPDX-License-Identifier: Apache-2.0
// Making and freeing memory of each kind.
#include "benchmarks/gpu/check_foreign.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/shared_library.h"

namespace ferry::check {
namespace {

using cuda::AccessDescription;
using cuda::AllocationHandle;
using cuda::AllocationProperties;
using cuda::CudaTable;
using cuda::DevicePointer;
using cuda::MemoryKind;
using cuda::ScopedCurrent;

// Paths of tensors in such memory.
constexpr char kView[] = "cuda_ipc, view";
constexpr char kCopy[] = "cuda_ipc, copy";
constexpr char kRing[] = "cuda_ipc, staged";

// CU_MEM_ATTACH_GLOBAL
constexpr unsigned int kAttachGlobal = 1;

absl::StatusOr<ForeignMemory> MakePlain(CheckGpu& gpu, size_t bytes) {
  const ScopedCurrent current(gpu.device());
  DevicePointer pointer = 0;
  FERRY_RETURN_IF_ERROR(gpu.Check(gpu.table().memory_alloc(&pointer, bytes), "cuMemAlloc"));
  return ForeignMemory{cuda::AsHostPointer(pointer), bytes, nullptr, {}};
}

absl::Status FreePlain(CheckGpu& gpu, ForeignMemory& memory) {
  const ScopedCurrent current(gpu.device());
  return gpu.Check(gpu.table().memory_free(cuda::AsDevicePointer(memory.data)), "cuMemFree");
}

absl::StatusOr<ForeignMemory> MakeInPool(CheckGpu& gpu, size_t bytes, cuda::MemoryPool pool) {
  DevicePointer pointer = 0;
  FERRY_RETURN_IF_ERROR(gpu.Check(gpu.table().pool_alloc_async(&pointer, bytes, pool, gpu.stream()),
                                  "cuMemAllocFromPool"));
  FERRY_RETURN_IF_ERROR(gpu.Wait(gpu.stream()));
  return ForeignMemory{cuda::AsHostPointer(pointer), bytes, nullptr, {}};
}

absl::StatusOr<ForeignMemory> MakeInDefaultPool(CheckGpu& gpu, size_t bytes) {
  if (!gpu.device().traits().has_pools) {
    return absl::UnimplementedError("this device has no memory pools");
  }
  const ScopedCurrent current(gpu.device());
  cuda::MemoryPool pool = nullptr;
  FERRY_RETURN_IF_ERROR(gpu.Check(gpu.table().device_get_default_pool(&pool, gpu.device().handle()),
                                  "cuDeviceGetDefaultMemPool"));
  return MakeInPool(gpu, bytes, pool);
}

absl::StatusOr<ForeignMemory> MakeInExportablePool(CheckGpu& gpu, size_t bytes) {
  if (!gpu.device().traits().pools_export_posix_fd) {
    return absl::UnimplementedError("memory pools of this device cannot be exported");
  }
  const ScopedCurrent current(gpu.device());
  cuda::PoolProperties properties = {};
  properties.allocation_type = cuda::kAllocationTypePinned;
  properties.handle_types = cuda::kHandleTypePosixFd;
  properties.location = {cuda::kLocationTypeDevice, gpu.device().handle()};
  cuda::MemoryPool pool = nullptr;
  FERRY_RETURN_IF_ERROR(gpu.Check(gpu.table().pool_create(&pool, &properties), "cuMemPoolCreate"));
  FERRY_ASSIGN_OR_RETURN(ForeignMemory memory, MakeInPool(gpu, bytes, pool));
  memory.pool = pool;
  return memory;
}

absl::Status FreeFromPool(CheckGpu& gpu, ForeignMemory& memory) {
  const ScopedCurrent current(gpu.device());
  FERRY_RETURN_IF_ERROR(
      gpu.Check(gpu.table().memory_free_async(cuda::AsDevicePointer(memory.data), gpu.stream()),
                "cuMemFreeAsync"));
  FERRY_RETURN_IF_ERROR(gpu.Wait(gpu.stream()));
  if (memory.pool == nullptr) return absl::OkStatus();
  return gpu.Check(gpu.table().pool_destroy(memory.pool), "cuMemPoolDestroy");
}

absl::Status Unmap(CheckGpu& gpu, ForeignMemory& memory) {
  const ScopedCurrent current(gpu.device());
  const CudaTable& table = gpu.table();
  const DevicePointer base = cuda::AsDevicePointer(memory.data);
  const size_t granule = memory.bytes / memory.handles.size();
  for (size_t i = 0; i < memory.handles.size(); ++i) {
    FERRY_RETURN_IF_ERROR(gpu.Check(table.memory_unmap(base + i * granule, granule), "cuMemUnmap"));
    FERRY_RETURN_IF_ERROR(gpu.Check(table.memory_release(memory.handles[i]), "cuMemRelease"));
  }
  return gpu.Check(table.address_free(base, memory.bytes), "cuMemAddressFree");
}

// `pieces` of physical memory, one behind the other, as expandable segments have.
absl::StatusOr<ForeignMemory> Map(CheckGpu& gpu, size_t bytes, int handle_type, size_t pieces) {
  if (!gpu.device().traits().has_virtual_memory) {
    return absl::UnimplementedError("this device has no virtual memory management");
  }
  if (handle_type != cuda::kHandleTypeNone && !gpu.device().traits().exports_posix_fd) {
    return absl::UnimplementedError("memory of this device cannot be exported as descriptors");
  }
  const ScopedCurrent current(gpu.device());
  const CudaTable& table = gpu.table();
  AllocationProperties properties = {};
  properties.type = cuda::kAllocationTypePinned;
  properties.requested_handle_types = handle_type;
  properties.location = {cuda::kLocationTypeDevice, gpu.device().handle()};
  size_t granule = 0;
  FERRY_RETURN_IF_ERROR(
      gpu.Check(table.memory_granularity(&granule, &properties, cuda::kGranularityMinimum),
                "cuMemGetAllocationGranularity"));
  const size_t each = ((bytes + pieces - 1) / pieces + granule - 1) / granule * granule;
  ForeignMemory memory;
  memory.bytes = each * pieces;
  DevicePointer base = 0;
  FERRY_RETURN_IF_ERROR(
      gpu.Check(table.address_reserve(&base, memory.bytes, 0, 0, 0), "cuMemAddressReserve"));
  memory.data = cuda::AsHostPointer(base);
  for (size_t i = 0; i < pieces; ++i) {
    AllocationHandle handle = 0;
    FERRY_RETURN_IF_ERROR(
        gpu.Check(table.memory_create(&handle, each, &properties, 0), "cuMemCreate"));
    FERRY_RETURN_IF_ERROR(
        gpu.Check(table.memory_map(base + i * each, each, 0, handle, 0), "cuMemMap"));
    memory.handles.push_back(handle);
  }
  const AccessDescription access = {properties.location, cuda::kAccessReadWrite};
  FERRY_RETURN_IF_ERROR(
      gpu.Check(table.memory_set_access(base, memory.bytes, &access, 1), "cuMemSetAccess"));
  return memory;
}

absl::StatusOr<ForeignMemory> MapExportable(CheckGpu& gpu, size_t bytes) {
  return Map(gpu, bytes, cuda::kHandleTypePosixFd, 1);
}
absl::StatusOr<ForeignMemory> MapInPieces(CheckGpu& gpu, size_t bytes) {
  return Map(gpu, bytes, cuda::kHandleTypePosixFd, 2);
}
absl::StatusOr<ForeignMemory> MapPrivate(CheckGpu& gpu, size_t bytes) {
  return Map(gpu, bytes, cuda::kHandleTypeNone, 1);
}

// Not in Ferry's table: it never makes such memory.
absl::StatusOr<ForeignMemory> MakeManaged(CheckGpu& gpu, size_t bytes) {
  FERRY_ASSIGN_OR_RETURN(const SharedLibrary library,
                         SharedLibrary::Open("libcuda.so.1", "FERRY_CUDA_LIBRARY"));
  cuda::Result (*alloc)(DevicePointer*, size_t, unsigned int) = nullptr;
  FERRY_RETURN_IF_ERROR(library.Resolve("cuMemAllocManaged", alloc));
  const ScopedCurrent current(gpu.device());
  DevicePointer pointer = 0;
  FERRY_RETURN_IF_ERROR(gpu.Check(alloc(&pointer, bytes, kAttachGlobal), "cuMemAllocManaged"));
  return ForeignMemory{cuda::AsHostPointer(pointer), bytes, nullptr, {}};
}

absl::StatusOr<ForeignMemory> MakePinned(CheckGpu& gpu, size_t bytes) {
  const ScopedCurrent current(gpu.device());
  ForeignMemory memory;
  memory.bytes = bytes;
  FERRY_RETURN_IF_ERROR(gpu.Check(
      gpu.table().host_alloc(&memory.data, bytes, cuda::kHostAllocPortable), "cuMemHostAlloc"));
  return memory;
}

absl::Status FreePinned(CheckGpu& gpu, ForeignMemory& memory) {
  const ScopedCurrent current(gpu.device());
  return gpu.Check(gpu.table().host_free(memory.data), "cuMemFreeHost");
}

}  // namespace

const std::vector<ForeignKind>& ForeignKinds() {
  static const auto* const kinds = new std::vector<ForeignKind>{
      // First: shm is selected by its assumed cost, as nothing has been measured yet.
      {"cudaMallocHost", MemoryKind::kPinnedHost, true, "shm", MakePinned, FreePinned},
      {"cudaMalloc", MemoryKind::kPlain, false, kView, MakePlain, FreePlain},
      {"cudaMallocAsync, default pool", MemoryKind::kPool, false, kRing, MakeInDefaultPool,
       FreeFromPool},
      {"cudaMallocAsync, exportable pool", MemoryKind::kPool, false, kView, MakeInExportablePool,
       FreeFromPool},
      {"cuMemCreate, with a handle type", MemoryKind::kVirtual, false, kView, MapExportable, Unmap},
      {"cuMemCreate, in two pieces", MemoryKind::kVirtual, false, kCopy, MapInPieces, Unmap},
      {"cuMemCreate, without a handle type", MemoryKind::kVirtual, false, kRing, MapPrivate, Unmap},
      {"cudaMallocManaged", MemoryKind::kManaged, false, kRing, MakeManaged, FreePlain},
  };
  return *kinds;
}

}  // namespace ferry::check
