// SPDX-License-Identifier: Apache-2.0
// Buffer: memory that tensors share.
#ifndef FERRY_TENSOR_BUFFER_H_
#define FERRY_TENSOR_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

namespace ferry {

// What row-major kernels of any framework may expect of a buffer that Ferry allocates.
inline constexpr size_t kBufferAlignment = 64;

// Where in a host arena a buffer lies, for handing it over to another process (host_arena.h).
struct ArenaOffset {
  // Of the arena's segments, and how often the place was used before.
  uint32_t segment = 0;
  uint32_t generation = 0;
  uint64_t offset = 0;
};

enum class MemorySpace : uint8_t { kHost, kCuda };

// Whose memory it is. A value.
struct TensorLocation {
  MemorySpace space = MemorySpace::kHost;
  int ordinal = 0;  // of the device, in this process

  bool operator==(const TensorLocation&) const = default;
};

// "host", "gpu:0".
std::string ToString(const TensorLocation& place);

// Memory of this process, released when the last tensor over it is gone. Shared by shared_ptr;
// whether its bytes may still be written is its users' agreement: not once a tensor over it has
// been sent. Thread-safe as a handle.
class Buffer {
 public:
  virtual ~Buffer() = default;

  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // May be null when `bytes()` is 0. Of a device's memory: its address there, which the host must
  // neither read nor write.
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  TensorLocation place() const { return place_; }

  // The arena that it lies in, told apart by its address, and where; nullptr for other memory.
  virtual const void* arena() const { return nullptr; }
  virtual ArenaOffset arena_offset() const { return {}; }

 protected:
  Buffer(void* data, size_t bytes, TensorLocation place = {})
      : data_(data), bytes_(bytes), place_(place) {}

 private:
  void* const data_;
  const size_t bytes_;
  const TensorLocation place_;
};

// Fresh memory from the heap, aligned to kBufferAlignment, its content undefined.
//   Errors: RESOURCE_EXHAUSTED naming the size when there is no such memory.
absl::StatusOr<std::shared_ptr<Buffer>> AllocateHeapBuffer(size_t bytes);

// Memory of somebody else, in `place`, which is readable (and, if anybody means to write, writable)
// until `release` runs: once, on the thread that drops the last tensor.
std::shared_ptr<Buffer> WrapForeignBuffer(void* data, size_t bytes,
                                          absl::AnyInvocable<void() &&> release,
                                          TensorLocation place = {});

}  // namespace ferry

#endif  // FERRY_TENSOR_BUFFER_H_
