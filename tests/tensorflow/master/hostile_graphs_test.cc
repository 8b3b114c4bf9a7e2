// SPDX-License-Identifier: Apache-2.0
// Memory that clients may not have: graphs that wait, those of all sessions, constants and feeds.
#include "tests/tensorflow/master/master_fixture.h"

namespace ferry::master {
namespace {

using ::testing::Not;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

class HostileGraphsTest : public MasterTest {
 protected:
  static MasterOptions Options() {
    MasterOptions options;
    options.max_graph_nodes = 5;
    options.max_all_graph_bytes = 100'000;
    options.max_constant_bytes = size_t{1} << 20;
    options.max_all_constant_bytes = 2'500'000;
    options.max_feed_bytes = 1'000'000;
    options.max_all_feed_bytes = 2'000'000;
    options.waiting.max_waiting_graphs = 2;
    options.waiting.max_waiting_bytes = 50'000;
    return options;
  }
  HostileGraphsTest() : MasterTest(2, 0, Options()) {}

  // Constants that claim a megabyte each.
  static GraphWriter Constants(int count, const std::string& prefix = "c") {
    GraphWriter graph;
    for (int i = 0; i < count; ++i) {
      (*graph.Const(absl::StrCat(prefix, i)).mutable_attr())["value"]
          .mutable_tensor()
          ->mutable_tensor_shape()
          ->add_dim()
          ->set_size(250'000);
    }
    return graph;
  }
  static tensorflow::GraphDef Large() {
    GraphWriter graph;
    graph.Const(std::string(20'000, 'n'));
    return graph.def();
  }
  std::shared_ptr<Answer<tensorflow::CreateSessionResponse>> StartCreate(
      const tensorflow::GraphDef& graph) {
    tensorflow::CreateSessionRequest request;
    *request.mutable_graph_def() = graph;
    return Start(&Master::CreateSession, std::move(request));
  }
};

TEST_F(HostileGraphsTest, CountsNodesOfASession) {
  GraphWriter graph;
  for (int i = 0; i < 6; ++i) graph.Const(absl::StrCat("n", i));
  EXPECT_THAT(Create(graph.def()), Fails(kExhausted, HasSubstr("--max-graph-nodes is 5")));
  const auto session = Create(TwoWorkerGraph().def());
  ASSERT_TRUE(session.ok());
  GraphWriter more;
  for (int i = 0; i < 3; ++i) more.Const(absl::StrCat("n", i));
  EXPECT_THAT(Extend(*session, more.def(), 0),
              Fails(kExhausted, HasSubstr("would have 6 nodes, and --max-graph-nodes is 5")));
  EXPECT_TRUE(Fetch(*session, {"a:0"}).ok());
}

TEST_F(HostileGraphsTest, AddsUpConstants) {
  EXPECT_THAT(Create(Constants(3).def()), Fails(kExhausted, HasSubstr("--max-all-constant-bytes")));
  const auto session = Create(Constants(2).def());
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_THAT(Extend(*session, Constants(1, "d").def(), 0),
              Fails(kExhausted, HasSubstr("--max-all-constant-bytes")));
}

// By a step, a callable and a piece.
TEST_F(HostileGraphsTest, AddsUpFeeds) {
  GraphWriter graph;
  graph.Placeholder("x");
  graph.Placeholder("y");
  graph.AddFloat("z", "AddV2", {"x", "y"});
  const auto session = Create(graph.def());
  ASSERT_TRUE(session.ok());
  tensorflow::TensorProto half = Scalar(1);
  half.mutable_tensor_shape()->add_dim()->set_size(125'001);
  const auto refused = Fails(kExhausted, HasSubstr("--max-feed-bytes is 1000000"));

  tensorflow::RunStepRequest run = Run(*session, {"z:0"}, {{"x:0", 1}, {"y:0", 1}});
  for (auto& feed : *run.mutable_feed()) *feed.mutable_tensor() = half;
  EXPECT_THAT(Call(&Master::RunStep, run), refused);
  *run.mutable_feed(0)->mutable_tensor() = Scalar(1);
  EXPECT_THAT(Call(&Master::RunStep, run), Not(refused));

  tensorflow::PartialRunSetupRequest setup;
  setup.set_session_handle(*session);
  setup.add_feed("x:0");
  setup.add_feed("y:0");
  setup.add_fetch("z:0");
  const auto partial = Call(&Master::PartialRunSetup, setup);
  ASSERT_TRUE(partial.ok());
  run.set_partial_run_handle(partial->partial_run_handle());
  for (auto& feed : *run.mutable_feed()) *feed.mutable_tensor() = half;
  EXPECT_THAT(Call(&Master::RunStep, run), refused);

  tensorflow::MakeCallableRequest make;
  make.set_session_handle(*session);
  for (const char* feed : {"x:0", "y:0"}) make.mutable_options()->add_feed(feed);
  make.mutable_options()->add_fetch("z:0");
  const auto made = Call(&Master::MakeCallable, make);
  ASSERT_TRUE(made.ok());
  tensorflow::RunCallableRequest call;
  call.set_session_handle(*session);
  call.set_handle(made->handle());
  for (int i = 0; i < 2; ++i) *call.add_feed() = half;
  EXPECT_THAT(Call(&Master::RunCallable, call), refused);
}

// Steps that hang keep their feeds.
TEST_F(HostileGraphsTest, BoundsFeedsOfAllCalls) {
  GraphWriter graph;
  graph.Placeholder("x");
  graph.AddFloat("z", "AddV2", {"x", "x"});
  const auto session = Create(graph.def());
  ASSERT_TRUE(session.ok());
  tensorflow::RunStepRequest run = Run(*session, {"z:0"}, {{"x:0", 1}});
  run.mutable_feed(0)->mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(125'000);
  const auto refused = Fails(kExhausted, HasSubstr("--max-all-feed-bytes is 2000000"));
  cluster_.worker(0).hangs = true;
  std::vector<std::shared_ptr<Answer<tensorflow::RunStepResponse>>> steps;
  for (int i = 0; i < 4; ++i) {
    steps.push_back(Start(&Master::RunStep, run));
    cluster_.Pump();
    EXPECT_EQ(steps.back()->count, 0) << i;
  }
  EXPECT_THAT(Call(&Master::RunStep, run), refused);
  EXPECT_TRUE(Close(*session).ok());
  for (const auto& step : steps) EXPECT_EQ(step->count, 1);
  cluster_.worker(0).hangs = false;

  const auto next = Create(graph.def());
  ASSERT_TRUE(next.ok());
  run.set_session_handle(*next);
  EXPECT_THAT(Call(&Master::RunStep, run), Not(refused));
}

TEST_F(HostileGraphsTest, BoundsGraphsOfAllSessions) {
  std::vector<std::string> sessions;
  absl::Status status;
  while (status.ok() && sessions.size() < 100) {
    const auto session = Create(Large());
    status = session.status();
    if (session.ok()) sessions.push_back(*session);
  }
  EXPECT_THAT(status, Fails(kExhausted, HasSubstr("--max-all-graph-bytes is 100000")));
  EXPECT_GE(sessions.size(), 3u);
  EXPECT_LE(sessions.size(), 5u);
  EXPECT_THAT(Extend(sessions[0], Constants(1).def(), 0).status(), absl::OkStatus());
  GraphWriter large;
  large.Const(std::string(20'000, 'm'));
  EXPECT_THAT(Extend(sessions[0], large.def(), 1),
              Fails(kExhausted, HasSubstr("--max-all-graph-bytes")));
  // The room of a session is free for others, repeatedly.
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Close(sessions.back()).ok());
    const auto session = Create(Large());
    ASSERT_TRUE(session.ok()) << session.status();
    sessions.back() = *session;
    // And failed requests take none.
    EXPECT_FALSE(Extend(*session, Large(), 0).ok());
  }
}

// The limits themselves are allowed, and what has left the queue no longer counts.
TEST(GraphWork, AsManyBytesAsAllowed_AreAdmitted) {
  std::vector<absl::AnyInvocable<void() &&>> queue;
  GraphWork work(
      [&queue](absl::AnyInvocable<void() &&> function) { queue.push_back(std::move(function)); },
      {.max_waiting_graphs = 3, .max_waiting_bytes = 100});
  int admitted = 0;
  int refused = 0;
  const auto add = [&](size_t bytes) {
    work.Add(bytes, [&](const absl::Status& status) { ++(status.ok() ? admitted : refused); });
  };
  for (int round = 0; round < 2; ++round) {
    add(101);
    EXPECT_EQ(refused, 1) << "one request";
    add(40);
    add(60);
    add(1);
    EXPECT_EQ(refused, 2) << "in sum";
    add(0);
    add(0);
    EXPECT_EQ(refused, 3) << "in number";
    for (auto& function : std::exchange(queue, {})) std::move(function)();
    EXPECT_EQ(admitted, 3);
    admitted = refused = 0;
  }
  add(100);
  EXPECT_EQ(refused, 0);
  for (auto& function : std::exchange(queue, {})) std::move(function)();
}

TEST_F(HostileGraphsTest, BoundsRequestsThatWaitForParsing) {
  HoldWork();
  const auto first = StartCreate({});
  const auto second = StartCreate({});
  const auto third = StartCreate({});
  cluster_.Pump();
  EXPECT_FALSE(first->is_there());
  ASSERT_TRUE(third->is_there());
  EXPECT_THAT(third->status(), Fails(kExhausted, HasSubstr("max_waiting_graphs (2)")));
  ReleaseWork();
  EXPECT_TRUE(first->result->ok());
  EXPECT_TRUE(second->result->ok());
  // Bytes as well, of sessions, extensions and steps.
  HoldWork();
  const auto large = StartCreate(Large());
  tensorflow::ExtendSessionRequest extend;
  extend.set_session_handle(first->value().session_handle());
  GraphWriter wide;
  wide.Const(std::string(30'000, 'w'));
  *extend.mutable_graph_def() = wide.def();
  const auto extension = Start(&Master::ExtendSession, extend);
  const auto step =
      Start(&Master::RunStep, Run(first->value().session_handle(), {std::string(40'000, 'f')}));
  cluster_.Pump();
  for (const absl::Status& status : {extension->status(), step->status()}) {
    EXPECT_THAT(status, Fails(kExhausted, HasSubstr("max_waiting_bytes is 50000")));
  }
  ReleaseWork();
  EXPECT_TRUE(large->result->ok()) << large->status();
  EXPECT_EQ(extension->count, 1);
  EXPECT_EQ(step->count, 1);
}

}  // namespace
}  // namespace ferry::master
