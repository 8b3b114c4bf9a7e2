// SPDX-License-Identifier: Apache-2.0
// Barriers of recoverable jobs; barriers' messages, limits and listing.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/coord/barrier_calls.h"
#include "tests/coord/coordinator_fixture.h"

namespace ferry::coord {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// Uses "b" `count` times by tasks 0 and 1.
void UseBarrier(TestJob& job, int count) {
  for (int64_t counter = 0; counter < count; ++counter) {
    BarrierCall first = job.Barrier(0, "b", counter);
    ASSERT_THAT(job.Barrier(1, "b", counter).result(), IsOk());
    ASSERT_THAT(first.result(), IsOk());
  }
}

// How task 1 restarts, and how often the barrier was used before.
struct Restart {
  bool is_noticed;
  int uses_before;
};
class BarrierRestart : public ::testing::TestWithParam<Restart> {};

// The survivors wait; the restarted task does not know how often the barrier has been used.
TEST_P(BarrierRestart, WaitsForTheTaskThatRestarts) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  UseBarrier(job, GetParam().uses_before);
  BarrierCall waiting = job.Barrier(0, "b", GetParam().uses_before);
  if (GetParam().is_noticed) {
    job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0});
    ASSERT_EQ(job.state(1), TaskState::kError);
  }
  EXPECT_FALSE(waiting.done());
  ASSERT_THAT(job.Register(1, 999).result(), IsOk());
  EXPECT_FALSE(waiting.done());
  BarrierCall restarted = job.Barrier(1, "b", kFirst);
  EXPECT_THAT(restarted.result(), IsOk());
  EXPECT_THAT(waiting.result(), IsOk());
  EXPECT_EQ(restarted.result().counter, GetParam().uses_before);
  EXPECT_EQ(waiting.result().counter, GetParam().uses_before);
}

INSTANTIATE_TEST_SUITE_P(All, BarrierRestart,
                         ::testing::Values(Restart{false, 0}, Restart{true, 0}, Restart{false, 3},
                                           Restart{true, 3}));

// The restarted task arrives first.
TEST(BarrierRecovery, RestartedTaskOpensTheNextUse) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  UseBarrier(job, 3);
  ASSERT_THAT(job.Register(1, 999).result(), IsOk());
  BarrierCall restarted = job.Barrier(1, "b", kFirst);
  EXPECT_FALSE(restarted.done());
  EXPECT_THAT(job.Barrier(0, "b", 3).result(), IsOk());
  EXPECT_THAT(restarted.result(), IsOk());
  EXPECT_EQ(restarted.result().counter, 3);
}

// The restarting task had arrived already: its previous incarnation's arrival must not count.
TEST(BarrierRecovery, ArrivalOfAPreviousIncarnationIsWithdrawn) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  BarrierCall former = job.Barrier(1, "b");
  ASSERT_THAT(job.Register(1, 999).result(), IsOk());
  EXPECT_THAT(former.result(), Fails(absl::StatusCode::kCancelled));
  BarrierCall other = job.Barrier(0, "b");
  EXPECT_FALSE(other.done());
  EXPECT_THAT(job.Barrier(1, "b").result(), IsOk());
  EXPECT_THAT(other.result(), IsOk());
}

// A call of the dead process was still in flight when its end was detected. The new incarnation has
// not registered yet; its first call to the barrier names the first use that it knows of.
TEST(BarrierRecovery, ArrivalMadeWhileInErrorIsWithdrawnByTheNextIncarnation) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0});
  ASSERT_EQ(job.state(1), TaskState::kError);
  BarrierCall former = job.Barrier(1, "b");
  ASSERT_THAT(job.Register(1, 999).result(), IsOk());
  BarrierCall other = job.Barrier(0, "b");
  EXPECT_FALSE(other.done());
  EXPECT_THAT(job.Barrier(1, "b").result(), IsOk());
  EXPECT_THAT(other.result(), IsOk());
  EXPECT_EQ(former.count(), 1);
}

// A participant's error must not end the barrier of a recoverable job.
TEST(BarrierRecovery, AnErrorOfAParticipantCancelsOnlyItsOwnCall) {
  TestJob job(RecoverableOptions(3));
  job.RegisterAll();
  BarrierCall failing = job.Barrier(0, "b");
  BarrierCall waiting = job.Barrier(1, "b");
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(failing.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_FALSE(waiting.done());
  BarrierCall third = job.Barrier(2, "b");
  EXPECT_FALSE(third.done());
  ASSERT_THAT(job.Reset(0), IsOk());
  ASSERT_THAT(job.Register(0, 999).result(), IsOk());
  EXPECT_THAT(job.Barrier(0, "b").result(), IsOk());
  EXPECT_THAT(waiting.result(), IsOk());
  EXPECT_THAT(third.result(), IsOk());
}

// The task does not come back: the others must not wait forever.
TEST(BarrierRecovery, TimesOutWhenTheTaskStaysAway) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  BarrierCall waiting = job.Barrier(0, "b", kFirst, kEveryone, absl::Minutes(1));
  job.AdvanceWithHeartbeats(absl::Minutes(1), {0});
  EXPECT_THAT(waiting.result(), Fails(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(GetMissingTasks(waiting.result().status), "1");
}

// An operator sees one live rank of a hundred.
TEST(BarrierMessages, NameAllTheMissingAsRanges) {
  TestJob job(PlainOptions(100));
  ASSERT_THAT(job.Register(0).result(), IsOk());
  BarrierCall call = job.Barrier(0, "b", kFirst, kEveryone, absl::Milliseconds(100));
  job.Advance(absl::Milliseconds(100));
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded,
                                   AllOf(HasSubstr("1-99"), HasSubstr("1/100"))));
  EXPECT_EQ(GetMissingTasks(call.result().status), "1-99");
}

// Trailers over 3 kB are cut by upstream's server and refused by gRPC at 8.
TEST(BarrierMessages, StayShortWithManyMissingTasks) {
  TestJob job(PlainOptions(100'000));
  std::vector<BarrierCall> calls;
  for (int task = 0; task < 100'000; task += 2) {
    calls.push_back(job.Barrier(task, "b", kFirst, kEveryone, absl::Seconds(1)));
  }
  job.Advance(absl::Seconds(1));
  const absl::Status& status = calls[0].result().status;
  EXPECT_THAT(status, Fails(absl::StatusCode::kDeadlineExceeded, HasSubstr("50000/100000")));
  EXPECT_LT(status.message().size(), 2048u);
  EXPECT_LT(GetMissingTasks(status).size(), 2048u);
  EXPECT_THAT(GetMissingTasks(status), HasSubstr("1,3,5,"));
}

// An id can be anything a program makes up, kilobytes included.
TEST(BarrierMessages, StayShortWithALongId) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall call = job.Barrier(0, std::string(100'000, 'i'), kFirst, kEveryone, absl::Seconds(1));
  job.Advance(absl::Seconds(1));
  ASSERT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded));
  EXPECT_LT(call.result().status.message().size(), 2048u);
}

// A conflict may list both sets; upstream's server cuts messages at 3072 bytes.
TEST(BarrierMessages, StayShortForConflicts) {
  TestJob job(PlainOptions(20'000));
  std::vector<int> even;
  std::vector<int> thirds;
  for (int i = 0; i < 20'000; i += 2) even.push_back(i);
  for (int i = 0; i < 20'000; i += 3) thirds.push_back(i);
  BarrierCall first = job.Barrier(0, "b", kFirst, even);
  BarrierCall second = job.Barrier(0, "b", kFirst, thirds);
  for (const BarrierCall& call : {first, second}) {
    ASSERT_TRUE(call.done());
    EXPECT_LT(call.result().status.message().size(), 3072u);
  }
  EXPECT_THAT(second.result(), Fails(absl::StatusCode::kInvalidArgument));
}

// Clients take their next counter from the error; without the mark they would retry it instead.
TEST(BarrierMessages, CarryTheCoordinatorsMark) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall timed_out = job.Barrier(0, "b", kFirst, kEveryone, absl::Seconds(1));
  job.Advance(absl::Seconds(1));
  EXPECT_TRUE(GetErrorOrigin(timed_out.result().status).has_value());
  EXPECT_TRUE(GetErrorOrigin(job.Barrier(0, "b", 7).result().status).has_value());
}

// In a job of two parts "task 0" is two tasks.
TEST(BarrierMessages, NameThePartsOfTheJob) {
  CoordinatorOptions options = PlainOptions(0);
  options.jobs = {{"worker", 4}, {"ps", 2}};
  TestJob job(options);
  BarrierCall call = job.Barrier(1, "b", kFirst, kEveryone, absl::Seconds(1));
  job.Advance(absl::Seconds(1));
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded,
                                   AllOf(HasSubstr("worker"), HasSubstr("ps"))));
  EXPECT_EQ(GetMissingTasks(call.result().status),
            job.coordinator().jobs().Ranges(Tasks({0, 2, 3, 4, 5})));
}

// Programs that use a new barrier id in each step must not exhaust memory.
TEST(BarrierLimits, OldResultsAreForgotten) {
  CoordinatorOptions options = PlainOptions(2);
  options.max_finished_barriers = 2;
  TestJob job(options);
  job.RegisterAll();
  for (const char* id : {"a", "b", "c"})
    ASSERT_THAT(job.Barrier(0, id, kFirst, {0}).result(), IsOk());
  EXPECT_THAT(job.Barrier(0, "c", kFirst, {0}).result(), IsOk());
  EXPECT_THAT(job.CancelBarrier("a", 0), Fails(absl::StatusCode::kNotFound));
  EXPECT_THAT(job.CancelBarrier("c", 0), Fails(absl::StatusCode::kFailedPrecondition));
}

// Few may be large: ids of a mebibyte, or lists of thousands of tasks.
TEST(BarrierLimits, OldResultsAreForgottenByTheirBytesToo) {
  CoordinatorOptions options = PlainOptions(2);
  options.max_finished_barrier_bytes = 10'000;
  TestJob job(options);
  job.RegisterAll();
  const auto name = [](char c) { return std::string(1000, c); };
  for (const char c : {'a', 'b', 'c', 'd'}) {
    ASSERT_THAT(job.Barrier(0, name(c), kFirst, {0}).result(), IsOk());
    // A second use counts instead of the first.
    ASSERT_THAT(job.Barrier(0, name(c), 1, {0}).result(), IsOk());
  }
  EXPECT_THAT(job.CancelBarrier(name('a'), 1), Fails(absl::StatusCode::kNotFound));
  for (const char c : {'b', 'c', 'd'}) {
    EXPECT_THAT(job.CancelBarrier(name(c), 1), Fails(absl::StatusCode::kFailedPrecondition)) << c;
  }
  // The last is kept, however large it is.
  ASSERT_THAT(job.Barrier(0, std::string(20'000, 'x'), kFirst, {0}).result(), IsOk());
  EXPECT_THAT(job.CancelBarrier(std::string(20'000, 'x'), 0),
              Fails(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(job.CancelBarrier(name('d'), 1), Fails(absl::StatusCode::kNotFound));
}

// A barrier in use must not be forgotten because others have finished.
TEST(BarrierLimits, OpenBarrierIsKeptWhenManyOthersFinish) {
  CoordinatorOptions options = PlainOptions(2);
  options.max_finished_barriers = 1;
  TestJob job(options);
  job.RegisterAll();
  UseBarrier(job, 1);
  BarrierCall open = job.Barrier(0, "b", 1);
  for (int i = 0; i < 100; ++i) {
    ASSERT_THAT(job.Barrier(1, absl::StrCat("x", i), kFirst, {1}).result(), IsOk());
  }
  EXPECT_FALSE(open.done());
  EXPECT_THAT(job.Barrier(1, "b", 1).result(), IsOk());
  EXPECT_THAT(open.result(), IsOk());
}

// The same id finishes a hundred times: it is one barrier, and the others' results stay.
TEST(BarrierLimits, IdThatIsUsedOftenCountsOnce) {
  CoordinatorOptions options = PlainOptions(2);
  options.max_finished_barriers = 3;
  TestJob job(options);
  job.RegisterAll();
  ASSERT_THAT(job.Barrier(0, "kept", kFirst, {0}).result(), IsOk());
  UseBarrier(job, 100);
  EXPECT_THAT(job.CancelBarrier("kept", 0), Fails(absl::StatusCode::kFailedPrecondition));
  BarrierCall first = job.Barrier(0, "b", 100);
  EXPECT_THAT(job.Barrier(1, "b", 100).result(), IsOk());
  EXPECT_EQ(first.result().counter, 100);
}

// A training loop's barriers must not make the coordinator forget that the job has begun: a client
// that registers once more would wait for all tasks again, and its timeout would fail the job.
TEST(BarrierLimits, TheRegistrationIsNeverForgotten) {
  CoordinatorOptions options = PlainOptions(2);
  options.register_barrier = true;
  options.max_finished_barriers = 2;
  options.recoverable = true;
  TestJob job(options);
  job.RegisterAll();
  UseBarrier(job, 10);
  for (const char* id : {"x", "y", "z"}) {
    ASSERT_THAT(job.Barrier(0, id, kFirst, {0}).result(), IsOk());
  }
  EXPECT_TRUE(job.coordinator().everyone_has_registered());
  ASSERT_THAT(job.Reset(1), IsOk());
  EXPECT_THAT(job.Register(1, 999).result(), IsOk());
}

// An operator must be able to see who is missing, and since when, before the timeout.
TEST(BarrierListing, ShowsArrivedAndMissingTasks) {
  TestJob job(PlainOptions(4));
  job.RegisterAll();
  const absl::Time start = job.clock().Now();
  BarrierCall first = job.Barrier(2, "b", kFirst, {0, 1, 2}, absl::Seconds(5));
  job.Advance(absl::Seconds(1));
  BarrierCall second = job.Barrier(0, "b", kFirst, {0, 1, 2});
  const std::vector<BarrierInfo> open = job.coordinator().barriers().OpenBarriers();
  ASSERT_EQ(open.size(), 1u);
  EXPECT_EQ(open[0].id, "b");
  EXPECT_EQ(open[0].counter, 0);
  EXPECT_THAT(open[0].arrived,
              ElementsAre(Pair(TaskId(0), start + absl::Seconds(1)), Pair(TaskId(2), start)));
  EXPECT_THAT(open[0].missing, ElementsAre(TaskId(1)));
  EXPECT_EQ(open[0].first_arrival, start);
  EXPECT_EQ(open[0].deadline, start + absl::Seconds(5));
  EXPECT_EQ(job.coordinator().wait_count(), 2u);
  EXPECT_EQ(job.coordinator().Waits().size(), 2u);
  ASSERT_THAT(job.Barrier(1, "b", kFirst, {0, 1, 2}).result(), IsOk());
  EXPECT_THAT(job.coordinator().barriers().OpenBarriers(), IsEmpty());
  EXPECT_EQ(job.coordinator().wait_count(), 0u);
}

// Withdrawing a use restores the barrier's former result, which was evicted meanwhile: it must be
// evictable again, or the table outgrows its limit.
TEST(BarrierLimits, WithdrawnUseOfForgottenBarrier_IsForgottenAgain) {
  CoordinatorOptions options = RecoverableOptions(2);
  options.max_finished_barriers = 1;
  TestJob job(options);
  job.RegisterAll();
  UseBarrier(job, 1);
  BarrierCall open = job.Barrier(0, "b", 1);
  for (const char* id : {"x", "y"}) ASSERT_THAT(job.Barrier(1, id, kFirst, {1}).result(), IsOk());
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_TRUE(open.done());
  for (const char* id : {"v", "w"}) ASSERT_THAT(job.Barrier(1, id, kFirst, {1}).result(), IsOk());
  EXPECT_THAT(job.CancelBarrier("b", 0), Fails(absl::StatusCode::kNotFound));
}

// The limits are inclusive, in results and in bytes.
TEST(BarrierLimits, ResultsUpToTheLimit_AreKept) {
  CoordinatorOptions options = PlainOptions(2);
  options.max_finished_barriers = 2;
  TestJob job(options);
  job.RegisterAll();
  for (const char* id : {"a", "b", "c"})
    ASSERT_THAT(job.Barrier(0, id, kFirst, {0}).result(), IsOk());
  EXPECT_THAT(job.CancelBarrier("b"), Fails(absl::StatusCode::kFailedPrecondition));

  const size_t bytes_of_two = job.coordinator().InnerTableSizes()["barriers.finished_bytes"];
  options = PlainOptions(2);
  options.max_finished_barrier_bytes = bytes_of_two;
  TestJob small(options);
  small.RegisterAll();
  for (const char* id : {"a", "b"}) {
    ASSERT_THAT(small.Barrier(0, id, kFirst, {0}).result(), IsOk());
  }
  EXPECT_THAT(small.CancelBarrier("a"), Fails(absl::StatusCode::kFailedPrecondition));
  ASSERT_THAT(small.Barrier(0, "c", kFirst, {0}).result(), IsOk());
  EXPECT_THAT(small.CancelBarrier("a"), Fails(absl::StatusCode::kNotFound));
}

// The error of a late call replaces the result, is larger, and makes it the newest.
TEST(BarrierLimits, ResultReplacedByALateCall_CountsAnew) {
  CoordinatorOptions options = PlainOptions(2);
  options.max_finished_barriers = 2;
  TestJob job(options);
  job.RegisterAll();
  for (const char* id : {"a", "b"}) ASSERT_THAT(job.Barrier(0, id, kFirst, {0}).result(), IsOk());
  const auto bytes = [](TestJob& of) {
    return of.coordinator().InnerTableSizes()["barriers.finished_bytes"];
  };
  const size_t bytes_of_results = bytes(job);
  const BarrierCall late = job.Barrier(1, "a", kFirst, {1});
  ASSERT_THAT(late.result(), Fails(absl::StatusCode::kInvalidArgument));
  const size_t bytes_of_error = late.result().status.message().size();
  EXPECT_EQ(bytes(job), bytes_of_results + bytes_of_error);
  ASSERT_THAT(job.Barrier(0, "c", kFirst, {0}).result(), IsOk());
  EXPECT_THAT(job.CancelBarrier("a"), Fails(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(job.CancelBarrier("b"), Fails(absl::StatusCode::kNotFound));

  options = PlainOptions(2);
  options.max_finished_barrier_bytes = bytes_of_results + bytes_of_error - 1;
  TestJob small(options);
  small.RegisterAll();
  for (const char* id : {"a", "b"}) {
    ASSERT_THAT(small.Barrier(0, id, kFirst, {0}).result(), IsOk());
  }
  ASSERT_THAT(small.Barrier(1, "a", kFirst, {1}).result(),
              Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(small.CancelBarrier("b"), Fails(absl::StatusCode::kNotFound));
  EXPECT_THAT(small.CancelBarrier("a"), Fails(absl::StatusCode::kFailedPrecondition));
}

// A single-use barrier is kept, also after a client's attempt to use it again.
TEST(BarrierLimits, WithdrawnSecondUseOfAOneShotBarrier_IsNotForgotten) {
  CoordinatorOptions options = RecoverableOptions(2);
  options.max_finished_barriers = 1;
  TestJob job(options);
  job.RegisterAll();
  BarrierArrival arrival;
  arrival.id = "once";
  arrival.one_shot = true;
  for (const int task : {0, 1}) {
    arrival.caller = TaskId(task);
    (void)job.Barrier(arrival);
  }
  arrival.counter = 1;
  const BarrierCall second = job.Barrier(arrival);
  EXPECT_FALSE(second.done());
  ASSERT_THAT(job.Report(1, absl::UnavailableError("broken")), IsOk());
  EXPECT_THAT(second.result(), Fails(absl::StatusCode::kCancelled));
  for (const char* id : {"x", "y"}) ASSERT_THAT(job.Barrier(0, id, kFirst, {0}).result(), IsOk());
  arrival.counter = 0;
  arrival.caller = TaskId(0);
  ExpectPassed(job.Barrier(arrival), 0);
}

// It may come back, and the others wait for it there.
TEST(BarrierRecovery, ATaskInErrorThatIsRecoverableByItself_IsWaitedFor) {
  TestJob job(PlainOptions(2));
  Registration evaluator;
  evaluator.task = TaskId(0);
  evaluator.incarnation = Incarnation(LifeOf(0));
  evaluator.recoverable = true;
  ASSERT_THAT(job.Register(evaluator).result(), IsOk());
  ASSERT_THAT(job.Register(1).result(), IsOk());
  ASSERT_THAT(job.Report(0, absl::UnavailableError("broken")), IsOk());
  ASSERT_EQ(job.state(0), TaskState::kError);
  const BarrierCall waiting = job.Barrier(1, "b");
  EXPECT_FALSE(waiting.done());
  evaluator.incarnation = Incarnation(999);
  ASSERT_THAT(job.Register(evaluator).result(), IsOk());
  ExpectPassed(job.Barrier(0, "b"), 0);
  ExpectPassed(waiting, 0);
}

// The barrier is as if it had never been opened: neither the list nor the deadline binds later
// callers.
TEST(BarrierRecovery, WithdrawnFirstUse_LeavesNothing) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  const BarrierCall gone = job.Barrier(0, "b", kFirst, {0, 1}, absl::Seconds(1));
  ASSERT_THAT(job.Report(0, absl::UnavailableError("broken")), IsOk());
  EXPECT_THAT(gone.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_THAT(job.CancelBarrier("b"), Fails(absl::StatusCode::kNotFound));
  EXPECT_EQ(job.coordinator().InnerTableSizes()["barriers.open"], 0u);
  ExpectPassed(job.Barrier(1, "b", kFirst, {1}), 0);
}

// A use that is taken back leaves the result of the one before.
TEST(BarrierRecovery, WithdrawnLaterUse_LeavesThePreviousResult) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  UseBarrier(job, 1);
  const BarrierCall gone = job.Barrier(0, "b", 1, kEveryone, absl::Seconds(1));
  ASSERT_THAT(job.Report(0, absl::UnavailableError("broken")), IsOk());
  EXPECT_THAT(gone.result(), Fails(absl::StatusCode::kCancelled));
  job.AdvanceWithHeartbeats(absl::Seconds(2), {1});
  EXPECT_THAT(job.CancelBarrier("b", 0), Fails(absl::StatusCode::kFailedPrecondition));
  const BarrierCall next = job.Barrier(1, "b", 1);
  EXPECT_FALSE(next.done());
  ASSERT_THAT(job.Register(0, 999).result(), IsOk());
  ExpectPassed(job.Barrier(0, "b", 1), 1);
  ExpectPassed(next, 1);
}

// "Since when?" is since its first call.
TEST(BarrierListing, SecondCall_IsListedSinceTheFirst) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const absl::Time start = job.clock().Now();
  const BarrierCall first = job.Barrier(0, "b");
  job.Advance(absl::Seconds(1));
  const BarrierCall second = job.Barrier(0, "b");
  const std::vector<BarrierInfo> open = job.coordinator().barriers().OpenBarriers();
  ASSERT_EQ(open.size(), 1u);
  EXPECT_THAT(open[0].arrived, ElementsAre(Pair(TaskId(0), start)));
}

}  // namespace
}  // namespace ferry::coord
