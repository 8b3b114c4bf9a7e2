// SPDX-License-Identifier: Apache-2.0
// Limits for clients, hostile ones among them.
#include "tests/tensorflow/master/master_fixture.h"

namespace ferry::master {
namespace {

class FewStepsTest : public MasterTest {
 protected:
  static MasterOptions Options() {
    MasterOptions options;
    options.max_step_graphs = 2;
    options.max_steps = 3;
    options.max_sessions = 2;
    options.max_callables = 1;
    options.max_partial_runs = 1;
    options.max_graph_bytes = 1000;
    options.max_constant_bytes = size_t{1} << 20;
    return options;
  }
  FewStepsTest() : MasterTest(2, 0, Options()) {}
};

// A client that never repeats a step does not fill the workers.
TEST_F(FewStepsTest, DropsTheLeastRecentlyRunStep) {
  GraphWriter graph;
  for (const char* name : {"a", "b", "c"}) graph.Const(name);
  const auto session = Create(graph.def());
  for (const char* name : {"a", "b", "a", "c", "a"}) {
    ASSERT_TRUE(Fetch(*session, {name}).ok());
    EXPECT_LE(cluster_.worker(0).graphs.size(), 2u);
  }
  // "b" went for "c".
  EXPECT_EQ(cluster_.worker(0).register_count, 3);
  ASSERT_TRUE(Fetch(*session, {"b"}).ok());
  EXPECT_EQ(cluster_.worker(0).register_count, 4);
}

TEST_F(FewStepsTest, HasLimits) {
  const auto session = Create(TwoWorkerGraph().def());
  ASSERT_TRUE(Create({}).ok());
  EXPECT_THAT(Create({}),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("--max-sessions (2)")));
  cluster_.worker(0).hangs = true;
  std::vector<std::shared_ptr<Answer<tensorflow::RunStepResponse>>> steps;
  for (int i = 0; i < 3; ++i) steps.push_back(Start(&Master::RunStep, Run(*session, {"a:0"})));
  cluster_.Pump();
  EXPECT_THAT(Fetch(*session, {"a:0"}),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("--max-steps (3)")));
  EXPECT_TRUE(Close(*session).ok());
  for (const auto& step : steps) EXPECT_EQ(step->count, 1);
}

tensorflow::GraphDef GraphOfConstant(absl::Span<const int64_t> dims) {
  GraphWriter graph;
  tensorflow::TensorShapeProto* shape =
      (*graph.Const("huge").mutable_attr())["value"].mutable_tensor()->mutable_tensor_shape();
  for (const int64_t dim : dims) shape->add_dim()->set_size(dim);
  return graph.def();
}

// Constants of 2 TiB, encoded in a few bytes, and graphs that grow without limit.
TEST_F(FewStepsTest, BoundsGraphs) {
  const tensorflow::GraphDef graph = GraphOfConstant({int64_t{1} << 20, int64_t{1} << 19});
  EXPECT_THAT(Create(graph), Fails(absl::StatusCode::kResourceExhausted,
                                   AllOf(HasSubstr("huge"), HasSubstr("--max-constant-bytes"))));
  const auto session = Create({});
  EXPECT_THAT(Extend(*session, graph, 0),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("--max-constant-bytes")));
  absl::Status status;
  int64_t version = 0;
  for (int i = 0; status.ok() && i < 1000; ++i) {
    GraphWriter more;
    more.Const(absl::StrCat("n", i));
    status = Extend(*session, more.def(), version).status();
    if (status.ok()) ++version;
  }
  EXPECT_THAT(status, Fails(absl::StatusCode::kResourceExhausted, HasSubstr("--max-graph-bytes")));
  EXPECT_GT(version, 2);
  // The existing graph still runs.
  EXPECT_TRUE(Fetch(*session, {"n0"}).ok());
}

// Names with any bytes, and of any length: refused, and printed in a readable form.
TEST_F(MasterTest, PrintsHostileNames) {
  const auto session = Create(TwoWorkerGraph().def());
  const std::string hostile = std::string(100000, 'n') + "\x01\xff\n";
  for (const absl::Status& status :
       {Fetch(*session, {hostile}).status(), Fetch(hostile, {"a:0"}).status(),
        Fetch(*session, {"b:0"}, {{hostile, 1}}).status(), Close(hostile)}) {
    EXPECT_FALSE(status.ok());
    EXPECT_LT(status.message().size(), 1000u);
    EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("\x01")));
  }
  tensorflow::ConfigProto config;
  config.add_device_filters(hostile);
  const auto refused = Create({}, config);
  EXPECT_FALSE(refused.ok());
  EXPECT_LT(refused.status().message().size(), 1000u);
}

// A chain of a hundred thousand nodes over both workers takes no stack.
TEST_F(MasterTest, RegistersDeepGraphs) {
  GraphWriter graph;
  graph.Const("n0", kCpu0);
  for (int i = 1; i < 100000; ++i) {
    graph.AddFloat(absl::StrCat("n", i), "Identity", {absl::StrCat("n", i - 1)},
                   i % 50000 == 0 ? kCpu1 : kCpu0);
  }
  const auto session = Create(graph.def());
  ASSERT_TRUE(session.ok()) << session.status();
  cluster_.worker(0).hangs = true;
  const auto step = Start(&Master::RunStep, Run(*session, {"n99999:0"}));
  cluster_.Pump();
  EXPECT_EQ(cluster_.worker(0).register_count, 1);
  EXPECT_GT(cluster_.worker(0).last_registered.graph_def().node_size(), 99990);
  EXPECT_TRUE(Close(*session).ok());
  EXPECT_EQ(step->count, 1);
}

// A graph that cannot run is refused when it arrives, and nothing is left of it.
TEST_F(MasterTest, RefusesGraphsThatCannotRun) {
  GraphWriter loop;
  loop.AddFloat("e", "Enter", {});
  EXPECT_THAT(Create(loop.def()), Fails(absl::StatusCode::kUnimplemented, HasSubstr("Enter")));
  GraphWriter unknown;
  unknown.Add("u", "NoSuchOp");
  EXPECT_THAT(Create(unknown.def()), Fails(absl::StatusCode::kNotFound, HasSubstr("NoSuchOp")));
  EXPECT_EQ(master_.session_count(), 0u);
  EXPECT_EQ(cluster_.Leftovers(), "");
}

// The limit itself is allowed.
TEST_F(FewStepsTest, OnePartialRunTooMany_IsResourceExhausted) {
  const auto session = Create(TwoWorkerGraph().def());
  tensorflow::PartialRunSetupRequest request;
  request.set_session_handle(*session);
  request.add_feed("x:0");
  request.add_fetch("b:0");
  ASSERT_TRUE(Call(&Master::PartialRunSetup, request).ok());
  EXPECT_THAT(Call(&Master::PartialRunSetup, request),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("--max-partial-runs")));
}

TEST_F(FewStepsTest, OneCallableTooMany_IsResourceExhaustedUntilOneIsReleased) {
  const auto session = Create(TwoWorkerGraph().def());
  tensorflow::MakeCallableRequest request;
  request.set_session_handle(*session);
  request.mutable_options()->add_feed("x:0");
  request.mutable_options()->add_fetch("b:0");
  const auto made = Call(&Master::MakeCallable, request);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(Call(&Master::MakeCallable, request),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("--max-callables (1)")));
  tensorflow::ReleaseCallableRequest release;
  release.set_session_handle(*session);
  release.set_handle(made->handle());
  ASSERT_TRUE(Call(&Master::ReleaseCallable, release).ok());
  EXPECT_TRUE(Call(&Master::MakeCallable, request).ok());
}

tensorflow::GraphDef OneConstant(const std::string& name) {
  GraphWriter graph;
  graph.Const(name);
  return graph.def();
}

// Graphs of five nodes, of two constants with 1000 floats each, and of as many bytes as two of
// these constants take; feeds of 1000 floats.
class ExactLimitsTest : public MasterTest {
 protected:
  static MasterOptions Options() {
    MasterOptions options;
    options.max_graph_nodes = 5;
    options.max_constant_bytes = 4000;
    options.max_all_constant_bytes = 8000;
    options.max_feed_bytes = 4000;
    return options;
  }
  explicit ExactLimitsTest(MasterOptions options = Options()) : MasterTest(2, 0, options) {}

  static tensorflow::GraphDef ConstantsOf(absl::Span<const int64_t> sizes) {
    GraphWriter graph;
    for (size_t i = 0; i < sizes.size(); ++i) {
      (*graph.Const(absl::StrCat("c", i)).mutable_attr())["value"]
          .mutable_tensor()
          ->mutable_tensor_shape()
          ->add_dim()
          ->set_size(sizes[i]);
    }
    return graph.def();
  }
};

TEST_F(ExactLimitsTest, AsManyNodesAsAllowed_AreAccepted) {
  const auto session = Create(TwoWorkerGraph().def());
  ASSERT_TRUE(session.ok()) << session.status();
  GraphWriter more;
  more.Const("d");
  more.Const("e");
  EXPECT_TRUE(Extend(*session, more.def(), 0).ok());
  EXPECT_THAT(Extend(*session, OneConstant("f"), 1),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("would have 6 nodes")));
}

TEST_F(ExactLimitsTest, ConstantsOfAsManyBytesAsAllowed_AreAccepted) {
  EXPECT_TRUE(Create(ConstantsOf({1000, 1000})).ok());
  EXPECT_THAT(Create(ConstantsOf({1001})),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("--max-constant-bytes")));
  EXPECT_THAT(Create(ConstantsOf({1000, 1000, 1})),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("--max-all-constant-bytes")));
}

TEST_F(ExactLimitsTest, FeedsOfAsManyBytesAsAllowed_AreAccepted) {
  const auto session = Create(TwoWorkerGraph().def());
  const auto fed = [&](int64_t floats) {
    tensorflow::RunStepRequest run = Run(*session, {"b:0"}, {{"x:0", 1}});
    tensorflow::TensorProto& tensor = *run.mutable_feed(0)->mutable_tensor();
    tensor.mutable_tensor_shape()->add_dim()->set_size(floats);
    return Call(&Master::RunStep, run).status();
  };
  EXPECT_TRUE(fed(1000).ok()) << fed(1000);
  EXPECT_THAT(fed(1001),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("--max-feed-bytes is 4000")));
}

class ExactGraphBytesTest : public ExactLimitsTest {
 protected:
  static MasterOptions Options() {
    MasterOptions options;
    options.max_graph_bytes = 2 * OneConstant("a").ByteSizeLong();
    return options;
  }
  ExactGraphBytesTest() : ExactLimitsTest(Options()) {}
};

TEST_F(ExactGraphBytesTest, GraphsOfAsManyBytesAsAllowed_AreAccepted) {
  GraphWriter two;
  two.Const("a");
  two.Const("b");
  EXPECT_TRUE(Create(two.def()).ok());
  const auto session = Create(OneConstant("a"));
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_TRUE(Extend(*session, OneConstant("b"), 0).ok());
  EXPECT_THAT(Extend(*session, OneConstant("c"), 1),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("--max-graph-bytes")));
  two.Const("c");
  EXPECT_THAT(Create(two.def()),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("--max-graph-bytes")));
}

}  // namespace
}  // namespace ferry::master
