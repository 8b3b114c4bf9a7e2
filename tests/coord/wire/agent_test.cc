// SPDX-License-Identifier: Apache-2.0
// Agent, while the network is well: joining, the store, barriers, the others.
#include <atomic>
#include <string>
#include <vector>

#include "agent_fixture.h"
#include "refusing_address.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

constexpr absl::Duration kLong = absl::Minutes(1);
constexpr absl::Duration kShort = absl::Milliseconds(100);

// --- The end ---

TEST(AgentDestructor, CallsOfOtherThreads_EndCancelled) {
  constexpr int kCalls = 8;
  for (int round = 0; round < 3; ++round) {
    TestServer server(1);
    auto agent = Agent::Connect(ToolOptions(server.address()));
    ASSERT_THAT(agent, IsOk());
    std::vector<std::future<absl::Status>> calls;
    for (int i = 0; i < kCalls; ++i) {
      calls.push_back(
          InBackground([raw = agent->get()] { return raw->Get("never set", kLong).status(); }));
    }
    ASSERT_TRUE(Eventually([&] { return server.parked() == kCalls; }));
    agent->reset();
    for (auto& call : calls)
      EXPECT_THAT(Await(call), Fails(StatusCode::kCancelled, HasSubstr("destroyed")));
  }
}

// --- Callbacks ---

TEST(AgentCallback, CallThatWouldWait_IsRefused) {
  TestServer server(1);
  const auto agent = Agent::Connect(RankOptions(server.address(), 0));
  ASSERT_THAT(agent, IsOk());
  std::promise<std::vector<absl::Status>> of_watch;
  std::promise<absl::Status> of_async;
  const auto watch = (*agent)->Watch("w", [&](const KeyChange&) {
    of_watch.set_value({(*agent)->Set("a", "1"), (*agent)->Get("a", kLong).status(),
                        (*agent)->CompareAndSet("a", std::nullopt, "1").status(),
                        (*agent)->Barrier("b", kLong), (*agent)->Leave()});
  });
  ASSERT_THAT(watch, IsOk());
  ASSERT_THAT((*agent)->Set("w", ""), IsOk());
  auto refused = of_watch.get_future();
  for (const absl::Status& status : Await(refused)) {
    EXPECT_THAT(status,
                Fails(StatusCode::kFailedPrecondition, HasSubstr("a callback must not wait")));
  }
  (*agent)->BarrierAsync("c", kLong, {},
                         [&](const absl::Status&) { of_async.set_value((*agent)->Set("a", "1")); });
  auto refused_too = of_async.get_future();
  EXPECT_THAT(Await(refused_too),
              Fails(StatusCode::kFailedPrecondition, HasSubstr("must not wait")));
  EXPECT_THAT((*agent)->TryGet("a"), Fails(StatusCode::kNotFound, HasSubstr("\"a\"")));
  // The barrier's refused use did not count.
  EXPECT_THAT((*agent)->Barrier("b", kLong), IsOk());
}

// --- Joining ---

TEST(AgentConnect, ReturnsWhenAllNodesHaveRegistered) {
  TestServer server(BarrierOptions(2));
  auto first = InBackground([&] { return Agent::Connect(RankOptions(server.address(), 0)); });
  ASSERT_TRUE(Eventually([&] { return server.parked() > 0; }));
  EXPECT_TRUE(IsPending(first));
  auto second = Agent::Connect(RankOptions(server.address(), 1));
  ASSERT_THAT(second, IsOk());
  auto agent = Await(first);
  ASSERT_THAT(agent, IsOk());
  EXPECT_EQ((*agent)->num_nodes(), 2);
  EXPECT_THAT((*agent)->observed_address(), StartsWith("ipv4:127.0.0.1:"));
  EXPECT_NE((*agent)->incarnation(), 0u);
  EXPECT_NE((*agent)->incarnation(), (*second)->incarnation());
}

TEST(AgentConnect, NamesTheMissingNodes) {
  TestServer server(BarrierOptions(5));
  AgentOptions options = RankOptions(server.address(), 3);
  options.connect_timeout = absl::Milliseconds(300);
  const auto agent = Agent::Connect(options);
  EXPECT_THAT(agent, Fails(StatusCode::kDeadlineExceeded, HasSubstr("0-2,4")));
}

// Its own timeout is at an end; the others may still wait for it.
TEST(AgentConnect, EarlyTimeoutDoesNotFailTheJob) {
  TestServer server(BarrierOptions(2));
  AgentOptions options = RankOptions(server.address(), 0);
  options.connect_timeout = absl::Milliseconds(200);
  EXPECT_THAT(Agent::Connect(options), Fails(StatusCode::kDeadlineExceeded));
  const Agents agents = ConnectAll(server, 2);
  EXPECT_THAT(agents[0]->Set("k", "v"), IsOk());
}

TEST(AgentConnect, NamesTheUnreachableAddress) {
  const RefusingAddress address;
  AgentOptions options = RankOptions(address.text(), 0);
  options.connect_timeout = absl::Milliseconds(300);
  const absl::Time start = absl::Now();
  EXPECT_THAT(Agent::Connect(options),
              Fails(StatusCode::kDeadlineExceeded, HasSubstr(address.text())));
  EXPECT_LT(absl::Now() - start, kTimeout);
}

TEST(AgentConnect, RefusesInvalidAddressesAndNodes) {
  AgentOptions options;
  EXPECT_THAT(Agent::Connect(options), Fails(StatusCode::kInvalidArgument));
  TestServer server(2);
  EXPECT_THAT(Agent::Connect(RankOptions(server.address(), 2)),
              Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(Agent::Connect(RankOptions(server.address(), -1)),
              Fails(StatusCode::kInvalidArgument));
}

TEST(AgentConnect, NodeIdInUseIsRefusedNamingBothHosts) {
  TestServer server(1);
  const Agents agents = ConnectAll(server, 1);
  AgentOptions other = RankOptions(server.address(), 0);
  other.host_name = "impostor";
  EXPECT_THAT(Agent::Connect(other),
              Fails(StatusCode::kAlreadyExists, AllOf(HasSubstr("host0"), HasSubstr("impostor"))));
  EXPECT_THAT(agents[0]->Set("k", "v"), IsOk());
}

TEST(AgentConnect, GpuOfAnotherHostIsRefusedNamingBoth) {
  TestServer server(2);
  AgentOptions first = RankOptions(server.address(), 0);
  first.gpu_uuids = {"GPU-a", "GPU-b"};
  const Agents agents = ConnectAll({first});
  AgentOptions second = RankOptions(server.address(), 1);
  second.gpu_uuids = {"GPU-b"};
  EXPECT_THAT(Agent::Connect(second),
              Fails(StatusCode::kAlreadyExists,
                    AllOf(HasSubstr("host0"), HasSubstr("host1"), HasSubstr("GPU-b"))));
}

// --- Store ---

TEST(AgentStore, KeepsKeys) {
  TestServer server(1);
  auto agent = *Agent::Connect(ToolOptions(server.address()));
  EXPECT_THAT(agent->TryGet("k"), Fails(StatusCode::kNotFound));
  EXPECT_THAT(agent->Set("k", "1"), IsOk());
  EXPECT_THAT(agent->Set("k", "2"), Fails(StatusCode::kAlreadyExists));
  EXPECT_EQ(*agent->TryGet("k"), "1");
  EXPECT_THAT(agent->Set("k", "2", true), IsOk());
  EXPECT_EQ(*agent->Get("k", kLong), "2");
  EXPECT_EQ(*agent->Increment("k", 40), 42);
  EXPECT_EQ(*agent->Increment("fresh"), 1);
  EXPECT_THAT(agent->Delete("k"), IsOk());
  EXPECT_THAT(agent->TryGet("k"), Fails(StatusCode::kNotFound));
  EXPECT_THAT(agent->Delete("k"), IsOk());
  EXPECT_THAT(agent->Set("text", "x"), IsOk());
  EXPECT_THAT(agent->Increment("text"), Fails(StatusCode::kFailedPrecondition));
}

TEST(AgentStore, SetsAndGetsManyAtOnce) {
  TestServer server(1);
  auto agent = *Agent::Connect(ToolOptions(server.address()));
  auto get = InBackground([&] { return agent->GetAll({"b", "a", "b"}, kLong); });
  ASSERT_TRUE(server.WaitUntilParked(1));
  EXPECT_THAT(agent->Set("a", "1"), IsOk());
  EXPECT_TRUE(IsPending(get));
  EXPECT_THAT(agent->SetAll({{"c", "3"}, {"a", "x"}}), Fails(StatusCode::kAlreadyExists));
  EXPECT_THAT(agent->TryGet("c"), Fails(StatusCode::kNotFound));
  EXPECT_THAT(agent->SetAll({{"c", "3"}, {"b", "2"}}), IsOk());
  EXPECT_THAT(*Await(get), ElementsAre("2", "1", "2"));
  EXPECT_THAT(*agent->GetAll({}, kLong), ElementsAre());
}

TEST(AgentStore, GetThatTimesOutNamesTheKeys) {
  TestServer server(1);
  auto agent = *Agent::Connect(ToolOptions(server.address()));
  EXPECT_THAT(agent->Get("never", kShort),
              Fails(StatusCode::kDeadlineExceeded, HasSubstr("never")));
  EXPECT_TRUE(server.WaitUntilParked(0));
}

TEST(AgentStore, ComparesAndSets) {
  TestServer server(1);
  auto agent = *Agent::Connect(ToolOptions(server.address()));
  auto result = agent->CompareAndSet("k", "x", "y");
  ASSERT_THAT(result, IsOk());
  EXPECT_FALSE(result->was_set);
  EXPECT_EQ(result->value, std::nullopt);
  result = agent->CompareAndSet("k", std::nullopt, "one");
  EXPECT_TRUE(result->was_set);
  EXPECT_EQ(result->value, "one");
  result = agent->CompareAndSet("k", std::nullopt, "two");
  EXPECT_FALSE(result->was_set);
  EXPECT_EQ(result->value, "one");
  EXPECT_TRUE(agent->CompareAndSet("k", "one", "")->was_set);
  EXPECT_TRUE(agent->CompareAndSet("k", "", "three")->was_set);
}

TEST(AgentStore, Lists) {
  TestServer server(1);
  auto agent = *Agent::Connect(ToolOptions(server.address()));
  ASSERT_THAT(agent->SetAll({{"p/b", "2"}, {"p/a", "1"}, {"q", "3"}}), IsOk());
  const auto entries = agent->List("p/");
  ASSERT_THAT(entries, IsOk());
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].key, "p/a");
  EXPECT_EQ((*entries)[0].value, "1");
  EXPECT_GT((*entries)[0].revision, 0);
  EXPECT_EQ((*agent->List("", true))[2].value, "");
}

TEST(AgentStore, WatchReceivesEverythingInOrderUntilItIsDestroyed) {
  TestServer server(1);
  auto agent = *Agent::Connect(ToolOptions(server.address()));
  auto writer = *Agent::Connect(ToolOptions(server.address()));
  ASSERT_THAT(writer->Set("w/0", "there"), IsOk());
  absl::Mutex mu;
  std::vector<KeyChange> changes;
  auto watch = agent->Watch("w/", [&](const KeyChange& change) {
    absl::MutexLock lock(&mu);
    changes.push_back(change);
  });
  ASSERT_THAT(watch, IsOk());
  for (int i = 0; i < 50; ++i) ASSERT_THAT(writer->Set("w/n", absl::StrCat(i), true), IsOk());
  ASSERT_THAT(writer->Delete("w/n"), IsOk());
  const auto is_complete = [&] { return changes.size() == 52; };
  {
    absl::MutexLock lock(&mu);
    ASSERT_TRUE(mu.AwaitWithTimeout(absl::Condition(&is_complete), kTimeout)) << changes.size();
    EXPECT_EQ(changes[0].entry.key, "w/0");
    for (int i = 0; i < 50; ++i) EXPECT_EQ(changes[1 + i].entry.value, absl::StrCat(i));
    EXPECT_TRUE(changes[51].deleted);
  }
  watch->reset();
  ASSERT_THAT(writer->Set("w/late", "x"), IsOk());
  ASSERT_THAT(agent->Set("round-trip", "x"), IsOk());
  absl::MutexLock lock(&mu);
  EXPECT_EQ(changes.size(), 52u);
}

TEST(AgentStore, AsyncCallsAnswerOnceAndNotInsideTheCall) {
  TestServer server(1);
  auto agent = *Agent::Connect(ToolOptions(server.address()));
  absl::Mutex mu;
  int done = 0;
  bool inside = true;
  {
    absl::MutexLock lock(&mu);
    for (int i = 0; i < 100; ++i) {
      // Would deadlock on `mu` if the callback ran inside.
      agent->SetAllAsync({{absl::StrCat("k", i), "v"}}, false, [&](absl::Status status) {
        absl::MutexLock inner(&mu);
        EXPECT_FALSE(inside);
        EXPECT_THAT(status, IsOk());
        ++done;
      });
      agent->GetAllAsync({absl::StrCat("k", i)}, kLong,
                         [&](absl::StatusOr<std::vector<std::string>> values) {
                           absl::MutexLock inner(&mu);
                           EXPECT_THAT(values, IsOk());
                           ++done;
                         });
      agent->IncrementAsync("sum", 2, [&, i](absl::StatusOr<int64_t> sum) {
        absl::MutexLock inner(&mu);
        EXPECT_EQ(*sum, 2 * (i + 1));
        ++done;
      });
      agent->IncrementAsync("k0", 1, [&](absl::StatusOr<int64_t> sum) {
        absl::MutexLock inner(&mu);
        EXPECT_THAT(sum, Fails(StatusCode::kFailedPrecondition));
        ++done;
      });
    }
    inside = false;
  }
  const auto is_complete = [&] { return done == 400; };
  absl::MutexLock lock(&mu);
  EXPECT_TRUE(mu.AwaitWithTimeout(absl::Condition(&is_complete), kTimeout)) << done;
}

// --- The other nodes ---

TEST(AgentBarrier, CanBeUsedRepeatedly) {
  TestServer server(BarrierOptions(3));
  const Agents agents = ConnectAll(server, 3);
  std::atomic<int> arrived{0};
  std::vector<std::future<void>> loops;
  for (const auto& agent : agents) {
    loops.push_back(InBackground([&arrived, agent = agent.get()] {
      for (int round = 1; round <= 20; ++round) {
        arrived.fetch_add(1);
        ASSERT_THAT(agent->Barrier("step", kLong), IsOk());
        EXPECT_GE(arrived.load(), 3 * round);
      }
    }));
  }
  for (auto& loop : loops) Await(loop);
}

TEST(AgentBarrier, SubsetDoesNotNeedTheRest) {
  TestServer server(BarrierOptions(3));
  const Agents agents = ConnectAll(server, 3);
  auto first = InBackground([&] { return agents[0]->Barrier("pair", kLong, {0, 2}); });
  EXPECT_THAT(agents[2]->Barrier("pair", kLong, {2, 0}), IsOk());
  EXPECT_THAT(Await(first), IsOk());
  EXPECT_THAT(agents[1]->Barrier("pair2", kLong, {0, 2}), Fails(StatusCode::kInvalidArgument));
}

TEST(AgentBarrier, TimeoutNamesAllMissingAndTheIdStaysUsable) {
  TestServer server(6);
  const Agents agents = ConnectAll(server, 6);
  auto other = InBackground([&] { return agents[4]->Barrier("b", kShort); });
  EXPECT_THAT(agents[1]->Barrier("b", kShort),
              Fails(StatusCode::kDeadlineExceeded, HasSubstr("0,2,3,5")));
  EXPECT_THAT(Await(other), Fails(StatusCode::kDeadlineExceeded));
  // A late node gets the result of the use that timed out, and the next use is complete.
  for (const int late : {0, 2, 3, 5}) {
    EXPECT_THAT(agents[late]->Barrier("b", kLong), Fails(StatusCode::kDeadlineExceeded));
  }
  std::vector<std::future<absl::Status>> calls;
  for (const auto& agent : agents) {
    calls.push_back(InBackground([agent = agent.get()] { return agent->Barrier("b", kLong); }));
  }
  for (auto& call : calls) EXPECT_THAT(Await(call), IsOk());
}

TEST(AgentBarrier, SecondWaitAtTheSameIdIsRefusedLocally) {
  TestServer server(2);
  const Agents agents = ConnectAll(server, 2);
  auto first = InBackground([&] { return agents[0]->Barrier("b", kLong); });
  ASSERT_TRUE(server.WaitUntilAwaited("barrier \"b\""));
  EXPECT_THAT(agents[0]->Barrier("b", kLong), Fails(StatusCode::kFailedPrecondition));
  EXPECT_THAT(agents[1]->Barrier("b", kLong), IsOk());
  EXPECT_THAT(Await(first), IsOk());
}

// 97, 100
TEST(AgentBarrier, ParticipantThatWaitsMayCancelIt) {
  TestServer server(2);
  const Agents agents = ConnectAll(server, 2);
  EXPECT_THAT(agents[0]->CancelBarrier("b"), Fails(StatusCode::kFailedPrecondition));
  auto wait = InBackground([&] { return agents[0]->Barrier("b", kLong); });
  absl::Status cancelled;
  ASSERT_TRUE(Eventually([&] {
    cancelled = agents[0]->CancelBarrier("b");
    return cancelled.ok();
  })) << cancelled;
  EXPECT_THAT(Await(wait), Fails(StatusCode::kCancelled));
}

TEST(AgentOthers, AliveTasksAreListed) {
  TestServer server(BarrierOptions(2));
  const Agents agents = ConnectAll(server, 2);
  auto first = InBackground([&] { return agents[0]->AliveNodes({0, 1}, kLong); });
  const auto second = agents[1]->AliveNodes({0, 1}, kLong);
  const auto expected =
      ElementsAre(Pair(0, agents[0]->incarnation()), Pair(1, agents[1]->incarnation()));
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(*second, expected);
  EXPECT_THAT(*Await(first), expected);
  EXPECT_THAT(agents[0]->AliveNodes({1}, kLong), Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(agents[0]->AliveNodes({0, 1}, kShort), Fails(StatusCode::kDeadlineExceeded));
}

LocalTopology Topology(int node) {
  LocalTopology local;
  local.node_id = node;
  local.host_name = absl::StrCat("host", node);
  local.boot_id = absl::StrCat("boot", node);
  local.devices.resize(2);
  for (int i = 0; i < 2; ++i) {
    local.devices[i].kind = DeviceKind::kGpu;
    local.devices[i].ordinal = i;
    local.devices[i].uuid = absl::StrCat("GPU-", node, "-", i);
  }
  return local;
}

// The last node sends first.
TEST(AgentOthers, EnumerateGivesAllTheSameDenseNumbers) {
  TestServer server(BarrierOptions(3));
  const Agents agents = ConnectAll(server, 3);
  EXPECT_THAT(agents[0]->Topology(), Fails(StatusCode::kNotFound));
  std::vector<std::future<absl::StatusOr<GlobalTopology>>> calls;
  for (int node = 2; node >= 0; --node) {
    calls.push_back(
        InBackground([&, node] { return agents[node]->Enumerate(Topology(node), kLong); }));
  }
  for (auto& call : calls) {
    const auto global = Await(call);
    ASSERT_THAT(global, IsOk());
    ASSERT_EQ(global->devices().size(), 6u);
    for (int id = 0; id < 6; ++id) {
      EXPECT_EQ(global->device(id).uuid, absl::StrCat("GPU-", id / 2, "-", id % 2));
    }
  }
  EXPECT_THAT(agents[1]->Topology(), IsOk());
  // 130, 131
  EXPECT_THAT(agents[1]->Enumerate(Topology(1), kLong), IsOk());
  LocalTopology other = Topology(1);
  other.devices.pop_back();
  EXPECT_FALSE(agents[1]->Enumerate(other, kLong).ok());
}

TEST(AgentOthers, DevicesAreExchangedWhileJoining) {
  TestServer server(BarrierOptions(3));
  std::vector<std::future<absl::StatusOr<std::unique_ptr<Agent>>>> joining;
  for (int node = 0; node < 3; ++node) {
    joining.push_back(InBackground([&server, node] {
      AgentOptions options = RankOptions(server.address(), node);
      options.num_nodes = 3;
      options.devices.emplace();
      options.devices->node_id = node;
      options.devices->host_name = absl::StrCat("host", node);
      options.devices->boot_id = absl::StrCat("boot", node);
      options.devices->devices.emplace_back();
      return Agent::Connect(std::move(options));
    }));
  }
  std::vector<std::unique_ptr<Agent>> agents;
  for (auto& each : joining) {
    auto agent = Await(each);
    ASSERT_TRUE(agent.ok()) << agent.status();
    agents.push_back(*std::move(agent));
  }
  for (const auto& agent : agents) {
    const absl::StatusOr<GlobalTopology> topology = agent->Topology();
    ASSERT_TRUE(topology.ok()) << topology.status();
    EXPECT_EQ(topology->nodes().size(), 3u);
    EXPECT_EQ(topology->nodes()[2].host_name, "host2");
  }
}

TEST(AgentConnect, CoordinatorOfAnotherNumberOfNodesIsAnotherJobs) {
  TestServer server(BarrierOptions(3));
  AgentOptions options = RankOptions(server.address(), 1);
  options.num_nodes = 4;
  const absl::Status status = Agent::Connect(std::move(options)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(), HasSubstr("serves a job of 3 nodes, but this is node 1 of 4"));
  // It never was of that job.
  EXPECT_EQ(server.parked(), 0u);
}

TEST(AgentOthers, StatusShowsTheJob) {
  TestServer server(BarrierOptions(2));
  const Agents agents = ConnectAll(server, 2);
  auto tool = *Agent::Connect(ToolOptions(server.address()));
  ASSERT_THAT(agents[0]->Set("k", "v"), IsOk());
  const auto status = tool->Status();
  ASSERT_THAT(status, IsOk());
  ASSERT_EQ(status->tasks.size(), 2u);
  EXPECT_EQ(status->tasks[1].state, TaskState::kConnected);
  EXPECT_EQ(status->tasks[1].incarnation, agents[1]->incarnation());
  EXPECT_EQ(status->tasks[1].facts.host_name, "host1");
  EXPECT_EQ(status->key_count, 1);
  EXPECT_EQ(status->coordinator_incarnation, server.incarnation());
}

TEST(AgentOthers, StatusOfAFailedJob_HasItsError) {
  TestServer server(BarrierOptions(2));
  const Agents agents = ConnectAll(server, 2);
  auto tool = *Agent::Connect(ToolOptions(server.address()));
  auto status = tool->Status();
  ASSERT_THAT(status, IsOk());
  EXPECT_THAT(status->error, IsOk());
  ASSERT_THAT(agents[1]->ReportError(absl::DataLossError("the disk is gone")), IsOk());
  status = tool->Status();
  ASSERT_THAT(status, IsOk());
  EXPECT_THAT(status->error, Fails(StatusCode::kDataLoss, HasSubstr("the disk is gone")));
  EXPECT_EQ(status->tasks[1].state, TaskState::kError);
  EXPECT_THAT(status->tasks[1].error, Fails(StatusCode::kDataLoss, HasSubstr("the disk is gone")));
}

// A watch that did not send its version would be answered at once, again and again.
TEST(AgentOthers, WatchOfTheTasks_WaitsForAChange) {
  TestServer server(BarrierOptions(2));
  const Agents agents = ConnectAll(server, 2);
  const auto watch = [&](int64_t version) {
    auto answer = std::make_shared<std::promise<absl::StatusOr<NodeTable>>>();
    agents[0]->WatchTasksAsync(version, [answer](absl::StatusOr<NodeTable> table) {
      answer->set_value(std::move(table));
    });
    return answer->get_future();
  };
  auto present = watch(-1);
  const absl::StatusOr<NodeTable> table = Await(present);
  ASSERT_THAT(table, IsOk());
  EXPECT_EQ(table->tasks.size(), 2u);
  auto change = watch(table->version);
  ASSERT_TRUE(server.WaitUntilAwaited("a change of the task table"));
  EXPECT_TRUE(IsPending(change));
  ASSERT_THAT(agents[1]->ReportError(absl::DataLossError("broken")), IsOk());
  const absl::StatusOr<NodeTable> changed = Await(change);
  ASSERT_THAT(changed, IsOk());
  EXPECT_GT(changed->version, table->version);
  ASSERT_FALSE(changed->tasks.empty());
  EXPECT_EQ(changed->tasks.back().node_id, 1);
  EXPECT_EQ(changed->tasks.back().state, TaskState::kError);
}

TEST(AgentOthers, LeaveTogether) {
  TestServer server(BarrierOptions(2));
  const Agents agents = ConnectAll(server, 2);
  auto first = InBackground([&] { return agents[0]->Shutdown(); });
  ASSERT_TRUE(server.WaitUntilAwaited("hutdown"));
  EXPECT_TRUE(IsPending(first));
  EXPECT_THAT(agents[1]->Shutdown(), IsOk());
  EXPECT_THAT(Await(first), IsOk());
}

}  // namespace
}  // namespace ferry::coord
