// SPDX-License-Identifier: Apache-2.0
// Classifies memory by its pointer attributes.
#include "gpu/cuda/memory_kind.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry::cuda {
namespace {

// All attributes, read in one call. Each value has eight zeroed bytes, because some are written
// with one, four or eight.
struct Attributes {
  uint64_t memory_type = 0;
  uint64_t device_ordinal = 0;
  uint64_t is_managed = 0;
  uint64_t buffer_id = 0;
  uint64_t is_legacy_capable = 0;
  uint64_t handle_types = 0;
  uint64_t is_mapped = 0;
  MemoryPool pool = nullptr;
  Context context = nullptr;
};

absl::StatusOr<Attributes> ReadAttributes(const CudaDevice& device, DevicePointer pointer) {
  Attributes read;
  PointerAttribute names[] = {kPointerMemoryType,
                              kPointerDeviceOrdinal,
                              kPointerIsManaged,
                              kPointerBufferId,
                              kPointerIsLegacyIpcCapable,
                              kPointerAllowedHandleTypes,
                              kPointerMapped,
                              kPointerPool,
                              kPointerContext};
  void* values[] = {&read.memory_type,
                    &read.device_ordinal,
                    &read.is_managed,
                    &read.buffer_id,
                    &read.is_legacy_capable,
                    &read.handle_types,
                    &read.is_mapped,
                    &read.pool,
                    &read.context};
  static_assert(std::size(names) == std::size(values));
  // For a pointer unknown to CUDA it succeeds and leaves zeros.
  FERRY_RETURN_IF_ERROR(
      device.Check(device.table().pointer_get_attributes(
                       static_cast<unsigned int>(std::size(names)), names, values, pointer),
                   "cuPointerGetAttributes"));
  return read;
}

// Calls cuMemGetAddressRange in the context that the pointer belongs to; mapped physical memory and
// pools belong to none.
absl::Status ReadAddressRange(const CudaDevice& device, Context context, DevicePointer pointer,
                              MemoryPiece& piece) {
  const CudaTable& table = device.table();
  const bool is_pushed =
      context != nullptr && context != device.context() && table.context_push(context) == kSuccess;
  const Result result =
      table.memory_get_address_range(&piece.base, &piece.allocation_bytes, pointer);
  Context popped = nullptr;
  if (is_pushed) table.context_pop(&popped);
  return device.Check(result, "cuMemGetAddressRange");
}

absl::StatusOr<MemoryPiece> ReadPiece(const CudaDevice& device, const Attributes& attributes,
                                      DevicePointer pointer, size_t bytes) {
  MemoryPiece piece;
  FERRY_RETURN_IF_ERROR(ReadAddressRange(device, attributes.context, pointer, piece));
  piece.offset = pointer - piece.base;
  piece.bytes = std::min(bytes, piece.allocation_bytes - piece.offset);
  piece.buffer_id = attributes.buffer_id;
  return piece;
}

// Returns whether addresses are mapped to physical memory by cuMemMap: such memory belongs to no
// context and no pool.
bool IsVirtual(const Attributes& attributes) {
  return attributes.context == nullptr && attributes.pool == nullptr;
}

// Some drivers deny the capability for memory of cuMemAlloc, which is most of what frameworks
// allocate; so a negative answer is verified. Creating a handle is cheap.
// Source: UCX, src/uct/cuda/cuda_copy/cuda_copy_md.c, uct_cuda_copy_md_query_attributes.
bool HasLegacyHandle(const CudaDevice& device, const Attributes& attributes, DevicePointer base) {
  if (attributes.is_legacy_capable != 0) return true;
  IpcMemoryHandle handle = {};
  return device.table().ipc_get_memory_handle(&handle, base) == kSuccess;
}

// The default pool cannot be exported and no pool attribute says so: only trying shows it.
bool IsExportable(const CudaDevice& device, const Attributes& attributes) {
  if ((attributes.handle_types & kHandleTypePosixFd) != 0) return true;
  if (!device.traits().has_pools) return false;
  int fd = -1;
  const Result result =
      device.table().pool_export(&fd, attributes.pool, kHandleTypePosixFd, /*flags=*/0);
  if (result != kSuccess) return false;
  close(fd);
  return true;
}

absl::Status LeavesAllocation(const MemoryInfo& info, DevicePointer pointer, size_t bytes) {
  const MemoryPiece& last = info.pieces.back();
  return absl::InvalidArgumentError(absl::StrCat(
      bytes, " bytes at 0x", absl::Hex(pointer), " leave their ", MemoryKindName(info.kind),
      ", which ends at 0x", absl::Hex(last.base + last.allocation_bytes)));
}

absl::Status NothingMapped(DevicePointer pointer) {
  return absl::InvalidArgumentError(absl::StrCat(
      "0x", absl::Hex(pointer),
      " is a reserved address (cuMemAddressReserve) at which no memory is mapped (cuMemMap)"));
}

// Reads piece by piece until the range is covered.
absl::Status ReadVirtual(const CudaDevice& device, DevicePointer pointer, size_t bytes,
                         MemoryInfo& info) {
  size_t covered = 0;
  while (covered < bytes) {
    const DevicePointer at = pointer + covered;
    FERRY_ASSIGN_OR_RETURN(const Attributes attributes, ReadAttributes(device, at));
    if (!info.pieces.empty() &&
        (attributes.memory_type != kMemoryTypeDevice ||
         static_cast<int>(attributes.device_ordinal) != info.device || !IsVirtual(attributes))) {
      return LeavesAllocation(info, pointer, bytes);
    }
    const absl::StatusOr<MemoryPiece> read = ReadPiece(device, attributes, at, bytes - covered);
    // Not asked before: memory that has an extent can be used, whatever the driver says.
    if (!read.ok() && attributes.is_mapped == 0) {
      return info.pieces.empty() ? NothingMapped(at) : LeavesAllocation(info, pointer, bytes);
    }
    FERRY_RETURN_IF_ERROR(read.status());
    const MemoryPiece& piece = *read;
    if ((attributes.handle_types & kHandleTypePosixFd) == 0 && info.no_export_reason.empty()) {
      info.no_export_reason = absl::StrCat("the memory at 0x", absl::Hex(piece.base),
                                           " was created without a handle type to export "
                                           "it by (cuMemCreate, requestedHandleTypes)");
    }
    covered += piece.bytes;
    info.pieces.push_back(piece);
  }
  if (info.no_export_reason.empty()) info.export_by = ExportBy::kPosixFd;
  return absl::OkStatus();
}

void ChooseExport(const CudaDevice& device, const Attributes& attributes, MemoryInfo& info) {
  if (info.kind == MemoryKind::kPool) {
    if (IsExportable(device, attributes)) {
      info.export_by = ExportBy::kPoolPointer;
    } else {
      info.no_export_reason =
          "its pool cannot be exported, as the default pool of cudaMallocAsync never can";
    }
  } else if (const absl::Status& has = device.api().Has(CudaGroup::kIpc); !has.ok()) {
    info.no_export_reason = std::string(has.message());
  } else if (!HasLegacyHandle(device, attributes, info.pieces[0].base)) {
    info.no_export_reason = "the driver gives no IPC handle for it";
  } else {
    info.export_by = ExportBy::kLegacyHandle;
  }
}

}  // namespace

absl::StatusOr<MemoryInfo> Classify(const CudaDevice& device, const void* pointer, size_t bytes) {
  if (pointer == nullptr) {
    // An empty tensor's pointer; drivers reject queries of null.
    MemoryInfo none;
    none.no_export_reason = "host memory";
    return none;
  }
  const ScopedCurrent current(device);
  const auto address = static_cast<DevicePointer>(reinterpret_cast<uintptr_t>(pointer));
  bytes = std::max<size_t>(bytes, 1);
  FERRY_ASSIGN_OR_RETURN(const Attributes attributes, ReadAttributes(device, address));
  MemoryInfo info;
  if (attributes.memory_type == 0) {
    info.no_export_reason = "host memory";
    return info;
  }
  if (attributes.is_managed != 0) {
    info.kind = MemoryKind::kManaged;
    info.device = static_cast<int>(attributes.device_ordinal);
    info.no_export_reason = "managed memory has no IPC handle";
    // The driver does not report the range of such an allocation.
    info.pieces.push_back({address, bytes, 0, bytes, attributes.buffer_id});
    return info;
  }
  if (attributes.memory_type == kMemoryTypeHost) {
    info.kind = MemoryKind::kPinnedHost;
    info.no_export_reason = "host memory";
    return info;
  } else if (attributes.pool != nullptr) {
    info.kind = MemoryKind::kPool;
    info.pool = attributes.pool;
  } else if (IsVirtual(attributes)) {
    info.kind = MemoryKind::kVirtual;
  } else {
    info.kind = MemoryKind::kPlain;
  }
  info.device = static_cast<int>(attributes.device_ordinal);
  if (info.kind == MemoryKind::kVirtual) {
    FERRY_RETURN_IF_ERROR(ReadVirtual(device, address, bytes, info));
    return info;
  }
  FERRY_ASSIGN_OR_RETURN(const MemoryPiece piece, ReadPiece(device, attributes, address, bytes));
  info.pieces.push_back(piece);
  if (piece.bytes < bytes) return LeavesAllocation(info, address, bytes);
  ChooseExport(device, attributes, info);
  return info;
}

const char* MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kPageableHost:
      return "pageable host memory";
    case MemoryKind::kPinnedHost:
      return "pinned host memory";
    case MemoryKind::kManaged:
      return "managed memory";
    case MemoryKind::kPlain:
      return "cudaMalloc memory";
    case MemoryKind::kPool:
      return "pool memory";
    case MemoryKind::kVirtual:
      return "mapped memory";
  }
  return "memory";
}

}  // namespace ferry::cuda
