// SPDX-License-Identifier: Apache-2.0
// Buffers from the heap, and over foreign memory.
#include "tensor/buffer.h"

#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

class HeapBuffer final : public Buffer {
 public:
  HeapBuffer(void* data, size_t bytes) : Buffer(data, bytes) {}
  ~HeapBuffer() override { std::free(data()); }
};

class ForeignBuffer final : public Buffer {
 public:
  ForeignBuffer(void* data, size_t bytes, absl::AnyInvocable<void() &&> release)
      : Buffer(data, bytes), release_(std::move(release)) {}
  ~ForeignBuffer() override {
    if (release_) std::move(release_)();
  }

 private:
  absl::AnyInvocable<void() &&> release_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Buffer>> AllocateHeapBuffer(size_t bytes) {
  if (bytes == 0) return std::shared_ptr<Buffer>(std::make_shared<HeapBuffer>(nullptr, 0));
  const size_t rounded = (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  void* data = rounded < bytes ? nullptr : std::aligned_alloc(kBufferAlignment, rounded);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the heap has no ", bytes, " bytes in one piece for a tensor"));
  }
  return std::shared_ptr<Buffer>(std::make_shared<HeapBuffer>(data, bytes));
}

std::shared_ptr<Buffer> WrapForeignBuffer(void* data, size_t bytes,
                                          absl::AnyInvocable<void() &&> release) {
  return std::make_shared<ForeignBuffer>(data, bytes, std::move(release));
}

}  // namespace ferry
