// SPDX-License-Identifier: Apache-2.0
// IpcDescriptor: identifies device memory to another process.
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
// same allocation always has the same bytes. File descriptors are sent separately.
struct IpcDescriptor {
  ExportBy export_by = ExportBy::kNone;
  Uuid device = {};            // of the device that holds the memory
  uint64_t allocation_id = 0;  // never reused by its process; see AllocationId
  uint64_t base = 0;           // address in its process; only for finding overlaps
  uint64_t allocation_bytes = 0;
  uint64_t offset = 0;  // of the range, from base
  uint64_t bytes = 0;
  // The driver's handle of the allocation; zeros for kPosixFd.
  std::array<unsigned char, kIpcHandleBytes> handle = {};
  // kPoolPointer: the number of the pool in its process while it exists; 0: unknown. Not part of
  // the encoding.
  uint64_t pool_id = 0;

  bool operator==(const IpcDescriptor& other) const;
};

// For IpcDescriptor::allocation_id, from the driver's id of the allocation
// (CU_POINTER_ATTRIBUTE_BUFFER_ID), which is documented as never reused. Whether each piece of
// mapped memory has its own is not documented, so the address is included.
uint64_t AllocationId(uint64_t buffer_id, uint64_t base, uint64_t allocation_bytes);

inline constexpr size_t kIpcDescriptorBytes = 128;

// kIpcDescriptorBytes bytes, little-endian. Only between processes of one machine.
std::string EncodeIpcDescriptor(const IpcDescriptor& descriptor);
// Decodes the descriptor of an untrusted peer.
//   Errors: INVALID_ARGUMENT for another size, an unknown kind, or a range that exceeds its
//   allocation.
absl::StatusOr<IpcDescriptor> DecodeIpcDescriptor(absl::string_view bytes);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_IPC_DESCRIPTOR_H_
