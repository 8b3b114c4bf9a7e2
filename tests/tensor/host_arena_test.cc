// SPDX-License-Identifier: Apache-2.0
// Recycling and the budget.
#include "tensor/host_arena.h"

#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMib = size_t{1} << 20;

HostArenaOptions Small() {
  HostArenaOptions options;
  options.segment_bytes = kMib;
  options.budget_bytes = 4 * kMib;
  options.memory.prefault = false;
  return options;
}

std::shared_ptr<HostArena> MakeArena(HostArenaOptions options = Small()) {
  return *HostArena::Create(options);
}

int OpenDescriptors() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

TEST(HostArena, ClassesAreCloseToTheRequestedSize) {
  EXPECT_EQ(HostArena::ClassBytes(0), 64u);
  EXPECT_EQ(HostArena::ClassBytes(64), 64u);
  EXPECT_EQ(HostArena::ClassBytes(65), 128u);
  EXPECT_EQ(HostArena::ClassBytes(1024), 1024u);
  EXPECT_EQ(HostArena::ClassBytes(1025), 1280u);
  for (size_t bytes = 1; bytes < 100'000; bytes += 7) {
    const size_t size = HostArena::ClassBytes(bytes);
    ASSERT_GE(size, bytes);
    ASSERT_EQ(size % kBufferAlignment, 0u);
    if (bytes >= 256) {
      ASSERT_LE(size, bytes + bytes / 4) << bytes;
    }
    ASSERT_EQ(HostArena::ClassBytes(size), size);
  }
}

TEST(HostArena, ReusesTheWarmBlockForTheNext) {
  const auto arena = MakeArena();
  void* first = nullptr;
  uint32_t generation = 0;
  {
    const std::shared_ptr<Buffer> buffer = *arena->Allocate(5000);
    first = buffer->data();
    generation = buffer->arena_offset().generation;
    EXPECT_EQ(buffer->bytes(), 5000u);
    EXPECT_EQ(buffer->arena(), arena.get());
    EXPECT_EQ(arena->stats().used_bytes, 5120u);
  }
  EXPECT_EQ(arena->stats().used_bytes, 0u);
  const std::shared_ptr<Buffer> again = *arena->Allocate(5100);
  EXPECT_EQ(again->data(), first);
  // References to the previous tensor can be told apart.
  EXPECT_EQ(again->arena_offset().generation, generation + 1);
  EXPECT_EQ(arena->stats().reused_blocks, 1);
}

TEST(HostArena, BlocksDoNotOverlap) {
  const auto arena = MakeArena();
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (int i = 0; i < 1000; ++i) {
    buffers.push_back(*arena->Allocate(1024));
    std::memset(buffers.back()->data(), i % 251, 1024);
  }
  for (int i = 0; i < 1000; ++i) {
    const auto* bytes = static_cast<const uint8_t*>(buffers[i]->data());
    ASSERT_EQ(bytes[0], i % 251);
    ASSERT_EQ(bytes[1023], i % 251);
    const ArenaOffset at = buffers[i]->arena_offset();
    ASSERT_EQ(static_cast<char*>(arena->memory(at).base()) + at.offset, buffers[i]->data());
  }
  EXPECT_EQ(arena->stats().block_count, 1000);
  EXPECT_EQ(arena->stats().segment_count, 1);
}

TEST(HostArena, BudgetIsKeptAndTheErrorNamesItsUsers) {
  const auto arena = MakeArena();
  const std::shared_ptr<Buffer> large = *arena->Allocate(3 * kMib);
  const absl::Status status = arena->Allocate(2 * kMib).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("1 tensors use 3145728"));
  EXPECT_THAT(status.message(), HasSubstr("--arena-budget-bytes"));
  EXPECT_TRUE(arena->Allocate(100).ok());
}

TEST(HostArena, IdleSegmentsAreReleased) {
  const auto arena = MakeArena();
  arena->Allocate(3 * kMib).IgnoreError();
  EXPECT_EQ(arena->stats().mapped_bytes, 3 * kMib);
  // Another class, which does not fit beside it.
  EXPECT_TRUE(arena->Allocate(2 * kMib).ok());
  EXPECT_EQ(arena->stats().mapped_bytes, 2 * kMib);
  EXPECT_EQ(arena->Trim(), 2 * kMib);
  EXPECT_EQ(arena->stats().segment_count, 0);
}

TEST(HostArena, BufferOutlivesItsUsersReference) {
  std::shared_ptr<Buffer> buffer;
  {
    auto arena = MakeArena();
    buffer = *arena->Allocate(100);
  }
  std::memset(buffer->data(), 1, 100);
}

TEST(HostArena, LeaksNeitherDescriptorsNorBytes) {
  const int before = OpenDescriptors();
  {
    const auto arena = MakeArena();
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(arena->Allocate(3 * kMib).ok());
      ASSERT_TRUE(arena->Allocate(size_t{1} << (i % 20)).ok());
    }
    EXPECT_EQ(arena->stats().used_bytes, 0u);
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(HostArena, IsUsedFromManyThreads) {
  const auto arena = MakeArena();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&arena, t] {
      for (int i = 0; i < 2000; ++i) {
        const auto buffer = arena->Allocate(64 + 100 * (i % 17));
        ASSERT_TRUE(buffer.ok());
        auto* bytes = static_cast<uint8_t*>((*buffer)->data());
        bytes[0] = bytes[63] = static_cast<uint8_t>(t);
        ASSERT_EQ(bytes[63], t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena->stats().block_count, 0);
  EXPECT_EQ(arena->stats().made_blocks, 8000);
}

TEST(HostArena, RefusesInvalidOptions) {
  HostArenaOptions options;
  options.segment_bytes = 1;
  EXPECT_EQ(HostArena::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeArena()->Allocate(~size_t{0}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// Peers map segments: segments that are released here must not stay mapped there.
TEST(HostArena, NotifiesListenersOfReleasedSegments) {
  auto arena = MakeArena();
  std::vector<uint32_t> retired;
  std::vector<uint32_t> segments;
  std::vector<uint32_t> made;
  auto listening = arena->Listen({.on_new =
                                      [&](const ArenaOffset& at) {
                                        made.push_back(at.segment);
                                        // No lock is held during the callback, and the segment
                                        // still exists.
                                        EXPECT_GE(arena->memory(at).bytes(), 64u);
                                      },
                                  .on_retired =
                                      [&](uint32_t segment) {
                                        retired.push_back(segment);
                                        // The segment that was replaced was reported first.
                                        EXPECT_GE(made.size(), 5u);
                                        arena->stats();
                                      }});
  // Each class has a segment of its own, and the fifth needs the room of another.
  for (const size_t bytes : {64, 128, 192, 256, 320}) {
    segments.push_back((*arena->Allocate(bytes))->arena_offset().segment);
  }
  EXPECT_EQ(made, segments);
  EXPECT_EQ(retired, std::vector<uint32_t>{segments[0]});
  const auto kept = *arena->Allocate(320);
  arena->Trim();
  EXPECT_EQ(retired, (std::vector<uint32_t>{segments[0], segments[1], segments[2], segments[3]}));
  listening.reset();
  EXPECT_EQ(kept->arena_offset().segment, segments[4]);
  auto other = *arena->Allocate(64);
  other.reset();
  arena->Trim();
  EXPECT_EQ(retired.size(), 4u);
}

// Every control channel registers a listener: an arena that outlives many control channels would
// keep and call an entry for each.
TEST(HostArena, DestroyedListeners_AreDropped) {
  const auto arena = MakeArena();
  int told = 0;
  for (int i = 0; i < 100; ++i) {
    const auto listener = arena->Listen({.on_new = [&told](const ArenaOffset&) { ++told; }});
  }
  const auto kept = arena->Listen({.on_new = [&told](const ArenaOffset&) { ++told; }});
  EXPECT_LE(arena->InnerTableSizes()["arena.listeners"], 2u);
  ASSERT_TRUE(arena->Allocate(1).ok());
  EXPECT_EQ(told, 1);
}

// Segments with room are found by a list: one that is on it too often, or not at all, is used by
// two or never again.
TEST(HostArena, RandomAllocations_SegmentsWithRoomAreListedOnce) {
  const auto arena = MakeArena();
  std::mt19937 random(20261125);
  std::vector<std::shared_ptr<Buffer>> held;
  for (int i = 0; i < 5'000; ++i) {
    if (held.empty() || random() % 2 == 0) {
      if (auto buffer = arena->Allocate(1 + random() % (1 << (8 + random() % 14))); buffer.ok()) {
        held.push_back(*std::move(buffer));
      }
    } else {
      std::swap(held[random() % held.size()], held.back());
      held.pop_back();
    }
    if (random() % 100 == 0) arena->Trim();
    TableSizes sizes = arena->InnerTableSizes();
    ASSERT_EQ(sizes["arena.listed_with_room"], sizes["arena.segments_with_room"]) << "call " << i;
    ASSERT_EQ(sizes["arena.blocks"], held.size()) << "call " << i;
    const HostArenaStats stats = arena->stats();
    ASSERT_EQ(stats.block_count, static_cast<int>(held.size())) << "call " << i;
    ASSERT_EQ(stats.segment_count, static_cast<int>(sizes["arena.segments"])) << "call " << i;
    ASSERT_EQ(std::accumulate(stats.page_bytes.begin(), stats.page_bytes.end(), size_t{0}),
              stats.mapped_bytes)
        << "call " << i;
    ASSERT_LE(stats.mapped_bytes, Small().budget_bytes) << "call " << i;
  }
  held.clear();
  arena->Trim();
  EXPECT_EQ(NonEmptyTables(arena->InnerTableSizes()), "");
  EXPECT_EQ(arena->stats().mapped_bytes, 0u);
  EXPECT_EQ(arena->stats().used_bytes, 0u);
}

// The generation shows a receiver whether a block is still the intended tensor.
TEST(HostArena, BlockUsedAgain_HasAnotherGeneration) {
  const auto arena = MakeArena();
  auto buffer = *arena->Allocate(1000);
  const ArenaOffset first = buffer->arena_offset();
  buffer = nullptr;
  buffer = *arena->Allocate(1000);
  const ArenaOffset second = buffer->arena_offset();
  ASSERT_EQ(second.segment, first.segment);
  ASSERT_EQ(second.offset, first.offset);
  EXPECT_NE(second.generation, first.generation);
}

TEST(HostArena, SegmentsThatFillTheBudget_AreMapped) {
  const auto arena = MakeArena();
  std::vector<std::shared_ptr<Buffer>> held;
  for (int i = 0; i < 4; ++i) {
    auto buffer = arena->Allocate(kMib);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    held.push_back(*std::move(buffer));
  }
  EXPECT_EQ(arena->stats().mapped_bytes, 4 * kMib);
  EXPECT_FALSE(arena->Allocate(1).ok());
}

// A block as large as its segment leaves no room there. When it is freed the segment must be found
// again, or every such tensor maps another one.
TEST(HostArena, FullSegmentFreed_IsReused) {
  const auto arena = MakeArena();
  arena->Allocate(3 * kMib).IgnoreError();
  EXPECT_TRUE(arena->Allocate(3 * kMib).ok());
  EXPECT_EQ(arena->stats().reused_blocks, 1);
}

// A class shares a segment when eight of its blocks fit; a larger one has its own.
TEST(HostArena, EightBlocksOfASegment_ShareIt) {
  const auto arena = MakeArena();
  const auto first = *arena->Allocate(kMib / 8);
  EXPECT_EQ(arena->stats().mapped_bytes, kMib);
  std::vector<std::shared_ptr<Buffer>> held;
  for (int i = 1; i < 8; ++i) held.push_back(*arena->Allocate(kMib / 8));
  EXPECT_EQ(arena->stats().segment_count, 1) << "they fill it";
  const auto ninth = *arena->Allocate(kMib / 8);
  EXPECT_EQ(arena->stats().segment_count, 2);
  EXPECT_NE(ninth->arena_offset().segment, first->arena_offset().segment);
  const auto own = *arena->Allocate(kMib / 8 + 1);
  EXPECT_EQ(arena->stats().segment_count, 3);
  EXPECT_LT(arena->memory(own->arena_offset()).bytes(), kMib / 4);
}

// Idle segments are released, and no more of them than needed.
TEST(HostArena, IdleSegmentsThatNeedNotBeReleased_Stay) {
  const auto arena = MakeArena();
  // Each has a segment of its own, and the first two are idle when the third comes.
  for (const size_t bytes : {kMib, kMib + kMib / 4, 2 * kMib}) {
    arena->Allocate(bytes).IgnoreError();
  }
  EXPECT_EQ(arena->stats().mapped_bytes, 3 * kMib + kMib / 4) << "the first went, not the second";
  ASSERT_TRUE(arena->Allocate(64).ok());
  EXPECT_EQ(arena->stats().mapped_bytes, 3 * kMib) << "and now the second, and not the third";
  EXPECT_EQ(arena->stats().segment_count, 2);
}

}  // namespace
}  // namespace ferry
