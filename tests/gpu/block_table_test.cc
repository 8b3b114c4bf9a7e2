// SPDX-License-Identifier: Apache-2.0
// Size classes and the budget, without memory.
#include "gpu/cuda/block_table.h"

#include <map>
#include <random>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::cuda {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kMiB = size_t{1} << 20;

BlockTableOptions Options() {
  BlockTableOptions options;
  options.name = "the arena of gpu:0";
  options.budget_option = "Options::budget_bytes";
  options.budget_bytes = 64 * kMiB;
  options.segment_bytes = 8 * kMiB;
  options.granularity_bytes = 2 * kMiB;
  return options;
}

TakenBlock TakeOrAdd(BlockTable& table, size_t bytes) {
  std::optional<TakenBlock> block = table.Take(bytes);
  if (block.has_value()) return *block;
  const absl::StatusOr<BlockTable::Plan> plan = table.MakePlan(bytes);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return table.Add(*plan, bytes);
}

TEST(BlockTable, ClassesWasteAtMostAFifthAndAreAligned) {
  const BlockTable table(Options());
  EXPECT_EQ(table.ClassBytes(0), 512u);
  EXPECT_EQ(table.ClassBytes(512), 512u);
  EXPECT_EQ(table.ClassBytes(513), 1024u);
  EXPECT_EQ(table.ClassBytes(4097), 5120u);
  EXPECT_EQ(table.ClassBytes(1 * kMiB), 1 * kMiB);
  // A segment of its own is whole granules.
  EXPECT_EQ(table.ClassBytes(3 * kMiB), 4 * kMiB);
  for (size_t bytes = 4096; bytes < kMiB; bytes = bytes * 9 / 8 + 7) {
    const size_t class_bytes = table.ClassBytes(bytes);
    EXPECT_EQ(class_bytes % 512, 0u);
    EXPECT_GE(class_bytes, bytes);
    EXPECT_LE(class_bytes * 4, bytes * 5 + 4);
    EXPECT_EQ(table.ClassBytes(class_bytes), class_bytes) << bytes;
  }
}

TEST(BlockTable, BlocksOfOneClassShareASegmentAndAreReused) {
  BlockTable table(Options());
  const TakenBlock first = TakeOrAdd(table, 1000);
  const TakenBlock second = TakeOrAdd(table, 1000);
  EXPECT_EQ(first.segment, second.segment);
  EXPECT_EQ(second.offset, 1024u);
  table.Give(first.segment, first.index);
  const TakenBlock third = TakeOrAdd(table, 1024);
  EXPECT_EQ(third.offset, first.offset);
  EXPECT_EQ(third.generation, first.generation + 1);
  EXPECT_EQ(table.stats().reused_blocks, 1);
  EXPECT_NE(TakeOrAdd(table, 5000).segment, first.segment);
}

TEST(BlockTable, IdleSegmentsAreEvictedForOthers) {
  BlockTable table(Options());
  const TakenBlock large = TakeOrAdd(table, 40 * kMiB);
  table.Give(large.segment, large.index);
  const absl::StatusOr<BlockTable::Plan> plan = table.MakePlan(50 * kMiB);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->dropped, ElementsAre(large.segment));
  EXPECT_EQ(table.stats().mapped_bytes, 50 * kMiB);
  table.Forget(*plan);
  EXPECT_EQ(table.stats().mapped_bytes, 0u);
}

// A peer has it mapped: given back it would be pulled away under the peer's copy.
TEST(BlockTable, HeldSegmentsStay) {
  BlockTable table(Options());
  const TakenBlock large = TakeOrAdd(table, 40 * kMiB);
  table.Hold(large.segment);
  table.Give(large.segment, large.index);
  EXPECT_EQ(table.MakePlan(50 * kMiB).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(table.DropIdle(), IsEmpty());
  table.Unhold(large.segment);
  EXPECT_THAT(table.DropIdle(), ElementsAre(large.segment));
}

// A failed allocation must not evict anything.
TEST(BlockTable, RefusalNamesTheOptionAndEvictsNothing) {
  BlockTable table(Options());
  const TakenBlock kept = TakeOrAdd(table, 30 * kMiB);
  const TakenBlock idle = TakeOrAdd(table, 20 * kMiB);
  table.Give(idle.segment, idle.index);
  for (const size_t bytes : {40 * kMiB, 65 * kMiB, ~size_t{0}}) {
    const absl::Status status = table.MakePlan(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("the arena of gpu:0"), HasSubstr("raise Options::budget_bytes"),
                      HasSubstr("1 tensors use 31457280")));
  }
  EXPECT_EQ(TakeOrAdd(table, 20 * kMiB).segment, idle.segment);
  table.Give(kept.segment, kept.index);
}

// Allocated blocks must not overlap, for any order of calls.
TEST(BlockTable, AllocatedBlocksNeverOverlap) {
  std::mt19937 random(7);
  BlockTable table(Options());
  std::map<std::pair<uint32_t, size_t>, TakenBlock> out;
  for (int i = 0; i < 20'000; ++i) {
    if (out.size() > 40 || (!out.empty() && random() % 2 == 0)) {
      auto victim = std::next(out.begin(), static_cast<int64_t>(random() % out.size()));
      table.Give(victim->second.segment, victim->second.index);
      out.erase(victim);
      continue;
    }
    const size_t bytes = size_t{1} << (random() % 19);
    std::optional<TakenBlock> block = table.Take(bytes);
    if (!block.has_value()) {
      const absl::StatusOr<BlockTable::Plan> plan = table.MakePlan(bytes);
      if (!plan.ok()) continue;
      block = table.Add(*plan, bytes);
    }
    const auto at = out.emplace(std::make_pair(block->segment, block->offset), *block);
    ASSERT_TRUE(at.second) << "the same place twice";
    if (at.first != out.begin()) {
      const TakenBlock& before = std::prev(at.first)->second;
      ASSERT_TRUE(before.segment != block->segment ||
                  before.offset + before.class_bytes <= block->offset);
    }
    if (const auto after = std::next(at.first); after != out.end()) {
      ASSERT_TRUE(after->second.segment != block->segment ||
                  block->offset + block->class_bytes <= after->second.offset);
    }
    ASSERT_EQ(table.stats().block_count, static_cast<int>(out.size()));
  }
}

// Reserved segments take the class that is needed, and are not dropped.
TEST(BlockTable, ReservedSegmentChangesItsClassWhenItIsEmpty) {
  BlockTable table(Options());
  const absl::StatusOr<BlockTable::Plan> plan = table.MakeReservedPlan(8 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  table.AddReserved(*plan);
  EXPECT_EQ(table.stats().reserved_bytes, 8 * kMiB);
  const std::optional<TakenBlock> small = table.Take(1000);
  ASSERT_TRUE(small.has_value());
  EXPECT_EQ(small->segment, plan->segment);
  // There is room for the same class, and none for others while a block is in use.
  const std::optional<TakenBlock> second = table.Take(1000);
  ASSERT_TRUE(second.has_value());
  EXPECT_FALSE(table.Take(4 * kMiB).has_value());
  table.Give(small->segment, small->index);
  table.Give(second->segment, second->index);
  const std::optional<TakenBlock> large = table.Take(4 * kMiB);
  ASSERT_TRUE(large.has_value());
  EXPECT_EQ(large->segment, plan->segment);
  EXPECT_GT(large->generation, small->generation);
  EXPECT_EQ(table.Take(4 * kMiB)->offset, large->offset + 4 * kMiB);
  // It is full; and the small class has no room there any more.
  EXPECT_FALSE(table.Take(4 * kMiB).has_value());
  EXPECT_FALSE(table.Take(1000).has_value());
  EXPECT_FALSE(table.Take(16 * kMiB).has_value());
}

TEST(BlockTable, ReservedSegmentsAreNeverDropped) {
  BlockTable table(Options());
  const absl::StatusOr<BlockTable::Plan> plan = table.MakeReservedPlan(60 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  table.AddReserved(*plan);
  EXPECT_THAT(table.DropIdle(), IsEmpty());
  // Nor to make room for a block that does not fit into it.
  const absl::Status refused = table.MakePlan(62 * kMiB).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(table.MakeReservedPlan(8 * kMiB).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(table.stats().mapped_bytes, 60 * kMiB);
}

}  // namespace
}  // namespace ferry::cuda
