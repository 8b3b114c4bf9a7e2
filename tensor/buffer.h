// SPDX-License-Identifier: Apache-2.0
// Buffer: memory shared by tensors.
#ifndef FERRY_TENSOR_BUFFER_H_
#define FERRY_TENSOR_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

namespace ferry {

// The alignment, in bytes, that row-major kernels may expect of a buffer that Ferry allocates.
inline constexpr size_t kBufferAlignment = 64;

// The position of a buffer in a host arena, by which another process finds it (host_arena.h).
struct ArenaOffset {
  // The arena's segment, and how often this offset was used before.
  uint32_t segment = 0;
  uint32_t generation = 0;
  uint64_t offset = 0;
};

enum class MemorySpace : uint8_t { kHost, kCuda };

// The device that memory belongs to. A value type.
struct TensorLocation {
  MemorySpace space = MemorySpace::kHost;
  int ordinal = 0;  // index of the device in this process

  bool operator==(const TensorLocation&) const = default;
};

// "host", "gpu:0".
std::string ToString(const TensorLocation& location);

// Memory of this process, released with the last tensor that views it. Shared by shared_ptr. Users
// agree on whether its bytes may still be written: not once a tensor that views it has been sent.
// Thread-safe as a handle.
class Buffer {
 public:
  virtual ~Buffer() = default;

  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // May be null when `bytes()` is 0. For device memory: a device address, which the host must
  // neither read nor write.
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  TensorLocation location() const { return location_; }

  // The arena that contains it, identified by address, and the offset there; nullptr for other
  // memory.
  virtual const void* arena() const { return nullptr; }
  virtual ArenaOffset arena_offset() const { return {}; }

 protected:
  Buffer(void* data, size_t bytes, TensorLocation location = {})
      : data_(data), bytes_(bytes), location_(location) {}

 private:
  void* const data_;
  const size_t bytes_;
  const TensorLocation location_;
};

// Allocates from the heap, aligned to kBufferAlignment; the content is undefined.
//   Errors: RESOURCE_EXHAUSTED naming the size.
absl::StatusOr<std::shared_ptr<Buffer>> AllocateHeapBuffer(size_t bytes);

// Wraps foreign memory in `location`, which stays readable (and writable, if any user writes) until
// `release` runs: once, on the thread that releases the last tensor.
std::shared_ptr<Buffer> WrapForeignBuffer(void* data, size_t bytes,
                                          absl::AnyInvocable<void() &&> release,
                                          TensorLocation location = {});

}  // namespace ferry

#endif  // FERRY_TENSOR_BUFFER_H_
