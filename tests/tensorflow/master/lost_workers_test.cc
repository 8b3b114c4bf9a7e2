// SPDX-License-Identifier: Apache-2.0
// Workers that restart, die, or lose each other.
#include "tests/tensorflow/master/master_fixture.h"

namespace ferry::master {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

// A worker has restarted. Steps that need it fail, with its name; others do not; a new session
// works at once.
TEST_F(StepTest, FailsStepsOfAWorkerThatRestarts) {
  cluster_.worker(1).hangs = true;
  const auto step = Start(&Master::RunStep, RunB());
  cluster_.Pump();
  EXPECT_FALSE(step->is_there());
  cluster_.Restart(1);
  master_.ClusterChanged();
  cluster_.Pump();
  ASSERT_EQ(step->count, 1);
  EXPECT_THAT(step->status(),
              Fails(absl::StatusCode::kAborted, HasSubstr("/job:worker/replica:0/task:1")));
  EXPECT_THAT(Fetch(session_, {"b:0"}, {{"x:0", 1}}),
              Fails(absl::StatusCode::kAborted,
                    AllOf(HasSubstr("/job:worker/replica:0/task:1"), HasSubstr("just restarted"))));
  EXPECT_THAT(*Fetch(session_, {"a:0"}), ElementsAre(2));
  const auto session = Create(TwoWorkerGraph().def());
  ASSERT_TRUE(session.ok());
  EXPECT_THAT(*Fetch(*session, {"b:0"}, {{"x:0", 1}}), ElementsAre(3));
  EXPECT_TRUE(Close(session_).ok());
}

// The threads that parse graphs may be at one of a million nodes: the loss of a worker does not
// wait for them.
TEST_F(StepTest, DetectsLossesWhileGraphsAreParsed) {
  cluster_.worker(1).hangs = true;
  const auto step = Start(&Master::RunStep, RunB());
  cluster_.Pump();
  HoldWork();
  // Listed no more, while its connection stays.
  cluster_.SetListed(1, false);
  master_.ClusterChanged();
  cluster_.Pump();
  EXPECT_EQ(step->count, 1);
  EXPECT_THAT(step->status(),
              Fails(absl::StatusCode::kAborted, HasSubstr("/job:worker/replica:0/task:1")));
  ReleaseWork();
  cluster_.SetListed(1, true);
}

// The membership may not know yet: the connection does.
TEST_F(StepTest, FailsStepsOfAWorkerThatDies) {
  cluster_.worker(1).hangs = true;
  const auto step = Start(&Master::RunStep, RunB());
  cluster_.Pump();
  cluster_.worker(1).Kill();
  cluster_.Pump();
  // Not UNAVAILABLE: a client would run it again.
  EXPECT_THAT(step->status(),
              Fails(absl::StatusCode::kAborted,
                    AllOf(HasSubstr("/job:worker/replica:0/task:1"), HasSubstr("lost"))));
  EXPECT_TRUE(cluster_.worker(0).steps.empty());
  EXPECT_THAT(Call(&Master::RunStep, RunB()),
              Fails(absl::StatusCode::kAborted, HasSubstr("/job:worker/replica:0/task:1")));
}

// Another worker notices first, and does not know its name here.
TEST_F(StepTest, NamesTheWorkerThatDied) {
  cluster_.worker(0).on_run = [](const auto&) {
    return absl::UnavailableError("node 1 has closed its connection");
  };
  cluster_.worker(1).hangs = true;
  const auto step = Start(&Master::RunStep, RunB());
  cluster_.Pump();
  EXPECT_FALSE(step->is_there());
  cluster_.worker(1).Kill();
  cluster_.Pump();
  EXPECT_THAT(step->status(),
              Fails(absl::StatusCode::kAborted,
                    AllOf(StartsWith("From /job:worker/replica:0/task:1"), HasSubstr("lost"))));
}

// It still runs, and only the connection between the two is broken.
TEST_F(StepTest, DoesNotWaitLongForACause) {
  cluster_.worker(0).on_run = [](const auto&) {
    return absl::UnavailableError("node 1 has closed its connection");
  };
  cluster_.worker(1).hangs = true;
  const auto step = Start(&Master::RunStep, RunB());
  cluster_.Pump();
  Pass(absl::Seconds(1));
  ASSERT_EQ(step->count, 1);
  EXPECT_THAT(step->status(), Fails(absl::StatusCode::kAborted,
                                    AllOf(StartsWith("From /job:worker/replica:0/task:0"),
                                          HasSubstr("node 1 has closed its connection"))));
  EXPECT_TRUE(HasNoSteps());
}

// It dies while the step is being registered there.
TEST_F(StepTest, FailsARegistrationOfAWorkerThatDies) {
  const auto step = Start(&Master::RunStep, RunB());
  cluster_.worker(1).Kill();
  cluster_.Pump();
  EXPECT_THAT(step->status(),
              Fails(absl::StatusCode::kAborted, HasSubstr("/job:worker/replica:0/task:1")));
}

}  // namespace
}  // namespace ferry::master
