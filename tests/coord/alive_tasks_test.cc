// SPDX-License-Identifier: Apache-2.0
// GetAliveTasks: concurrent callers with the same list receive the same answer.
#include <string>
#include <utility>
#include <vector>

#include "tests/coord/coordinator_fixture.h"

namespace ferry::coord {
namespace {

using ::testing::ElementsAre;

std::vector<int> NumbersOf(const AliveCall& call) {
  std::vector<int> numbers;
  if (!call.result().ok()) return {-1};
  for (const TaskInfo& info : *call.result()) numbers.push_back(info.task.value());
  return numbers;
}

// Survivors build a communicator from the answer, so it must be identical for all of them.
TEST(AliveTasks, CallersOfOneRoundGetTheSameList) {
  TestJob job(PlainOptions(3));
  for (int i = 0; i < 3; ++i) ASSERT_THAT(job.Register(i, i).result(), IsOk());
  const AliveCall first = job.Alive(0, {0, 1, 2});
  const AliveCall second = job.Alive(1, {2, 1, 0});
  EXPECT_FALSE(first.done());
  EXPECT_FALSE(second.done());
  const AliveCall third = job.Alive(2, {0, 1, 2});
  for (const AliveCall& call : {first, second, third}) {
    EXPECT_THAT(NumbersOf(call), ElementsAre(0, 1, 2));
    ASSERT_THAT(call.result(), IsOk());
    for (const TaskInfo& info : *call.result()) {
      EXPECT_EQ(info.incarnation, Incarnation(info.task.value()));
      EXPECT_EQ(info.state, TaskState::kConnected);
    }
  }
}

// A list with repeats or in another order is the same set.
TEST(AliveTasks, ListsOfOneSetInAnySpelling_ShareARound) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  const AliveCall first = job.Alive(0, {0, 2});
  const AliveCall second = job.Alive(2, {2, 0, 2, 0});
  EXPECT_THAT(NumbersOf(first), ElementsAre(0, 2));
  EXPECT_THAT(NumbersOf(second), ElementsAre(0, 2));
}

// A round must not wait for a failed task.
TEST(AliveTasks, TaskInErrorIsNeitherWaitedForNorListed) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  ASSERT_THAT(job.Report(2, absl::InternalError("broken")), IsOk());
  const AliveCall first = job.Alive(0, {0, 1, 2});
  EXPECT_FALSE(first.done());
  const AliveCall second = job.Alive(1, {0, 1, 2});
  EXPECT_THAT(NumbersOf(first), ElementsAre(0, 1));
  EXPECT_THAT(NumbersOf(second), ElementsAre(0, 1));
}

// The one that all wait for dies.
TEST(AliveTasks, ARoundEndsWhenTheLastMissingTaskFails) {
  TestJob job(RecoverableOptions(3));
  job.RegisterAll();
  const AliveCall first = job.Alive(0, {0, 1, 2});
  const AliveCall second = job.Alive(1, {0, 1, 2});
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0, 1});
  EXPECT_THAT(NumbersOf(first), ElementsAre(0, 1));
  EXPECT_THAT(NumbersOf(second), ElementsAre(0, 1));
}

// Or leaves.
TEST(AliveTasks, ARoundEndsWhenTheLastMissingTaskLeaves) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  const AliveCall first = job.Alive(0, {0, 1, 2});
  const AliveCall second = job.Alive(1, {0, 1, 2});
  ASSERT_THAT(job.Shutdown(2).result(), IsOk());
  EXPECT_THAT(NumbersOf(first), ElementsAre(0, 1));
  EXPECT_THAT(NumbersOf(second), ElementsAre(0, 1));
}

// Neighbouring groups ask at the same time.
TEST(AliveTasks, RoundsOfDifferentSetsAreIndependent) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  const AliveCall left = job.Alive(0, {0, 1});
  const AliveCall right = job.Alive(2, {1, 2});
  EXPECT_FALSE(left.done());
  const AliveCall middle_right = job.Alive(1, {1, 2});
  EXPECT_THAT(NumbersOf(right), ElementsAre(1, 2));
  EXPECT_THAT(NumbersOf(middle_right), ElementsAre(1, 2));
  EXPECT_FALSE(left.done());
  const AliveCall middle_left = job.Alive(1, {0, 1});
  EXPECT_THAT(NumbersOf(left), ElementsAre(0, 1));
  EXPECT_THAT(NumbersOf(middle_left), ElementsAre(0, 1));
}

// A caller that lists only other tasks would end their round too early.
TEST(AliveTasks, CallerOutsideItsOwnListIsRefused) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  EXPECT_THAT(job.Alive(0, {1, 2}).result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(job.Alive(0, {}).result(), Fails(absl::StatusCode::kInvalidArgument));
}

TEST(AliveTasks, AnUnknownTaskIsRefused) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  EXPECT_THAT(job.Alive(0, {0, 3}).result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(job.Alive(0, {0, -1}).result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(job.Alive(5, {5}).result(), Fails(absl::StatusCode::kInvalidArgument));
}

// Retries of one task must neither end the round nor be left unanswered.
TEST(AliveTasks, EveryCallOfATaskIsAnswered) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const std::vector<AliveCall> calls = {job.Alive(0, {0, 1}), job.Alive(0, {0, 1}),
                                        job.Alive(0, {0, 1})};
  for (const AliveCall& call : calls) EXPECT_FALSE(call.done());
  const AliveCall last = job.Alive(1, {0, 1});
  for (const AliveCall& call : calls) EXPECT_THAT(NumbersOf(call), ElementsAre(0, 1));
  EXPECT_THAT(NumbersOf(last), ElementsAre(0, 1));
}

// The survivors ask again after every failure.
TEST(AliveTasks, TheSameSetMayBeAskedForAgain) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  for (int round = 0; round < 3; ++round) {
    const AliveCall first = job.Alive(0, {0, 1});
    EXPECT_FALSE(first.done());
    EXPECT_THAT(NumbersOf(job.Alive(1, {0, 1})), ElementsAre(0, 1));
    EXPECT_THAT(NumbersOf(first), ElementsAre(0, 1));
  }
}

// A restarted task must be listed with its current incarnation.
TEST(AliveTasks, TheListShowsTheNewIncarnation) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Register(1, 999).result(), IsOk());
  const AliveCall first = job.Alive(0, {0, 1});
  const AliveCall second = job.Alive(1, {0, 1});
  ASSERT_THAT(first.result(), IsOk());
  EXPECT_EQ((*first.result())[1].incarnation, Incarnation(999));
}

// The caller's connection broke.
TEST(AliveTasks, CanBeCancelled) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const AliveCall gone = job.Alive(0, {0, 1});
  EXPECT_TRUE(job.Cancel(gone.wait()));
  EXPECT_THAT(gone.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_FALSE(job.Cancel(gone.wait()));
  const AliveCall again = job.Alive(0, {0, 1});
  const AliveCall other = job.Alive(1, {0, 1});
  EXPECT_THAT(NumbersOf(again), ElementsAre(0, 1));
  EXPECT_THAT(NumbersOf(other), ElementsAre(0, 1));
  EXPECT_EQ(gone.count(), 1);
}

// There is no task to wait for: an empty answer is better than none.
TEST(AliveTasks, IsEmptyWhenNoListedTaskIsAlive) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  job.Advance(2 * kHeartbeatTimeout);
  const AliveCall call = job.Alive(0, {0, 1});
  EXPECT_THAT(NumbersOf(call), ElementsAre());
}

TEST(AliveTasks, StopEndsTheRound) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const AliveCall call = job.Alive(0, {0, 1});
  job.Stop();
  EXPECT_EQ(call.count(), 1);
  EXPECT_FALSE(call.result().ok());
}

// One of its two calls is cancelled; the other is still pending.
TEST(AliveTasks, OneOfTwoCallsThatIsCancelled_LeavesTheOther) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const AliveCall gone = job.Alive(0, {0, 1});
  const AliveCall stays = job.Alive(0, {0, 1});
  ASSERT_TRUE(job.Cancel(gone.wait()));
  EXPECT_THAT(NumbersOf(job.Alive(1, {0, 1})), ElementsAre(0, 1));
  EXPECT_THAT(NumbersOf(stays), ElementsAre(0, 1));
}

// A task whose call was cancelled cannot be answered: the others wait until it calls again.
TEST(AliveTasks, ACallThatIsCancelled_DoesNotCountForTheOthers) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  const AliveCall gone = job.Alive(0, {0, 1, 2});
  const AliveCall second = job.Alive(1, {0, 1, 2});
  ASSERT_TRUE(job.Cancel(gone.wait()));
  const AliveCall third = job.Alive(2, {0, 1, 2});
  EXPECT_FALSE(second.done());
  EXPECT_FALSE(third.done());
  EXPECT_THAT(NumbersOf(job.Alive(0, {0, 1, 2})), ElementsAre(0, 1, 2));
  EXPECT_THAT(NumbersOf(second), ElementsAre(0, 1, 2));
  EXPECT_THAT(NumbersOf(third), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace ferry::coord
