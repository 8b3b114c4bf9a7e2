// SPDX-License-Identifier: Apache-2.0
// The stage of a bench, as printed while it waits.
#include <unistd.h>

#include <memory>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/stage.h"

namespace ferry::cli {
namespace {

TEST(BenchStage, NamesProcessesWhileTheyAreStopped) {
  std::set<pid_t> stopped;
  BenchStage stage("starting", [&stopped](pid_t pid) { return stopped.contains(pid); });
  const auto first = stage.Watch("process 0", 17);
  auto second = stage.Watch("process 1", 18);
  EXPECT_EQ(stage.Get(), "starting");
  stage.Set("measuring 8 B");
  stopped = {18};
  EXPECT_EQ(stage.Get(),
            "measuring 8 B; process 1 (pid 18) is stopped: kill -CONT 18 lets it go on");
  stopped.clear();
  EXPECT_EQ(stage.Get(), "measuring 8 B");
  // Its number may be another's by then.
  stopped = {18};
  second = nullptr;
  EXPECT_EQ(stage.Get(), "measuring 8 B");
}

TEST(BenchStage, WatcherMayOutliveIt) {
  auto stage = std::make_unique<BenchStage>("starting");
  const auto watched = stage->Watch("process 0", 17);
  stage = nullptr;
  EXPECT_EQ(watched->name, "process 0");
}

// A name may look like the end of a name and a state.
TEST(IsStopped, ReadsTheStateBehindTheName) {
  EXPECT_TRUE(IsStoppedStat("17 (ferry) T 1 17"));
  EXPECT_TRUE(IsStoppedStat("17 (ferry) t 1 17"));
  EXPECT_TRUE(IsStoppedStat("17 (a) S 1) T 1 17"));
  for (const char* const other : {"17 (ferry) S 1 17", "17 (a) T 1) R 1 17", "17 (ferry) Z 1 17",
                                  "", "17 (ferry", "17 (ferry) "}) {
    EXPECT_FALSE(IsStoppedStat(other)) << other;
  }
  EXPECT_FALSE(IsStopped(getpid()));
}

}  // namespace
}  // namespace ferry::cli
