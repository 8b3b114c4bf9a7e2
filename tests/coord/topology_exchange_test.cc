// SPDX-License-Identifier: Apache-2.0
// The exchange of topologies, and of opaque device infos (WaitForAllTasks).
#include "coord/core/topology_exchange.h"

#include <string>
#include <utility>
#include <vector>

#include "tests/coord/coordinator_fixture.h"
#include "tests/topology/topology_test_util.h"

namespace ferry::coord {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

LocalTopology NodeWithGpus(int node_id, int gpus) {
  LocalTopology node = TestNode(node_id);
  for (int i = 0; i < gpus; ++i)
    node.devices.push_back(TestGpu(i, absl::StrCat("GPU-", node_id, "-", i)));
  return node;
}

const GlobalTopology& TopologyOf(const EnumerateCall& call) {
  static const GlobalTopology* const kNone = new GlobalTopology();
  EXPECT_THAT(call.result(), IsOk());
  return call.result().ok() ? (*call.result())->topology : *kNone;
}

// Ids that depend on the order of arrival would differ from run to run.
TEST(TopologyExchange, IdsFollowTheNodesInAnyOrderOfArrival) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  const EnumerateCall second = job.Enumerate(1, NodeWithGpus(1, 2));
  const EnumerateCall third = job.Enumerate(2, NodeWithGpus(2, 0));
  EXPECT_FALSE(second.done());
  EXPECT_EQ(job.coordinator().topology(), nullptr);
  const EnumerateCall first = job.Enumerate(0, NodeWithGpus(0, 1));
  const GlobalTopology& topology = TopologyOf(first);
  std::vector<std::string> names;
  for (size_t i = 0; i < topology.devices().size(); ++i) names.push_back(topology.DeviceName(i));
  EXPECT_THAT(names, ElementsAre("node0/host:0", "node0/gpu:0", "node1/host:0", "node1/gpu:0",
                                 "node1/gpu:1", "node2/host:0"));
  EXPECT_EQ(TopologyOf(second), topology);
  EXPECT_EQ(TopologyOf(third), topology);
}

// Ten thousand answers of sixteen megabytes each must be one buffer.
TEST(TopologyExchange, AllAnswersShareOneTopology) {
  TestJob job(PlainOptions(2));
  const EnumerateCall first = job.Enumerate(0, TestNode(0));
  const EnumerateCall second = job.Enumerate(1, TestNode(1));
  ASSERT_THAT(first.result(), IsOk());
  ASSERT_THAT(second.result(), IsOk());
  EXPECT_EQ(*first.result(), *second.result());
  EXPECT_EQ(*first.result(), job.coordinator().topology());
  EXPECT_FALSE((*first.result())->bytes.empty());
}

// The answer was lost and the node asks again.
TEST(TopologyExchange, SameTopologyMayBeSentTwice) {
  TestJob job(PlainOptions(2));
  const EnumerateCall first = job.Enumerate(0, TestNode(0));
  const EnumerateCall retry = job.Enumerate(0, TestNode(0));
  EXPECT_FALSE(retry.done());
  const EnumerateCall other = job.Enumerate(1, TestNode(1));
  EXPECT_EQ(first.count(), 1);
  EXPECT_THAT(retry.result(), IsOk());
  EXPECT_THAT(other.result(), IsOk());
  const EnumerateCall late = job.Enumerate(0, TestNode(0));
  EXPECT_EQ(TopologyOf(late), TopologyOf(other));
}

// Two processes claim to be one node.
TEST(TopologyExchange, DifferentTopologyOfANodeIsRefused) {
  TestJob job(PlainOptions(2));
  const EnumerateCall first = job.Enumerate(0, NodeWithGpus(0, 1));
  EXPECT_THAT(job.Enumerate(0, NodeWithGpus(0, 2)).result(), Fails(absl::StatusCode::kInternal));
  EXPECT_FALSE(first.done());
  EXPECT_THAT(job.Enumerate(1, TestNode(1)).result(), IsOk());
  EXPECT_EQ(TopologyOf(first).nodes()[0].devices.size(), 2u);
  EXPECT_THAT(job.Enumerate(0, NodeWithGpus(0, 2)).result(), Fails(absl::StatusCode::kInternal));
}

// Some nodes know their slice, some do not: any numbering would be wrong.
TEST(TopologyExchange, PartitionsAreGivenByAllNodesOrByNone) {
  TestJob job(PlainOptions(2));
  LocalTopology with = TestNode(0);
  with.partition_index = 0;
  const EnumerateCall first = job.Enumerate(0, with);
  const EnumerateCall second = job.Enumerate(1, TestNode(1));
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(second.result(), Fails(absl::StatusCode::kInvalidArgument));
}

// A job that lost a GPU on one host is not a grid.
TEST(TopologyExchange, UnevenJobsHaveNoCounts) {
  TestJob job(PlainOptions(2));
  const EnumerateCall first = job.Enumerate(0, NodeWithGpus(0, 2));
  const EnumerateCall second = job.Enumerate(1, NodeWithGpus(1, 1));
  EXPECT_EQ(TopologyOf(first).counts(), TopologyCounts());
}

// A node that lies about its number would overwrite another's devices.
TEST(TopologyExchange, MalformedTopologyIsRefusedAndDoesNotCount) {
  TestJob job(PlainOptions(2));
  LocalTopology twice = TestNode(0);
  twice.devices.push_back(twice.devices[0]);
  EXPECT_THAT(job.Enumerate(0, twice).result(), Fails(absl::StatusCode::kInvalidArgument));
  const EnumerateCall other = job.Enumerate(1, TestNode(1));
  EXPECT_FALSE(other.done());
  EXPECT_THAT(job.Enumerate(0, TestNode(0)).result(), IsOk());
  EXPECT_THAT(other.result(), IsOk());
}

TEST(TopologyExchange, UnknownTaskIsRefused) {
  TestJob job(PlainOptions(2));
  EXPECT_THAT(job.Enumerate(2, TestNode(2)).result(), Fails(absl::StatusCode::kInvalidArgument));
}

// One host does not start: the error must name it.
TEST(TopologyExchange, TheTimeoutNamesTheMissing) {
  TestJob job(PlainOptions(5));
  const EnumerateCall first = job.Enumerate(1, TestNode(1), absl::Seconds(7));
  job.Advance(absl::Seconds(7) - absl::Milliseconds(1));
  EXPECT_FALSE(first.done());
  job.Advance(absl::Milliseconds(1));
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kDeadlineExceeded, HasSubstr("0,2-4")));
  EXPECT_EQ(GetMissingTasks(first.result().status()), "0,2-4");
  // Without the mark, clients would take it for an error of the network.
  EXPECT_TRUE(GetErrorOrigin(first.result().status()).has_value());
}

// One impatient node must not end it for the others, nor be missed when it has sent its devices.
TEST(TopologyExchange, ATimeoutEndsOnlyTheOwnWait) {
  TestJob job(PlainOptions(3));
  const EnumerateCall impatient = job.Enumerate(0, TestNode(0), absl::Seconds(1));
  const EnumerateCall patient = job.Enumerate(1, TestNode(1), absl::Seconds(60));
  job.Advance(absl::Seconds(2));
  EXPECT_THAT(impatient.result(), Fails(absl::StatusCode::kDeadlineExceeded));
  EXPECT_FALSE(patient.done());
  EXPECT_THAT(job.Enumerate(2, TestNode(2)).result(), IsOk());
  EXPECT_THAT(patient.result(), IsOk());
}

TEST(TopologyExchange, CanBeCancelled) {
  TestJob job(PlainOptions(2));
  const EnumerateCall gone = job.Enumerate(0, TestNode(0));
  EXPECT_TRUE(job.Cancel(gone.wait()));
  EXPECT_THAT(gone.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_FALSE(job.Cancel(gone.wait()));
  (void)job.Enumerate(1, TestNode(1));
  EXPECT_EQ(gone.count(), 1);
  EXPECT_THAT(job.Enumerate(0, TestNode(0)).result(), IsOk());
}

// A host comes back with one GPU less.
TEST(TopologyExchange, NewIncarnationMaySendAnotherTopology) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  const EnumerateCall first = job.Enumerate(0, NodeWithGpus(0, 2));
  ASSERT_THAT(job.Enumerate(1, NodeWithGpus(1, 2)).result(), IsOk());
  ASSERT_THAT(job.Register(1, 999).result(), IsOk());
  const EnumerateCall back = job.Enumerate(1, NodeWithGpus(1, 1));
  EXPECT_EQ(TopologyOf(back).devices().size(), 5u);
  EXPECT_EQ(TopologyOf(first).devices().size(), 6u);
}

// A node that has failed will not send its devices, and its error is more useful than a timeout.
TEST(TopologyExchange, FailedJobEndsTheWaitsForDevices) {
  for (const bool has_poller : {true, false}) {
    SCOPED_TRACE(has_poller ? "errors are polled for" : "errors come by heartbeats");
    TestJob job(PlainOptions(4));
    job.RegisterAll();
    std::optional<StatusCall> poll;
    if (has_poller) poll = job.Poll(0);
    const EnumerateCall first = job.Enumerate(0, TestNode(0));
    const EnumerateCall second = job.Enumerate(1, TestNode(1));
    ASSERT_THAT(job.Report(3, absl::FailedPreconditionError("no place")), IsOk());
    const auto fails = Fails(absl::StatusCode::kFailedPrecondition, HasSubstr("no place"));
    EXPECT_THAT(first.result(), fails);
    EXPECT_THAT(second.result(), fails);
    // A wait that begins late ends too.
    EXPECT_THAT(job.Enumerate(2, TestNode(2)).result(), fails);
    EXPECT_EQ(job.coordinator().NextDeadline(), job.task(0).next_check);
  }
}

// The answer is complete and needs no other node.
TEST(TopologyExchange, FailedJobStillReturnsACompleteTopology) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const StatusCall poll = job.Poll(0);
  (void)job.Enumerate(0, TestNode(0));
  ASSERT_THAT(job.Enumerate(1, TestNode(1)).result(), IsOk());
  ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(job.Enumerate(0, TestNode(0)).result(), IsOk());
}

// The task is waited for, as the job goes on.
TEST(TopologyExchange, TaskThatMayComeBackEndsNoWait) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  const EnumerateCall waiting = job.Enumerate(0, TestNode(0));
  ASSERT_THAT(job.Report(1, absl::UnavailableError("broken")), IsOk());
  EXPECT_FALSE(waiting.done());
  ASSERT_THAT(job.Register(1, 999).result(), IsOk());
  EXPECT_THAT(job.Enumerate(1, TestNode(1)).result(), IsOk());
  EXPECT_THAT(waiting.result(), IsOk());
}

// Older clients collect their devices through the coordinator.
TEST(WaitForAllTasks, GivesEveryTaskTheInfosOfAll) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  const InfosCall second = job.WaitForAll(1, "one");
  const InfosCall first = job.WaitForAll(0, "zero");
  EXPECT_FALSE(first.done());
  const InfosCall third = job.WaitForAll(2, std::string("t\0o", 3));
  for (const InfosCall& call : {first, second, third}) {
    ASSERT_THAT(call.result(), IsOk());
    EXPECT_THAT(**call.result(), ElementsAre("zero", "one", std::string("t\0o", 3)));
  }
}

// A retry may see other devices; the others may have read the first ones.
TEST(WaitForAllTasks, KeepsTheFirstInfoOfATask) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const InfosCall first = job.WaitForAll(0, "first");
  const InfosCall retry = job.WaitForAll(0, "second");
  const InfosCall other = job.WaitForAll(1, "other");
  EXPECT_EQ(first.count(), 1);
  ASSERT_THAT(retry.result(), IsOk());
  EXPECT_THAT(**retry.result(), ElementsAre("first", "other"));
  EXPECT_EQ(**retry.result(), **other.result());
}

// The answer was lost.
TEST(WaitForAllTasks, AnswersARepeatedCallAtOnce) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const InfosCall first = job.WaitForAll(0, "a");
  ASSERT_THAT(job.WaitForAll(1, "b").result(), IsOk());
  const InfosCall repeat = job.WaitForAll(0, "a");
  ASSERT_THAT(repeat.result(), IsOk());
  EXPECT_THAT(**repeat.result(), ElementsAre("a", "b"));
}

TEST(WaitForAllTasks, FailsWhenATaskFails) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  const InfosCall waiting = job.WaitForAll(0, "a");
  ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(waiting.result(), Fails(absl::StatusCode::kInternal));
}

TEST(WaitForAllTasks, UnknownTaskIsRefused) {
  TestJob job(PlainOptions(2));
  EXPECT_THAT(job.WaitForAll(2, "a").result(), Fails(absl::StatusCode::kInvalidArgument));
}

TEST(WaitForAllTasks, CanBeCancelled) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const InfosCall gone = job.WaitForAll(0, "a");
  EXPECT_TRUE(job.Cancel(gone.wait()));
  EXPECT_THAT(gone.result(), Fails(absl::StatusCode::kCancelled));
  ASSERT_THAT(job.WaitForAll(1, "b").result(), IsOk());
  EXPECT_EQ(gone.count(), 1);
}

EnumerateCall EnumerateAs(TestJob& job, int task, std::string as_told) {
  EnumerateCall call(std::make_shared<bool>(true));
  call.set_wait(job.coordinator().EnumerateDevices(
      TaskId(task), TestNode(task), absl::InfiniteDuration(), call.Callback(), std::move(as_told)));
  job.Drain();
  return call;
}

// The others may have read the first; infos of a previous incarnation are not its successor's.
TEST(TopologyExchange, InfoOfANode_IsTheFirstOfItsIncarnation) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  const EnumerateCall first = EnumerateAs(job, 0, "first");
  const EnumerateCall again = EnumerateAs(job, 0, "again");
  const EnumerateCall other = EnumerateAs(job, 1, "other");
  ASSERT_THAT(other.result(), IsOk());
  EXPECT_THAT((*other.result())->as_told, ElementsAre("first", "other"));
  ASSERT_THAT(job.Register(0, 999).result(), IsOk());
  EXPECT_EQ(job.coordinator().topology(), nullptr);
  const EnumerateCall next = EnumerateAs(job, 0, "next");
  ASSERT_THAT(next.result(), IsOk());
  EXPECT_THAT((*next.result())->as_told, ElementsAre("next", "other"));
}

// The last to come is the one that does not fit: it may correct that.
TEST(TopologyExchange, AfterASetThatDoesNotFit_TheLastMaySendAnother) {
  TestJob job(PlainOptions(2));
  LocalTopology with = TestNode(0);
  with.partition_index = 0;
  const EnumerateCall first = job.Enumerate(0, with, absl::Seconds(1));
  const EnumerateCall second = job.Enumerate(1, TestNode(1), absl::Seconds(1));
  ASSERT_THAT(first.result(), Fails(absl::StatusCode::kInvalidArgument));
  ASSERT_THAT(second.result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(job.coordinator().NextDeadline(), absl::InfiniteFuture());
  const EnumerateCall retry = job.Enumerate(0, with);
  EXPECT_FALSE(retry.done());
  LocalTopology corrected = TestNode(1);
  corrected.partition_index = 0;
  EXPECT_THAT(job.Enumerate(1, corrected).result(), IsOk());
  EXPECT_THAT(retry.result(), IsOk());
}

// All have read the infos: a retry after that changes nothing, even where there was none.
TEST(WaitForAllTasks, AfterAllHaveArrived_NoInfoIsAdded) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const InfosCall first = job.WaitForAll(0, "");
  ASSERT_THAT(job.WaitForAll(1, "b").result(), IsOk());
  const InfosCall retry = job.WaitForAll(0, "late");
  ASSERT_THAT(first.result(), IsOk());
  ASSERT_THAT(retry.result(), IsOk());
  EXPECT_THAT(**first.result(), ElementsAre("", "b"));
  EXPECT_THAT(**retry.result(), ElementsAre("", "b"));
}

}  // namespace
}  // namespace ferry::coord
