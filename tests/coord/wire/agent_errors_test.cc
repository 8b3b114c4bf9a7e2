// SPDX-License-Identifier: Apache-2.0
// Agent, when something ends badly: a coordinator that hangs, nodes that give up, errors they
// report.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

#include "agent_fixture.h"
#include "refusing_address.h"
#include "tests/support/tcp_proxy.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Whether a node waits for the others to join.
bool HasJoining(TestServer& server, int node) {
  return server->executor().Run([node](Coordinator& coordinator) {
    const std::vector<TaskId> joining = coordinator.JoiningTasks();
    return std::find(joining.begin(), joining.end(), TaskId(node)) != joining.end();
  });
}

// --- A coordinator that hangs ---

TEST(AgentErrors, NamesACoordinatorThatHangsAndSinceWhen) {
  TestServer server(1);
  TcpProxy proxy(server->port());
  AgentOptions options = RankOptions(proxy.address(), 0);
  options.answer_timeout = absl::Milliseconds(300);
  const auto agent = Agent::Connect(options);
  ASSERT_THAT(agent, IsOk());
  // A loaded machine may take longer than that timeout, but not each time.
  ASSERT_TRUE(Eventually([&] { return (*agent)->Set("a", "1", /*overwrite=*/true).ok(); }));
  proxy.SetStalled(true);
  // The last heartbeat may just have been answered.
  absl::SleepFor(absl::Milliseconds(50));
  for (const absl::Status& status :
       {(*agent)->Set("b", "2"), (*agent)->TryGet("a").status(), (*agent)->Delete("a"),
        (*agent)->Increment("n").status(), (*agent)->List("").status(), (*agent)->Status().status(),
        (*agent)->CompareAndSet("a", std::nullopt, "x").status()}) {
    EXPECT_THAT(status, Fails(StatusCode::kDeadlineExceeded,
                              AllOf(HasSubstr(proxy.address()),
                                    ContainsRegex("has said nothing for [0-9.]+m?s"))));
  }
  proxy.SetStalled(false);
}

// Like any call that waits for other tasks, it has a deadline of its own.
TEST(AgentErrors, WaitForOthersMayTakeLongerThanAnAnswer) {
  TestServer server(1);
  AgentOptions options = RankOptions(server.address(), 0);
  options.answer_timeout = absl::Milliseconds(200);
  const auto agent = Agent::Connect(options);
  ASSERT_THAT(agent, IsOk());
  const auto other = Agent::Connect(ToolOptions(server.address()));
  ASSERT_THAT(other, IsOk());
  auto get = InBackground([&] { return (*agent)->Get("late", kTimeout); });
  absl::SleepFor(absl::Milliseconds(500));
  // Not with a timeout that is as short as a delay on a loaded machine.
  EXPECT_THAT((*other)->Set("late", "v"), IsOk());
  EXPECT_THAT(Await(get), IsOk());
}

TEST(AgentErrors, LeavingDoesNotWaitLongForACoordinatorThatHangs) {
  TestServer server(1);
  TcpProxy proxy(server->port());
  AgentOptions options = RankOptions(proxy.address(), 0);
  options.answer_timeout = absl::Hours(1);
  const auto agent = Agent::Connect(options);
  ASSERT_THAT(agent, IsOk());
  proxy.SetStalled(true);
  EXPECT_THAT((*agent)->ReportError(absl::InternalError("x")),
              Fails(StatusCode::kDeadlineExceeded));
  EXPECT_THAT((*agent)->Leave(), Fails(StatusCode::kDeadlineExceeded));
  proxy.SetStalled(false);
}

// --- The coordinator has ended ---

// The timeout of joining covers the coordinator and the other nodes; the rest of it when the
// coordinator ends is not reduced by the time already spent waiting.
TEST(AgentErrors, JoiningWaitsUntilItsTimeoutForACoordinatorThatHasEnded) {
  TestServer server(BarrierOptions(2));
  TcpProxy proxy(server->port());
  AgentOptions options = RankOptions(proxy.address(), 1);
  options.connect_timeout = absl::Seconds(2);
  auto connect = InBackground([options] { return Agent::Connect(options); });
  ASSERT_TRUE(Eventually([&] { return HasJoining(server, 1); }));
  // Like after its death, without a message from it.
  proxy.SetRefusing(true);
  proxy.Cut();
  EXPECT_THAT(
      Await(connect),
      Fails(StatusCode::kDeadlineExceeded,
            AllOf(ContainsRegex("waited [0-9.]+s for the other nodes to join"),
                  HasSubstr(proxy.address()), ContainsRegex("out of reach for [0-9.]+m?s"))));
}

// Node 0 runs the coordinator of its job, and ends with it.
TEST(AgentErrors, DoesNotWaitForACoordinatorThatEndedAfterTheJobFailed) {
  using Call = std::function<absl::Status(Agent&)>;
  const std::vector<std::pair<const char*, Call>> kCalls = {
      {"Set", [](Agent& agent) { return agent.Set("k", "v"); }},
      {"CompareAndSet",
       [](Agent& agent) { return agent.CompareAndSet("k", std::nullopt, "v").status(); }},
      {"Get", [](Agent& agent) { return agent.Get("k", absl::Hours(1)).status(); }},
      {"Barrier", [](Agent& agent) { return agent.Barrier("b", absl::Hours(1)); }},
      {"ReportError", [](Agent& agent) { return agent.ReportError(absl::InternalError("x")); }},
      {"Leave", [](Agent& agent) { return agent.Leave(); }},
      {"Status", [](Agent& agent) { return agent.Status().status(); }}};
  for (const auto& [name, call] : kCalls) {
    auto server = std::make_unique<TestServer>(2);
    ErrorLog log;
    AgentOptions other = RankOptions(server->address(), 1);
    other.on_error = log.Writer();
    // The wait lasts this long only if the test fails.
    other.answer_timeout = absl::Hours(1);
    other.reconnect_timeout = absl::Hours(1);
    const Agents agents = ConnectAll({RankOptions(server->address(), 0), other});
    ASSERT_THAT(agents[0]->ReportError(absl::InternalError("out of luck")), IsOk());
    EXPECT_THAT(log.WaitForFirst(), Fails(StatusCode::kInternal, HasSubstr("out of luck")));
    server.reset();
    auto called = InBackground([&agents, &call = call] { return call(*agents[1]); });
    EXPECT_THAT(Await(called), Fails(StatusCode::kInternal, HasSubstr("out of luck"))) << name;
    // The job's error comes first, and is reported once.
    EXPECT_EQ(log.errors().size(), 1u) << name;
  }
}

TEST(AgentErrors, ReconnectsAfterTheJobHasFailed) {
  TestServer server(2);
  TcpProxy proxy(server->port());
  ErrorLog log;
  AgentOptions other = RankOptions(proxy.address(), 1);
  other.on_error = log.Writer();
  const Agents agents = ConnectAll({RankOptions(server.address(), 0), other});
  ASSERT_THAT(agents[0]->ReportError(absl::InternalError("out of luck")), IsOk());
  EXPECT_THAT(log.WaitForFirst(), Fails(StatusCode::kInternal));
  proxy.Cut();
  // The next job begins when all have left this one.
  EXPECT_THAT(agents[1]->Leave(), IsOk());
}

TEST(AgentErrors, FailedAttemptsAreReportedWithTheirReason) {
  const RefusingAddress address;
  ErrorLog log;
  AgentOptions options = RankOptions(address.text(), 0);
  options.on_attempt_failed = log.Writer();
  const std::shared_ptr<CancellationToken> stop = options.connect_stop;
  auto connect = InBackground([options] { return Agent::Connect(options); });
  EXPECT_THAT(log.WaitForFirst(), Fails(StatusCode::kUnavailable, HasSubstr("refused")));
  stop->Cancel(absl::CancelledError("enough"));
  EXPECT_THAT(Await(connect), Fails(StatusCode::kCancelled));
}

// --- Reported errors ---

// CANCELLED is how the coordinator ends polls when there is no error.
TEST(AgentErrors, CancellationReachesTheOthersToo) {
  TestServer server(2);
  ErrorLog log;
  AgentOptions other = RankOptions(server.address(), 1);
  other.on_error = log.Writer();
  const Agents agents = ConnectAll({RankOptions(server.address(), 0), other});
  ASSERT_THAT(agents[0]->ReportError(absl::CancelledError("stopped by SIGTERM")), IsOk());
  EXPECT_THAT(log.WaitForFirst(), Fails(StatusCode::kAborted, HasSubstr("stopped by SIGTERM")));
}

TEST(AgentErrors, NextJobBeginsOnceAllHaveLeftAFailedOne) {
  TestServer server(2);
  {
    const Agents agents = ConnectAll(server, 2);
    ASSERT_THAT(agents[0]->ReportError(absl::InternalError("out of luck")), IsOk());
    EXPECT_THAT(agents[0]->Leave(), IsOk());
    EXPECT_THAT(agents[1]->Leave(), IsOk());
  }
  const Agents agents = ConnectAll(server, 2);
  EXPECT_THAT(agents[1]->Set("k", "v"), IsOk());
}

// --- Connects that are called off ---

TEST(AgentConnectStop, OthersKeepWaitingWhenANodeGivesUp) {
  TestServer server(BarrierOptions(3));
  AgentOptions impatient = RankOptions(server.address(), 0);
  const std::shared_ptr<CancellationToken> stop = impatient.connect_stop;
  auto first = InBackground([impatient] { return Agent::Connect(impatient); });
  auto second = InBackground([&] { return Agent::Connect(RankOptions(server.address(), 1)); });
  ASSERT_TRUE(Eventually([&] { return HasJoining(server, 0) && HasJoining(server, 1); }));
  stop->Cancel(absl::CancelledError("stopped by SIGTERM"));
  EXPECT_THAT(Await(first), Fails(StatusCode::kCancelled, HasSubstr("stopped by SIGTERM")));
  EXPECT_FALSE(HasJoining(server, 0));
  EXPECT_TRUE(HasJoining(server, 1));
  // Neither counts the one that gave up.
  auto third = InBackground([&] { return Agent::Connect(RankOptions(server.address(), 2)); });
  ASSERT_TRUE(Eventually([&] { return HasJoining(server, 2); }));
  EXPECT_TRUE(IsPending(second));
  EXPECT_THAT(Agent::Connect(RankOptions(server.address(), 0)), IsOk());
  EXPECT_THAT(Await(second), IsOk());
  EXPECT_THAT(Await(third), IsOk());
}

TEST(AgentConnectStop, NodeThatHadRegisteredReportsWhyItDoesNotJoin) {
  TestServer server(BarrierOptions(2));
  const auto with_devices = [&](int node) {
    AgentOptions options = RankOptions(server.address(), node);
    options.devices = LocalTopology{};
    options.devices->node_id = node;
    return options;
  };
  AgentOptions impatient = with_devices(0);
  // It sends its devices, and the other one never does.
  const std::shared_ptr<CancellationToken> stop = impatient.connect_stop;
  ErrorLog log;
  AgentOptions other = RankOptions(server.address(), 1);
  other.on_error = log.Writer();
  auto first = InBackground([impatient] { return Agent::Connect(impatient); });
  const auto second = Agent::Connect(other);
  ASSERT_THAT(second, IsOk());
  ASSERT_TRUE(server.WaitUntilAwaited("devices"));
  stop->Cancel(absl::CancelledError("stopped by SIGTERM"));
  EXPECT_THAT(Await(first), Fails(StatusCode::kCancelled, HasSubstr("stopped by SIGTERM")));
  EXPECT_THAT(log.WaitForFirst(), Fails(StatusCode::kAborted, HasSubstr("stopped by SIGTERM")));
}

TEST(AgentConnectStop, EndsAtOnceWithoutACoordinator) {
  const RefusingAddress address;
  AgentOptions options = RankOptions(address.text(), 0);
  options.connect_timeout = absl::Hours(1);
  const std::shared_ptr<CancellationToken> stop = options.connect_stop;
  auto connect = InBackground([options] { return Agent::Connect(options); });
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_TRUE(IsPending(connect));
  stop->Cancel(absl::CancelledError("enough"));
  EXPECT_THAT(Await(connect), Fails(StatusCode::kCancelled, HasSubstr("enough")));
}

TEST(AgentConnectStop, BeginsNothingWhenEarlyAndEndsNothingWhenLate) {
  TestServer server(1);
  AgentOptions options = RankOptions(server.address(), 0);
  const std::shared_ptr<CancellationToken> late = options.connect_stop;
  const auto agent = Agent::Connect(options);
  ASSERT_THAT(agent, IsOk());
  late->Cancel(absl::CancelledError("too late"));
  EXPECT_THAT((*agent)->Set("k", "v"), IsOk());
  EXPECT_THAT((*agent)->Leave(), IsOk());

  AgentOptions next = RankOptions(server.address(), 0);
  next.connect_stop->Cancel(absl::CancelledError("too early"));
  EXPECT_THAT(Agent::Connect(next), Fails(StatusCode::kCancelled, HasSubstr("too early")));
}

}  // namespace
}  // namespace ferry::coord
