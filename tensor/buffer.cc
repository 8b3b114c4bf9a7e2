// SPDX-License-Identifier: Apache-2.0
// Buffers allocated on the heap, and buffers over foreign memory.
#include "tensor/buffer.h"

#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/recycled.h"

namespace ferry {
namespace {

// The object precedes its bytes in one heap block: one allocation instead of two, which is
// measurable for small tensors.
class HeapBuffer final : public Buffer {
 public:
  HeapBuffer(void* data, size_t bytes) : Buffer(data, bytes) {}
};

// Small blocks are allocated and freed with every message.
void* AllocateBlock(size_t bytes) {
  return bytes <= kMaxRecycledBytes ? AllocateRecycled(bytes) : std::malloc(bytes);
}

void FreeBlock(void* block, size_t bytes) {
  if (bytes <= kMaxRecycledBytes) return FreeRecycled(block, bytes);
  std::free(block);
}

// Room for a HeapBuffer with its reference counts.
constexpr size_t kObjectRoom = kBufferAlignment;

// Places one object at the beginning of a block, and frees the block with it.
template <typename T>
struct InFrontOf {
  using value_type = T;

  InFrontOf(void* block, size_t bytes) : block(block), bytes(bytes) {}
  template <typename Other>
  InFrontOf(const InFrontOf<Other>& other) : block(other.block), bytes(other.bytes) {}

  T* allocate(size_t) {
    static_assert(sizeof(T) <= kObjectRoom);
    return static_cast<T*>(block);
  }
  void deallocate(T* object, size_t) { FreeBlock(object, bytes); }

  void* block;
  // The size of the whole block.
  size_t bytes;
};

class ForeignBuffer final : public Buffer {
 public:
  ForeignBuffer(void* data, size_t bytes, absl::AnyInvocable<void() &&> release,
                TensorLocation location)
      : Buffer(data, bytes, location), release_(std::move(release)) {}
  ~ForeignBuffer() override {
    if (release_) std::move(release_)();
  }

 private:
  absl::AnyInvocable<void() &&> release_;
};

}  // namespace

std::string ToString(const TensorLocation& location) {
  return location.space == MemorySpace::kHost ? "host" : absl::StrCat("gpu:", location.ordinal);
}

absl::StatusOr<std::shared_ptr<Buffer>> AllocateHeapBuffer(size_t bytes) {
  if (bytes == 0) return std::make_shared<HeapBuffer>(nullptr, 0);
  constexpr size_t kBefore = kObjectRoom + kBufferAlignment;
  void* const block = bytes > SIZE_MAX - kBefore ? nullptr : AllocateBlock(kBefore + bytes);
  if (block == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the heap has no ", bytes, " bytes in one piece for a tensor"));
  }
  // The heap guarantees a smaller alignment only.
  const auto first = reinterpret_cast<uintptr_t>(block) + kBefore;
  void* const data = reinterpret_cast<void*>(first / kBufferAlignment * kBufferAlignment);
  return std::allocate_shared<HeapBuffer>(InFrontOf<HeapBuffer>(block, kBefore + bytes), data,
                                          bytes);
}

std::shared_ptr<Buffer> WrapForeignBuffer(void* data, size_t bytes,
                                          absl::AnyInvocable<void() &&> release,
                                          TensorLocation location) {
  return std::make_shared<ForeignBuffer>(data, bytes, std::move(release), location);
}

}  // namespace ferry
