// SPDX-License-Identifier: Apache-2.0
// The log of runs must not grow.
#include "tensorflow/worker/step_ring.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

void Add(StepRing& ring, int64_t step_id, size_t nodes) {
  StepRecord record;
  record.step_id = step_id;
  record.labels = std::make_shared<const NodeLabels>(nodes);
  record.times.resize(nodes);
  ring.Add(std::move(record));
}

std::vector<int64_t> Found(const StepRing& ring, const std::vector<int64_t>& wanted) {
  std::vector<int64_t> ids;
  for (const StepRing::Record& record : ring.Find(wanted)) ids.push_back(record->step_id);
  return ids;
}

TEST(StepRing, ForgetsTheOldestRun) {
  StepRing ring(2, 100);
  for (int64_t id = 1; id <= 3; ++id) Add(ring, id, 1);
  EXPECT_THAT(Found(ring, {1, 2, 3}), ElementsAre(2, 3));
}

TEST(StepRing, ForgetsRunsWithTooManyNodes) {
  StepRing ring(10, 100);
  Add(ring, 1, 40);
  Add(ring, 2, 40);
  Add(ring, 3, 30);
  EXPECT_THAT(Found(ring, {1, 2, 3}), ElementsAre(2, 3));
  Add(ring, 4, 100);
  EXPECT_THAT(Found(ring, {1, 2, 3, 4}), ElementsAre(4));
}

TEST(StepRing, FindsOnlyTheRequestedStepWithAllItsRuns) {
  StepRing ring(10, 100);
  for (const int64_t id : {1, 2, 1}) Add(ring, id, 1);
  EXPECT_THAT(Found(ring, {1}), ElementsAre(1, 1));
  EXPECT_THAT(Found(ring, {}), IsEmpty());
}

TEST(StepRing, RecordsNothingWhenItIsOffOrTheGraphIsTooLarge) {
  EXPECT_FALSE(StepRing(0, 100).Takes(1));
  EXPECT_TRUE(StepRing(1, 100).Takes(100));
  EXPECT_FALSE(StepRing(1, 100).Takes(101));
}

// The limit is the most that is kept.
TEST(StepRing, RunsOfExactlyTheLimit_Stay) {
  StepRing ring(3, 100);
  Add(ring, 1, 60);
  Add(ring, 2, 40);
  EXPECT_THAT(Found(ring, {1, 2}), ElementsAre(1, 2));
  Add(ring, 3, 0);
  EXPECT_THAT(Found(ring, {1, 2, 3}), ElementsAre(1, 2, 3));
  // Removed runs are not counted any more.
  Add(ring, 4, 60);
  EXPECT_THAT(Found(ring, {1, 2, 3, 4}), ElementsAre(2, 3, 4));
  EXPECT_EQ(ring.max_runs(), 3u);
}

}  // namespace
}  // namespace ferry::worker
