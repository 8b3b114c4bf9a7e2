// SPDX-License-Identifier: Apache-2.0
// Encoding of IpcDescriptor.
#include "gpu/cuda/ipc_descriptor.h"

#include <cstring>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

namespace ferry::cuda {
namespace {

// The wire format. It has no padding, so that equal descriptors are equal bytes.
struct Wire {
  uint64_t export_by;
  unsigned char device[16];
  uint64_t allocation_id;
  uint64_t base;
  uint64_t allocation_bytes;
  uint64_t offset;
  uint64_t bytes;
  unsigned char handle[kIpcHandleBytes];
};
static_assert(sizeof(Wire) == kIpcDescriptorBytes);
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

}  // namespace

bool IpcDescriptor::operator==(const IpcDescriptor& other) const {
  return EncodeIpcDescriptor(*this) == EncodeIpcDescriptor(other);
}

uint64_t AllocationId(uint64_t buffer_id, uint64_t base, uint64_t allocation_bytes) {
  return absl::HashOf(buffer_id, base, allocation_bytes);
}

std::string EncodeIpcDescriptor(const IpcDescriptor& descriptor) {
  Wire wire = {};
  wire.export_by = static_cast<uint64_t>(descriptor.export_by);
  std::memcpy(wire.device, descriptor.device.bytes, sizeof(wire.device));
  wire.allocation_id = descriptor.allocation_id;
  wire.base = descriptor.base;
  wire.allocation_bytes = descriptor.allocation_bytes;
  wire.offset = descriptor.offset;
  wire.bytes = descriptor.bytes;
  std::memcpy(wire.handle, descriptor.handle.data(), sizeof(wire.handle));
  return std::string(reinterpret_cast<const char*>(&wire), sizeof(wire));
}

absl::StatusOr<IpcDescriptor> DecodeIpcDescriptor(absl::string_view bytes) {
  if (bytes.size() != kIpcDescriptorBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a descriptor of device memory has ", kIpcDescriptorBytes, " bytes, not ", bytes.size()));
  }
  Wire wire = {};
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if (wire.export_by < static_cast<uint64_t>(ExportBy::kLegacyHandle) ||
      wire.export_by > static_cast<uint64_t>(ExportBy::kPosixFd)) {
    return absl::InvalidArgumentError(
        absl::StrCat("device memory is not exported in way ", wire.export_by));
  }
  if (wire.bytes == 0 || wire.offset > wire.allocation_bytes ||
      wire.bytes > wire.allocation_bytes - wire.offset) {
    return absl::InvalidArgumentError(absl::StrCat(wire.bytes, " bytes from ", wire.offset,
                                                   " on leave an allocation of ",
                                                   wire.allocation_bytes));
  }
  IpcDescriptor descriptor;
  descriptor.export_by = static_cast<ExportBy>(wire.export_by);
  std::memcpy(descriptor.device.bytes, wire.device, sizeof(wire.device));
  descriptor.allocation_id = wire.allocation_id;
  descriptor.base = wire.base;
  descriptor.allocation_bytes = wire.allocation_bytes;
  descriptor.offset = wire.offset;
  descriptor.bytes = wire.bytes;
  std::memcpy(descriptor.handle.data(), wire.handle, sizeof(wire.handle));
  return descriptor;
}

}  // namespace ferry::cuda
