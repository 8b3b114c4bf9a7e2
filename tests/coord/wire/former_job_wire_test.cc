// SPDX-License-Identifier: Apache-2.0
// Late calls of an earlier job, in every generation of the protocols, and jobs that are ended by
// hand.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent_fixture.h"
#include "proto/xla_distributed_runtime.pb.h"
#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;

ServerOptions DaemonOptions(int tasks) {
  ServerOptions options = BarrierOptions(tasks);
  options.coordinator.reuse = true;
  options.coordinator.shutdown_timeout = absl::ZeroDuration();
  return options;
}

// Two tasks whose incarnations begin with `first`, on connections of their own.
std::vector<TaskClient> JoinBoth(TestServer& server, Dialect dialect, uint64_t first) {
  std::vector<TaskClient> tasks;
  std::vector<PendingCall> calls;
  for (int i = 0; i < 2; ++i) {
    tasks.push_back(server.Task(dialect, i));
    calls.push_back(tasks.back().Register(first + static_cast<uint64_t>(i)));
  }
  for (const PendingCall& call : calls) EXPECT_THAT(call.Wait(), IsOk());
  // G5 sends it with every request.
  for (TaskClient& task : tasks) task.set_service_incarnation(server.incarnation());
  return tasks;
}

class FormerJobWire : public WireTest {
 protected:
  // Job 1 is over, job 2 has joined; the processes of job 1 still have their connections.
  void SetUp() override {
    server_ = std::make_unique<TestServer>(DaemonOptions(2));
    old_ = JoinBoth(*server_, GetParam(), 100);
    for (TaskClient& task : old_) ASSERT_THAT(task.Shutdown().Wait(), IsOk());
    new_ = JoinBoth(*server_, GetParam(), 200);
    poll_ = std::make_unique<PendingCall>(new_[1].Poll());
    ASSERT_TRUE(server_->WaitUntilParked(1));
  }

  // Job 2 is unaffected.
  void TearDown() override {
    EXPECT_FALSE(poll_->done());
    EXPECT_THAT(new_[0].Heartbeat(200).Wait(), IsOk());
    EXPECT_THAT(new_[1].Heartbeat(201).Wait(), IsOk());
    (*server_)->executor().Run([](Coordinator& coordinator) {
      EXPECT_EQ(coordinator.epoch(), 2);
      EXPECT_EQ(coordinator.membership().connected_count(), 2);
      EXPECT_THAT(coordinator.job_error(), IsOk());
      EXPECT_EQ(coordinator.store().key_count(), 0u);
      EXPECT_EQ(coordinator.barriers().open_count(), 0u);
    });
  }

  // The latest generation names the incarnation of the service, and is notified that it has ended.
  static bool IsRefused(const Answer& answer) {
    const absl::Status status = ToStatus(answer);
    return (absl::IsAborted(status) &&
            status.message().find("part of job 1") != std::string::npos) ||
           (GetParam() == Dialect::kIncarnations && absl::IsInternal(status));
  }

  std::unique_ptr<TestServer> server_;
  std::vector<TaskClient> old_;
  std::vector<TaskClient> new_;
  std::unique_ptr<PendingCall> poll_;
};

TEST_P(FormerJobWire, LateHeartbeat_IsRefused) {
  EXPECT_TRUE(IsRefused(old_[0].Heartbeat(100).Wait()));
}

TEST_P(FormerJobWire, LateHeartbeatByANewConnection_IsRefused) {
  TaskClient again(GetParam(), server_->Channel(), 0,
                   old_[0].dialect() == Dialect::kIncarnations ? server_->incarnation() : 0);
  EXPECT_THAT(again.Heartbeat(100).Wait(), Fails(StatusCode::kAborted, HasSubstr("part of job 1")));
}

TEST_P(FormerJobWire, LateRegistration_IsRefused) {
  EXPECT_THAT(old_[0].Register(100).Wait(), Fails(StatusCode::kAborted, HasSubstr("job 1")));
}

TEST_P(FormerJobWire, LateShutdown_IsRefused) { EXPECT_TRUE(IsRefused(old_[0].Shutdown().Wait())); }

TEST_P(FormerJobWire, LateReset_IsRefused) { EXPECT_TRUE(IsRefused(old_[0].Reset().Wait())); }

TEST_P(FormerJobWire, LateErrorReport_IsRefused) {
  EXPECT_TRUE(IsRefused(old_[0].ReportError(StatusCode::kInternal, "late").Wait()));
}

// It would replace the present task's.
TEST_P(FormerJobWire, LatePoll_IsRefused) { EXPECT_TRUE(IsRefused(old_[1].Poll().Wait())); }

TEST_P(FormerJobWire, LateBarrier_IsRefused) {
  EXPECT_TRUE(IsRefused(old_[0].Barrier("step", absl::Minutes(1)).Wait()));
}

TEST_P(FormerJobWire, LateGetAliveTasks_IsRefused) {
  EXPECT_TRUE(IsRefused(old_[0].Alive({0, 1}).Wait()));
}

TEST_P(FormerJobWire, LateCallsOfTheStore_AreRefused) {
  EXPECT_TRUE(IsRefused(old_[0].Insert("k", "v").Wait()));
  EXPECT_TRUE(IsRefused(old_[0].Increment("n", 1).Wait()));
  EXPECT_TRUE(IsRefused(old_[0].TryGet("k").Wait()));
  EXPECT_TRUE(IsRefused(old_[0].Delete("k").Wait()));
}

FERRY_IN_EVERY_DIALECT(FormerJobWire);

class ReusedConnection : public WireTest {};

// A process that joins the next job on its old connection with a new incarnation is part of that
// job.
TEST_P(ReusedConnection, NewIncarnationOnAnOldConnection_IsAccepted) {
  TestServer server(DaemonOptions(2));
  std::vector<TaskClient> tasks = JoinBoth(server, GetParam(), 100);
  for (TaskClient& task : tasks) ASSERT_THAT(task.Shutdown().Wait(), IsOk());
  const std::vector<PendingCall> calls = {tasks[0].Register(300), tasks[1].Register(301)};
  for (const PendingCall& call : calls) ASSERT_THAT(call.Wait(), IsOk());
  for (TaskClient& task : tasks) task.set_service_incarnation(server.incarnation());
  EXPECT_THAT(tasks[0].Insert("k", "v").Wait(), IsOk());
  EXPECT_THAT(tasks[0].Heartbeat(300).Wait(), IsOk());
  EXPECT_THAT(tasks[0].Shutdown().Wait(), IsOk());
}

FERRY_IN_EVERY_DIALECT(ReusedConnection);

// G0 is recognized by its session.
TEST(FormerJobOfRuntimeService, LateCallsAreRefusedByTheirSession) {
  TestServer server(DaemonOptions(1));
  const auto channel = server.Channel();
  const auto connect = [&](uint64_t client) {
    xla::ConnectRequest request;
    request.set_protocol_version(3);
    request.set_timeout_milliseconds(10'000);
    request.set_client_id(client);
    const Answer answer = PendingCall::Start(channel, "/xla.DistributedRuntimeService/Connect",
                                             request.SerializeAsString())
                              .Wait();
    EXPECT_THAT(answer, IsOk());
    xla::ConnectResponse response;
    EXPECT_TRUE(response.ParseFromString(answer.body));
    return response.session_id();
  };
  const uint64_t old_session = connect(1);
  xla::ShutdownRequest shutdown;
  shutdown.set_session_id(old_session);
  ASSERT_THAT(PendingCall::Start(channel, "/xla.DistributedRuntimeService/Shutdown",
                                 shutdown.SerializeAsString())
                  .Wait(),
              IsOk());
  ASSERT_NE(connect(2), old_session);
  xla::HeartbeatRequest heartbeat;
  heartbeat.set_session_id(old_session);
  EXPECT_THAT(PendingCall::Start(channel, "/xla.DistributedRuntimeService/Heartbeat",
                                 heartbeat.SerializeAsString())
                  .Wait(),
              Fails(StatusCode::kFailedPrecondition));
  EXPECT_THAT(PendingCall::Start(channel, "/xla.DistributedRuntimeService/Shutdown",
                                 shutdown.SerializeAsString())
                  .Wait(),
              Fails(StatusCode::kFailedPrecondition));
  server->executor().Run([](Coordinator& coordinator) {
    EXPECT_EQ(coordinator.membership().connected_count(), 1);
    EXPECT_THAT(coordinator.job_error(), IsOk());
  });
}

// ferry.v1.Control: the session is of a rank of the job before.
TEST(FormerJobOfAgents, LateCallsAreRefused) {
  TestServer server(DaemonOptions(2));
  Agents old = ConnectAll(server, 2);
  for (const auto& agent : old) {
    ASSERT_NE(agent, nullptr);
    ASSERT_THAT(agent->Leave(), IsOk());
  }
  // The next job begins with node 0; the session of the former node 1 is still there.
  auto first = InBackground(
      [options = RankOptions(server.address(), 0)] { return Agent::Connect(options); });
  ASSERT_TRUE(Eventually([&server] {
    return server->executor().Run(
        [](Coordinator& coordinator) { return coordinator.epoch() == 2; });
  }));
  EXPECT_THAT(old[1]->Set("k", "v"), Fails(StatusCode::kAborted, HasSubstr("part of job 1")));
  EXPECT_THAT(old[1]->ReportError(absl::InternalError("late")), Fails(StatusCode::kAborted));
  EXPECT_THAT(old[1]->Shutdown(), Fails(StatusCode::kAborted));
  EXPECT_THAT(old[1]->Leave(), Fails(StatusCode::kAborted));
  auto second = Agent::Connect(RankOptions(server.address(), 1));
  ASSERT_THAT(second, IsOk());
  ASSERT_THAT(Await(first), IsOk());
  EXPECT_THAT((*second)->TryGet("k"), Fails(StatusCode::kNotFound));
  server->executor().Run([](Coordinator& coordinator) {
    EXPECT_EQ(coordinator.membership().connected_count(), 2);
    EXPECT_THAT(coordinator.job_error(), IsOk());
  });
}

TEST(EndJobOfAgents, RanksReceiveTheReasonAndTheNextJobJoinsAtOnce) {
  TestServer server(DaemonOptions(2));
  ErrorLog log;
  std::vector<AgentOptions> options = {RankOptions(server.address(), 0),
                                       RankOptions(server.address(), 1)};
  for (AgentOptions& one : options) one.on_error = log.Writer();
  Agents old = ConnectAll(options);
  auto tool = Agent::Connect(ToolOptions(server.address()));
  ASSERT_THAT(tool, IsOk());
  EXPECT_THAT((*tool)->EndJob("maintenance", /*force=*/false, ""),
              Fails(StatusCode::kFailedPrecondition, HasSubstr("--force")));
  EXPECT_TRUE(log.errors().empty());
  ASSERT_THAT((*tool)->EndJob("maintenance", /*force=*/true, ""), IsOk());
  EXPECT_THAT(log.WaitForFirst(), Fails(StatusCode::kAborted, HasSubstr("maintenance")));
  // The old ranks are still attached.
  Agents now = ConnectAll(server, 2);
  for (const auto& agent : now) {
    ASSERT_NE(agent, nullptr);
    EXPECT_THAT(agent->Set("k", "v", /*overwrite=*/true), IsOk());
  }
}

TEST(EndJobOfAgents, WithoutTheRequiredAuthTag_IsDenied) {
  ServerOptions options = DaemonOptions(1);
  options.check_end_job = [](const Coordinator&, absl::string_view auth_tag) {
    return auth_tag == "secret" ? absl::OkStatus() : absl::PermissionDeniedError("no proof");
  };
  TestServer server(options);
  Agents ranks = ConnectAll(server, 1);
  auto tool = Agent::Connect(ToolOptions(server.address()));
  ASSERT_THAT(tool, IsOk());
  EXPECT_THAT((*tool)->EndJob("x", /*force=*/true, "guess"), Fails(StatusCode::kPermissionDenied));
  EXPECT_THAT(ranks[0]->Set("k", "v"), IsOk());
  EXPECT_THAT((*tool)->EndJob("x", /*force=*/true, "secret"), IsOk());
}

// Clients of JAX poll for errors, and receive the reason.
TEST(EndJobOfClients, PollsEndWithTheReason) {
  TestServer server(DaemonOptions(2));
  std::vector<TaskClient> tasks = JoinBoth(server, Dialect::kIncarnations, 100);
  PendingCall poll = tasks[0].Poll();
  PendingCall get = tasks[1].Get("never");
  ASSERT_TRUE(server.WaitUntilParked(2));
  auto tool = Agent::Connect(ToolOptions(server.address()));
  ASSERT_THAT(tool, IsOk());
  ASSERT_THAT((*tool)->EndJob("maintenance", /*force=*/true, ""), IsOk());
  EXPECT_THAT(poll.Wait(), Fails(StatusCode::kAborted, HasSubstr("maintenance")));
  EXPECT_THAT(get.Wait(), Fails(StatusCode::kAborted, HasSubstr("maintenance")));
}

}  // namespace
}  // namespace ferry::coord
