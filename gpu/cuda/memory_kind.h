// SPDX-License-Identifier: Apache-2.0
// Classifies the memory of any pointer, and how another process can map it.
#ifndef FERRY_GPU_CUDA_MEMORY_KIND_H_
#define FERRY_GPU_CUDA_MEMORY_KIND_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "gpu/cuda/cuda_device.h"

namespace ferry::cuda {

enum class MemoryKind {
  kPageableHost,  // malloc and similar: unknown to CUDA
  kPinnedHost,    // cuMemHostAlloc, or registered; copies to and from it are asynchronous
  kManaged,       // cuMemAllocManaged: moves between host and devices
  kPlain,         // cuMemAlloc, cudaMalloc
  kPool,          // cuMemAllocAsync, cudaMallocAsync
  kVirtual,       // mapped by cuMemMap: NCCL's, PyTorch's expandable segments, our arena
};

enum class ExportBy {
  kNone,
  kLegacyHandle,  // cuIpcGetMemHandle: 64 bytes, for the whole allocation
  kPoolPointer,   // the pool's descriptor once, 64 bytes for each allocation
  kPosixFd,       // a descriptor for each piece of physical memory
};

// One allocation, or one piece of physical memory behind an address range, that a range touches.
struct MemoryPiece {
  DevicePointer base = 0;
  size_t allocation_bytes = 0;  // starting at base
  size_t offset = 0;            // of the range's first byte in it
  size_t bytes = 0;             // of the range, within the piece
  // CU_POINTER_ATTRIBUTE_BUFFER_ID: never reused in this process, unlike the address. 0: unknown.
  uint64_t buffer_id = 0;
};

// A value; valid until the memory is freed.
struct MemoryInfo {
  MemoryKind kind = MemoryKind::kPageableHost;
  int device = -1;  // ordinal; -1 for host memory
  ExportBy export_by = ExportBy::kNone;
  // Why no other process can map it; empty if export_by is set.
  std::string no_export_reason;
  // In the order of addresses, without gaps; more than one for kVirtual only; none for host memory
  // that is unknown to CUDA.
  std::vector<MemoryPiece> pieces;
  MemoryPool pool = nullptr;  // of kPool

  bool is_host() const {
    return kind == MemoryKind::kPageableHost || kind == MemoryKind::kPinnedHost;
  }
};

// Queries the driver about [pointer, pointer + bytes).
//   device: any device of this process; the memory may be on another one.
//   pointer: null is pageable host memory.
//   bytes: 0 is treated as 1.
//   Errors: INVALID_ARGUMENT if the range exceeds its allocation, or spans different kinds or
//   devices; INTERNAL when a call fails. Takes some microseconds; thread-safe; does not
//   synchronize.
absl::StatusOr<MemoryInfo> Classify(const CudaDevice& device, const void* pointer, size_t bytes);

// "cudaMalloc memory", "pool memory"; for messages.
const char* MemoryKindName(MemoryKind kind);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_MEMORY_KIND_H_
