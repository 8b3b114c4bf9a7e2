// SPDX-License-Identifier: Apache-2.0
// DeviceBuffer: a buffer in GPU memory that streams may still use after its last reference.
#ifndef FERRY_GPU_CUDA_DEVICE_BUFFER_H_
#define FERRY_GPU_CUDA_DEVICE_BUFFER_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

#include "gpu/cuda/cuda_event.h"
#include "tensor/buffer.h"

namespace ferry::cuda {

inline DevicePointer AsDevicePointer(const void* pointer) {
  return static_cast<DevicePointer>(reinterpret_cast<uintptr_t>(pointer));
}
inline void* AsHostPointer(DevicePointer pointer) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(pointer));
}

// The last reference may be released while copies and kernels that use the memory are only
// enqueued. The code that enqueues them registers the use with AddUse, and the owner does not reuse
// the memory before. Thread-safe.
class DeviceBuffer final : public Buffer {
 public:
  using Uses = std::vector<std::shared_ptr<const ReadyEvent>>;
  // Called once, on the thread that releases the last reference; must not block or synchronize.
  using Release = absl::AnyInvocable<void(Uses uses) &&>;

  //   arena: as Buffer::arena(); null if the memory belongs to no arena.
  DeviceBuffer(DevicePointer pointer, size_t bytes, int ordinal, Release release,
               const void* arena = nullptr, ArenaOffset at = {})
      : Buffer(AsHostPointer(pointer), bytes, {MemorySpace::kCuda, ordinal}),
        release_(std::move(release)),
        arena_(arena),
        arena_offset_(at) {}
  ~DeviceBuffer() override;

  DevicePointer pointer() const { return AsDevicePointer(data()); }

  // Marks the memory as in use until `event` has completed.
  void AddUse(std::shared_ptr<const ReadyEvent> event) ABSL_LOCKS_EXCLUDED(mu_);

  const void* arena() const override { return arena_; }
  ArenaOffset arena_offset() const override { return arena_offset_; }

 private:
  Release release_;
  const void* const arena_;
  const ArenaOffset arena_offset_;
  absl::Mutex mu_;
  Uses uses_ ABSL_GUARDED_BY(mu_);
};

// Returns `buffer` as a DeviceBuffer, or null if it is not one.
DeviceBuffer* AsDeviceBuffer(Buffer* buffer);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_DEVICE_BUFFER_H_
