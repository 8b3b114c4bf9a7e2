// SPDX-License-Identifier: Apache-2.0
// Barriers of a job that is not recoverable: which calls pass, which fail, and that all agree.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/coord/barrier_calls.h"
#include "tests/coord/coordinator_fixture.h"

namespace ferry::coord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A rank that continues too early reads values that are not set yet.
TEST(Barrier, PassesForAllWhenTheLastTaskArrives) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b");
  BarrierCall second = job.Barrier(1, "b");
  EXPECT_FALSE(first.done());
  EXPECT_FALSE(second.done());
  BarrierCall third = job.Barrier(2, "b");
  for (const BarrierCall& call : {first, second, third}) ExpectPassed(call, 0);
}

// A subset must not wait for tasks that are not in it.
TEST(Barrier, SubsetPassesByItself) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b", kFirst, {0, 1});
  EXPECT_FALSE(first.done());
  BarrierCall second = job.Barrier(1, "b", kFirst, {1, 0});
  ExpectPassed(first, 0);
  ExpectPassed(second, 0);
}

// Two programs disagree about the participants: both would wait forever.
TEST(Barrier, ConflictingTaskListsFailAllCallers) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b", kFirst, {0, 1});
  BarrierCall second = job.Barrier(1, "b", kFirst, {1, 2});
  EXPECT_THAT(first.result(),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("Conflicting tasks")));
  EXPECT_THAT(second.result(), Fails(absl::StatusCode::kInvalidArgument));
}

// The barrier of all tasks is not that of a list, even for the tasks on the list.
TEST(Barrier, AllTasksConflictWithASubset) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b", kFirst, {0, 1});
  BarrierCall second = job.Barrier(1, "b", kFirst, kEveryone);
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(second.result(), Fails(absl::StatusCode::kInvalidArgument));
}

// One program lists all its processes, the other lists none: both mean the barrier of all tasks.
TEST(Barrier, OneListsAllTasksTheOtherNone_AreOneBarrier) {
  const std::vector<std::vector<int>> spellings = {{}, {0, 1, 2}, {2, 0, 1}, {1, 2, 0, 0, 2}};
  for (const std::vector<int>& first : spellings) {
    for (const std::vector<int>& second : spellings) {
      TestJob job(PlainOptions(3));
      job.RegisterAll();
      // Later uses require the same tasks as the first.
      for (const int64_t counter : {0, 1}) {
        BarrierCall one = job.Barrier(0, "b", counter, counter == 0 ? first : second);
        BarrierCall two = job.Barrier(1, "b", counter, counter == 0 ? second : first);
        EXPECT_FALSE(one.done());
        BarrierCall three = job.Barrier(2, "b", counter, second);
        for (const BarrierCall& call : {one, two, three}) ExpectPassed(call, counter);
      }
    }
  }
}

TEST(Barrier, ASubsetInAnotherOrderAndWithRepeats_IsTheSameSubset) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(2, "b", kFirst, {2, 0});
  BarrierCall second = job.Barrier(0, "b", kFirst, {0, 2, 0});
  ExpectPassed(first, 0);
  ExpectPassed(second, 0);
}

// With several named parts, the list of all is that of all parts.
TEST(Barrier, TheTasksOfOnePartAreNotTheBarrierOfAll) {
  CoordinatorOptions options = PlainOptions(2);
  options.jobs = {{"worker", 2}, {"ps", 1}};
  TestJob job(options);
  job.RegisterAll();
  BarrierCall worker = job.Barrier(0, "all", kFirst, kEveryone);
  BarrierCall other_worker = job.Barrier(1, "all", kFirst, {0, 1, 2});
  ExpectPassed(job.Barrier(2, "all", kFirst, {2, 1, 0}), 0);
  ExpectPassed(worker, 0);
  ExpectPassed(other_worker, 0);
  BarrierCall of_part = job.Barrier(0, "part", kFirst, {0, 1});
  EXPECT_THAT(job.Barrier(1, "part", kFirst, kEveryone).result(),
              Fails(absl::StatusCode::kInvalidArgument,
                    HasSubstr("No tasks were specified by the client")));
  EXPECT_THAT(of_part.result(), Fails(absl::StatusCode::kInvalidArgument));
}

// The list is compared first: the error is the disagreement, not that the caller is no participant.
TEST(Barrier, CallerOnNeitherOfTwoConflictingLists_GetsTheConflict) {
  TestJob job(PlainOptions(4));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b", kFirst, {0, 1});
  EXPECT_THAT(job.Barrier(2, "b", kFirst, {0, 3}).result(),
              Fails(absl::StatusCode::kInvalidArgument,
                    HasSubstr("Conflicting tasks specified by different processes")));
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kInvalidArgument));
}

// The error of a use that cannot be opened precedes the check of the caller, as in upstream's
// service.
TEST(Barrier, OpenedByANonParticipantWithAParticipantInError_ReportsTheError) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  StatusCall poll = job.Poll(1);
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(job.Barrier(2, "b", kFirst, {0, 1}).result(),
              Fails(absl::StatusCode::kInternal, HasSubstr("already in error")));
}

// The earlier call of the same task is superseded, as by any other call; the others receive the
// error.
TEST(Barrier, SecondCallOfAWaitingTaskWithAnotherList_CancelsTheFirstAndFailsTheOthers) {
  for (const int64_t counter : {0, 1}) {
    TestJob job(PlainOptions(3));
    job.RegisterAll();
    BarrierCall first = job.Barrier(0, "b");
    BarrierCall other = job.Barrier(1, "b");
    BarrierCall second = job.Barrier(0, "b", counter, {0, 1});
    const absl::StatusCode verdict =
        counter == 0 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kInternal;
    EXPECT_THAT(first.result(), Fails(absl::StatusCode::kCancelled));
    EXPECT_THAT(other.result(), Fails(verdict));
    EXPECT_THAT(second.result(), Fails(verdict));
  }
}

// It would continue although the tasks on its list have not arrived.
TEST(Barrier, CallWithAnotherListAfterItPassed_IsAConflict) {
  const struct {
    int caller;
    std::vector<int> tasks;
    const char* text;
  } calls[] = {{0, {0, 2}, "Conflicting tasks specified"},
               {0, {0}, "Conflicting tasks specified"},
               {0, {0, 1, 2}, "Conflicting tasks specified"},
               {2, {0, 2}, "Conflicting tasks specified"},
               {0, {}, "No tasks were specified by the client"},
               {2, {}, "No tasks were specified by the client"},
               {2, {0, 1}, "A non-participating task"}};
  for (const auto& call : calls) {
    TestJob job(PlainOptions(3));
    job.RegisterAll();
    BarrierCall first = job.Barrier(0, "b", kFirst, {0, 1});
    ExpectPassed(job.Barrier(1, "b", kFirst, {0, 1}), 0);
    ExpectPassed(first, 0);
    // A different order of the same tasks is the same list.
    ExpectPassed(job.Barrier(0, "b", kFirst, {1, 0, 1}), 0);
    BarrierCall late = job.Barrier(call.caller, "b", kFirst, call.tasks);
    EXPECT_EQ(late.wait(), kNoWait);
    EXPECT_THAT(late.result(), Fails(absl::StatusCode::kInvalidArgument, HasSubstr(call.text)));
    EXPECT_EQ(late.result().counter, 0);
    // That is the result of this use from now on, as in upstream's service; the next use is
    // unaffected.
    EXPECT_EQ(job.Barrier(1, "b", kFirst, {0, 1}).result().status, late.result().status);
    BarrierCall next = job.Barrier(0, "b", 1, {0, 1});
    ExpectPassed(job.Barrier(1, "b", 1, {0, 1}), 1);
    ExpectPassed(next, 1);
  }
}

TEST(Barrier, CallWithAnotherListAfterABarrierOfAllPassed_IsAConflict) {
  TestJob job(PlainOptions(2));
  PassOnce(job);
  ExpectPassed(job.Barrier(0, "b", kFirst, {1, 0}), 0);
  EXPECT_THAT(job.Barrier(0, "b", kFirst, {0}).result(),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("Conflicting tasks specified")));
}

// The error is the conflict, not the result of the use for the callers that agreed.
TEST(Barrier, CallWithAnotherListAfterItFailed_IsAConflict) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b", kFirst, {0, 1}, absl::Seconds(1));
  job.Advance(absl::Seconds(1));
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(job.Barrier(1, "b", kFirst, {1, 0}).result(),
              Fails(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(job.Barrier(2, "b", kFirst, {1, 2}).result(),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("Conflicting tasks specified")));
}

// The coordinator's own barriers decide which tasks have joined; no client's call can revert that.
TEST(Barrier, ConflictingCallToTheRegisterBarrier_DoesNotUndoTheRegistration) {
  CoordinatorOptions options = PlainOptions(2);
  options.register_barrier = true;
  TestJob job(options);
  job.RegisterAll();
  const std::string id(Coordinator::RegisterBarrierId());
  EXPECT_THAT(job.Barrier(0, id, kFirst, {0}).result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(job.coordinator().everyone_has_registered());
}

// One process computed the participants wrongly.
TEST(Barrier, NonParticipantFailsAllCallers) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b", kFirst, {0, 1});
  BarrierCall stranger = job.Barrier(2, "b", kFirst, {0, 1});
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(stranger.result(),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("A non-participating task")));
}

// The non-participant calls first.
TEST(Barrier, NonParticipantThatCallsFirstIsRefused) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  EXPECT_THAT(job.Barrier(2, "b", kFirst, {0, 1}).result(),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("A non-participating task")));
}

// The list names a task that does not exist.
TEST(Barrier, UnknownParticipantIsRefused) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  EXPECT_THAT(job.Barrier(0, "b", kFirst, {0, 67}).result(),
              Fails(absl::StatusCode::kInvalidArgument,
                    HasSubstr("Unexpected task 67 in the barrier's list: the cluster has tasks 0 "
                              "to 2")));
  EXPECT_THAT(job.Barrier(0, "c", kFirst, {0, -1}).result(),
              Fails(absl::StatusCode::kInvalidArgument));
}

// Upstream counts an unknown caller as arrived, and then crashes.
TEST(Barrier, AnUnknownCallerIsRefusedAndDoesNotCount) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b");
  EXPECT_THAT(job.Barrier(7, "b").result(),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("it has tasks 0 to 1")));
  EXPECT_THAT(job.Barrier(-1, "c").result(), Fails(absl::StatusCode::kInvalidArgument));
}

// All callers must get the same result, and the result must name the missing tasks.
TEST(Barrier, TimeoutFailsAllCallersAndNamesTheMissing) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(2, "b", kFirst, kEveryone, absl::Seconds(1));
  BarrierCall second = job.Barrier(0, "b", kFirst, kEveryone, absl::Hours(1));
  job.Advance(absl::Seconds(1));
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kDeadlineExceeded,
                                    AllOf(HasSubstr("Barrier timed out"), HasSubstr("b::0"),
                                          HasSubstr("2/3 tasks had reached it"),
                                          HasSubstr("the first /job:jax_worker/replica:0/task:2"),
                                          HasSubstr("Missing tasks: 1"))));
  EXPECT_EQ(first.result().status, second.result().status);
  EXPECT_EQ(GetMissingTasks(first.result().status), "1");
  EXPECT_EQ(first.result().counter, 0);
}

// The first to come decides; a later, shorter timeout must not end it for all.
TEST(Barrier, OnlyTheFirstTimeoutCounts) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b", kFirst, kEveryone, absl::Seconds(9));
  BarrierCall second = job.Barrier(1, "b", kFirst, kEveryone, absl::Seconds(1));
  job.Advance(absl::Seconds(8));
  EXPECT_FALSE(first.done());
  EXPECT_FALSE(second.done());
  BarrierCall third = job.Barrier(2, "b");
  for (const BarrierCall& call : {first, second, third}) ExpectPassed(call, 0);
}

// The message is about the use that timed out, not about the one before.
TEST(Barrier, TimeoutOfALaterUse_NamesTheFirstToReachThatUse) {
  TestJob job(PlainOptions(2));
  PassOnce(job);
  const BarrierCall call = job.Barrier(1, "b", 1, kEveryone, absl::Seconds(1));
  job.Advance(absl::Seconds(1));
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded,
                                   AllOf(HasSubstr("b::1"), HasSubstr("After 1s 1/2"),
                                         HasSubstr("the first /job:jax_worker/replica:0/task:1"))));
}

// A task that arrives late must get the others' result instead of waiting alone.
TEST(Barrier, LateCallerGetsTheSameTimeoutAtOnce) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b", kFirst, kEveryone, absl::Seconds(1));
  job.Advance(absl::Seconds(1));
  BarrierCall straggler = job.Barrier(1, "b", kFirst, kEveryone, absl::Seconds(1));
  EXPECT_EQ(straggler.wait(), kNoWait);
  EXPECT_THAT(straggler.result(), Fails(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(straggler.result().status, first.result().status);
  EXPECT_EQ(straggler.result().counter, 0);
}

// One slow step must not make the barrier unusable.
TEST(Barrier, NextUsePassesAfterATimeout) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall timed_out = job.Barrier(0, "b", kFirst, kEveryone, absl::Seconds(1));
  job.Advance(absl::Seconds(1));
  ASSERT_TRUE(timed_out.done());
  (void)job.Barrier(1, "b");
  BarrierCall first = job.Barrier(0, "b", 1);
  BarrierCall second = job.Barrier(1, "b", 1);
  ExpectPassed(first, 1);
  ExpectPassed(second, 1);
}

// A dead participant cannot arrive; waiting for it would waste the timeout.
TEST(Barrier, ParticipantInErrorFailsItAtOnce) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  StatusCall poll = job.Poll(1);
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(poll.result(), Fails(absl::StatusCode::kInternal, HasSubstr("broken")));
  EXPECT_THAT(job.Barrier(1, "b").result(),
              Fails(absl::StatusCode::kInternal,
                    AllOf(HasSubstr("already in error"), HasSubstr("broken"))));
}

// A process that reports an error leaves right after; the others may call the barrier later.
TEST(Barrier, ParticipantThatHasLeftInErrorFailsItAtOnce) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  StatusCall poll = job.Poll(1);
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  ASSERT_THAT(job.coordinator().LeaveTask(TaskId(0), Incarnation(LifeOf(0))), IsOk());
  job.Drain();
  ASSERT_EQ(job.state(0), TaskState::kDisconnected);
  EXPECT_THAT(job.Barrier(1, "b").result(),
              Fails(absl::StatusCode::kInternal,
                    AllOf(HasSubstr("already in error"), HasSubstr("broken"))));
  const BarrierCall others = job.Barrier(1, "of two", kFirst, {1, 2});
  EXPECT_FALSE(others.done());
  // A process that comes in its place may arrive.
  ASSERT_THAT(job.Register(0, 999).result(), IsOk());
  const BarrierCall again = job.Barrier(1, "again");
  EXPECT_FALSE(again.done());
}

// One that left without an error may come back too.
TEST(Barrier, ParticipantThatHasLeftIsWaitedFor) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.coordinator().LeaveTask(TaskId(0), Incarnation(LifeOf(0))), IsOk());
  job.Drain();
  const BarrierCall waiting = job.Barrier(1, "b");
  EXPECT_FALSE(waiting.done());
}

// Survivors may still use barriers among themselves.
TEST(Barrier, ErrorOutsideASubsetDoesNotAffectIt) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  StatusCall poll = job.Poll(1);
  BarrierCall before = job.Barrier(1, "before", kFirst, {1, 2});
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_FALSE(before.done());
  ExpectPassed(job.Barrier(2, "before", kFirst, {1, 2}), 0);
  ExpectPassed(before, 0);
}

// The participant fails while the others wait.
TEST(Barrier, ErrorOfAParticipantFailsWaitersAndLaterCallers) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  StatusCall poll = job.Poll(1);
  BarrierCall waiting = job.Barrier(1, "b");
  EXPECT_FALSE(waiting.done());
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(waiting.result(), Fails(absl::StatusCode::kInternal));
  BarrierCall later = job.Barrier(2, "b");
  EXPECT_THAT(later.result(), Fails(absl::StatusCode::kInternal));
  EXPECT_EQ(later.result().status, waiting.result().status);
}

// The same by silence.
TEST(Barrier, TheSilentDeathOfAParticipantFailsTheWaiters) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall waiting = job.Barrier(0, "b");
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0});
  EXPECT_THAT(waiting.result(), Fails(absl::StatusCode::kInternal));
}

// A task that has left cannot arrive either.
TEST(Barrier, ParticipantThatLeavesFailsTheWaiters) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall of_all = job.Barrier(0, "all");
  BarrierCall of_two = job.Barrier(0, "two", kFirst, {0, 1});
  ASSERT_THAT(job.Shutdown(2).result(), IsOk());
  EXPECT_THAT(of_all.result(), Fails(absl::StatusCode::kInternal));
  EXPECT_FALSE(of_two.done());
  ASSERT_THAT(job.Reset(1), IsOk());
  EXPECT_THAT(of_two.result(), Fails(absl::StatusCode::kInternal));
}

// A training loop uses one id in every step.
TEST(Barrier, OneIdCanBeUsedRepeatedly) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  for (int64_t counter = 0; counter < 5; ++counter) {
    BarrierCall first = job.Barrier(0, "step", counter);
    EXPECT_FALSE(first.done());
    BarrierCall second = job.Barrier(1, "step", counter);
    ExpectPassed(first, counter);
    ExpectPassed(second, counter);
  }
}

// The answer was lost and the client asks again.
TEST(Barrier, RepeatedCallAfterItPassedIsOkAtOnce) {
  TestJob job(PlainOptions(2));
  PassOnce(job);
  BarrierCall repeat = job.Barrier(0, "b");
  EXPECT_EQ(repeat.wait(), kNoWait);
  ExpectPassed(repeat, 0);
}

// A client of another incarnation counts differently.
TEST(Barrier, CounterBelowTheFirstIsRefused) {
  TestJob job(PlainOptions(2));
  PassOnce(job);
  BarrierCall call = job.Barrier(0, "b", -1);
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kInternal));
  EXPECT_EQ(call.result().counter, 0);
}

// The client's counter is ahead.
TEST(Barrier, CounterThatSkipsAUseIsRefused) {
  TestJob job(PlainOptions(2));
  PassOnce(job);
  BarrierCall call = job.Barrier(0, "b", 2);
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kInternal));
  EXPECT_EQ(call.result().counter, 0);
}

// A client starts to count at another number than the others.
TEST(Barrier, FirstUseWithAnotherCounterIsRefused) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall call = job.Barrier(0, "b", 3);
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kInternal));
  BarrierCall first = job.Barrier(0, "b", call.result().counter + 1);
  EXPECT_FALSE(first.done());
  ExpectPassed(job.Barrier(1, "b", call.result().counter + 1), call.result().counter + 1);
}

// A counter that does not fit fails the open use too: its users would never all arrive.
TEST(Barrier, WrongCounterFailsTheOpenUseForAllCallers) {
  for (const int64_t wrong : {-1, 1, 2}) {
    TestJob job(PlainOptions(3));
    job.RegisterAll();
    BarrierCall waiting = job.Barrier(0, "b", 0);
    BarrierCall stray = job.Barrier(1, "b", wrong);
    EXPECT_THAT(waiting.result(), Fails(absl::StatusCode::kInternal)) << wrong;
    EXPECT_THAT(stray.result(), Fails(absl::StatusCode::kInternal)) << wrong;
    EXPECT_EQ(stray.result().counter, 0) << wrong;
  }
}

// One task is so slow that the other has timed out twice.
TEST(Barrier, TaskThatIsOneUseBehindIsNotified) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  for (int64_t counter = 0; counter < 2; ++counter) {
    BarrierCall quick = job.Barrier(0, "b", counter, kEveryone, absl::Seconds(1));
    job.Advance(absl::Seconds(1));
    EXPECT_THAT(quick.result(), Fails(absl::StatusCode::kDeadlineExceeded));
    EXPECT_EQ(quick.result().counter, counter);
  }
  BarrierCall slow = job.Barrier(1, "b", 0);
  EXPECT_THAT(slow.result(), Fails(absl::StatusCode::kInternal, HasSubstr("too quick / slow")));
  EXPECT_EQ(slow.result().counter, 1);
}

}  // namespace
}  // namespace ferry::coord
