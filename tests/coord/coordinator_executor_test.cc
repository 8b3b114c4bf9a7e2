// SPDX-License-Identifier: Apache-2.0
// The order of completions, and when their batch is over.
#include "coord/core/coordinator_executor.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"

namespace ferry::coord {
namespace {

std::unique_ptr<Coordinator> MakeCoordinator() {
  CoordinatorOptions options;
  options.jobs = {{"worker", 2}};
  return *Coordinator::Create(std::move(options), SteadyClock(), 1);
}

// A get whose completion records its name.
void Get(CoordinatorExecutor& executor, const std::string& key, std::vector<std::string>& log) {
  executor.Run([&](Coordinator& coordinator) {
    coordinator.GetKeys({key}, kNoTask, absl::Hours(1),
                        [&log, key](const auto&) { log.push_back(key); });
  });
}

TEST(CoordinatorExecutor, RunsCompletionsInOrderAndThenEndsTheirBatch) {
  std::vector<std::string> log;
  CoordinatorExecutor executor(MakeCoordinator());
  executor.SetAfterBatch([&log] { log.push_back("."); });
  for (const char* key : {"a", "b"}) Get(executor, key, log);
  EXPECT_TRUE(log.empty());
  executor.Run([](Coordinator& coordinator) {
    ASSERT_TRUE(coordinator.store().Put({{"a", "1"}, {"b", "2"}}, false).ok());
  });
  EXPECT_EQ(log, (std::vector<std::string>{"a", "b", "."}));
}

// Calls that a completion makes fall due together with it.
TEST(CoordinatorExecutor, BatchIncludesCallsOfItsCompletions) {
  std::vector<std::string> log;
  CoordinatorExecutor executor(MakeCoordinator());
  executor.SetAfterBatch([&log] { log.push_back("."); });
  Get(executor, "second", log);
  executor.Run([&](Coordinator& coordinator) {
    coordinator.GetKeys({"first"}, kNoTask, absl::Hours(1), [&](const auto&) {
      log.push_back("first");
      executor.Run([](Coordinator& coordinator) {
        ASSERT_TRUE(coordinator.store().Put("second", "", false).ok());
      });
    });
  });
  executor.Run([](Coordinator& coordinator) {
    ASSERT_TRUE(coordinator.store().Put("first", "", false).ok());
  });
  EXPECT_EQ(log, (std::vector<std::string>{"first", "second", "."}));
}

// An endless chain must not hold back the answers of others.
TEST(CoordinatorExecutor, LongChainIsBrokenUp) {
  constexpr int kLength = 100;
  int done = 0;
  int ends = 0;
  int done_at_first_end = 0;
  CoordinatorExecutor executor(MakeCoordinator());
  executor.SetAfterBatch([&] {
    if (++ends == 1) done_at_first_end = done;
  });
  std::function<void()> next = [&] {
    if (++done == kLength) return;
    executor.Run([&](Coordinator& coordinator) {
      coordinator.GetKeys({"there"}, kNoTask, absl::Hours(1), [&](const auto&) { next(); });
    });
  };
  executor.Run([](Coordinator& coordinator) {
    ASSERT_TRUE(coordinator.store().Put("there", "", false).ok());
  });
  next();
  EXPECT_EQ(done, kLength);
  EXPECT_LE(done_at_first_end, 10);
  EXPECT_GE(ends, kLength / 10);
}

}  // namespace
}  // namespace ferry::coord
