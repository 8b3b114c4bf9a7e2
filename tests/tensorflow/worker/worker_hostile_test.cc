// SPDX-License-Identifier: Apache-2.0
// Invalid requests of masters.
#include <string>
#include <vector>

#include "worker_fixture.h"

namespace ferry {
namespace {

using absl::StatusCode;
using coord::Fails;
using coord::IsOk;
using graph::GraphWriter;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class HostileMaster : public ::testing::Test {
 protected:
  // x, fed; y, fetched.
  void SetUp() override {
    GraphWriter writer;
    writer.Placeholder("x");
    writer.AddFloat("y", "Identity", {"x"});
    master_ = std::make_unique<SmallMaster>(std::vector<WorkerClient*>{&a_}, writer,
                                            graph::StepRequest{{"x"}, {"y"}, {}});
    ASSERT_THAT(master_->status, IsOk());
  }
  void TearDown() override {
    // It still works.
    const auto fetched = master_->Run(999'999, {Floats({4})});
    ASSERT_THAT(fetched, IsOk());
    EXPECT_EQ(ToFloats(fetched->at(0)), std::vector<float>{4});
    a_.ExpectClean();
    EXPECT_EQ(a_.worker().graph_count(), 1u);
  }
  tensorflow::RunGraphRequest Request(int64_t step) {
    tensorflow::RunGraphRequest request = RunRequestOf(master_->handle(0), step);
    AddFeed(request, master_->feed_key(0), Floats({1}));
    request.add_recv_key(master_->fetch_key(0));
    return request;
  }
  // A send or receive node of this worker.
  tensorflow::NodeDef TransferEngine(const std::string& op, const std::string& src,
                                     const std::string& dst, const std::string& name = "e") {
    tensorflow::NodeDef node;
    node.set_name(absl::StrCat(op, "_node"));
    node.set_op(op);
    auto& attrs = *node.mutable_attr();
    attrs[op == "_Send" ? "T" : "tensor_type"].set_type(tensorflow::DT_FLOAT);
    attrs["tensor_name"].set_s(name);
    attrs["send_device"].set_s(src);
    attrs["recv_device"].set_s(dst);
    attrs["send_device_incarnation"].set_i(static_cast<int64_t>(a_.incarnation()));
    return node;
  }

  Directory directory_;
  WorkerEnd a_{directory_, 0};
  std::unique_ptr<SmallMaster> master_;
};

TEST_F(HostileMaster, BytesThatAreNoMessage) {
  const auto channel = coord::NewChannel(a_.transfer_engine().self().grpc_address);
  for (const char* method :
       {"GetStatus", "CreateWorkerSession", "DeleteWorkerSession", "RegisterGraph",
        "DeregisterGraph", "RunGraph", "CleanupGraph", "CleanupAll", "Logging"}) {
    EXPECT_THAT(
        coord::PendingCall::Start(channel, absl::StrCat("/tensorflow.WorkerService/", method),
                                  "\xff\xff\xff\xff garbage")
            .Wait(),
        Fails(StatusCode::kInvalidArgument, HasSubstr("the request is no")))
        << method;
  }
}

TEST_F(HostileMaster, UnknownMethodsAreUnimplemented) {
  const tensorflow::GetStatusRequest empty;
  for (const char* method : {"Tracing", "RecvBuf"}) {
    EXPECT_THAT(a_.Start(method, empty).Wait(),
                Fails(StatusCode::kUnimplemented, HasSubstr(method)));
  }
}

TEST_F(HostileMaster, UnknownHandles) {
  EXPECT_THAT(a_.Run(RunRequestOf("nonsense\n", 1)),
              Fails(StatusCode::kAborted,
                    "Graph handle is not found: \"nonsense\\n\". Possibly, this worker just "
                    "restarted."));
  EXPECT_THAT(a_.Run(RunRequestOf(master_->handle(0), 1, "who")),
              Fails(StatusCode::kAborted, HasSubstr("Session handle is not found: \"who\".")));
  EXPECT_THAT(a_.Register({}, "who"), Fails(StatusCode::kAborted));
  tensorflow::DeregisterGraphRequest request;
  request.set_graph_handle("nonsense");
  EXPECT_THAT(a_.Call<tensorflow::DeregisterGraphResponse>("DeregisterGraph", request),
              Fails(StatusCode::kAborted));
  // Another session's graph.
  ASSERT_THAT(a_.CreateSession("s"), IsOk());
  EXPECT_THAT(a_.Run(RunRequestOf(master_->handle(0), 1, "s")),
              Fails(StatusCode::kAborted, HasSubstr("Graph handle is not found")));
}

TEST_F(HostileMaster, ErrorsAreInTheBodyOnlyOnRequest) {
  tensorflow::RunGraphRequest request = RunRequestOf("nonsense", 1);
  EXPECT_EQ(a_.Start("RunGraph", request).Wait().code, StatusCode::kOk);
  request.set_store_errors_in_response_body(false);
  EXPECT_EQ(a_.Start("RunGraph", request).Wait().code, StatusCode::kAborted);
}

TEST_F(HostileMaster, GraphTwiceInAStepAndDuplicateRequest) {
  tensorflow::RunGraphRequest request = Request(5);
  request.set_request_id(17);
  EXPECT_THAT(a_.Run(request), IsOk());
  EXPECT_THAT(a_.Run(request),
              Fails(StatusCode::kAborted,
                    HasSubstr("The same RunGraph (Worker) request was received twice")));
  request.set_request_id(18);
  EXPECT_THAT(a_.Run(request), Fails(StatusCode::kAborted, HasSubstr("has been run in step 5")));
  EXPECT_THAT(a_.Cleanup(5), IsOk());
}

TEST_F(HostileMaster, StepOfAnotherSession) {
  ASSERT_THAT(a_.CreateSession("s"), IsOk());
  EXPECT_THAT(a_.Run(Request(5)), IsOk());
  GraphWriter writer;
  writer.Const("c", a_.device());
  const auto handle = a_.Register(writer.def(), "s");
  ASSERT_THAT(handle, IsOk());
  EXPECT_THAT(a_.Run(RunRequestOf(*handle, 5, "s")),
              Fails(StatusCode::kAborted, HasSubstr("another session's")));
  EXPECT_THAT(a_.Cleanup(5), IsOk());
  tensorflow::DeregisterGraphRequest request;
  request.set_graph_handle(*handle);
  request.set_session_handle("s");
  request.set_create_worker_session_called(true);
  EXPECT_THAT(a_.Call<tensorflow::DeregisterGraphResponse>("DeregisterGraph", request), IsOk());
}

TEST_F(HostileMaster, KeysNotInTheGraph) {
  tensorflow::RunGraphRequest request = Request(1);
  request.add_recv_key("what");
  EXPECT_THAT(a_.Run(request), Fails(StatusCode::kInvalidArgument, HasSubstr("sends nothing")));
  request = Request(2);
  AddFeed(request, "what", Floats({1}));
  EXPECT_THAT(a_.Run(request), Fails(StatusCode::kInvalidArgument));
  // A key of somewhere else.
  request = Request(3);
  AddFeed(request,
          RendezvousKey::Text("/job:worker/replica:0/task:7/device:CPU:0", 1, a_.device(), "e"),
          Floats({1}));
  EXPECT_THAT(a_.Run(request), Fails(StatusCode::kInvalidArgument, HasSubstr("task:7")));
  EXPECT_THAT(a_.Cleanup(3), IsOk());
  // Wanted twice, given once.
  request = Request(4);
  request.add_recv_key(master_->fetch_key(0));
  const auto result = a_.Run(request);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->recv_size(), 1);
  EXPECT_THAT(a_.Cleanup(4), IsOk());
}

TEST_F(HostileMaster, FeedsOfAnotherTypeOrInvalid) {
  tensorflow::RunGraphRequest request = RunRequestOf(master_->handle(0), 1);
  AddFeed(request, master_->feed_key(0), *Tensor::OfStrings(Shape(), {"x"}));
  EXPECT_THAT(a_.Run(request), Fails(StatusCode::kInternal, HasSubstr("does not match declared")));
  EXPECT_THAT(a_.Cleanup(1), IsOk());

  const auto with = [&](auto change) {
    tensorflow::RunGraphRequest each = Request(2);
    change(*each.mutable_send(0)->mutable_tensor());
    return a_.Run(each).status().code();
  };
  EXPECT_EQ(with([](auto& tensor) { tensor.set_tensor_content("abc"); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(with([](auto& tensor) { tensor.mutable_tensor_shape()->mutable_dim(0)->set_size(-1); }),
            StatusCode::kInvalidArgument);
  // Nor a known one: it has three elements instead of two.
  EXPECT_EQ(with([](auto& tensor) {
              tensor.mutable_tensor_shape()->set_unknown_rank(true);
              tensor.mutable_tensor_shape()->mutable_dim(0)->set_size(1 << 20);
            }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(with([](auto& tensor) { tensor.set_dtype(tensorflow::DT_VARIANT); }),
            StatusCode::kInvalidArgument);
  // A few bytes that stand for an exabyte.
  EXPECT_THAT(with([](auto& tensor) {
                tensor.clear_tensor_content();
                tensor.mutable_tensor_shape()->mutable_dim(0)->set_size(int64_t{1} << 58);
              }),
              AnyOf(StatusCode::kInvalidArgument, StatusCode::kResourceExhausted));
  a_.ExpectClean();
}

TEST_F(HostileMaster, GraphsThatCannotRunHere) {
  GraphWriter elsewhere;
  elsewhere.Const("c", "/job:worker/replica:0/task:1/device:CPU:0");
  EXPECT_THAT(
      a_.Register(elsewhere.def()),
      Fails(StatusCode::kInvalidArgument, AllOf(HasSubstr("task:1"), HasSubstr("unknown device"))));
  GraphWriter gpu;
  gpu.Const("c", "/job:worker/replica:0/task:0/device:GPU:0");
  EXPECT_THAT(a_.Register(gpu.def()), Fails(StatusCode::kInvalidArgument, HasSubstr("GPU:0")));
  GraphWriter unknown;
  unknown.Add("u", "Unheard");
  EXPECT_THAT(a_.Register(unknown.def()), Fails(StatusCode::kNotFound, HasSubstr("Unheard")));
  GraphWriter loop;
  loop.Add("l", "Enter");
  EXPECT_THAT(a_.Register(loop.def()), Fails(StatusCode::kUnimplemented, HasSubstr("Enter")));
  GraphWriter no_value;
  (*no_value.Add("c", "Const").mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
  EXPECT_THAT(a_.Register(no_value.def()), Fails(StatusCode::kNotFound, HasSubstr("value")));
  GraphWriter cycle;
  cycle.AddFloat("a", "Identity", {"b"});
  cycle.AddFloat("b", "Identity", {"a"});
  EXPECT_THAT(a_.Register(cycle.def()), Fails(StatusCode::kInvalidArgument, HasSubstr("cycle")));
}

TEST_F(HostileMaster, TransferNodesUnrelatedToThisWorker) {
  const std::string here = a_.device();
  const std::string there = "/job:worker/replica:0/task:1/device:CPU:0";
  const auto registering = [&](const tensorflow::NodeDef& node) {
    tensorflow::GraphDef def;
    *def.add_node() = node;
    return a_.Register(def).status();
  };
  EXPECT_THAT(registering(TransferEngine("_Recv", here, there)),
              Fails(StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("Invalid rendezvous key (dst)"), HasSubstr("_Recv_node"))));
  EXPECT_THAT(registering(TransferEngine("_Recv", "nowhere", here)),
              Fails(StatusCode::kInvalidArgument, HasSubstr("_Recv_node")));
  EXPECT_THAT(registering(TransferEngine("_Recv", here, here, "a;b")),
              Fails(StatusCode::kInvalidArgument));
  tensorflow::NodeDef handle = TransferEngine("_Recv", here, here);
  (*handle.mutable_attr())["tensor_type"].set_type(tensorflow::DT_RESOURCE);
  (*handle.mutable_attr())["client_terminated"].set_b(true);
  EXPECT_THAT(registering(handle), Fails(StatusCode::kUnimplemented, HasSubstr("resources")));
}

// A text of a megabyte is whole in the body; in gRPC's trailer there is no room for it.
TEST_F(HostileMaster, LongErrorsArrive) {
  const std::string name(1 << 20, 'n');
  GraphWriter writer;
  writer.Placeholder(name);
  const auto handle = a_.Register(writer.def());
  ASSERT_THAT(handle, IsOk());
  tensorflow::RunGraphRequest request = RunRequestOf(*handle, 1);
  const absl::Status whole = a_.Run(request).status();
  EXPECT_EQ(whole.code(), StatusCode::kInvalidArgument);
  EXPECT_GT(whole.message().size(), name.size());
  request.set_step_id(2);
  request.set_store_errors_in_response_body(false);
  const absl::Status cut = a_.Run(request).status();
  EXPECT_EQ(cut.code(), StatusCode::kInvalidArgument);
  EXPECT_LT(cut.message().size(), 4000u);
  for (const int step : {1, 2}) EXPECT_THAT(a_.Cleanup(step), IsOk());
  tensorflow::DeregisterGraphRequest deregister;
  deregister.set_graph_handle(*handle);
  EXPECT_THAT(a_.Call<tensorflow::DeregisterGraphResponse>("DeregisterGraph", deregister), IsOk());
}

TEST_F(HostileMaster, MoreThanTheLimits) {
  NodeWorkerOptions options;
  options.limits.max_sessions = 2;
  options.limits.max_graphs = 1;
  options.limits.max_steps = 1;
  options.limits.max_nodes = 2;
  WorkerEnd b(directory_, 1, {}, options);
  EXPECT_THAT(b.CreateSession("1"), IsOk());
  EXPECT_THAT(b.CreateSession("2"), IsOk());
  EXPECT_THAT(b.CreateSession("3"),
              Fails(StatusCode::kResourceExhausted, HasSubstr("max_sessions")));
  GraphWriter writer;
  writer.Const("a");
  const auto handle = b.Register(writer.def());
  ASSERT_THAT(handle, IsOk());
  EXPECT_THAT(b.Register(writer.def()),
              Fails(StatusCode::kResourceExhausted, HasSubstr("max_graphs")));
  EXPECT_THAT(b.Run(RunRequestOf(*handle, 1)), IsOk());
  EXPECT_THAT(b.Run(RunRequestOf(*handle, 2)),
              Fails(StatusCode::kResourceExhausted, HasSubstr("max_steps")));
  writer.Const("b");
  writer.Const("c");
  EXPECT_THAT(b.Register(writer.def(), "1"), Fails(StatusCode::kResourceExhausted));
}

// Constants that expand are counted together, for as long as they exist.
TEST_F(HostileMaster, ConstantsOfAllGraphsTogether) {
  NodeWorkerOptions options;
  options.limits.max_constant_bytes = 10'000;
  WorkerEnd b(directory_, 1, {}, options);
  GraphWriter writer;
  for (const char* name : {"a", "b"}) {
    tensorflow::TensorShapeProto* const shape =
        (*writer.Const(name).mutable_attr())["value"].mutable_tensor()->mutable_tensor_shape();
    shape->add_dim()->set_size(1000);
  }
  const auto handle = b.Register(writer.def());
  ASSERT_THAT(handle, IsOk());
  EXPECT_THAT(b.Register(writer.def()),
              Fails(StatusCode::kResourceExhausted,
                    AllOf(HasSubstr("WorkerLimits::max_constant_bytes"), HasSubstr("8000"))));
  tensorflow::DeregisterGraphRequest request;
  request.set_graph_handle(*handle);
  EXPECT_THAT(b.Call<tensorflow::DeregisterGraphResponse>("DeregisterGraph", request), IsOk());
  EXPECT_THAT(b.Register(writer.def()), IsOk());
}

// The same for feeds, which exist until the step is over.
TEST_F(HostileMaster, FeedsOfAllStepsTogether) {
  NodeWorkerOptions options;
  options.limits.max_feed_bytes = 10'000;
  WorkerEnd b(directory_, 1, {}, options);
  GraphWriter writer;
  writer.Placeholder("x");
  writer.AddFloat("y", "Identity", {"x"});
  SmallMaster master({&b}, writer, graph::StepRequest{{"x"}, {"y"}, {}});
  ASSERT_THAT(master.status, IsOk());
  const auto request = [&](int64_t step, int64_t size) {
    tensorflow::RunGraphRequest run = RunRequestOf(master.handle(0), step);
    tensorflow::NamedTensorProto& feed = *run.add_send();
    feed.set_name(master.feed_key(0));
    feed.mutable_tensor()->set_dtype(tensorflow::DT_FLOAT);
    feed.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(size);
    feed.mutable_tensor()->add_float_val(1);
    return run;
  };
  const auto refused =
      Fails(StatusCode::kResourceExhausted, HasSubstr("WorkerLimits::max_feed_bytes"));
  EXPECT_THAT(b.Run(request(1, int64_t{1} << 32)), refused);
  // Two that are good by themselves.
  tensorflow::RunGraphRequest two = request(1, 2000);
  *two.add_send() = two.send(0);
  EXPECT_THAT(b.Run(two), refused);
  EXPECT_THAT(b.Run(request(1, 2000)), IsOk());
  EXPECT_THAT(b.Run(request(2, 2000)), refused);
  EXPECT_THAT(b.Cleanup(1), IsOk());
  EXPECT_THAT(b.Run(request(2, 2000)), IsOk());
  EXPECT_THAT(b.Cleanup(2), IsOk());
  b.ExpectClean();
}

// Two bytes of a message may become two hundred: it is measured before it is parsed.
TEST_F(HostileMaster, MessagesThatExpand) {
  NodeWorkerOptions options;
  options.limits.max_nodes = 1000;
  options.limits.max_request_bytes = size_t{1} << 20;
  WorkerEnd b(directory_, 1, {}, options);
  tensorflow::GraphDef graph;
  for (int i = 0; i < 2000; ++i) graph.add_node();
  EXPECT_THAT(b.Register(graph),
              Fails(StatusCode::kResourceExhausted, HasSubstr("WorkerLimits::max_nodes is 1000")));
  tensorflow::RunGraphRequest run = RunRequestOf("g", 1);
  for (int i = 0; i < 50'000; ++i) run.add_send();
  EXPECT_THAT(b.Run(run),
              Fails(StatusCode::kResourceExhausted, HasSubstr("WorkerLimits::max_request_bytes")));
}

TEST_F(HostileMaster, DuplicateLastPieceIsAnswered) {
  tensorflow::RunGraphRequest piece = RunRequestOf(master_->handle(0), 5);
  piece.set_is_partial(true);
  piece.set_is_last_partial_run(true);
  // Both wait for x, which is never fed.
  coord::PendingCall first = a_.Start("RunGraph", piece);
  ASSERT_TRUE(coord::Eventually([this] { return a_.worker().step_count() == 1; }));
  coord::PendingCall second = a_.Start("RunGraph", piece);
  EXPECT_THAT(WorkerEnd::ToResult(second.Wait()), Fails(StatusCode::kAborted));
  EXPECT_THAT(a_.Cleanup(5), IsOk());
  EXPECT_THAT(WorkerEnd::ToResult(first.Wait()), Fails(StatusCode::kAborted));
}

// A worker that leaves while graphs wait must not wait for them.
TEST_F(HostileMaster, WorkerThatLeavesEndsItsRuns) {
  auto b = std::make_unique<WorkerEnd>(directory_, 1);
  tensorflow::GraphDef graph;
  *graph.add_node() = TransferEngine("_Recv", b->device(), b->device());
  const auto handle = b->Register(graph);
  ASSERT_THAT(handle, IsOk());
  coord::PendingCall call = b->Start("RunGraph", RunRequestOf(*handle, 1));
  ASSERT_TRUE(coord::Eventually([&b] { return b->worker().step_count() == 1; }));
  b.reset();
  EXPECT_NE(call.Wait().code, StatusCode::kUnknown);
}

}  // namespace
}  // namespace ferry
