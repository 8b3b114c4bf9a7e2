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
#include "tests/tensorflow/graph/graph_fixture.h"

namespace ferry::worker {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;

constexpr auto kAlive = [] { return true; };

// Steps of this process alone, and a moment to do something in.
class HeldSteps final : public WorkerSteps {
 public:
  absl::Status Reach(const TaskName&) override { return absl::OkStatus(); }
  absl::StatusOr<std::shared_ptr<StepTransfers>> Open(int64_t step_id) override {
    if (auto hook = std::exchange(on_open, nullptr)) hook();
    if (!open_error.ok()) return std::exchange(open_error, absl::OkStatus());
    auto& step = steps_[step_id];
    if (step == nullptr) step = std::make_shared<HeldTransfers>();
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
  std::map<int64_t, std::shared_ptr<HeldTransfers>> steps_;
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

  HeldSteps worker_steps_;
  Worker worker_{worker_steps_, Options()};
  std::string graph_;
};

// One of them runs the graph, and both are answered.
TEST_F(WorkerRaces, TwoFirstPartsAtOnce) {
  std::shared_ptr<Answer> second;
  worker_steps_.on_open = [&] { second = StartPiece(5, /*is_last=*/true); };
  const std::shared_ptr<Answer> first = StartPiece(5);
  ASSERT_NE(second, nullptr);
  for (const auto& answer : {first, second}) {
    ASSERT_TRUE(answer->is_there.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_TRUE(answer->status.ok()) << answer->status;
  }
  worker_.CleanupStep(5);
  EXPECT_EQ(worker_.step_count(), 0u);
}

// The first one cannot open the step: the other, which is the last, fails too and does not wait.
TEST_F(WorkerRaces, FirstPartThatFailsFailsTheOthers) {
  std::shared_ptr<Answer> last;
  worker_steps_.on_open = [&] {
    last = StartPiece(5, /*is_last=*/true);
    worker_steps_.open_error = absl::ResourceExhaustedError("too many steps");
  };
  const std::shared_ptr<Answer> first = StartPiece(5);
  for (const auto& answer : {first, last}) {
    ASSERT_TRUE(answer->is_there.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_THAT(answer->status, Fails(StatusCode::kResourceExhausted, "too many steps"));
  }
  worker_.CleanupStep(5);
  EXPECT_EQ(worker_.step_count(), 0u);
}

TEST_F(WorkerRaces, SessionThatEndsWhileAStepBeginsLeavesNothing) {
  worker_steps_.on_open = [&] { worker_.DeleteSession("s"); };
  const std::shared_ptr<Answer> piece = StartPiece(5);
  ASSERT_TRUE(piece->is_there.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(piece->status.code(), StatusCode::kAborted) << piece->status;
  EXPECT_EQ(worker_.step_count(), 0u);
  EXPECT_GT(worker_steps_.cleanups[5], 0);
}

// The session has ended, and its steps were looked for, before this one was in the table.
TEST(StepTable, StepOfAnEndedSessionIsCleanedUp) {
  HeldSteps worker_steps;
  StepTable table(worker_steps, 10);
  const auto is_alive = [] { return false; };
  EXPECT_THAT(table.Begin(1, "s", "g", is_alive).status(),
              Fails(StatusCode::kAborted, HasSubstr("its session has ended")));
  EXPECT_THAT(table.BeginPiece(2, "s", "g", is_alive).status(),
              Fails(StatusCode::kAborted, HasSubstr("its session has ended")));
  EXPECT_EQ(table.step_count(), 0u);
  EXPECT_EQ(worker_steps.cleanups[1], 1);
  EXPECT_EQ(worker_steps.cleanups[2], 1);
}

// The step's previous content stays, and can be cleaned up.
TEST(StepTable, FailedOpeningRemovesOnlyItsOwnGraph) {
  HeldSteps worker_steps;
  StepTable table(worker_steps, 10);
  ASSERT_TRUE(table.Begin(1, "s", "g", kAlive).ok());
  worker_steps.open_error = absl::ResourceExhaustedError("no room");
  EXPECT_FALSE(table.Begin(1, "s", "h", kAlive).ok());
  EXPECT_EQ(table.step_count(), 1u);
  EXPECT_TRUE(table.Begin(1, "s", "h", kAlive).ok());
  table.CleanupSession("s");
  EXPECT_EQ(table.step_count(), 0u);
  worker_steps.open_error = absl::ResourceExhaustedError("no room");
  EXPECT_FALSE(table.Begin(3, "s", "g", kAlive).ok());
  EXPECT_EQ(table.step_count(), 0u);
}

// A piece that joined the run of the one that failed would wait for feeds that do not come.
TEST(StepTable, FailedOpeningOfAPiece_NextPieceBeginsItsOwnRun) {
  HeldSteps worker_steps;
  StepTable table(worker_steps, 10);
  // Keeps the step in the table.
  ASSERT_TRUE(table.Begin(1, "s", "g", kAlive).ok());
  worker_steps.open_error = absl::ResourceExhaustedError("no room");
  EXPECT_FALSE(table.BeginPiece(1, "s", "h", kAlive).ok());
  const absl::StatusOr<StepTable::Piece> next = table.BeginPiece(1, "s", "h", kAlive);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(next->is_first);
  table.CleanupSession("s");
}

TEST(StepTable, KeepsTheMemoryOfFeedsUntilTheStepIsOver) {
  HeldSteps worker_steps;
  StepTable table(worker_steps, 10);
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
  // Nothing is kept of a step that is over.
  Budget::Share late;
  ASSERT_TRUE(budget.Take(30, late));
  table.Keep(1, std::move(late));
  EXPECT_EQ(budget.used(), 0u);
}

// As many as the limit, and one more when one of them is over; opening an open step again takes no
// more room.
TEST(StepTable, StepsUpToTheLimit_AreOpened) {
  HeldSteps worker_steps;
  StepTable table(worker_steps, 2);
  ASSERT_TRUE(table.Begin(1, "s", "g", kAlive).ok());
  ASSERT_TRUE(table.Begin(2, "s", "g", kAlive).ok());
  EXPECT_THAT(table.Begin(3, "s", "g", kAlive).status(),
              Fails(StatusCode::kResourceExhausted, HasSubstr("--max-graph-steps")));
  EXPECT_THAT(table.BeginPiece(3, "s", "g", kAlive).status(),
              Fails(StatusCode::kResourceExhausted, HasSubstr("--max-graph-steps")));
  EXPECT_TRUE(table.Begin(2, "s", "h", kAlive).ok());
  EXPECT_EQ(table.step_count(), 2u);
  table.Cleanup(1);
  EXPECT_TRUE(table.Begin(3, "s", "g", kAlive).ok());
}

// Ids are the masters', and two of them may draw the same.
TEST(StepTable, StepOfAnotherSession_IsNeitherEnteredNorCleanedUp) {
  HeldSteps worker_steps;
  StepTable table(worker_steps, 10);
  ASSERT_TRUE(table.Begin(1, "s", "g", kAlive).ok());
  EXPECT_THAT(table.Begin(1, "t", "h", kAlive).status(),
              Fails(StatusCode::kAborted, HasSubstr("another session's")));
  table.CleanupSession("t");
  EXPECT_EQ(table.step_count(), 1u);
  EXPECT_EQ(worker_steps.cleanups[1], 0);
  EXPECT_THAT(table.Begin(1, "s", "g", kAlive).status(),
              Fails(StatusCode::kAborted, HasSubstr("has been run in step 1 before")));
  // The same id once more, when it is free.
  table.Cleanup(1);
  EXPECT_TRUE(table.Begin(1, "t", "g", kAlive).ok());
}

TEST(StepTable, PartsOfAGraph_BelongToOneRun) {
  HeldSteps worker_steps;
  StepTable table(worker_steps, 10);
  const auto first = table.BeginPiece(1, "s", "g", kAlive);
  const auto second = table.BeginPiece(1, "s", "g", kAlive);
  const auto other = table.BeginPiece(1, "s", "h", kAlive);
  ASSERT_TRUE(first.ok() && second.ok() && other.ok());
  EXPECT_TRUE(first->is_first);
  EXPECT_FALSE(second->is_first);
  EXPECT_EQ(first->run, second->run);
  EXPECT_TRUE(other->is_first);
  EXPECT_NE(first->run, other->run);
  EXPECT_THAT(table.Begin(1, "s", "g", kAlive).status(),
              Fails(StatusCode::kAborted, HasSubstr("has been run in step 1 before")));
  table.Cleanup(1);
  const auto again = table.BeginPiece(1, "s", "g", kAlive);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->is_first);
  EXPECT_NE(again->run, first->run);
}

// One that does not wait for anything of its step would go on to its end.
TEST(StepTable, StepIsOver_ItsRunsAreCancelled) {
  HeldSteps worker_steps;
  StepTable table(worker_steps, 10);
  ASSERT_TRUE(table.Begin(1, "s", "g", kAlive).ok());
  PlanWriter writer;
  writer.AddRecv("in");
  const std::shared_ptr<const Plan> plan = writer.Make();
  const Executor executor = [](absl::AnyInvocable<void() &&> task) { std::move(task)(); };
  struct Waiting {
    std::shared_ptr<HeldTransfers> transfers = std::make_shared<HeldTransfers>();
    std::shared_ptr<GraphRun> run;
    std::vector<absl::Status> ends;
  };
  // Not of the step's transfers, which would end them too.
  Waiting listed;
  Waiting removed;
  Waiting late;
  for (Waiting* const each : {&listed, &removed, &late}) {
    GraphRunOptions options;
    options.executor = &executor;
    options.now_ns = [] { return int64_t{0}; };
    each->run =
        GraphRun::Create(plan, each->transfers, std::move(options),
                         [each](absl::Status status) { each->ends.push_back(std::move(status)); });
    each->run->Start();
  }
  table.AddRun(1, listed.run);
  table.AddRun(1, removed.run);
  table.RemoveRun(1, removed.run.get());
  table.Cleanup(1);
  ASSERT_EQ(listed.ends.size(), 1u);
  EXPECT_THAT(listed.ends[0], Fails(StatusCode::kAborted, HasSubstr("step 1 is over")));
  EXPECT_TRUE(removed.ends.empty());
  table.AddRun(1, late.run);
  EXPECT_EQ(late.run.use_count(), 2) << "the run itself, and the test: it is not kept";
  for (Waiting* const each : {&removed, &late}) {
    each->run->Cancel(absl::CancelledError("the test is over"));
    EXPECT_EQ(each->ends.size(), 1u);
  }
}

// In either order of the two ends, the last call is answered once, with the run's error if it has
// one.
TEST(PartialRun, BothEndsMeet_TheLastCallIsAnsweredOnce) {
  const absl::Status of_run = absl::InternalError("the run has failed");
  const absl::Status of_call = absl::InvalidArgumentError("the call has failed");
  for (const bool run_is_first : {true, false}) {
    for (const bool run_fails : {true, false}) {
      for (const bool call_fails : {true, false}) {
        PartialRun partial;
        std::vector<absl::Status> answers;
        const auto end_run = [&] { partial.EndRun(run_fails ? of_run : absl::OkStatus()); };
        if (run_is_first) end_run();
        partial.EndLastCall(call_fails ? of_call : absl::OkStatus(),
                            [&answers](absl::Status status) { answers.push_back(status); });
        EXPECT_EQ(answers.size(), run_is_first ? 1u : 0u);
        if (!run_is_first) end_run();
        ASSERT_EQ(answers.size(), 1u);
        EXPECT_EQ(answers[0], run_fails ? of_run : call_fails ? of_call : absl::OkStatus());
      }
    }
  }
}

TEST(PartialRun, SecondLastCall_IsRefusedAndTheFirstIsAnswered) {
  PartialRun partial;
  std::vector<absl::Status> first;
  std::vector<absl::Status> second;
  partial.EndLastCall(absl::OkStatus(), [&](absl::Status status) { first.push_back(status); });
  partial.EndLastCall(absl::OkStatus(), [&](absl::Status status) { second.push_back(status); });
  EXPECT_TRUE(first.empty());
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].code(), StatusCode::kAborted);
  partial.EndRun(absl::OkStatus());
  ASSERT_EQ(first.size(), 1u);
  EXPECT_TRUE(first[0].ok()) << first[0];
  EXPECT_EQ(second.size(), 1u);
}

}  // namespace
}  // namespace ferry::worker
