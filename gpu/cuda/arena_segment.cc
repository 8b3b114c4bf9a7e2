// SPDX-License-Identifier: Apache-2.0
// ArenaSegment: creation, description and release.
#include "gpu/cuda/arena_segment.h"

#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#include "base/status_macros.h"
#include "gpu/cuda/device_buffer.h"
#include "gpu/cuda/ipc_export.h"

namespace ferry::cuda {
namespace {

AllocationProperties ExportableMemory(const CudaDevice& device) {
  AllocationProperties properties = {};
  properties.type = kAllocationTypePinned;
  properties.requested_handle_types = kHandleTypePosixFd;
  properties.location = {kLocationTypeDevice, device.ordinal()};
  // For other libraries of the process (UCX, NVSHMEM, NCCL): they cannot register memory with a NIC
  // that was created without it.
  properties.gpu_direct_rdma_capable = device.traits().registers_with_nics ? 1 : 0;
  return properties;
}

// For out of memory: adds how much was requested and how much the device has.
absl::Status WithMemory(const CudaDevice& device, const absl::Status& status, size_t bytes) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (!absl::IsResourceExhausted(status) ||
      device.table().memory_get_info(&free_bytes, &total_bytes) != kSuccess) {
    return status;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      status.message(), ": ", bytes >> 20, " MiB were asked for, of ", total_bytes >> 20, " MiB ",
      free_bytes >> 20, " are free; nvidia-smi says which processes have the rest"));
}

}  // namespace

absl::Status ProbeExport(const CudaDevice& device, size_t& granularity) {
  if (!device.traits().has_virtual_memory) {
    return absl::FailedPreconditionError("the device has no virtual memory management");
  }
  if (!device.traits().exports_posix_fd) {
    return absl::FailedPreconditionError("the device exports no memory as descriptors");
  }
  const CudaTable& table = device.table();
  const AllocationProperties properties = ExportableMemory(device);
  FERRY_RETURN_IF_ERROR(
      device.Check(table.memory_granularity(&granularity, &properties, kGranularityMinimum),
                   "cuMemGetAllocationGranularity"));
  AllocationHandle handle = 0;
  FERRY_RETURN_IF_ERROR(WithMemory(
      device,
      device.Check(table.memory_create(&handle, granularity, &properties, 0), "cuMemCreate"),
      granularity));
  absl::Status status = ExportHandle(device, handle).status();
  table.memory_release(handle);
  // The process has no file descriptors left; other handle kinds need none.
  if (absl::IsResourceExhausted(status)) return absl::FailedPreconditionError(status.message());
  return status;
}

absl::Status ArenaSegment::MapVirtual(const CudaDevice& device, const std::vector<int>& peers,
                                      std::vector<std::pair<int, absl::Status>>& refused) {
  const CudaTable& table = device.table();
  const AllocationProperties properties = ExportableMemory(device);
  FERRY_RETURN_IF_ERROR(WithMemory(
      device, device.Check(table.memory_create(&handle, bytes, &properties, 0), "cuMemCreate"),
      bytes));
  FERRY_RETURN_IF_ERROR(
      device.Check(table.address_reserve(&base, bytes, 0, 0, 0), "cuMemAddressReserve"));
  FERRY_RETURN_IF_ERROR(device.Check(table.memory_map(base, bytes, 0, handle, 0), "cuMemMap"));
  is_mapped = true;
  const auto description = [](int ordinal) {
    return AccessDescription{{kLocationTypeDevice, ordinal}, kAccessReadWrite};
  };
  const auto set_access = [&](absl::Span<const AccessDescription> access) {
    return device.Check(table.memory_set_access(base, bytes, access.data(), access.size()),
                        "cuMemSetAccess");
  };
  std::vector<AccessDescription> all = {description(device.ordinal())};
  for (const int peer : peers) all.push_back(description(peer));
  const absl::Status status = set_access(all);
  if (status.ok() || peers.empty()) return status;
  // One faulty peer must not cost this device its memory.
  for (const int peer : peers) {
    absl::Status of_peer = set_access({description(peer)});
    if (!of_peer.ok()) refused.emplace_back(peer, std::move(of_peer));
  }
  return set_access({description(device.ordinal())});
}

absl::Status ArenaSegment::AllocatePlain(const CudaDevice& device) {
  return WithMemory(device, device.Check(device.table().memory_alloc(&base, bytes), "cuMemAlloc"),
                    bytes);
}

absl::Status ArenaSegment::Describe(const CudaDevice& device, ExportBy export_by) {
  FERRY_ASSIGN_OR_RETURN(const MemoryInfo info, Classify(device, AsHostPointer(base), bytes));
  descriptor.export_by = export_by;
  descriptor.device = device.uuid();
  uint64_t id = info.pieces[0].buffer_id;
  // For drivers without buffer ids, the segments of this process are numbered.
  static std::atomic<uint64_t> count = 0;
  if (id == 0) id = ++count;
  descriptor.allocation_id = AllocationId(id, base, bytes);
  descriptor.base = base;
  descriptor.allocation_bytes = bytes;
  descriptor.bytes = bytes;
  if (export_by != ExportBy::kLegacyHandle) return absl::OkStatus();
  IpcMemoryHandle legacy = {};
  FERRY_RETURN_IF_ERROR(
      device.Check(device.table().ipc_get_memory_handle(&legacy, base), "cuIpcGetMemHandle"));
  std::memcpy(descriptor.handle.data(), legacy.bytes, sizeof(legacy.bytes));
  return absl::OkStatus();
}

void ArenaSegment::Free(const CudaDevice& device) {
  const ScopedCurrent current(device);
  const CudaTable& table = device.table();
  if (handle == 0) {
    if (base != 0) table.memory_free(base);
    return;
  }
  if (is_mapped) table.memory_unmap(base, bytes);
  if (base != 0) table.address_free(base, bytes);
  table.memory_release(handle);
}

}  // namespace ferry::cuda
