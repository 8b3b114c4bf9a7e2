// SPDX-License-Identifier: Apache-2.0
// Plans, errors and timers by themselves.
#include "master/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "master/step_errors.h"
#include "master/timers.h"
#include "tests/graph/graph_fixture.h"

namespace ferry::master {
namespace {

using ::ferry::graph::Fails;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Names that run together must not make two requests one.
TEST(StepPlan, KeysTellRequestsApart) {
  const auto key = [](std::vector<std::string> feeds, std::vector<std::string> fetches,
                      std::vector<std::string> targets) {
    return KeyOf(Canonical({std::move(feeds), std::move(fetches), std::move(targets)}));
  };
  EXPECT_EQ(key({"a", "b"}, {"c", "c"}, {}), key({"b", "a"}, {"c"}, {}));
  EXPECT_NE(key({"a"}, {"b"}, {}), key({}, {"a", "b"}, {}));
  EXPECT_NE(key({}, {"ab"}, {}), key({}, {"a", "b"}, {}));
  EXPECT_NE(key({}, {"a"}, {"b"}), key({}, {"b"}, {"a"}));
  EXPECT_NE(key({}, {"1:a"}, {}), key({}, {"a"}, {"1:a"}));
  EXPECT_NE(key({"x", "x"}, {}, {}), key({"x"}, {}, {}));
}

TEST(StepErrors, PutTheCauseBeforeWhatFollows) {
  StepErrors errors;
  EXPECT_TRUE(errors.Summary().ok());
  errors.Add("w0", absl::AbortedError("[_Derived_]gone"));
  EXPECT_FALSE(errors.has_root());
  EXPECT_THAT(errors.Summary(), Fails(absl::StatusCode::kAborted, "From w0:\ngone"));
  errors.Add("w1", absl::InternalError("fantasia!"));
  // Called off because of it.
  errors.Add("w2", absl::CancelledError("RPC cancelled"));
  EXPECT_THAT(errors.Summary(), Fails(absl::StatusCode::kInternal, "From w1:\nfantasia!"));
  // Too late to be the cause.
  errors.Cause(absl::DeadlineExceededError("late"));
  EXPECT_EQ(errors.Summary().code(), absl::StatusCode::kInternal);
}

TEST(StepErrors, KeepTheReasonWhyAStepWasCalledOff) {
  StepErrors errors;
  errors.Cause(absl::DeadlineExceededError("late"));
  errors.Add("w0", absl::CancelledError("RPC cancelled"));
  EXPECT_THAT(errors.Summary(), Fails(absl::StatusCode::kDeadlineExceeded, "late"));
}

TEST(Timers, CallWhatIsDueInOrder) {
  FakeClock clock;
  Timers timers(clock);
  int wakes = 0;
  timers.SetWake([&wakes] { ++wakes; });
  std::vector<int> called;
  timers.AddAfter(absl::Seconds(2), [&] { called.push_back(2); });
  timers.AddAfter(absl::Seconds(1), [&] {
    called.push_back(1);
    // Due at once, and in the same run.
    timers.AddAfter(absl::ZeroDuration(), [&] { called.push_back(10); });
  });
  const Timers::Id dropped = timers.AddAfter(absl::Seconds(1), [&] { called.push_back(3); });
  EXPECT_EQ(wakes, 2);
  EXPECT_TRUE(timers.Remove(dropped));
  EXPECT_FALSE(timers.Remove(dropped));
  EXPECT_EQ(timers.Add(absl::InfiniteFuture(), [] {}), Timers::kNone);
  timers.RunDue();
  EXPECT_THAT(called, ElementsAre());
  clock.Advance(absl::Seconds(1));
  timers.RunDue();
  EXPECT_THAT(called, ElementsAre(1, 10));
  clock.Advance(absl::Seconds(1));
  timers.RunDue();
  EXPECT_THAT(called, ElementsAre(1, 10, 2));
  EXPECT_EQ(timers.NextDeadline(), absl::InfiniteFuture());
}

TEST(DeviceFilters, MatchPartsOfNames) {
  const auto filters =
      DeviceFilters::Create(std::vector<std::string>{"/job:ps", "/job:worker/task:1"});
  ASSERT_TRUE(filters.ok());
  EXPECT_TRUE(filters->Matches(TaskName{"ps", 0, 7}));
  EXPECT_TRUE(filters->Matches(TaskName{"worker", 0, 1}));
  EXPECT_FALSE(filters->Matches(TaskName{"worker", 0, 10}));
  EXPECT_THAT(DeviceFilters::Create(std::vector<std::string>{"/job:"}),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("/job:")));
}

}  // namespace
}  // namespace ferry::master
