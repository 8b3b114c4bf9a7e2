// SPDX-License-Identifier: Apache-2.0
// IpcDescriptor: what one process tells another of its device memory.
#ifndef FERRY_GPU_CUDA_IPC_DESCRIPTOR_H_
#define FERRY_GPU_CUDA_IPC_DESCRIPTOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "gpu/cuda/memory_kind.h"

namespace ferry::cuda {

// A range inside one allocation, or one piece of physical memory. A value; the same range of the
// same allocation is always the same bytes. Descriptors travel beside it.
struct IpcDescriptor {
  ExportBy export_by = ExportBy::kNone;
  Uuid device = {};        // that the memory is on
  uint64_t buffer_id = 0;  // of the allocation, never used again by its process
  uint64_t base = 0;       // its address in its process; for finding overlaps only
  uint64_t allocation_bytes = 0;
  uint64_t offset = 0;  // of the range, from base
  uint64_t bytes = 0;
  // What the driver calls the allocation by; zeros for kPosixFd.
  std::array<unsigned char, kIpcHandleBytes> handle = {};

  bool operator==(const IpcDescriptor& other) const;
};

// For IpcDescriptor::buffer_id. The driver's id of an allocation is said never to come again;
// whether each piece of mapped memory has one of its own is said nowhere, so the place counts too.
uint64_t AllocationId(uint64_t drivers_id, uint64_t base, uint64_t allocation_bytes);

inline constexpr size_t kIpcDescriptorBytes = 128;

// kIpcDescriptorBytes bytes, little-endian. Process-to-process on one machine only.
std::string EncodeIpcDescriptor(const IpcDescriptor& descriptor);
// Of a peer that is not trusted.
//   Errors: INVALID_ARGUMENT for another size, an unknown kind, or a range that leaves its
//   allocation.
absl::StatusOr<IpcDescriptor> DecodeIpcDescriptor(absl::string_view bytes);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_IPC_DESCRIPTOR_H_
