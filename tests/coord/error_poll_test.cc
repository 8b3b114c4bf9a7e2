// SPDX-License-Identifier: Apache-2.0
// How tasks are notified that the job has failed.
#include <string>
#include <utility>
#include <vector>

#include "tests/coord/coordinator_fixture.h"

namespace ferry::coord {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// An orderly stop of the coordinator must not look like a failure of the job.
TEST(ErrorPoll, EndsCancelledWhenTheServiceStops) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall first = job.Poll(0);
  StatusCall second = job.Poll(1);
  job.Stop();
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_THAT(second.result(), Fails(absl::StatusCode::kCancelled));
}

// One rank fails; all must stop, and receive the reason.
TEST(ErrorPoll, ReportedErrorReachesAllPollers) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall first = job.Poll(0);
  StatusCall second = job.Poll(1);
  ASSERT_THAT(job.Report(1, absl::InternalError("out of luck")), IsOk());
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kInternal, HasSubstr("out of luck")));
  EXPECT_THAT(second.result(), Fails(absl::StatusCode::kInternal));
}

// CANCELLED is how a poll ends when there is no error.
TEST(ErrorPoll, ReportOfACancellationIsAnErrorToo) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  ASSERT_THAT(job.Report(1, absl::CancelledError("stopped by SIGTERM")), IsOk());
  EXPECT_THAT(poll.result(), Fails(absl::StatusCode::kAborted, HasSubstr("stopped by SIGTERM")));
}

// The report is stored, and sent to each of thousands of tasks: a rank that reports its whole log
// must not fill the coordinator's memory with copies of it.
TEST(ErrorPoll, LongReportIsTruncated) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  std::string report = "the cause, then ";
  while (report.size() < 5'000'000) report += "\xc3\xa9";
  ASSERT_THAT(job.Report(1, absl::InternalError(report)), IsOk());
  const absl::string_view told = poll.result().message();
  EXPECT_LT(told.size(), 40'000u);
  EXPECT_GT(told.size(), 20'000u);
  EXPECT_THAT(std::string(told.substr(0, 200)), HasSubstr("the cause, then"));
  EXPECT_THAT(std::string(told.substr(told.size() - 40)), HasSubstr("bytes more)"));
  // Whole characters.
  EXPECT_EQ(told[told.find("... (") - 1], '\xa9');
}

// The payload tells clients a reported error from one that the coordinator found.
TEST(ErrorPoll, ReportedErrorNamesItsReporter) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  ASSERT_THAT(job.Report(2, absl::InternalError("out of luck")), IsOk());
  const std::optional<ErrorOrigin> origin = GetErrorOrigin(poll.result());
  ASSERT_TRUE(origin.has_value());
  EXPECT_TRUE(origin->is_reported);
  EXPECT_EQ(origin->source, TaskId(2));
}

TEST(ErrorPoll, ErrorFoundByTheCoordinatorIsNotMarkedAsReported) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0});
  const std::optional<ErrorOrigin> origin = GetErrorOrigin(poll.result());
  ASSERT_TRUE(origin.has_value());
  EXPECT_FALSE(origin->is_reported);
}

// The process believes that it is part of the job.
TEST(ErrorPoll, UnknownTaskIsRefused) {
  TestJob job(PlainOptions(2));
  EXPECT_THAT(job.Poll(2).result(),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("not in the cluster")));
}

// The poll of a task that polls too early would never be answered.
TEST(ErrorPoll, IsRefusedBeforeRegistration) {
  TestJob job(PlainOptions(2));
  EXPECT_THAT(job.Poll(0).result(),
              Fails(absl::StatusCode::kFailedPrecondition, HasSubstr("has not been registered")));
}

// A poll that crossed the shutdown on the wire.
TEST(ErrorPoll, WaitsWithinGraceAfterAShutdown) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  StatusCall poll = job.Poll(0);
  EXPECT_FALSE(poll.done());
  job.Stop();
  EXPECT_THAT(poll.result(), Fails(absl::StatusCode::kCancelled));
}

// A task that left long ago must not be kept waiting.
TEST(ErrorPoll, IsRefusedPastGraceAfterAShutdown) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {1});
  EXPECT_THAT(job.Poll(0).result(),
              Fails(absl::StatusCode::kFailedPrecondition, HasSubstr("has disconnected")));
}

// The same after a reset.
TEST(ErrorPoll, IsRefusedPastGraceAfterAReset) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Reset(0), IsOk());
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {1});
  EXPECT_THAT(job.Poll(0).result(),
              Fails(absl::StatusCode::kFailedPrecondition, HasSubstr("has disconnected")));
}

// The task that failed has the error already.
TEST(ErrorPoll, IsRefusedForATaskThatReportedAnError) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(job.Poll(0).result(), Fails(absl::StatusCode::kFailedPrecondition));
}

// A process resumes after it was declared dead.
TEST(ErrorPoll, IsRefusedForATaskThatTimedOut) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  job.Advance(2 * kHeartbeatTimeout);
  EXPECT_THAT(job.Poll(0).result(),
              Fails(absl::StatusCode::kFailedPrecondition, HasSubstr("already in error")));
}

// A client's connection broke and it polls again: the old poll must not leak.
TEST(ErrorPoll, SecondPollReplacesTheFirst) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall first = job.Poll(0);
  StatusCall second = job.Poll(0);
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_FALSE(second.done());
  ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(second.result(), Fails(absl::StatusCode::kInternal));
  EXPECT_EQ(first.count(), 1);
}

// In a recoverable job the survivors continue.
TEST(ErrorPoll, ErrorDoesNotReachTheOthersWhenRecoverable) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(1);
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_FALSE(poll.done());
  EXPECT_THAT(job.Heartbeat(1), IsOk());
  EXPECT_EQ(job.state(1), TaskState::kConnected);
}

// A recoverable task must not continue as if it had not failed, but may come back.
TEST(ErrorPoll, RecoverableTaskComesBackThroughAReset) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(job.Heartbeat(0), Fails(absl::StatusCode::kAborted));
  ASSERT_THAT(job.Reset(0), IsOk());
  EXPECT_THAT(job.Register(0, 999).result(), IsOk());
  EXPECT_THAT(job.Heartbeat(0, 999), IsOk());
}

// Only one that was lost may come back by itself: an error that a task has reported is cleared by a
// reset.
TEST(ErrorPoll, RecoverableTaskInError_RegistersOnlyIfItWasLost) {
  TestJob job(RecoverableOptions(3));
  job.RegisterAll();
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(job.Register(0, 999).result(),
              Fails(absl::StatusCode::kAborted, HasSubstr("already in error")));
  EXPECT_EQ(job.state(0), TaskState::kError);
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {2});
  ASSERT_EQ(job.state(1), TaskState::kError);
  EXPECT_THAT(job.Register(1, 999).result(), IsOk());
}

// Only connected tasks may report errors.
TEST(ErrorPoll, ReportOfATaskThatIsNotConnectedIsRefused) {
  TestJob job(PlainOptions(2));
  const absl::Status error = absl::InternalError("broken");
  EXPECT_THAT(job.Report(0, error), Fails(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(job.Report(2, error), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(job.Report(-1, error), Fails(absl::StatusCode::kInvalidArgument));
  job.RegisterAll();
  ASSERT_THAT(job.Report(0, error), IsOk());
  EXPECT_THAT(job.Report(0, error), Fails(absl::StatusCode::kFailedPrecondition));
  job.Stop();
  EXPECT_THAT(job.Report(1, error), Fails(absl::StatusCode::kInternal));
}

// A process is killed.
TEST(ErrorPoll, SilentDeathOfATaskIsReportedUnlessRecoverable) {
  TestJob strict(PlainOptions(3));
  strict.RegisterAll();
  StatusCall told = strict.Poll(1);
  strict.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0, 1});
  EXPECT_THAT(told.result(), Fails(absl::StatusCode::kUnavailable));

  TestJob recoverable(RecoverableOptions(3));
  recoverable.RegisterAll();
  StatusCall spared = recoverable.Poll(1);
  recoverable.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0, 1});
  EXPECT_EQ(recoverable.state(2), TaskState::kError);
  EXPECT_FALSE(spared.done());
}

// The first error is the cause; later ones are its consequences.
TEST(ErrorPoll, OnlyTheFirstErrorIsReported) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  ASSERT_THAT(job.Report(1, absl::InternalError("the cause")), IsOk());
  ASSERT_THAT(poll.result(), Fails(absl::StatusCode::kInternal, HasSubstr("the cause")));
  ASSERT_THAT(job.Report(2, absl::DataLossError("a consequence")), IsOk());
  EXPECT_THAT(job.Poll(0).result(), Fails(absl::StatusCode::kInternal, HasSubstr("the cause")));
  EXPECT_THAT(job.coordinator().job_error(), Fails(absl::StatusCode::kInternal));
}

// The first poll comes after the failure: it must still be answered with it.
TEST(ErrorPoll, IsAnsweredAtOnceWhenItComesAfterTheError) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  StatusCall early = job.Poll(0);
  ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(job.Poll(2).result(), Fails(absl::StatusCode::kInternal, HasSubstr("broken")));
}

// Old clients never poll: without this they would hang with a dead peer.
TEST(ErrorPoll, WithoutPollersAReportFailsAllHeartbeats) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(job.Heartbeat(0), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(job.Heartbeat(2), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(job.task(2).status, Fails(absl::StatusCode::kInternal));
}

// A task that leaves in peace must not take its own parting for an error.
TEST(ErrorPoll, EndsCancelledWhenItsTaskLeaves) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall shut_down = job.Poll(0);
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  EXPECT_THAT(shut_down.result(), Fails(absl::StatusCode::kCancelled));
  StatusCall reset = job.Poll(1);
  ASSERT_THAT(job.Reset(1), IsOk());
  EXPECT_THAT(reset.result(), Fails(absl::StatusCode::kCancelled));
}

// A clean parting of one task is no error of the others.
TEST(ErrorPoll, ContinuesWhenAnotherTaskLeaves) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(1);
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  EXPECT_FALSE(poll.done());
}

TEST(ErrorPoll, IsInternalAfterTheStop) {
  TestJob job(PlainOptions(1));
  job.RegisterAll();
  job.Stop();
  EXPECT_THAT(job.Poll(0).result(), Fails(absl::StatusCode::kInternal));
}

// The client disconnected: its poll must not stay pending forever.
TEST(ErrorPoll, CanBeCancelled) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  EXPECT_TRUE(job.Cancel(poll.wait()));
  EXPECT_THAT(poll.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_FALSE(job.Cancel(poll.wait()));
  ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
  EXPECT_EQ(poll.count(), 1);
}

// An OK report is a client's bug; no task may be notified of an error "OK".
TEST(ErrorPoll, IsNeverAnsweredWithOk) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  (void)job.Report(1, absl::OkStatus());
  job.Stop();
  ASSERT_TRUE(poll.done());
  EXPECT_FALSE(poll.result().ok());
}

// TensorFlow's tasks run an error service of their own and do not poll.
TEST(ErrorPoll, TasksWithAnErrorAddressAreCalled) {
  TestJob job(PlainOptions(3));
  std::vector<std::string> called;
  job.coordinator().SetErrorReport([&](const std::string& address, const absl::Status& error) {
    called.push_back(address);
    EXPECT_THAT(error, Fails(absl::StatusCode::kInternal));
  });
  for (int task = 0; task < 3; ++task) {
    Registration registration;
    registration.task = TaskId(task);
    registration.incarnation = Incarnation(LifeOf(task));
    if (task < 2) registration.facts.error_address = absl::StrCat("host", task, ":1");
    ASSERT_THAT(job.Register(registration).result(), IsOk());
  }
  EXPECT_THAT(called, IsEmpty());
  ASSERT_THAT(job.Report(2, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(called, UnorderedElementsAre("host0:1", "host1:1"));
}

// Accepted for one heartbeat timeout after the task has left, and refused from its end on.
TEST(ErrorPoll, AtTheEndOfTheGracePeriod_IsRefused) {
  TestJob job(PlainOptions(1));
  job.RegisterAll();
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  job.Advance(kHeartbeatTimeout - absl::Nanoseconds(1));
  EXPECT_FALSE(job.Poll(0).done());
  job.Advance(absl::Nanoseconds(1));
  EXPECT_THAT(job.Poll(0).result(), Fails(absl::StatusCode::kFailedPrecondition));
}

// The report is sent to all tasks: at most 32 KiB, and no partial character at its end.
TEST(ErrorPoll, Report_IsCutAtItsLimitBetweenCharacters) {
  constexpr size_t kMost = size_t{32} << 10;
  EXPECT_EQ(FirstOf(std::string(kMost, 'x')), std::string(kMost, 'x'));
  EXPECT_EQ(FirstOf(std::string(kMost + 1, 'x')), std::string(kMost, 'x') + "... (1 bytes more)");
  EXPECT_EQ(FirstOf(std::string(kMost - 1, 'x') + "\xc3\xa9"),
            std::string(kMost - 1, 'x') + "... (2 bytes more)");
}

}  // namespace
}  // namespace ferry::coord
