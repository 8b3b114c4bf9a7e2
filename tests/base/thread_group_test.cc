// SPDX-License-Identifier: Apache-2.0
// Threads that end, and one that does not.
#include "base/thread_group.h"

#include <atomic>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ThreadGroup, WaitsForAllStartedThreads) {
  std::atomic<int> count = 0;
  ThreadGroup group;
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(group.Run("count", [&count] { ++count; }));
  EXPECT_THAT(group.StopWithin(absl::InfiniteDuration()), IsEmpty());
  EXPECT_EQ(count, 20);
  EXPECT_FALSE(group.Run("late", [&count] { ++count; }));
  EXPECT_EQ(count, 20);
}

TEST(ThreadGroup, NamesHangingThreadsAndContinuesWithoutThem) {
  // The thread may still be in the last call after the group is destroyed.
  const auto release = std::make_shared<absl::Notification>();
  const auto has_ended = std::make_shared<absl::Notification>();
  {
    ThreadGroup group;
    EXPECT_TRUE(group.Run("quick", [] {}));
    EXPECT_TRUE(group.Run("hangs", [release, has_ended] {
      release->WaitForNotification();
      has_ended->Notify();
    }));
    EXPECT_THAT(group.StopWithin(absl::Milliseconds(50)), ElementsAre("hangs"));
  }
  // It has not been harmed.
  release->Notify();
  has_ended->WaitForNotification();
}

}  // namespace
}  // namespace ferry
