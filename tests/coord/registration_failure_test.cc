// SPDX-License-Identifier: Apache-2.0
// Registration: a process that was to be one of the tasks cannot be, and reports it.
#include <string>
#include <utility>

#include "tests/coord/coordinator_fixture.h"
#include "tests/coord/registration_options.h"

namespace ferry::coord {
namespace {

using ::testing::HasSubstr;

constexpr char kWhy[] = "RANK=0 and SLURM_PROCID=2 disagree";

auto FailsForThat() { return Fails(absl::StatusCode::kFailedPrecondition, HasSubstr(kWhy)); }

// Otherwise they would wait for minutes, and only report that a task is missing.
TEST(RegistrationFailure, ReachesAllWaitingTasksAtOnce) {
  TestJob job(TogetherOptions(4));
  const StatusCall first = job.Register(0);
  const StatusCall second = job.Register(1);
  EXPECT_THAT(job.FailJoining(kWhy).result(), IsOk());
  EXPECT_THAT(first.result(), FailsForThat());
  EXPECT_THAT(second.result(), FailsForThat());
  EXPECT_EQ(job.state(0), TaskState::kError);
  // A task that arrives late gets it too, also from a second process that cannot join.
  EXPECT_THAT(job.Register(2).result(), FailsForThat());
  EXPECT_THAT(job.FailJoining("another reason").result(), IsOk());
  EXPECT_THAT(job.Register(3).result(), FailsForThat());
}

// A refused process does not enumerate devices first, and so calls before the others register.
TEST(RegistrationFailure, WaitsForTheFirstTaskToArrive) {
  TestJob job(TogetherOptions(2));
  const StatusCall failure = job.FailJoining(kWhy);
  const StatusCall another = job.FailJoining("another reason");
  EXPECT_FALSE(failure.done());
  EXPECT_EQ(job.coordinator().wait_count(), 2u);
  EXPECT_EQ(job.coordinator().Waits().size(), 2u);
  EXPECT_THAT(job.Register(0).result(), FailsForThat());
  EXPECT_THAT(failure.result(), IsOk());
  EXPECT_THAT(another.result(), IsOk());
  EXPECT_EQ(job.coordinator().wait_count(), 0u);
}

// A surplus process does not affect a running job.
TEST(RegistrationFailure, DoesNotAffectACompleteJob) {
  TestJob job(TogetherOptions(2));
  const StatusCall first = job.Register(0);
  ASSERT_THAT(job.Register(1).result(), IsOk());
  const StatusCall poll = job.Poll(0);
  EXPECT_THAT(job.FailJoining(kWhy).result(), FailsForThat());
  EXPECT_FALSE(poll.done());
  EXPECT_THAT(job.Heartbeat(0), IsOk());
  EXPECT_EQ(job.state(1), TaskState::kConnected);
}

TEST(RegistrationFailure, IsForgottenWhenItsProcessHasWaitedLongEnough) {
  TestJob job(TogetherOptions(2));
  const StatusCall failure = job.FailJoining(kWhy, absl::Seconds(20));
  job.Advance(absl::Seconds(20) - absl::Milliseconds(1));
  EXPECT_FALSE(failure.done());
  job.Advance(absl::Milliseconds(1));
  EXPECT_THAT(failure.result(), Fails(absl::StatusCode::kDeadlineExceeded, HasSubstr(kWhy)));
  const StatusCall first = job.Register(0);
  EXPECT_FALSE(first.done());
  EXPECT_THAT(job.Register(1).result(), IsOk());
  EXPECT_THAT(first.result(), IsOk());
}

TEST(RegistrationFailure, EndsWithItsCallerAndWithTheCoordinator) {
  TestJob job(TogetherOptions(2));
  const StatusCall gone = job.FailJoining(kWhy);
  EXPECT_TRUE(job.Cancel(gone.wait()));
  EXPECT_FALSE(job.Cancel(gone.wait()));
  EXPECT_THAT(gone.result(), Fails(absl::StatusCode::kCancelled));
  const StatusCall first = job.Register(0);
  EXPECT_FALSE(first.done());
  ASSERT_TRUE(job.Cancel(first.wait()));
  const StatusCall stopped = job.FailJoining(kWhy);
  job.Stop();
  EXPECT_THAT(stopped.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_THAT(job.FailJoining(kWhy).result(), Fails(absl::StatusCode::kInternal));
}

// The same coordinator serves the next attempt once the processes of this one have ended.
TEST(RegistrationFailure, EndsThatJobOnly) {
  TestJob job(TogetherOptions(2));
  const StatusCall told = job.Register(0);
  ASSERT_THAT(job.FailJoining(kWhy).result(), IsOk());
  EXPECT_THAT(job.Register(0, 2000).result(), FailsForThat());
  job.Advance(kHeartbeatTimeout + absl::Milliseconds(1));
  const StatusCall first = job.Register(0, 2001);
  EXPECT_FALSE(first.done());
  EXPECT_THAT(job.Register(1, 2002).result(), IsOk());
  EXPECT_THAT(first.result(), IsOk());
  EXPECT_EQ(job.coordinator().epoch(), 2);
}

// Its processes never worked: a corrected job need not wait until they would have been missed.
TEST(RegistrationFailure, OverALongHeartbeatTimeout_TheNextJobBeginsSooner) {
  CoordinatorOptions options = TogetherOptions(2);
  options.heartbeat_timeout = absl::Hours(1);
  TestJob job(options);
  const StatusCall told = job.Register(0);
  ASSERT_THAT(job.FailJoining(kWhy).result(), IsOk());
  job.Advance(absl::Seconds(20));
  EXPECT_THAT(job.Register(1, 2000).result(),
              Fails(absl::StatusCode::kFailedPrecondition,
                    ::testing::AllOf(HasSubstr(kWhy), HasSubstr("20s"), HasSubstr("ferry reset"))));
  job.Advance(absl::Milliseconds(1));
  const StatusCall first = job.Register(0, 2001);
  EXPECT_FALSE(first.done());
  EXPECT_THAT(job.Register(1, 2002).result(), IsOk());
  EXPECT_THAT(first.result(), IsOk());
}

// All tasks of the previous job have registered and left: it is not that job that cannot begin.
TEST(RegistrationFailure, IsReportedToTheNextJobWhenOneIsOver) {
  TestJob job(TogetherOptions(2));
  (void)job.Register(0);
  ASSERT_THAT(job.Register(1).result(), IsOk());
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  ASSERT_THAT(job.Shutdown(1).result(), IsOk());
  const StatusCall failure = job.FailJoining(kWhy);
  EXPECT_FALSE(failure.done());
  EXPECT_THAT(job.Register(0, 2000).result(), FailsForThat());
  EXPECT_THAT(failure.result(), IsOk());
  EXPECT_EQ(job.coordinator().epoch(), 2);
}

// `ferry reset` before anything was started again.
TEST(RegistrationFailure, OfAJobThatIsEndedByHand_IsNotPassedOnToTheNext) {
  TestJob job(TogetherOptions(2));
  const StatusCall failure = job.FailJoining(kWhy);
  ASSERT_THAT(job.coordinator().EndJob("by hand", /*force=*/false), IsOk());
  job.Drain();
  EXPECT_THAT(failure.result(), Fails(absl::StatusCode::kAborted, HasSubstr("by hand")));
  const StatusCall first = job.Register(0, 2000);
  EXPECT_FALSE(first.done());
  EXPECT_THAT(job.Register(1, 2001).result(), IsOk());
  EXPECT_THAT(first.result(), IsOk());
}

// Tasks that did not wait for the others may be at work.
TEST(RegistrationFailure, WithoutTheBarrierEndsOnlyTheWaits) {
  TestJob job(PlainOptions(3));
  ASSERT_THAT(job.Register(0).result(), IsOk());
  Registration patient;
  patient.task = TaskId(1);
  patient.incarnation = Incarnation(LifeOf(1));
  patient.waits_for_all = true;
  const StatusCall waiting = job.Register(patient);
  ASSERT_FALSE(waiting.done());
  EXPECT_THAT(job.FailJoining(kWhy).result(), IsOk());
  EXPECT_THAT(waiting.result(), FailsForThat());
  EXPECT_THAT(job.Heartbeat(0), IsOk());
  EXPECT_EQ(job.state(1), TaskState::kDisconnected);
  // It may try again.
  const StatusCall again = job.Register(patient);
  EXPECT_FALSE(again.done());
  ASSERT_THAT(job.Register(2).result(), IsOk());
  EXPECT_THAT(again.result(), IsOk());
}

// The second start of a job fails as well, for another process.
TEST(RegistrationFailure, WaitsForTheNextAttemptWhenThePreviousOneIsOver) {
  TestJob job(TogetherOptions(2));
  const StatusCall told = job.Register(0);
  ASSERT_THAT(job.FailJoining("an earlier reason").result(), IsOk());
  ASSERT_TRUE(told.done());
  job.Advance(absl::Seconds(20) + absl::Milliseconds(1));
  const StatusCall failure = job.FailJoining(kWhy);
  EXPECT_FALSE(failure.done());
  EXPECT_THAT(job.Register(0, 2000).result(), FailsForThat());
  EXPECT_THAT(failure.result(), IsOk());
}

// Processes that start tasks later, such as `ferry run`.
TEST(JoiningWatch, IsNotifiedOfAFailureAtOnce) {
  TestJob job(TogetherOptions(3));
  const StatusCall watch = job.WatchJoining();
  EXPECT_EQ(job.coordinator().wait_count(), 1u);
  EXPECT_EQ(job.coordinator().Waits().size(), 1u);
  const StatusCall failure = job.FailJoining(kWhy);
  EXPECT_THAT(watch.result(), FailsForThat());
  // Tasks may still come, and so may other watches.
  EXPECT_FALSE(failure.done());
  EXPECT_THAT(job.WatchJoining().result(), FailsForThat());
  EXPECT_THAT(job.Register(0).result(), FailsForThat());
  EXPECT_THAT(failure.result(), IsOk());
  EXPECT_EQ(job.coordinator().notified_of_joining_failure(), 4u);
}

TEST(JoiningWatch, ReceivesTheErrorOfWaitingTasks) {
  CoordinatorOptions options = TogetherOptions(3);
  options.heartbeat_timeout = absl::Hours(1);
  TestJob job(options);
  const StatusCall first = job.Register(0);
  const StatusCall watch = job.WatchJoining();
  EXPECT_FALSE(watch.done());
  ASSERT_THAT(job.FailJoining(kWhy).result(), IsOk());
  EXPECT_THAT(watch.result(), FailsForThat());
  // A watch that begins late is notified for as long as tasks that arrive late are.
  job.Advance(absl::Seconds(20));
  EXPECT_THAT(job.WatchJoining().result(),
              Fails(absl::StatusCode::kFailedPrecondition,
                    ::testing::AllOf(HasSubstr(kWhy), HasSubstr("20s"), HasSubstr("ferry reset"))));
  job.Advance(absl::Milliseconds(1));
  EXPECT_FALSE(job.WatchJoining().done());
}

TEST(JoiningWatch, WithoutTheBarrierIsNotifiedToo) {
  TestJob job(PlainOptions(3));
  Registration patient;
  patient.task = TaskId(1);
  patient.incarnation = Incarnation(LifeOf(1));
  patient.waits_for_all = true;
  const StatusCall waiting = job.Register(patient);
  const StatusCall watch = job.WatchJoining();
  ASSERT_THAT(job.FailJoining(kWhy).result(), IsOk());
  EXPECT_THAT(waiting.result(), FailsForThat());
  EXPECT_THAT(watch.result(), FailsForThat());
}

// `ferry run` of the next job waits while processes of the current one end, each in its own way.
TEST(JoiningWatch, IsNotNotifiedForAJobThatHasBegun) {
  TestJob job(TogetherOptions(2));
  const StatusCall watch = job.WatchJoining();
  (void)job.Register(0);
  ASSERT_THAT(job.Register(1).result(), IsOk());
  EXPECT_FALSE(watch.done());
  EXPECT_THAT(job.FailJoining(kWhy).result(), FailsForThat());
  EXPECT_FALSE(watch.done());
  // All have failed or left, and one of them reports it.
  ASSERT_THAT(job.Report(0, absl::InternalError("out of memory")), IsOk());
  ASSERT_THAT(job.Reset(1), IsOk());
  const StatusCall failure = job.FailJoining(kWhy, absl::Milliseconds(500));
  EXPECT_FALSE(watch.done());
  EXPECT_FALSE(job.WatchJoining().done());
  job.Advance(absl::Milliseconds(500));
  EXPECT_THAT(failure.result(), Fails(absl::StatusCode::kDeadlineExceeded));
  // The next job begins, and that does not end the wait either.
  job.Advance(absl::Minutes(10));
  (void)job.Register(0, 2000);
  EXPECT_EQ(job.coordinator().epoch(), 2);
  EXPECT_FALSE(watch.done());
  (void)job.FailJoining(kWhy);
  EXPECT_THAT(watch.result(), FailsForThat());
}

TEST(JoiningWatch, EndsWithItsCallerAndWithTheCoordinator) {
  TestJob job(TogetherOptions(2));
  const StatusCall gone = job.WatchJoining();
  EXPECT_TRUE(job.Cancel(gone.wait()));
  EXPECT_FALSE(job.Cancel(gone.wait()));
  EXPECT_THAT(gone.result(), Fails(absl::StatusCode::kCancelled));
  const StatusCall stopped = job.WatchJoining();
  job.Stop();
  EXPECT_THAT(stopped.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_THAT(job.WatchJoining().result(), Fails(absl::StatusCode::kInternal));
}

TEST(JoiningWatch, HasALimit) {
  CoordinatorOptions options = TogetherOptions(2);
  options.max_pending_gets = 1;
  TestJob job(options);
  EXPECT_FALSE(job.WatchJoining().done());
  EXPECT_THAT(job.WatchJoining().result(),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("--max-pending-gets")));
}

// A coordinator that node 0 runs only to report why it cannot join.
TEST(RefusedJoining, IsReportedToAllCallersAndHasNoEnd) {
  TestJob job(TogetherOptions(3));
  const StatusCall first = job.Register(0);
  const StatusCall watch = job.WatchJoining();
  job.coordinator().RefuseJoining(absl::FailedPreconditionError(kWhy));
  job.Drain();
  EXPECT_THAT(first.result(), FailsForThat());
  EXPECT_THAT(watch.result(), FailsForThat());
  EXPECT_EQ(job.coordinator().notified_of_joining_failure(), 2u);
  EXPECT_THAT(job.Register(1).result(),
              Fails(absl::StatusCode::kFailedPrecondition,
                    ::testing::AllOf(HasSubstr(kWhy), ::testing::Not(HasSubstr("next job")))));
  EXPECT_EQ(job.coordinator().notified_of_joining_failure(), 3u);
  // Calling again does not make it another process.
  EXPECT_THAT(job.Register(1).result(), FailsForThat());
  EXPECT_EQ(job.coordinator().notified_of_joining_failure(), 3u);
  // Much later: no other job begins.
  job.Advance(absl::Minutes(10));
  EXPECT_THAT(job.Register(2, 2002).result(), FailsForThat());
  EXPECT_THAT(job.WatchJoining().result(), FailsForThat());
  EXPECT_EQ(job.coordinator().notified_of_joining_failure(), 5u);
  // A process that is refused itself need not be notified.
  EXPECT_THAT(job.FailJoining("another reason").result(), IsOk());
  EXPECT_EQ(job.coordinator().notified_of_joining_failure(), 6u);
}

TEST(RefusedJoining, IsReportedToTheFirstCaller) {
  TestJob job(TogetherOptions(2));
  job.coordinator().RefuseJoining(absl::FailedPreconditionError(kWhy));
  job.Drain();
  EXPECT_THAT(job.Register(1).result(), FailsForThat());
  EXPECT_EQ(job.coordinator().notified_of_joining_failure(), 1u);
}

// The reason is stored, and sent to all tasks.
TEST(RegistrationFailure, LongReasonIsTruncated) {
  TestJob job(TogetherOptions(2));
  const StatusCall first = job.Register(0);
  EXPECT_THAT(job.FailJoining(std::string(size_t{40} << 10, 'x')).result(), IsOk());
  EXPECT_THAT(first.result(),
              Fails(absl::StatusCode::kFailedPrecondition, HasSubstr("x... (8192 bytes more)")));
}

// Nothing is left of the waits that were ended, also when they would have ended by themselves.
TEST(RegistrationFailure, WithoutTheBarrierEndsTheDeadlinesOfTheWaits) {
  TestJob job(PlainOptions(2));
  Registration patient;
  patient.task = TaskId(1);
  patient.incarnation = Incarnation(LifeOf(1));
  patient.waits_for_all = true;
  patient.own_timeout = absl::Seconds(1);
  const StatusCall waiting = job.Register(patient);
  ASSERT_THAT(job.FailJoining(kWhy).result(), IsOk());
  ASSERT_THAT(waiting.result(), FailsForThat());
  EXPECT_EQ(job.coordinator().NextDeadline(), absl::InfiniteFuture());
  job.Advance(absl::Seconds(2));
  const StatusCall again = job.Register(patient);
  EXPECT_FALSE(again.done());
  ASSERT_THAT(job.Register(0).result(), IsOk());
  EXPECT_THAT(again.result(), IsOk());
}

// Each call waits for its answer: they must not exhaust memory, and a cancelled call makes room.
TEST(RegistrationFailure, TooManyProcesses_AreRefused) {
  TestJob job(TogetherOptions(2));
  std::vector<StatusCall> waiting;
  for (int i = 0; i < 4096; ++i) waiting.push_back(job.FailJoining(kWhy));
  EXPECT_FALSE(waiting.back().done());
  EXPECT_THAT(job.FailJoining(kWhy).result(),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("4096")));
  EXPECT_EQ(job.coordinator().notified_of_joining_failure(), 4096u);
  ASSERT_TRUE(job.Cancel(waiting.front().wait()));
  EXPECT_FALSE(job.FailJoining(kWhy).done());
}

}  // namespace
}  // namespace ferry::coord
