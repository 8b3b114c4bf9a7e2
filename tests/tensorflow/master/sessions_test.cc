// SPDX-License-Identifier: Apache-2.0
// Sessions: opening, extending, closing, resetting.
#include <barrier>
#include <thread>

#include "absl/strings/str_cat.h"

#include "tests/tensorflow/master/master_fixture.h"

namespace ferry::master {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A session without a graph.
TEST_F(MasterTest, OpensAndClosesAnEmptySession) {
  const auto session = Create({});
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(session->size(), 16u);
  EXPECT_TRUE(cluster_.worker(0).sessions.contains(*session));
  EXPECT_TRUE(cluster_.worker(1).sessions.contains(*session));
  EXPECT_TRUE(Close(*session).ok());
  EXPECT_EQ(cluster_.Leftovers(), "");
  EXPECT_THAT(Close(*session),
              Fails(absl::StatusCode::kAborted, HasSubstr("Possibly, this master has restarted.")));
  EXPECT_THAT(Close("randombits"),
              Fails(absl::StatusCode::kAborted, HasSubstr("Session randombits is not found.")));
}

class DevicesTest : public MasterTest {
 protected:
  DevicesTest() : MasterTest(2, 1) {}
};

// Without a session, the first worker's devices are local.
TEST_F(DevicesTest, ListsTheDevicesOfTheJob) {
  const auto listed = Call(&Master::ListDevices, tensorflow::ListDevicesRequest());
  ASSERT_TRUE(listed.ok()) << listed.status();
  ASSERT_EQ(listed->local_device_size(), 2);
  ASSERT_EQ(listed->remote_device_size(), 2);
  EXPECT_EQ(listed->local_device(0).name(), "/job:worker/replica:0/task:0/device:CPU:0");
  EXPECT_EQ(listed->local_device(0).device_type(), "CPU");
  EXPECT_EQ(listed->remote_device(1).name(), "/job:worker/replica:0/task:1/device:GPU:0");
  EXPECT_EQ(listed->remote_device(1).incarnation(), cluster_.worker(1).incarnation());
}

// With a session, all devices are.
TEST_F(DevicesTest, ListsTheDevicesOfASession) {
  tensorflow::ConfigProto config;
  config.add_device_filters("/job:worker/task:1/device:GPU:0");
  const auto session = Create({}, config);
  ASSERT_TRUE(session.ok()) << session.status();
  tensorflow::ListDevicesRequest request;
  request.set_session_handle(*session);
  const auto listed = Call(&Master::ListDevices, request);
  ASSERT_TRUE(listed.ok()) << listed.status();
  // The host stays: it feeds and fetches.
  ASSERT_EQ(listed->local_device_size(), 2);
  EXPECT_EQ(listed->local_device(0).name(), "/job:worker/replica:0/task:1/device:CPU:0");
  EXPECT_EQ(listed->remote_device_size(), 0);
  request.set_session_handle("x");
  EXPECT_THAT(Call(&Master::ListDevices, request),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("Session x is not found.")));
}

// A reset ends every session, and clears the containers it names.
TEST_F(MasterTest, ResetEndsAllSessions) {
  const auto one = Create({});
  const auto other = Create({});
  tensorflow::ResetRequest request;
  request.add_container("c");
  request.add_device_filters("/job:worker/task:1");
  ASSERT_TRUE(Call(&Master::Reset, request).ok());
  EXPECT_THAT(Close(*one), Fails(absl::StatusCode::kAborted, HasSubstr("not found")));
  EXPECT_THAT(Close(*other), Fails(absl::StatusCode::kAborted, HasSubstr("not found")));
  EXPECT_THAT(cluster_.worker(0).resets, IsEmpty());
  ASSERT_EQ(cluster_.worker(1).resets.size(), 1u);
  EXPECT_EQ(cluster_.worker(1).resets[0].container(0), "c");
  EXPECT_EQ(cluster_.Leftovers(), "");
  request.add_device_filters("/job:worker/task:");
  EXPECT_THAT(Call(&Master::Reset, request),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("device filter")));
}

// 68
TEST_F(MasterTest, ExtendsAnEmptyGraph) {
  const auto session = Create({});
  GraphWriter first;
  first.Const("A", "", 3);
  const auto version = Extend(*session, first.def(), 0);
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(*version, 1);
  EXPECT_THAT(*Fetch(*session, {"A:0"}), ElementsAre(3));
  EXPECT_THAT(Extend("randombits", first.def(), 1),
              Fails(absl::StatusCode::kAborted, HasSubstr("Session randombits is not found.")));
  GraphWriter second;
  second.Const("x", "", 4);
  second.AddFloat("y", "AddV2", {"A", "x"});
  EXPECT_EQ(*Extend(*session, second.def(), 1), 2);
  EXPECT_THAT(*Fetch(*session, {"A:0", "y:0"}), ElementsAre(3, 7));
}

// 69
TEST_F(MasterTest, RefusesAnExistingNode) {
  GraphWriter graph;
  graph.Const("b");
  const auto session = Create(graph.def());
  EXPECT_THAT(Extend(*session, graph.def(), 0),
              Fails(absl::StatusCode::kInvalidArgument,
                    HasSubstr("includes node 'b', which was created by a previous call")));
  EXPECT_EQ(*Extend(*session, {}, 0), 1);
}

// Both have read the old version, and one is first.
TEST_F(MasterTest, TwoExtensions_OneSucceeds) {
  const auto session = Create({});
  tensorflow::ExtendSessionRequest request;
  request.set_session_handle(*session);
  request.mutable_graph_def()->CopyFrom([] {
    GraphWriter graph;
    graph.Const("n");
    return graph.def();
  }());
  std::vector<std::shared_ptr<Answer<tensorflow::ExtendSessionResponse>>> answers;
  for (int i = 0; i < 100; ++i) answers.push_back(Start(&Master::ExtendSession, request));
  cluster_.Pump();
  int successes = 0;
  for (const auto& answer : answers) {
    ASSERT_EQ(answer->count, 1);
    if (answer->result->ok()) {
      ++successes;
    } else {
      EXPECT_THAT(answer->status(),
                  Fails(absl::StatusCode::kAborted,
                        HasSubstr("Current version is 1 but caller expected 0.")));
    }
  }
  EXPECT_EQ(successes, 1);
}

// Both have checked the version, each on a thread of its own, before either has changed it: the
// second one must fail, or its nodes are lost.
TEST_F(MasterTest, TwoExtensionsAtTheSameTime_OneIsAborted) {
  const auto session = Create({});
  GraphWriter graph;
  // Enough nodes that parsing them takes longer than a thread does to start.
  for (int i = 0; i < 300; ++i) graph.Const(absl::StrCat("n", i));
  tensorflow::ExtendSessionRequest request;
  request.set_session_handle(*session);
  for (int round = 0; round < 20; ++round) {
    request.set_current_graph_version(round);
    *request.mutable_graph_def() = graph.def();
    for (auto& node : *request.mutable_graph_def()->mutable_node()) {
      node.set_name(absl::StrCat(node.name(), "_", round));
    }
    HoldWork();
    std::vector<std::shared_ptr<Answer<tensorflow::ExtendSessionResponse>>> answers;
    for (int i = 0; i < 2; ++i) answers.push_back(Start(&Master::ExtendSession, request));
    cluster_.Pump();
    ASSERT_EQ(held_work_.size(), 2u);
    std::barrier start(2);
    std::vector<std::thread> threads;
    for (auto& work : std::exchange(held_work_, {})) {
      threads.emplace_back([&start, work = std::move(work)]() mutable {
        start.arrive_and_wait();
        std::move(work)();
      });
    }
    for (std::thread& thread : threads) thread.join();
    ReleaseWork();
    int successes = 0;
    for (const auto& answer : answers) {
      ASSERT_EQ(answer->count, 1);
      successes += answer->result->ok() ? 1 : 0;
      if (!answer->result->ok()) {
        EXPECT_THAT(answer->status(),
                    Fails(absl::StatusCode::kAborted, HasSubstr("but caller expected")));
      }
    }
    ASSERT_EQ(successes, 1) << "in round " << round;
  }
}

// A step is in progress while nodes are added.
TEST_F(MasterTest, RunsWhileTheGraphIsExtended) {
  GraphWriter graph;
  graph.Const("A", "", 5);
  const auto session = Create(graph.def());
  GraphWriter more;
  more.Const("B", "", 6);
  tensorflow::ExtendSessionRequest extend;
  extend.set_session_handle(*session);
  *extend.mutable_graph_def() = more.def();
  const auto early = Start(&Master::RunStep, Run(*session, {"B:0"}));
  const auto old = Start(&Master::RunStep, Run(*session, {"A:0"}));
  const auto extended = Start(&Master::ExtendSession, extend);
  const auto late = Start(&Master::RunStep, Run(*session, {"A:0", "B:0"}));
  cluster_.Pump();
  EXPECT_THAT(early->status(),
              Fails(absl::StatusCode::kNotFound, HasSubstr("FetchOutputs node B:0: not found")));
  EXPECT_THAT(Values(old->value()), ElementsAre(5));
  EXPECT_TRUE(extended->result->ok());
  EXPECT_THAT(Values(late->value()), ElementsAre(5, 6));
  // A failed lookup is not remembered.
  EXPECT_THAT(*Fetch(*session, {"B:0"}), ElementsAre(6));
}

// 74
TEST_F(MasterTest, LeavesNothingAfterManySessions) {
  for (int round = 0; round < 25; ++round) {
    const auto session = Create(TwoWorkerGraph().def());
    ASSERT_TRUE(session.ok());
    EXPECT_THAT(*Fetch(*session, {"b:0"}, {{"x:0", 1}}), ElementsAre(3));
    ASSERT_TRUE(Close(*session).ok());
    ASSERT_EQ(cluster_.Leftovers(), "");
    ASSERT_EQ(cluster_.event_count(), 0u);
  }
  EXPECT_EQ(master_.session_count(), 0u);
}

// The device that a node is pinned to does not exist for this session.
TEST_F(MasterTest, FiltersDevices) {
  tensorflow::ConfigProto config;
  config.add_device_filters("/job:worker/task:0");
  EXPECT_THAT(Create(TwoWorkerGraph().def(), config),
              Fails(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("task:1"), HasSubstr("available devices are"))));
  config.set_device_filters(0, "/job:ps");
  EXPECT_THAT(Create({}, config),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("device filters")));
  config.set_device_filters(0, "nonsense:");
  EXPECT_THAT(Create({}, config), Fails(absl::StatusCode::kInvalidArgument, HasSubstr("nonsense")));
  EXPECT_EQ(master_.session_count(), 0u);
}

// Missing workers are named, and the wait has an end.
TEST_F(MasterTest, NamesTheMissingWorkers) {
  cluster_.SetListed(1, false);
  tensorflow::CreateSessionRequest request;
  request.mutable_config()->set_operation_timeout_in_ms(100);
  const auto answer = Start(&Master::CreateSession, request);
  cluster_.Pump();
  EXPECT_FALSE(answer->is_there());
  Pass(absl::Milliseconds(101));
  EXPECT_THAT(answer->status(),
              Fails(absl::StatusCode::kDeadlineExceeded,
                    AllOf(HasSubstr("waited 100ms"),
                          HasSubstr("/job:worker/replica:0/task:1 (has not joined)"))));
  EXPECT_EQ(timers_.NextDeadline(), clock_.Now() - absl::Milliseconds(101) + absl::Minutes(1));
}

TEST_F(MasterTest, WaitsForMissingWorkers) {
  cluster_.SetListed(1, false);
  const auto created = Start(&Master::CreateSession, tensorflow::CreateSessionRequest());
  const auto listed = Start(&Master::ListDevices, tensorflow::ListDevicesRequest());
  cluster_.Pump();
  EXPECT_FALSE(created->is_there());
  EXPECT_FALSE(listed->is_there());
  cluster_.SetListed(1, true);
  master_.ClusterChanged();
  cluster_.Pump();
  ASSERT_EQ(created->count, 1);
  EXPECT_TRUE(created->result->ok()) << created->status();
  EXPECT_EQ(listed->value().remote_device_size(), 1);
}

// The timeout covers the whole call: its workers have the rest of it to open the session.
TEST_F(MasterTest, OpensTheSessionWithinTheRestOfTheTimeout) {
  cluster_.SetListed(1, false);
  tensorflow::CreateSessionRequest request;
  request.mutable_config()->set_operation_timeout_in_ms(100'000);
  const auto answer = Start(&Master::CreateSession, request);
  cluster_.Pump();
  Pass(absl::Seconds(30));
  cluster_.SetListed(1, true);
  master_.ClusterChanged();
  cluster_.Pump();
  ASSERT_EQ(answer->count, 1);
  EXPECT_TRUE(answer->result->ok()) << answer->status();
  EXPECT_EQ(cluster_.worker(1).open_timeout, absl::Seconds(70));
}

// A timeout that passes while the graph is placed: a worker that has died meanwhile is no reason to
// call without a timeout, or with one in the past.
TEST_F(MasterTest, OpensTheSessionWithSomeTimeoutWhenNoTimeIsLeft) {
  tensorflow::CreateSessionRequest request;
  request.mutable_config()->set_operation_timeout_in_ms(100);
  HoldWork();
  const auto answer = Start(&Master::CreateSession, request);
  cluster_.Pump();
  // Reading the graph, and then placing it.
  ASSERT_EQ(held_work_.size(), 1u);
  std::move(std::exchange(held_work_, {}).front())();
  cluster_.Pump();
  ASSERT_EQ(held_work_.size(), 1u);
  Pass(absl::Milliseconds(101));
  ReleaseWork();
  ASSERT_EQ(answer->count, 1);
  EXPECT_EQ(cluster_.worker(1).open_timeout, absl::Milliseconds(1));
}

TEST_F(MasterTest, DoesNotWaitForDisconnectedClients) {
  cluster_.SetListed(1, false);
  const auto gone = std::make_shared<CancellationToken>();
  const auto answer = Start(&Master::CreateSession, tensorflow::CreateSessionRequest(), gone);
  cluster_.Pump();
  gone->Cancel();
  EXPECT_THAT(answer->status(), Fails(absl::StatusCode::kCancelled, HasSubstr("gone")));
  EXPECT_EQ(master_.session_count(), 0u);
}

// A worker that has just died is tried again in its next incarnation.
TEST_F(MasterTest, RetriesAnUnreachableWorker) {
  cluster_.worker(1).Kill();
  const auto answer = Start(&Master::CreateSession, tensorflow::CreateSessionRequest());
  cluster_.Pump();
  EXPECT_FALSE(answer->is_there());
  cluster_.Restart(1);
  Pass(absl::Milliseconds(200));
  ASSERT_EQ(answer->count, 1);
  ASSERT_TRUE(answer->result->ok()) << answer->status();
  EXPECT_EQ(cluster_.worker(0).sessions.size(), 1u);
}

TEST_F(MasterTest, GivesUpOnAnUnreachableWorker) {
  cluster_.worker(1).Kill();
  const auto answer = Start(&Master::CreateSession, tensorflow::CreateSessionRequest());
  for (int i = 0; i < 400 && !answer->is_there(); ++i) Pass(absl::Milliseconds(200));
  ASSERT_EQ(answer->count, 1);
  EXPECT_THAT(answer->status(), Fails(absl::StatusCode::kDeadlineExceeded,
                                      HasSubstr("From /job:worker/replica:0/task:1")));
  EXPECT_EQ(cluster_.worker(0).sessions.size(), 0u);
}

// An error of a worker is no reason to wait.
TEST_F(MasterTest, OpensASessionEverywhereOrNowhere) {
  cluster_.worker(1).open_error = absl::ResourceExhaustedError("full");
  EXPECT_THAT(Create({}), Fails(absl::StatusCode::kResourceExhausted,
                                AllOf(HasSubstr("task:1"), HasSubstr("full"))));
  EXPECT_EQ(cluster_.Leftovers(), "");
}

// Names are checked when the graph arrives, and nothing is opened.
TEST_F(MasterTest, RefusesBadNames) {
  for (const char* name : {"a:b", "a:0", "_a"}) {
    GraphWriter graph;
    graph.Const(name);
    EXPECT_THAT(Create(graph.def()),
                Fails(absl::StatusCode::kInvalidArgument, HasSubstr("Illegal op name")));
  }
  const auto session = Create({});
  for (const char* input : {"a:first", "_a", "_a:0", "a:01"}) {
    GraphWriter graph;
    graph.Const("a");
    graph.AddFloat("b", "Identity", {input});
    EXPECT_THAT(Create(graph.def()),
                Fails(absl::StatusCode::kInvalidArgument, HasSubstr("Illegal op input name")));
    EXPECT_THAT(Extend(*session, graph.def(), 0),
                Fails(absl::StatusCode::kInvalidArgument, HasSubstr("Illegal op input name")));
  }
  EXPECT_EQ(cluster_.worker(0).sessions.size(), 1u);
}

// The client decides whether variables are shared, and the workers implement it.
TEST_F(MasterTest, PassesOnWhetherStateIsShared) {
  tensorflow::ConfigProto config;
  config.set_isolate_session_state(true);
  const auto alone = Create({}, config);
  const auto shared = Create({});
  EXPECT_TRUE(cluster_.worker(1).isolated.contains(*alone));
  EXPECT_FALSE(cluster_.worker(1).isolated.contains(*shared));
}

// Clients of later releases send attributes of a node that are unknown here, for workers that know
// them.
TEST_F(MasterTest, UnknownAttributesReachTheWorker) {
  GraphWriter graph;
  graph.Placeholder("x", kCpu0);
  tensorflow::NodeDef& node = graph.AddFloat("a", "Identity", {"x"}, kCpu1);
  node.GetReflection()->MutableUnknownFields(&node)->AddVarint(77, 5);
  node.mutable_experimental_debug_info()->add_original_node_names("original");
  node.mutable_experimental_type()->set_type_id(tensorflow::TFT_TENSOR);
  const auto session = Create(graph.def());
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE(Fetch(*session, {"a:0"}, {{"x:0", 3}}).ok());
  for (const auto& [handle, registered] : cluster_.worker(1).graphs) {
    for (const tensorflow::NodeDef& each : registered.node()) {
      if (each.name() != "a") continue;
      const auto& unknown = each.GetReflection()->GetUnknownFields(each);
      ASSERT_EQ(unknown.field_count(), 1);
      EXPECT_EQ(unknown.field(0).number(), 77);
      EXPECT_EQ(each.experimental_debug_info().original_node_names(0), "original");
      EXPECT_EQ(each.experimental_type().type_id(), tensorflow::TFT_TENSOR);
      return;
    }
  }
  FAIL() << "the node was not registered";
}

TEST_F(MasterTest, RefusesUnknownOptions) {
  tensorflow::ConfigProto config;
  config.set_use_per_session_threads(true);
  EXPECT_THAT(Create({}, config),
              Fails(absl::StatusCode::kInvalidArgument,
                    "Distributed session does not support session thread pool options."));
  config.Clear();
  config.add_session_inter_op_thread_pool();
  EXPECT_THAT(Create({}, config),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("thread pool")));
  config.Clear();
  config.mutable_cluster_def()->add_job()->set_name("worker");
  EXPECT_THAT(Create({}, config),
              Fails(absl::StatusCode::kUnimplemented, HasSubstr("cluster_def")));
  EXPECT_EQ(cluster_.event_count(), 0u);
}

class IdleTest : public MasterTest {
 protected:
  static MasterOptions Options() {
    MasterOptions options;
    options.session_idle_timeout = absl::Seconds(100);
    return options;
  }
  IdleTest() : MasterTest(2, 0, Options()) {}
};

// A client that died without closing its session.
TEST_F(IdleTest, CollectsIdleSessions) {
  const auto idle = Create(TwoWorkerGraph().def());
  const auto busy = Create(TwoWorkerGraph().def());
  const auto running = Create(TwoWorkerGraph().def());
  cluster_.worker(1).hangs = true;
  const auto step = Start(&Master::RunStep, Run(*running, {"b:0"}, {{"x:0", 1}}));
  for (int i = 0; i < 6; ++i) {
    Pass(absl::Seconds(25));
    (void)Extend(*busy, {}, i);
  }
  EXPECT_THAT(Close(*idle), Fails(absl::StatusCode::kAborted, HasSubstr("not found")));
  EXPECT_TRUE(Close(*busy).ok());
  EXPECT_FALSE(step->is_there());
  EXPECT_TRUE(Close(*running).ok());
  EXPECT_THAT(step->status(), Fails(absl::StatusCode::kCancelled, HasSubstr("Close()")));
}

}  // namespace
}  // namespace ferry::master
