// SPDX-License-Identifier: Apache-2.0
// Blocks that a thread frees, and the blocks that it and others get after that.
#include "base/recycled.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/thread.h"

namespace ferry {
namespace {

constexpr bool kRecycles = recycled_internal::kRecycles;

#if defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
static_assert(!kRecycles, "a sanitizer would not see who uses a block that is gone");
#endif
#endif

TEST(Recycled, FreedBlockIsTheNextOfItsSize) {
  if (!kRecycles) GTEST_SKIP() << "with sanitizers each block is the heap's";
  void* const block = AllocateRecycled(100);
  FreeRecycled(block, 100);
  // Sizes up to the next multiple of 64 share their blocks.
  void* const smaller = AllocateRecycled(65);
  EXPECT_EQ(smaller, block);
  void* const larger = AllocateRecycled(129);
  EXPECT_NE(larger, block);
  FreeRecycled(smaller, 65);
  FreeRecycled(larger, 129);
}

TEST(Recycled, EverySizeHoldsTheRequestedBytes) {
  for (size_t bytes = 0; bytes <= kMaxRecycledBytes + 64; ++bytes) {
    for (int round = 0; round < 2; ++round) {
      void* const block = AllocateRecycled(bytes);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block) % __STDCPP_DEFAULT_NEW_ALIGNMENT__, 0);
      std::memset(block, static_cast<int>(bytes), bytes);
      FreeRecycled(block, bytes);
    }
  }
  FreeRecycled(nullptr, 8);
}

TEST(Recycled, NoBlockIsAllocatedTwice) {
  std::set<void*> blocks;
  for (int round = 0; round < 3; ++round) {
    // More than are kept.
    for (int i = 0; i < 20'000; ++i) ASSERT_TRUE(blocks.insert(AllocateRecycled(64)).second);
    for (void* const block : blocks) FreeRecycled(block, 64);
    EXPECT_LE(recycled_internal::lists.count[0],
              recycled_internal::kMostBytesOfASize / recycled_internal::kStep);
    blocks.clear();
  }
}

// The number of blocks of all sizes that this thread keeps.
size_t KeptHere() {
  size_t kept = 0;
  for (const uint32_t count : recycled_internal::lists.count) kept += count;
  return kept;
}

TEST(Recycled, BlocksOfAnotherThread_AreKeptByTheThreadThatFreesThem) {
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(AllocateRecycled(200));
  const std::set<void*> before(blocks.begin(), blocks.end());
  const size_t kept_here = KeptHere();
  size_t kept_there = 0;
  {
    Thread other("recycled", [&] {
      for (void* const block : blocks) FreeRecycled(block, 200);
      kept_there = KeptHere();
      for (void*& block : blocks) block = AllocateRecycled(200);
    });
  }
  if (kRecycles) {
    EXPECT_EQ(kept_there, 100u);
    EXPECT_EQ(std::set<void*>(blocks.begin(), blocks.end()), before);
  }
  for (void* const block : blocks) FreeRecycled(block, 200);
  if (kRecycles) {
    EXPECT_EQ(KeptHere(), kept_here + 100);
  }
}

// Only this test detects leaks of ended threads: builds with sanitizers do not recycle.
TEST(Recycled, ThreadEnds_ItsBlocksReturnToTheHeap) {
  struct Late {
    // After the lists were emptied.
    ~Late() {
      *is_over = recycled_internal::lists.is_over;
      *kept = KeptHere();
      for (const auto* first : recycled_internal::lists.first) *kept += first != nullptr ? 1 : 0;
      // The lists are not emptied again, so this must not be kept.
      FreeRecycled(block, 64);
      *kept_late = KeptHere();
    }
    void* block = nullptr;
    bool* is_over = nullptr;
    size_t* kept = nullptr;
    size_t* kept_late = nullptr;
  };
  bool is_over = false;
  size_t kept_before = 0;
  size_t kept = 99;
  size_t kept_late = 99;
  {
    Thread other("recycled", [&] {
      // Constructed before the lists are registered, and so destroyed after they were emptied.
      thread_local Late late;
      late.block = AllocateRecycled(64);
      late.is_over = &is_over;
      late.kept = &kept;
      late.kept_late = &kept_late;
      for (int i = 0; i < 10; ++i) {
        void* const blocks[] = {AllocateRecycled(64), AllocateRecycled(64)};
        for (void* const block : blocks) FreeRecycled(block, 64);
      }
      kept_before = KeptHere();
    });
  }
  if (kRecycles) {
    EXPECT_EQ(kept_before, 2u);
    EXPECT_TRUE(is_over);
  }
  EXPECT_EQ(kept, 0u);
  EXPECT_EQ(kept_late, 0u);
}

TEST(RecyclingAllocator, MakesSharedObjects) {
  struct Counts {
    explicit Counts(int& alive) : alive(alive) { ++alive; }
    ~Counts() { --alive; }
    int& alive;
    char room[100] = {};
  };
  int alive = 0;
  auto object = std::allocate_shared<Counts>(RecyclingAllocator<Counts>(), alive);
  const Counts* const first = object.get();
  object.reset();
  EXPECT_EQ(alive, 0);
  object = std::allocate_shared<Counts>(RecyclingAllocator<Counts>(), alive);
  if (kRecycles) {
    EXPECT_EQ(object.get(), first);
  }
  EXPECT_EQ(alive, 1);
}

}  // namespace
}  // namespace ferry
