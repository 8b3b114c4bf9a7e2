// SPDX-License-Identifier: Apache-2.0
// Calls that come at the same time, and sessions that end in between.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"

#include "plan_fixture.h"
#include "tensorflow/worker/step_table.h"
#include "tensorflow/worker/worker.h"
#include "tests/graph/graph_fixture.h"

namespace ferry::worker {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;

constexpr auto kAlive = [] { return true; };

// Steps of this process alone, and a moment to do something in.
class HeldExchanges final : public StepExchanges {
 public:
  absl::Status Reach(const TaskName&) override { return absl::OkStatus(); }
  absl::StatusOr<std::shared_ptr<StepTransfers>> Open(int64_t step_id) override {
    if (auto hook = std::exchange(on_open, nullptr)) hook();
    if (!open_error.ok()) return std::exchange(open_error, absl::OkStatus());
    auto& step = steps_[step_id];
    if (step == nullptr) step = std::make_shared<HeldExchange>();
    return step;
  }
  void Cleanup(int64_t step_id) override {
    ++cleanups[step_id];
    const auto found = steps_.find(step_id);
    if (found != steps_.end()) found->second->Abort(absl::AbortedError("the step is over"));
  }

  // Called once, in the middle of the next Open.
  std::function<void()> on_open;
  absl::Status open_error;
  std::map<int64_t, int> cleanups;

 private:
  std::map<int64_t, std::shared_ptr<HeldExchange>> steps_;
};

class WorkerRaces : public ::testing::Test {
 protected:
  static WorkerOptions Options() {
    WorkerOptions options;
    options.task = {"worker", 0, 0};
    options.devices = {{"/job:worker/replica:0/task:0/device:CPU:0", "CPU", 0, 7}};
    options.thread_count = 2;
    return options;
  }

  struct Answer {
    absl::Notification is_there;
    absl::Status status;
  };
  std::shared_ptr<Answer> StartPiece(int64_t step, bool is_last = false) {
    RunRequest request;
    request.session = "s";
    request.graph = graph_;
    request.step_id = step;
    request.is_partial = true;
    request.is_last_partial = is_last;
    auto answer = std::make_shared<Answer>();
    worker_.RunGraph(std::move(request), nullptr, [answer](absl::Status status, RunResult) {
      answer->status = std::move(status);
      answer->is_there.Notify();
    });
    return answer;
  }
  void SetUp() override {
    ASSERT_TRUE(worker_.CreateSession({.handle = "s"}, false).ok());
    graph::GraphWriter writer;
    writer.Const("c");
    const auto handle = worker_.RegisterGraph("s", writer.def());
    ASSERT_TRUE(handle.ok()) << handle.status();
    graph_ = *handle;
  }

  HeldExchanges exchanges_;
  Worker worker_{exchanges_, Options()};
  std::string graph_;
};

// One of them runs the graph, and both are answered.
TEST_F(WorkerRaces, TwoFirstPiecesAtOnce) {
  std::shared_ptr<Answer> second;
  exchanges_.on_open = [&] { second = StartPiece(5, /*is_last=*/true); };
  const std::shared_ptr<Answer> first = StartPiece(5);
  ASSERT_NE(second, nullptr);
  for (const auto& answer : {first, second}) {
    ASSERT_TRUE(answer->is_there.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_TRUE(answer->status.ok()) << answer->status;
  }
  worker_.CleanupStep(5);
  EXPECT_EQ(worker_.step_count(), 0u);
}

// The first one cannot open the step: the other, which is the last, is told so and does not wait.
TEST_F(WorkerRaces, AFirstPieceThatFailsTakesTheOthersWithIt) {
  std::shared_ptr<Answer> last;
  exchanges_.on_open = [&] {
    last = StartPiece(5, /*is_last=*/true);
    exchanges_.open_error = absl::ResourceExhaustedError("too many steps");
  };
  const std::shared_ptr<Answer> first = StartPiece(5);
  for (const auto& answer : {first, last}) {
    ASSERT_TRUE(answer->is_there.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_THAT(answer->status, Fails(StatusCode::kResourceExhausted, "too many steps"));
  }
  worker_.CleanupStep(5);
  EXPECT_EQ(worker_.step_count(), 0u);
}

TEST_F(WorkerRaces, ASessionThatEndsWhileAStepBeginsLeavesNothing) {
  exchanges_.on_open = [&] { worker_.DeleteSession("s"); };
  const std::shared_ptr<Answer> piece = StartPiece(5);
  ASSERT_TRUE(piece->is_there.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(piece->status.code(), StatusCode::kAborted) << piece->status;
  EXPECT_EQ(worker_.step_count(), 0u);
  EXPECT_GT(exchanges_.cleanups[5], 0);
}

// The session has ended, and its steps were looked for, before this one was in the table.
TEST(StepTable, AStepOfASessionThatHasEndedIsCleanedUp) {
  HeldExchanges exchanges;
  StepTable table(exchanges, 10);
  const auto is_alive = [] { return false; };
  EXPECT_THAT(table.Begin(1, "s", "g", is_alive).status(),
              Fails(StatusCode::kAborted, HasSubstr("its session has ended")));
  EXPECT_THAT(table.BeginPiece(2, "s", "g", is_alive).status(),
              Fails(StatusCode::kAborted, HasSubstr("its session has ended")));
  EXPECT_EQ(table.step_count(), 0u);
  EXPECT_EQ(exchanges.cleanups[1], 1);
  EXPECT_EQ(exchanges.cleanups[2], 1);
}

// What was in the step before stays, and can be cleaned up.
TEST(StepTable, AnOpeningThatFailsTakesOnlyItsOwnGraphOut) {
  HeldExchanges exchanges;
  StepTable table(exchanges, 10);
  ASSERT_TRUE(table.Begin(1, "s", "g", kAlive).ok());
  exchanges.open_error = absl::ResourceExhaustedError("no room");
  EXPECT_FALSE(table.Begin(1, "s", "h", kAlive).ok());
  EXPECT_EQ(table.step_count(), 1u);
  EXPECT_TRUE(table.Begin(1, "s", "h", kAlive).ok());
  table.CleanupSession("s");
  EXPECT_EQ(table.step_count(), 0u);
  exchanges.open_error = absl::ResourceExhaustedError("no room");
  EXPECT_FALSE(table.Begin(3, "s", "g", kAlive).ok());
  EXPECT_EQ(table.step_count(), 0u);
}

TEST(StepTable, KeepsWhatFeedsTakeUntilTheStepIsOver) {
  HeldExchanges exchanges;
  StepTable table(exchanges, 10);
  Budget budget(100);
  ASSERT_TRUE(table.Begin(1, "s", "g", kAlive).ok());
  for (int i = 0; i < 2; ++i) {
    Budget::Share share;
    ASSERT_TRUE(budget.Take(30, share));
    table.Keep(1, std::move(share));
  }
  EXPECT_EQ(budget.used(), 60u);
  table.Cleanup(1);
  EXPECT_EQ(budget.used(), 0u);
  // Of a step that is over nothing is kept.
  Budget::Share late;
  ASSERT_TRUE(budget.Take(30, late));
  table.Keep(1, std::move(late));
  EXPECT_EQ(budget.used(), 0u);
}

}  // namespace
}  // namespace ferry::worker
