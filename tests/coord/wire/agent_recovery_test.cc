// SPDX-License-Identifier: Apache-2.0
// Agent, when connections break, the coordinator dies or comes back, and others fail.
#include <string>
#include <vector>

#include "absl/synchronization/blocking_counter.h"

#include "agent_fixture.h"
#include "tests/support/tcp_proxy.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr absl::Duration kLong = absl::Minutes(1);

// Agents that reach the server through a network that can be cut.
struct Rig {
  explicit Rig(int nodes, ServerOptions options) : server(options), proxy(server->port()) {
    std::vector<AgentOptions> ranks;
    errors.resize(nodes);
    for (int node = 0; node < nodes; ++node) {
      errors[node] = std::make_unique<ErrorLog>();
      ranks.push_back(RankOptions(proxy.address(), node));
      ranks.back().on_error = errors[node]->Writer();
    }
    agents = ConnectAll(std::move(ranks));
  }
  explicit Rig(int nodes) : Rig(nodes, BarrierOptions(nodes)) {}

  TestServer server;
  TcpProxy proxy;
  std::vector<std::unique_ptr<ErrorLog>> errors;
  Agents agents;
};

// The scheduler started the ranks first.
TEST(AgentRecovery, ConnectsToACoordinatorThatStartsLater) {
  TestServer server(1);
  TcpProxy proxy(server->port());
  proxy.SetRefusing(true);
  auto connect = InBackground([&] { return Agent::Connect(RankOptions(proxy.address(), 0)); });
  EXPECT_EQ(connect.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  proxy.SetRefusing(false);
  EXPECT_THAT(Await(connect), IsOk());
}

// The user pressed Ctrl-C, corrected the command line and started again: the first process has
// ended.
TEST(AgentRecovery, ProcessThatCouldNotJoinAndWasKilled_FailsNoLaterStart) {
  TestServer server(BarrierOptions(2));
  TcpProxy proxy(server->port());
  AgentOptions refused = ToolOptions(proxy.address());
  refused.cannot_join = absl::FailedPreconditionError("RANK=7 must be below WORLD_SIZE=2");
  const std::shared_ptr<CancellationToken> stop = refused.connect_stop;
  auto connect = InBackground([&refused] { return Agent::Connect(refused); });
  ASSERT_TRUE(server.WaitUntilParked(1));
  proxy.SetRefusing(true);
  proxy.Cut();
  EXPECT_TRUE(server.WaitUntilParked(0));
  for (const auto& agent : ConnectAll(server, 2)) EXPECT_NE(agent, nullptr);
  stop->Cancel(absl::CancelledError("killed"));
  EXPECT_THAT(Await(connect), Fails(StatusCode::kCancelled));
}

// A connection that is accepted, and on which nothing is ever received.
TEST(AgentRecovery, ConnectTimesOutWithoutAnAnswer) {
  TestServer server(1);
  TcpProxy proxy(server->port());
  proxy.SetStalled(true);
  AgentOptions options = RankOptions(proxy.address(), 0);
  options.connect_timeout = absl::Milliseconds(500);
  auto connect = InBackground([&] { return Agent::Connect(options); });
  EXPECT_THAT(Await(connect), Fails(StatusCode::kDeadlineExceeded, HasSubstr(proxy.address())));
}

// A delayed first attempt arrives in the end, and is not a second rank.
TEST(AgentRecovery, RetriesWhenAFirstAttemptIsDelayed) {
  TestServer server(1);
  TcpProxy proxy(server->port());
  proxy.SetStalled(true);
  AgentOptions rank = RankOptions(proxy.address(), 0);
  rank.connect_timeout = kLong;
  rank.connect_attempt_timeout = absl::Milliseconds(100);
  auto connect = InBackground([&] { return Agent::Connect(rank); });
  EXPECT_TRUE(Eventually([&] { return proxy.accepted() >= 3; }));
  EXPECT_TRUE(IsPending(connect));
  proxy.SetStalled(false);
  const auto agent = Await(connect);
  ASSERT_THAT(agent, IsOk());
  EXPECT_THAT((*agent)->Set("k", "v"), IsOk());
}

// A coordinator that hangs, or one behind a proxy that keeps the connection.
TEST(AgentRecovery, LeavesASilentConnection) {
  ServerOptions options = BarrierOptions(1);
  options.coordinator.heartbeat_timeout = absl::Minutes(2);
  TestServer server(options);
  TcpProxy proxy(server->port());
  AgentOptions rank = RankOptions(proxy.address(), 0);
  rank.reconnect_timeout = kLong;
  rank.idle_timeout = absl::Milliseconds(300);
  auto connect = InBackground([&] { return Agent::Connect(rank); });
  // Heartbeats are sent every 30 s: until one could have been answered, silence means nothing.
  const auto patient = Await(connect);
  ASSERT_THAT(patient, IsOk());
  absl::SleepFor(absl::Milliseconds(600));
  EXPECT_EQ(proxy.accepted(), 1);
}

TEST(AgentRecovery, LeavesACoordinatorThatAnswersNoHeartbeat) {
  ServerOptions options = BarrierOptions(1);
  options.coordinator.heartbeat_timeout = absl::Seconds(2);
  TestServer server(options);
  TcpProxy proxy(server->port());
  AgentOptions rank = RankOptions(proxy.address(), 0);
  rank.reconnect_timeout = kLong;
  rank.idle_timeout = absl::Milliseconds(300);
  rank.connect_attempt_timeout = absl::Milliseconds(300);
  auto connect = InBackground([&] { return Agent::Connect(rank); });
  const auto agent = Await(connect);
  ASSERT_THAT(agent, IsOk());
  proxy.SetStalled(true);
  // One for the silence, and more for attempts that come to nothing.
  EXPECT_TRUE(Eventually([&] { return proxy.accepted() >= 4; }));
  proxy.SetStalled(false);
  EXPECT_THAT((*agent)->Set("k", "v"), IsOk());
}

TEST(AgentRecovery, DroppedConnectionLosesNeitherMembershipNorPendingCalls) {
  Rig rig(2);
  auto get = InBackground([&] { return rig.agents[0]->Get("late", kLong); });
  auto barrier = InBackground([&] { return rig.agents[0]->Barrier("b", kLong); });
  ASSERT_TRUE(rig.server.WaitUntilAwaited("late"));
  ASSERT_TRUE(rig.server.WaitUntilAwaited("barrier \"b\""));
  for (int i = 0; i < 5; ++i) {
    const int before = rig.proxy.accepted();
    rig.proxy.Cut();
    ASSERT_TRUE(Eventually([&] { return rig.proxy.accepted() > before; }));
  }
  EXPECT_TRUE(IsPending(get));
  EXPECT_TRUE(IsPending(barrier));
  EXPECT_THAT(rig.agents[1]->Set("late", "v"), IsOk());
  EXPECT_THAT(rig.agents[1]->Barrier("b", kLong), IsOk());
  EXPECT_THAT(Await(barrier), IsOk());
  EXPECT_EQ(*Await(get), "v");
  EXPECT_THAT(rig.errors[0]->errors(), SizeIs(0));
  EXPECT_THAT(rig.errors[1]->errors(), SizeIs(0));
}

// Nothing was received for longer than the reconnect timeout, as nothing was requested.
TEST(AgentRecovery, IdleConnectionThatBreaksIsMadeAgain) {
  ServerOptions options = BarrierOptions(1);
  options.coordinator.heartbeat_timeout = absl::Minutes(2);
  TestServer server(options);
  TcpProxy proxy(server->port());
  AgentOptions rank = RankOptions(proxy.address(), 0);
  rank.reconnect_timeout = absl::Milliseconds(500);
  auto connect = InBackground([&] { return Agent::Connect(rank); });
  const auto agent = Await(connect);
  ASSERT_THAT(agent, IsOk());
  absl::SleepFor(2 * rank.reconnect_timeout);
  proxy.Cut();
  EXPECT_THAT((*agent)->Set("k", "v"), IsOk());
}

// Cut while requests and answers are in flight; a request that is executed twice would count twice.
TEST(AgentRecovery, IncrementsHappenExactlyOnceUnderCuts) {
  Rig rig(1);
  constexpr int kIncrements = 400;
  auto work = InBackground([&] {
    for (int i = 0; i < kIncrements; ++i) {
      const auto value = rig.agents[0]->Increment("n");
      if (!value.ok()) return value.status();
      if (*value != i + 1) return absl::InternalError(absl::StrCat(*value, " after ", i));
    }
    return absl::OkStatus();
  });
  int cuts = 0;
  while (IsPending(work) && cuts < 8) {
    const int before = rig.proxy.accepted();
    rig.proxy.Cut();
    ++cuts;
    EXPECT_TRUE(Eventually([&] { return !IsPending(work) || rig.proxy.accepted() > before; }));
  }
  EXPECT_THAT(Await(work), IsOk());
  EXPECT_GT(cuts, 1);
  EXPECT_EQ(*rig.agents[0]->TryGet("n"), absl::StrCat(kIncrements));
}

TEST(AgentRecovery, SurvivesACoordinatorThatIsBrieflyUnreachable) {
  Rig rig(1);
  rig.proxy.SetRefusing(true);
  rig.proxy.Cut();
  auto set = InBackground([&] { return rig.agents[0]->Set("k", "v"); });
  EXPECT_EQ(set.wait_for(std::chrono::milliseconds(500)), std::future_status::timeout);
  rig.proxy.SetRefusing(false);
  EXPECT_THAT(Await(set), IsOk());
  EXPECT_THAT(rig.errors[0]->errors(), SizeIs(0));
}

TEST(AgentRecovery, WatchContinuesAfterACutWithoutGapsOrRepeats) {
  Rig rig(1);
  absl::Mutex mu;
  std::vector<std::string> values;
  auto watch = rig.agents[0]->Watch("w", [&](const KeyChange& change) {
    absl::MutexLock lock(&mu);
    values.push_back(change.entry.value);
  });
  ASSERT_THAT(watch, IsOk());
  auto writer = *Agent::Connect(ToolOptions(rig.server.address()));
  const auto has_begun = [&] { return !values.empty(); };
  const auto is_complete = [&] { return values.size() >= 200; };
  for (int i = 0; i < 200; ++i) {
    ASSERT_THAT(writer->Set("w", absl::StrCat(i), true), IsOk());
    if (i == 0) {
      // Entries from before the watch are reported with their current state, not as they were made.
      absl::MutexLock lock(&mu);
      ASSERT_TRUE(mu.AwaitWithTimeout(absl::Condition(&has_begun), kTimeout));
    }
    if (i % 50 == 25) rig.proxy.Cut();
  }
  {
    absl::MutexLock lock(&mu);
    ASSERT_TRUE(mu.AwaitWithTimeout(absl::Condition(&is_complete), kTimeout)) << values.size();
    ASSERT_EQ(values.size(), 200u);
    for (int i = 0; i < 200; ++i) EXPECT_EQ(values[i], absl::StrCat(i));
  }
}

TEST(AgentRecovery, PendingCallsEndAndTheErrorIsReportedOnceWhenTheCoordinatorDies) {
  ServerOptions options = BarrierOptions(1);
  options.coordinator.heartbeat_timeout = absl::Seconds(1);
  auto server = std::make_unique<TestServer>(options);
  ErrorLog errors;
  AgentOptions rank = RankOptions(server->address(), 0);
  rank.on_error = errors.Writer();
  const Agents agents = ConnectAll({rank});
  auto get = InBackground([&] { return agents[0]->Get("never", kLong); });
  ASSERT_TRUE(server->WaitUntilAwaited("never"));
  server.reset();
  const auto gone = AnyOf(Fails(StatusCode::kUnavailable), Fails(StatusCode::kAborted));
  EXPECT_THAT(errors.WaitForFirst(), gone);
  // The coordinator's last message may have been that the get is cancelled.
  EXPECT_THAT(Await(get), AnyOf(gone, Fails(StatusCode::kCancelled)));
  EXPECT_THAT(agents[0]->Set("k", "v"), gone);
  EXPECT_THAT(errors.errors(), SizeIs(1));
}

TEST(AgentRecovery, IsUnavailableWhenUnreachableForTooLong) {
  TestServer server(BarrierOptions(1));
  TcpProxy proxy(server->port());
  ErrorLog errors;
  AgentOptions rank = RankOptions(proxy.address(), 0);
  rank.on_error = errors.Writer();
  rank.reconnect_timeout = absl::Milliseconds(500);
  const Agents agents = ConnectAll({rank});
  auto barrier = InBackground([&] { return agents[0]->Get("never", kLong); });
  ASSERT_TRUE(server.WaitUntilAwaited("never"));
  proxy.SetRefusing(true);
  proxy.Cut();
  EXPECT_THAT(errors.WaitForFirst(), Fails(StatusCode::kUnavailable));
  EXPECT_THAT(Await(barrier), Fails(StatusCode::kUnavailable));
  EXPECT_THAT(errors.errors(), SizeIs(1));
}

// Another coordinator at the same address: its store is empty, this node means nothing to it.
TEST(AgentRecovery, RestartedCoordinatorIsAborted) {
  auto server = std::make_unique<TestServer>(BarrierOptions(1));
  TcpProxy proxy((*server)->port());
  ErrorLog errors;
  AgentOptions rank = RankOptions(proxy.address(), 0);
  rank.on_error = errors.Writer();
  const Agents agents = ConnectAll({rank});
  auto get = InBackground([&] { return agents[0]->Get("never", kLong); });
  ASSERT_TRUE(server->WaitUntilAwaited("never"));
  TestServer successor(BarrierOptions(1));
  proxy.SetTarget(successor->port());
  proxy.Cut();
  EXPECT_THAT(errors.WaitForFirst(), Fails(StatusCode::kAborted));
  EXPECT_THAT(Await(get), Fails(StatusCode::kAborted));
  EXPECT_THAT(agents[0]->Set("k", "v"), Fails(StatusCode::kAborted));
  EXPECT_THAT(errors.errors(), SizeIs(1));
}

TEST(AgentErrors, ReachEveryOtherNodeExactlyOnce) {
  Rig rig(3);
  EXPECT_THAT(rig.agents[1]->ReportError(absl::DataLossError("loss is nan")), IsOk());
  for (const int node : {0, 2}) {
    EXPECT_THAT(rig.errors[node]->WaitForFirst(),
                Fails(StatusCode::kDataLoss, HasSubstr("loss is nan")));
  }
  EXPECT_FALSE(rig.agents[0]->Barrier("b", kLong).ok());
  EXPECT_FALSE(rig.agents[2]->Barrier("b", kLong).ok());
  EXPECT_THAT(rig.errors[0]->errors(), SizeIs(1));
  EXPECT_THAT(rig.errors[2]->errors(), SizeIs(1));
}

TEST(AgentErrors, DeathOfANodeReachesTheOthers) {
  ServerOptions options = BarrierOptions(2);
  options.coordinator.heartbeat_timeout = absl::Seconds(1);
  Rig rig(2, options);
  auto barrier = InBackground([&] { return rig.agents[0]->Barrier("b", kLong); });
  // Neither Leave nor Shutdown: like a process that is killed.
  rig.agents[1].reset();
  EXPECT_THAT(rig.errors[0]->WaitForFirst(), Fails(StatusCode::kUnavailable));
  EXPECT_FALSE(Await(barrier).ok());
  EXPECT_THAT(rig.errors[0]->errors(), SizeIs(1));
}

// A node that may die and come back does not fail the job.
TEST(AgentErrors, RecoverableNodeThatDiesIsNoErrorAndComesBack) {
  ServerOptions options = BarrierOptions(2);
  options.coordinator.heartbeat_timeout = absl::Seconds(1);
  options.coordinator.recoverable = true;
  Rig rig(2, options);
  rig.agents[1].reset();
  const auto is_in_error = [&] {
    const auto status = rig.agents[0]->Status();
    return status.ok() && status->tasks[1].state == TaskState::kError;
  };
  ASSERT_TRUE(Eventually(is_in_error));
  const auto restarted = Agent::Connect(RankOptions(rig.server.address(), 1));
  ASSERT_THAT(restarted, IsOk());
  auto barrier = InBackground([&] { return rig.agents[0]->Barrier("b", kLong); });
  EXPECT_THAT((*restarted)->Barrier("b", kLong), IsOk());
  EXPECT_THAT(Await(barrier), IsOk());
  EXPECT_THAT(rig.errors[0]->errors(), SizeIs(0));
}

TEST(AgentErrors, ANodeThatLeavesIsNoError) {
  ServerOptions options = BarrierOptions(3);
  options.coordinator.heartbeat_timeout = absl::Seconds(1);
  Rig rig(3, options);
  EXPECT_THAT(rig.agents[1]->Leave(), IsOk());
  rig.agents[1].reset();
  // Its process goes on.
  EXPECT_THAT(rig.agents[2]->Leave(), IsOk());
  // Longer than the heartbeat timeout: an error would have arrived.
  EXPECT_THAT(rig.agents[0]->Get("never", absl::Seconds(3)), Fails(StatusCode::kDeadlineExceeded));
  EXPECT_THAT(rig.errors[0]->errors(), SizeIs(0));
  EXPECT_THAT(rig.errors[2]->errors(), SizeIs(0)) << "it was no member any more";
}

// Old TensorFlow agents are notified by a call to them.
TEST(AgentErrors, ReachAnAgentThatListensForThem) {
  TestServer server(BarrierOptions(2));
  ErrorLog errors;
  AgentOptions listening = RankOptions(server.address(), 0);
  listening.on_error = errors.Writer();
  listening.error_listen = "127.0.0.1:0";
  const Agents agents = ConnectAll({listening, RankOptions(server.address(), 1)});
  EXPECT_THAT(agents[1]->ReportError(absl::DataLossError("loss is nan")), IsOk());
  EXPECT_THAT(errors.WaitForFirst(), Fails(StatusCode::kDataLoss, HasSubstr("loss is nan")));
  EXPECT_THAT(errors.errors(), SizeIs(1));
}

// 76
TEST(AgentEnd, EndsPendingCallsCancelled) {
  Rig rig(2);
  absl::Status get;
  absl::Status barrier;
  absl::BlockingCounter ended(2);
  rig.agents[0]->GetAllAsync({"never"}, kLong,
                             [&](absl::StatusOr<std::vector<std::string>> values) {
                               get = values.status();
                               ended.DecrementCount();
                             });
  rig.agents[0]->BarrierAsync("b", kLong, {}, [&](absl::Status result) {
    barrier = std::move(result);
    ended.DecrementCount();
  });
  ASSERT_TRUE(rig.server.WaitUntilAwaited("never"));
  ASSERT_TRUE(rig.server.WaitUntilAwaited("barrier \"b\""));
  rig.agents[0].reset();
  auto wait = InBackground([&] { ended.Wait(); });
  Await(wait);
  EXPECT_THAT(get, Fails(StatusCode::kCancelled));
  EXPECT_THAT(barrier, Fails(StatusCode::kCancelled));
  EXPECT_THAT(rig.errors[0]->errors(), SizeIs(0));
}

TEST(AgentEnd, IsQuickWhileTheCoordinatorIsUnreachable) {
  Rig rig(1);
  rig.proxy.SetStalled(true);
  auto end = InBackground([&] { rig.agents[0].reset(); });
  Await(end);
}

}  // namespace
}  // namespace ferry::coord
