// SPDX-License-Identifier: Apache-2.0
// Plans, errors and timers by themselves.
#include "tensorflow/master/step_plan.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rendezvous/value.h"
#include "tensorflow/master/step_errors.h"
#include "tensorflow/master/timers.h"
#include "tests/tensorflow/graph/graph_fixture.h"

namespace ferry::master {
namespace {

using ::ferry::graph::Fails;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Names that run together must not make two requests one.
TEST(StepPlan, KeysDistinguishRequests) {
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

TEST(StepErrors, PutTheCauseBeforeDerivedErrors) {
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

// The answers of four workers, one of which is at fault, in every order.
TEST(StepErrors, InAnyOrderOfArrival_TheRootIsNamed) {
  std::vector<std::pair<std::string, absl::Status>> answers = {
      {"w0", MakeDerived(absl::InvalidArgumentError("bad shape; step 1 needed a"))},
      {"w1", absl::InvalidArgumentError("bad shape")},
      {"w2", MakeDerived(absl::InvalidArgumentError("bad shape; step 1 needed b"))},
      // A copy that another layer has prefixed with its own text.
      {"w3", absl::UnknownError("peer: [_Derived_]bad shape")}};
  std::vector<size_t> order = {0, 1, 2, 3};
  int orders = 0;
  do {
    // The master gives up waiting for the cause after that many of them.
    for (size_t timeout = 0; timeout <= order.size(); ++timeout) {
      StepErrors errors;
      bool has_ended = false;
      for (size_t i = 0; i < order.size(); ++i) {
        if (i == timeout) {
          errors.GiveUpOnCause();
          has_ended = i > 0;
        }
        const auto& [worker, status] = answers[order[i]];
        errors.Add(worker, status);
        // Steps that were cancelled after that.
        if (has_ended && order[i] != 1) errors.Add("late", absl::CancelledError("RPC cancelled"));
      }
      EXPECT_TRUE(errors.has_root());
      EXPECT_THAT(errors.Summary(),
                  Fails(absl::StatusCode::kInvalidArgument, "From w1:\nbad shape"));
    }
    ++orders;
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(orders, 24);
}

// A cause that no worker reports: the first derived error stands in for it, and not the
// cancellations that followed.
TEST(StepErrors, WithoutACause_TheFirstDerivedErrorIsReported) {
  StepErrors errors;
  errors.Add("w0", MakeDerived(absl::InternalError("one")));
  errors.Add("w1", MakeDerived(absl::InternalError("two")));
  errors.GiveUpOnCause();
  errors.Add("w2", absl::CancelledError("RPC cancelled"));
  errors.Cause(absl::DeadlineExceededError("late"));
  EXPECT_THAT(errors.Summary(), Fails(absl::StatusCode::kInternal, "From w0:\none"));
}

TEST(StepErrors, KeepTheReasonOfACancellation) {
  StepErrors errors;
  errors.Cause(absl::DeadlineExceededError("late"));
  errors.Add("w0", absl::CancelledError("RPC cancelled"));
  EXPECT_THAT(errors.Summary(), Fails(absl::StatusCode::kDeadlineExceeded, "late"));
}

TEST(Timers, RunDueOnesInOrder) {
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

TEST(DeviceFilters, MatchPartialNames) {
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
