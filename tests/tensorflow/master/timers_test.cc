// SPDX-License-Identifier: Apache-2.0
// Timers: in which order they are called, and when their thread has to be woken.
#include "tensorflow/master/timers.h"

#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"

namespace ferry::master {
namespace {

using ::testing::ElementsAre;

class TimersTest : public ::testing::Test {
 protected:
  TimersTest() {
    timers_.SetWake([this] { ++wakes_; });
  }
  Timers::Id Add(int seconds) {
    return timers_.AddAfter(absl::Seconds(seconds), [this, seconds] { run_.push_back(seconds); });
  }

  FakeClock clock_;
  Timers timers_{clock_};
  int wakes_ = 0;
  std::vector<int> run_;
};

// The thread sleeps until the earliest deadline it knows: an earlier one that does not wake it is
// late by the difference.
TEST_F(TimersTest, EarlierDeadline_WakesTheThread) {
  Add(10);
  EXPECT_EQ(wakes_, 1);
  Add(20);
  EXPECT_EQ(wakes_, 1) << "it is up in time for that";
  Add(5);
  EXPECT_EQ(wakes_, 2);
  EXPECT_EQ(timers_.NextDeadline(), clock_.Now() + absl::Seconds(5));
}

TEST_F(TimersTest, DueTimers_RunOnceInTheirOrder) {
  Add(3);
  Add(1);
  Add(2);
  Add(9);
  clock_.Advance(absl::Seconds(3));
  timers_.RunDue();
  EXPECT_THAT(run_, ElementsAre(1, 2, 3));
  timers_.RunDue();
  EXPECT_EQ(run_.size(), 3u);
  EXPECT_EQ(timers_.NextDeadline(), clock_.Now() + absl::Seconds(6));
}

TEST_F(TimersTest, RemovedTimer_IsNotRun) {
  const Timers::Id first = Add(1);
  const Timers::Id second = Add(1);
  EXPECT_TRUE(timers_.Remove(first));
  EXPECT_FALSE(timers_.Remove(first));
  clock_.Advance(absl::Seconds(1));
  timers_.RunDue();
  EXPECT_EQ(run_.size(), 1u);
  EXPECT_FALSE(timers_.Remove(second)) << "it has been called";
  EXPECT_EQ(timers_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(TimersTest, InfiniteDeadline_IsNotKept) {
  bool is_dropped = false;
  struct Tells {
    explicit Tells(bool& flag) : flag(&flag) {}
    Tells(Tells&& other) noexcept : flag(std::exchange(other.flag, nullptr)) {}
    ~Tells() {
      if (flag != nullptr) *flag = true;
    }
    bool* flag;
  };
  EXPECT_EQ(timers_.Add(absl::InfiniteFuture(), [tells = Tells(is_dropped)] {}), Timers::kNone);
  EXPECT_TRUE(is_dropped);
  EXPECT_EQ(wakes_, 0);
}

TEST_F(TimersTest, SameDeadline_WakesNoThreadAndRunsInTheOrderOfAdding) {
  timers_.AddAfter(absl::Seconds(10), [this] { run_.push_back(1); });
  timers_.AddAfter(absl::Seconds(10), [this] { run_.push_back(2); });
  EXPECT_EQ(wakes_, 1);
  clock_.Advance(absl::Seconds(10) - absl::Nanoseconds(1));
  timers_.RunDue();
  EXPECT_TRUE(run_.empty());
  clock_.Advance(absl::Nanoseconds(1));
  timers_.RunDue();
  EXPECT_THAT(run_, ElementsAre(1, 2));
  // The thread waits for nothing any more: the next one wakes it, however late it is.
  Add(100);
  EXPECT_EQ(wakes_, 2);
}

// A call that is answered by another's deadline removes its own.
TEST_F(TimersTest, RemovedByOneThatIsDueBefore_IsNotRun) {
  Timers::Id second = Timers::kNone;
  bool is_removed = false;
  timers_.AddAfter(absl::Seconds(1), [&] { is_removed = timers_.Remove(second); });
  second = Add(1);
  clock_.Advance(absl::Seconds(1));
  timers_.RunDue();
  EXPECT_TRUE(is_removed);
  EXPECT_TRUE(run_.empty());
  EXPECT_EQ(timers_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(TimersTest, DeadlineThatHasPassed_IsDueAtOnce) {
  Add(-5);
  EXPECT_EQ(wakes_, 1);
  timers_.RunDue();
  EXPECT_THAT(run_, ElementsAre(-5));
}

}  // namespace
}  // namespace ferry::master
