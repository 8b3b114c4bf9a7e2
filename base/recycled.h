// SPDX-License-Identifier: Apache-2.0
// RecycledBlock, RecyclingAllocator: per-thread caches for the small objects of each message.
#ifndef FERRY_BASE_RECYCLED_H_
#define FERRY_BASE_RECYCLED_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

namespace ferry {

// The size limit; larger blocks come from the heap.
inline constexpr size_t kMaxRecycledBytes = 512;

// As operator new and delete, but from blocks that this thread has freed before: glibc caches
// seven per size, while a window of messages has hundreds (benchmarks/exchange_bench,
// Shm_8B_Messages). Any thread may free a block. A thread caches at most 1 MiB of each size,
// which is 4096 blocks of 256 bytes, and returns them to the heap when it ends. Builds with
// sanitizers use the heap, so that use after free is detected.
void* AllocateRecycled(size_t bytes);
// `bytes`: as allocated. Null is ignored.
void FreeRecycled(void* block, size_t bytes) noexcept;

// For std::allocate_shared: object and control block share one such block.
template <typename T>
struct RecyclingAllocator {
  using value_type = T;

  RecyclingAllocator() = default;
  template <typename Other>
  RecyclingAllocator(const RecyclingAllocator<Other>&) {}  // NOLINT(google-explicit-constructor)

  T* allocate(size_t count) {
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    return static_cast<T*>(AllocateRecycled(count * sizeof(T)));
  }
  void deallocate(T* block, size_t count) noexcept { FreeRecycled(block, count * sizeof(T)); }

  friend bool operator==(const RecyclingAllocator&, const RecyclingAllocator&) { return true; }
};

namespace recycled_internal {

// gcc defines a macro; clang has __has_feature.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kRecycles = false;
#elif !defined(__has_feature)
inline constexpr bool kRecycles = true;
#elif __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
inline constexpr bool kRecycles = false;
#else
inline constexpr bool kRecycles = true;
#endif

inline constexpr size_t kStep = 64;
inline constexpr size_t kMostBytesOfASize = size_t{1} << 20;

struct Free {
  Free* next;
};

// Trivially constructible and destructible, so that access costs nothing; the first block that is
// cached registers the object that empties the lists when the thread ends.
struct Lists {
  std::array<Free*, kMaxRecycledBytes / kStep> first;
  std::array<uint32_t, kMaxRecycledBytes / kStep> count;
  bool is_watched;
  bool is_over;
};
inline thread_local constinit Lists lists = {};

// Registers the object that empties this thread's lists.
void Watch();

}  // namespace recycled_internal

inline void* AllocateRecycled(size_t bytes) {
  using namespace recycled_internal;  // NOLINT(google-build-using-namespace)
  if (!kRecycles || bytes > kMaxRecycledBytes) return ::operator new(bytes);
  const size_t size = bytes == 0 ? 0 : (bytes - 1) / recycled_internal::kStep;
  Free*& first = lists.first[size];
  if (first == nullptr) return ::operator new((size + 1) * recycled_internal::kStep);
  Free* const block = first;
  first = block->next;
  --lists.count[size];
  return block;
}

inline void FreeRecycled(void* block, size_t bytes) noexcept {
  using namespace recycled_internal;  // NOLINT(google-build-using-namespace)
  const size_t size = bytes == 0 ? 0 : (bytes - 1) / recycled_internal::kStep;
  if (!kRecycles || block == nullptr || bytes > kMaxRecycledBytes ||
      lists.count[size] >= kMostBytesOfASize / ((size + 1) * kStep) || lists.is_over) {
    return ::operator delete(block);
  }
  if (!lists.is_watched) Watch();
  lists.first[size] = new (block) Free{lists.first[size]};
  ++lists.count[size];
}

}  // namespace ferry

#endif  // FERRY_BASE_RECYCLED_H_
