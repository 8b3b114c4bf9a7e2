// SPDX-License-Identifier: Apache-2.0
// Barriers of a job that is not recoverable: who passes, who fails, and together.
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

// Scenario 81. A rank that goes on too early reads what is not there yet.
TEST(Barrier, Scenario81EveryonePassesWhenTheLastHasCome) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b");
  BarrierCall second = job.Barrier(1, "b");
  EXPECT_FALSE(first.done());
  EXPECT_FALSE(second.done());
  BarrierCall third = job.Barrier(2, "b");
  for (const BarrierCall& call : {first, second, third}) ExpectPassed(call, 0);
}

// Scenario 82. A subset must not wait for those who have no part in it.
TEST(Barrier, Scenario82ASubsetPassesByItself) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b", kFirst, {0, 1});
  EXPECT_FALSE(first.done());
  BarrierCall second = job.Barrier(1, "b", kFirst, {1, 0});
  ExpectPassed(first, 0);
  ExpectPassed(second, 0);
}

// Scenario 83. Two programs disagree about who meets: both would wait for ever.
TEST(Barrier, Scenario83ConflictingTasksFailEveryone) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b", kFirst, {0, 1});
  BarrierCall second = job.Barrier(1, "b", kFirst, {1, 2});
  EXPECT_THAT(first.result(),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("Conflicting tasks")));
  EXPECT_THAT(second.result(), Fails(absl::StatusCode::kInvalidArgument));
}

// "Everyone" is not the same as a list, even for those on the list.
TEST(Barrier, EveryoneConflictsWithASubset) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b", kFirst, {0, 1});
  BarrierCall second = job.Barrier(1, "b", kFirst, kEveryone);
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(second.result(), Fails(absl::StatusCode::kInvalidArgument));
}

// Scenario 84. A stranger at the meeting: somebody computed the groups wrongly.
TEST(Barrier, Scenario84ANonParticipantFailsEveryone) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b", kFirst, {0, 1});
  BarrierCall stranger = job.Barrier(2, "b", kFirst, {0, 1});
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(stranger.result(),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("A non-participating task")));
}

// The stranger comes first.
TEST(Barrier, ANonParticipantThatComesFirstIsRefused) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  EXPECT_THAT(job.Barrier(2, "b", kFirst, {0, 1}).result(),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("A non-participating task")));
}

// Scenario 86. A task that cannot come.
TEST(Barrier, Scenario86AnUnknownParticipantIsRefused) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  EXPECT_THAT(job.Barrier(0, "b", kFirst, {0, 67}).result(),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("67")));
  EXPECT_THAT(job.Barrier(0, "c", kFirst, {0, -1}).result(),
              Fails(absl::StatusCode::kInvalidArgument));
}

// Upstream counts an unknown caller as arrived, and then crashes.
TEST(Barrier, AnUnknownCallerIsRefusedAndDoesNotCount) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b");
  EXPECT_THAT(job.Barrier(7, "b").result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(job.Barrier(-1, "c").result(), Fails(absl::StatusCode::kInvalidArgument));
}

// Scenario 87. All must come to one verdict, and the verdict must name names.
TEST(Barrier, Scenario87TheTimeoutIsEveryonesAndNamesTheMissing) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(2, "b", kFirst, kEveryone, absl::Seconds(1));
  BarrierCall second = job.Barrier(0, "b", kFirst, kEveryone, absl::Hours(1));
  job.Advance(absl::Seconds(1));
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kDeadlineExceeded,
                                    AllOf(HasSubstr("Barrier timed out"), HasSubstr("b::0"),
                                          HasSubstr("2/3"), HasSubstr("1"), HasSubstr("2"))));
  EXPECT_EQ(first.result().status, second.result().status);
  EXPECT_EQ(GetMissingTasks(first.result().status), "1");
  EXPECT_EQ(first.result().counter, 0);
}

// The first to come decides; a later, shorter patience must not end it for all.
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

// Scenario 88. The straggler must share the others' verdict, not wait alone for them.
TEST(Barrier, Scenario88AStragglerGetsTheSameTimeoutAtOnce) {
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

// Scenario 89. One slow step must not spoil the barrier for ever.
TEST(Barrier, Scenario89AfterATimeoutTheNextUsePasses) {
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

// Scenario 90. A dead participant cannot come; waiting for it wastes the timeout.
TEST(Barrier, Scenario90AParticipantInErrorFailsItAtOnce) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  StatusCall poll = job.Poll(1);
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(job.Barrier(1, "b").result(), Fails(absl::StatusCode::kInternal));
}

// Survivors may still meet among themselves.
TEST(Barrier, AnErrorElsewhereDoesNotTouchASubset) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  StatusCall poll = job.Poll(1);
  BarrierCall before = job.Barrier(1, "before", kFirst, {1, 2});
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_FALSE(before.done());
  ExpectPassed(job.Barrier(2, "before", kFirst, {1, 2}), 0);
  ExpectPassed(before, 0);
}

// Scenario 91. It dies while the others wait.
TEST(Barrier, Scenario91AnErrorOfAParticipantFailsTheWaitersAndWhoeverComesLater) {
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

// Whoever has left will not come either.
TEST(Barrier, APartingParticipantFailsTheWaiters) {
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

// Scenario 92. A training loop meets at one id every step.
TEST(Barrier, Scenario92OneIdServesAgainAndAgain) {
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

// Scenario 94. Scenario 101. The answer was lost and the client asks again.
TEST(Barrier, Scenario94And101ARepeatAfterItPassedIsOkAtOnce) {
  TestJob job(PlainOptions(2));
  PassOnce(job);
  BarrierCall repeat = job.Barrier(0, "b");
  EXPECT_EQ(repeat.wait(), kNoWait);
  ExpectPassed(repeat, 0);
}

// Scenario 94. A client of another life counts differently.
TEST(Barrier, Scenario94ACounterBelowTheFirstIsRefused) {
  TestJob job(PlainOptions(2));
  PassOnce(job);
  BarrierCall call = job.Barrier(0, "b", -1);
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kInternal));
  EXPECT_EQ(call.result().counter, 0);
}

// Scenario 94. One that is ahead.
TEST(Barrier, Scenario94ACounterThatSkipsAUseIsRefused) {
  TestJob job(PlainOptions(2));
  PassOnce(job);
  BarrierCall call = job.Barrier(0, "b", 2);
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kInternal));
  EXPECT_EQ(call.result().counter, 0);
}

// A client starts to count at another number than the others.
TEST(Barrier, AFirstUseWithAnotherCounterIsRefused) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall call = job.Barrier(0, "b", 3);
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kInternal));
  BarrierCall first = job.Barrier(0, "b", call.result().counter + 1);
  EXPECT_FALSE(first.done());
  ExpectPassed(job.Barrier(1, "b", call.result().counter + 1), call.result().counter + 1);
}

// A counter that does not fit fails the open use too: its users would never all meet.
TEST(Barrier, AWrongCounterFailsTheOpenUseForEveryone) {
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

// Scenario 95. One task is so slow that the other has given up twice.
TEST(Barrier, Scenario95ATaskThatIsOneUseBehindIsTold) {
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
