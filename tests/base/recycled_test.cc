// SPDX-License-Identifier: Apache-2.0
// Blocks that a thread lets go of, and what it and others get after that.
#include "base/recycled.h"

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

TEST(Recycled, ABlockThatWasLetGoOfIsTheNextOfItsSize) {
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

TEST(Recycled, EverySizeHoldsAsManyBytesAsItWasAskedFor) {
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

TEST(Recycled, NoBlockIsGivenOutTwice) {
  std::set<void*> blocks;
  for (int round = 0; round < 3; ++round) {
    // More than are kept.
    for (int i = 0; i < 2000; ++i) ASSERT_TRUE(blocks.insert(AllocateRecycled(64)).second);
    for (void* const block : blocks) FreeRecycled(block, 64);
    EXPECT_LE(recycled_internal::lists.count[0], recycled_internal::kMostOfASize);
    blocks.clear();
  }
}

TEST(Recycled, OtherThreadsLetGoOfBlocksAndEnd) {
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(AllocateRecycled(200));
  {
    // What it keeps goes with it: leak checkers see whether it does.
    Thread other("recycled", [&blocks] {
      for (void* const block : blocks) FreeRecycled(block, 200);
      for (void*& block : blocks) block = AllocateRecycled(200);
    });
  }
  for (void* const block : blocks) FreeRecycled(block, 200);
}

TEST(Recycled, ThreadsEndWithObjectsThatLetGoOfBlocksLater) {
  struct LetsGoLate {
    ~LetsGoLate() { FreeRecycled(block, 64); }
    void* block = nullptr;
  };
  Thread other("recycled", [] {
    // Made before the lists are watched, and so gone after they were emptied.
    thread_local LetsGoLate late;
    late.block = AllocateRecycled(64);
    FreeRecycled(AllocateRecycled(64), 64);
  });
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
