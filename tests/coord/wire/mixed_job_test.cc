// SPDX-License-Identifier: Apache-2.0
// One job, four kinds of clients: jaxlib of three generations and Ferry's agent share a
// coordinator.
#include <string>
#include <vector>

#include "agent_fixture.h"
#include "proto/xla_distributed_runtime.pb.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr absl::Duration kLong = absl::Minutes(1);

// Nodes 0 to 3 by G0, tensorflow.*, xla.coordination.* and ferry.v1.
class MixedJob : public ::testing::Test {
 protected:
  MixedJob() : server_(BarrierOptions(4)) {
    ::xla::ConnectRequest request;
    request.set_protocol_version(3);
    request.set_timeout_milliseconds(20'000);
    request.set_node_id(0);
    request.set_client_id(77);
    const PendingCall connect = Runtime("Connect", request);
    const PendingCall first = named_.Register(101);
    const PendingCall second = numbered_.Register(102);
    agent_ = *Agent::Connect(RankOptions(server_.address(), 3));
    ::xla::ConnectResponse response;
    EXPECT_TRUE(response.ParseFromString(connect.Wait().body));
    session_ = response.session_id();
    EXPECT_THAT(first.Wait(), IsOk());
    EXPECT_THAT(second.Wait(), IsOk());
  }

  PendingCall Runtime(const std::string& method, const google::protobuf::Message& request) {
    return PendingCall::Start(runtime_, "/xla.DistributedRuntimeService/" + method,
                              request.SerializeAsString());
  }

  TestServer server_;
  std::shared_ptr<grpc::Channel> runtime_ = server_.Channel();
  TaskClient named_ = server_.Task(Dialect::kTensorflow, 1);
  TaskClient numbered_ = server_.Task(Dialect::kIncarnations, 2);
  std::unique_ptr<Agent> agent_;
  uint64_t session_ = 0;
};

TEST_F(MixedJob, AllClientsSeeEachOther) {
  for (const WireTable& table :
       {named_.Table(named_.Watch(-1).Wait()), numbered_.Table(numbered_.Watch(-1).Wait())}) {
    ASSERT_EQ(table.tasks.size(), 4u);
    for (const WireTask& task : table.tasks) EXPECT_EQ(task.state, 3) << task.task;
    EXPECT_EQ(table.tasks[1].incarnation, 101u);
    EXPECT_EQ(table.tasks[2].incarnation, 102u);
    EXPECT_EQ(table.tasks[3].incarnation, agent_->incarnation());
  }
  const auto status = agent_->Status();
  ASSERT_THAT(status, IsOk());
  EXPECT_EQ(status->tasks[0].facts.service, "drs");
  EXPECT_EQ(status->tasks[1].facts.service, "coordination");
  EXPECT_EQ(status->tasks[2].facts.service, "coordination");
  EXPECT_EQ(status->tasks[3].facts.service, "control");
}

TEST_F(MixedJob, StoreIsSharedByAllClients) {
  ::xla::KeyValueSetRequest set;
  set.set_session_id(session_);
  set.set_key("a");
  set.set_value("from 0");
  EXPECT_THAT(Runtime("KeyValueSet", set).Wait(), IsOk());
  EXPECT_THAT(named_.Entry("GetKeyValue", named_.Get("a").Wait()), Pair("a", "from 0"));
  EXPECT_THAT(named_.Insert("b", "from 1").Wait(), IsOk());
  EXPECT_THAT(numbered_.Entry("GetKeyValue", numbered_.Get("b").Wait()), Pair("b", "from 1"));
  EXPECT_THAT(numbered_.Insert("c", "from 2").Wait(), IsOk());
  EXPECT_EQ(*agent_->Get("c", kLong), "from 2");
  EXPECT_THAT(agent_->Set("d", "from 3"), IsOk());
  ::xla::KeyValueGetRequest get;
  get.set_session_id(session_);
  get.set_key("d");
  get.set_timeout_milliseconds(20'000);
  ::xla::KeyValueGetResponse got;
  ASSERT_TRUE(got.ParseFromString(Runtime("KeyValueGet", get).Wait().body));
  EXPECT_EQ(got.value(), "from 3");
}

TEST_F(MixedJob, BarrierIsOneForAllWithTheSameId) {
  auto wait = InBackground([this] { return agent_->Barrier("b", kLong, {1, 2, 3}); });
  const PendingCall named = named_.Barrier("b", kLong, 0, {3, 2, 1});
  EXPECT_THAT(numbered_.Barrier("b", kLong, 0, {1, 2, 3}).Wait(), IsOk());
  EXPECT_THAT(named.Wait(), IsOk());
  EXPECT_THAT(Await(wait), IsOk());
}

// The oldest clients cannot list the tasks; the others may, each in its own order.
TEST_F(MixedJob, BarrierOfAll_IsOneForEveryKindOfClient) {
  auto wait = InBackground([this] { return agent_->Barrier("all", kLong, {3, 1, 0, 2, 2}); });
  const PendingCall named = named_.Barrier("all", kLong, 0, {0, 1, 2, 3});
  const PendingCall numbered = numbered_.Barrier("all", kLong, 0, {3, 2, 1, 0});
  ::xla::WaitAtBarrierRequest request;
  request.set_session_id(session_);
  request.set_barrier_id("all");
  request.set_node_id(0);
  request.set_timeout_milliseconds(20'000);
  EXPECT_THAT(Runtime("WaitAtBarrier", request).Wait(), IsOk());
  EXPECT_THAT(named.Wait(), IsOk());
  EXPECT_THAT(numbered.Wait(), IsOk());
  EXPECT_THAT(Await(wait), IsOk());
}

// The agent would continue without the tasks on its list.
TEST_F(MixedJob, AgentWithAnotherListAfterABarrierPassed_GetsTheConflict) {
  const PendingCall named = named_.Barrier("b", kLong, 0, {1, 2});
  EXPECT_THAT(numbered_.Barrier("b", kLong, 0, {1, 2}).Wait(), IsOk());
  EXPECT_THAT(named.Wait(), IsOk());
  EXPECT_THAT(agent_->Barrier("b", kLong, {2, 3}),
              Fails(StatusCode::kInvalidArgument, HasSubstr("Conflicting tasks specified")));
}

TEST_F(MixedJob, AliveTasksAreAnsweredInEachClientsLayout) {
  auto asked = InBackground([this] { return agent_->AliveNodes({1, 2, 3}, kLong); });
  const PendingCall named = named_.Alive({1, 2, 3});
  const PendingCall numbered = numbered_.Alive({1, 2, 3});
  EXPECT_EQ(named_.AliveTasks(named.Wait()).tasks.size(), 3u);
  EXPECT_EQ(numbered_.AliveTasks(numbered.Wait()).tasks.size(), 3u);
  const auto alive = Await(asked);
  ASSERT_THAT(alive, IsOk());
  EXPECT_EQ(alive->size(), 3u);
}

TEST_F(MixedJob, ErrorReachesEveryKindOfClient) {
  const PendingCall named = named_.Poll();
  const PendingCall numbered = numbered_.Poll();
  ASSERT_TRUE(Eventually([this] { return server_.parked() >= 2; }));
  EXPECT_THAT(agent_->ReportError(absl::DataLossError("loss is nan")), IsOk());
  EXPECT_THAT(named.Wait(), Fails(StatusCode::kDataLoss, HasSubstr("loss is nan")));
  EXPECT_THAT(numbered.Wait(), Fails(StatusCode::kDataLoss, HasSubstr("loss is nan")));
}

TEST_F(MixedJob, AllClientsLeaveTogether) {
  ::xla::ShutdownRequest request;
  request.set_session_id(session_);
  const PendingCall runtime = Runtime("Shutdown", request);
  const PendingCall named = named_.Shutdown();
  const PendingCall numbered = numbered_.Shutdown();
  EXPECT_FALSE(named.done());
  EXPECT_THAT(agent_->Shutdown(), IsOk());
  EXPECT_THAT(runtime.Wait(), IsOk());
  EXPECT_THAT(named.Wait(), IsOk());
  EXPECT_THAT(numbered.Wait(), IsOk());
}

}  // namespace
}  // namespace ferry::coord
