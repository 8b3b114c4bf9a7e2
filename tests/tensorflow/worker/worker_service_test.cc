// SPDX-License-Identifier: Apache-2.0
// Graphs over two workers, as a master has them run.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "worker_fixture.h"

namespace ferry {
namespace {

using absl::StatusCode;
using coord::Eventually;
using coord::Fails;
using coord::IsOk;
using graph::GraphWriter;
using graph::kTask0;
using graph::kTask1;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WorkerService : public ::testing::TestWithParam<WireProtocol> {
 protected:
  static TransferEngineOptions Options() {
    TransferEngineOptions options;
    options.protocol = GetParam();
    return options;
  }

  Directory directory_;
  WorkerEnd a_{directory_, 0, Options()};
  WorkerEnd b_{directory_, 1, Options()};
};

INSTANTIATE_TEST_SUITE_P(, WorkerService,
                         ::testing::Values(WireProtocol::kNative, WireProtocol::kGrpc),
                         [](const ::testing::TestParamInfo<WireProtocol>& info) {
                           return info.param == WireProtocol::kNative ? "ControlChannel" : "Grpc";
                         });

// x at task 0, through task 1, and back.
GraphWriter ThereAndBack() {
  GraphWriter writer;
  writer.Placeholder("x", kTask0);
  writer.AddFloat("y", "Identity", {"x"}, kTask1);
  writer.AddFloat("z", "Identity", {"y"}, kTask0);
  return writer;
}

TEST_P(WorkerService, ListsItsDevices) {
  auto status = b_.Call<tensorflow::GetStatusResponse>("GetStatus", tensorflow::GetStatusRequest());
  ASSERT_THAT(status, IsOk());
  ASSERT_EQ(status->device_attributes_size(), 1);
  const tensorflow::DeviceAttributes& device = status->device_attributes(0);
  EXPECT_EQ(device.name(), "/job:worker/replica:0/task:1/device:CPU:0");
  EXPECT_EQ(device.device_type(), "CPU");
  EXPECT_EQ(device.incarnation(), b_.incarnation());
  EXPECT_GT(device.memory_limit(), 0);
}

TEST_P(WorkerService, TensorRoundTrips) {
  SmallMaster master({&a_, &b_}, ThereAndBack(), {{"x"}, {"z:0", "y"}, {}});
  ASSERT_THAT(master.status, IsOk());
  const auto fetched = master.Run(1, {Floats({1, 2, 3})});
  ASSERT_THAT(fetched, IsOk());
  EXPECT_THAT(ToFloats(fetched->at(0)), ElementsAre(1, 2, 3));
  EXPECT_THAT(ToFloats(fetched->at(1)), ElementsAre(1, 2, 3));
  a_.ExpectClean();
  b_.ExpectClean();
}

TEST_P(WorkerService, LargeAndEmptyTensors) {
  SmallMaster master({&a_, &b_}, ThereAndBack(), {{"x"}, {"z"}, {}});
  int64_t step = 0;
  for (const int64_t count : {0, 1, 255, 256, 257, 4096, 5 << 20}) {
    Tensor sent = *Tensor::Allocate(DataType::kFloat, *Shape::Create({count}));
    FillPattern(sent, static_cast<uint32_t>(count));
    const auto fetched = master.Run(++step, {sent});
    ASSERT_THAT(fetched, IsOk());
    EXPECT_TRUE(IsEqual(fetched->at(0), sent)) << count;
  }
}

TEST_P(WorkerService, StringsRoundTrip) {
  GraphWriter writer;
  (*writer.Add("x", "Placeholder", {}, kTask0).mutable_attr())["dtype"].set_type(
      tensorflow::DT_STRING);
  (*writer.Add("y", "Identity", {"x"}, kTask1).mutable_attr())["T"].set_type(tensorflow::DT_STRING);
  SmallMaster master({&a_, &b_}, writer, {{"x"}, {"y"}, {}});
  const Tensor sent = *Tensor::OfStrings(
      *Shape::Create({3}), {"", std::string("a\0b", 3), std::string(100'000, '\xff')});
  const auto fetched = master.Run(1, {sent});
  ASSERT_THAT(fetched, IsOk());
  EXPECT_TRUE(IsEqual(fetched->at(0), sent));
}

TEST_P(WorkerService, NodeRunsAfterItsControlInputAtAnotherWorker) {
  GraphWriter writer;
  writer.Const("a", kTask1);
  writer.Const("b", kTask0, 2).add_input("^a");
  SmallMaster master({&a_, &b_}, writer, {{}, {"b"}, {}});
  ASSERT_EQ(master.crossings.size(), 1u);
  const auto fetched = master.Run(1);
  ASSERT_THAT(fetched, IsOk());
  EXPECT_EQ(fetched->at(0).elements<float>()[0], 2);
}

TEST_P(WorkerService, ErrorAtOneWorkerReachesTheOther) {
  GraphWriter writer;
  writer.Placeholder("never_fed", kTask1);
  writer.AddFloat("z", "Identity", {"never_fed"}, kTask0);
  SmallMaster master({&a_, &b_}, writer, {{}, {"z"}, {}});
  SmallMaster::Step step = master.Start(1);
  EXPECT_THAT(step.Wait(), Fails(StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("You must feed a value for placeholder tensor "
                                                 "'never_fed'"),
                                       HasSubstr("{{node never_fed}}"))));
  // The worker at which it happened reports the error, and the other one a derived copy.
  ASSERT_EQ(step.results.size(), 2u);
  for (size_t i = 0; i < step.results.size(); ++i) {
    EXPECT_THAT(step.results[i], Fails(StatusCode::kInvalidArgument));
    EXPECT_EQ(IsDerived(step.results[i].status()), step.workers[i] == &a_)
        << step.results[i].status();
  }
  a_.ExpectClean();
  b_.ExpectClean();
}

// This holds in either order: a master takes the first error that is not derived.
TEST_P(WorkerService, ErrorAtOneWorker_IsDerivedAtTheOthersInEveryStep) {
  GraphWriter writer;
  writer.Placeholder("never_fed", kTask1);
  writer.AddFloat("y", "Identity", {"never_fed"}, kTask0);
  writer.AddFloat("z", "Identity", {"y"}, kTask1);
  writer.AddFloat("w", "Identity", {"z"}, kTask0);
  SmallMaster master({&a_, &b_}, writer, {{}, {"w"}, {}});
  for (int64_t id = 1; id <= 100; ++id) {
    SmallMaster::Step step = master.Start(id);
    EXPECT_THAT(step.Wait(), Fails(StatusCode::kInvalidArgument));
    for (size_t i = 0; i < step.results.size(); ++i) {
      ASSERT_EQ(IsDerived(step.results[i].status()), step.workers[i] == &a_)
          << step.results[i].status();
    }
  }
}

TEST_P(WorkerService, InvalidFeeds_AreNamedByTheirIndex) {
  GraphWriter writer;
  (*writer.Placeholder("x", kTask0).mutable_attr())["dtype"].set_type(tensorflow::DT_BOOL);
  (*writer.Add("y", "Identity", {"x"}, kTask1).mutable_attr())["T"].set_type(tensorflow::DT_BOOL);
  SmallMaster master({&a_, &b_}, writer, {{"x"}, {"y"}, {}});
  ASSERT_THAT(master.status, IsOk());
  tensorflow::RunGraphRequest request = RunRequestOf(master.handle(0), 1);
  Tensor sent = *Tensor::Allocate(DataType::kBool, *Shape::Create({4}));
  std::memcpy(sent.mutable_data(), "\0\1\2\377", 4);
  AddFeed(request, master.feed_key(0), sent);
  EXPECT_THAT(a_.Run(request), Fails(StatusCode::kInvalidArgument,
                                     AllOf(HasSubstr("Invalid TensorProto for feed value 0"),
                                           HasSubstr("element 2 of bool[4] is 2"))));
  a_.ExpectClean();
}

TEST_P(WorkerService, StepThatIsCleanedUpEndsAndStaysOver) {
  SmallMaster master({&a_, &b_}, ThereAndBack(), {{"x"}, {"z"}, {}});
  // The part of task 1 waits for x.
  coord::PendingCall call = b_.Start("RunGraph", RunRequestOf(master.handle(1), 7));
  ASSERT_TRUE(Eventually([this] { return b_.transfer_engine().rendezvous().step_count() == 1; }));
  EXPECT_THAT(b_.Cleanup(7), IsOk());
  EXPECT_THAT(WorkerEnd::ToResult(call.Wait()), Fails(StatusCode::kAborted));
  EXPECT_THAT(b_.Run(RunRequestOf(master.handle(1), 7)), Fails(StatusCode::kAborted));
  b_.ExpectClean();
  // A step that never existed.
  EXPECT_THAT(b_.Cleanup(8), IsOk());
}

TEST_P(WorkerService, CancelledCallEndsTheRun) {
  SmallMaster master({&a_, &b_}, ThereAndBack(), {{"x"}, {"z"}, {}});
  coord::PendingCall call = b_.Start("RunGraph", RunRequestOf(master.handle(1), 7));
  ASSERT_TRUE(Eventually([this] { return b_.worker().step_count() == 1; }));
  call.Cancel();
  EXPECT_THAT(call.Wait(), Fails(StatusCode::kCancelled));
  // The worker has noticed: peers' requests for that step fail, and a second run cannot send.
  ASSERT_TRUE(Eventually([this] {
    const auto step = b_.transfer_engine().rendezvous().Find(7);
    return step.ok() && !(*step)->abort_status().ok();
  }));
  EXPECT_THAT(b_.Cleanup(7), IsOk());
  b_.ExpectClean();
}

TEST_P(WorkerService, DeadlineEndsTheRun) {
  SmallMaster master({&a_, &b_}, ThereAndBack(), {{"x"}, {"z"}, {}});
  coord::PendingCall::Options options;
  options.deadline = absl::Milliseconds(200);
  coord::PendingCall call = b_.Start("RunGraph", RunRequestOf(master.handle(1), 7), options);
  EXPECT_THAT(call.Wait(), Fails(StatusCode::kDeadlineExceeded));
  ASSERT_TRUE(Eventually([this] {
    const auto step = b_.transfer_engine().rendezvous().Find(7);
    return step.ok() && !(*step)->abort_status().ok();
  }));
  EXPECT_THAT(b_.Cleanup(7), IsOk());
}

TEST_P(WorkerService, StatisticsAndGraphsAreReturnedOnRequest) {
  SmallMaster master({&a_, &b_}, ThereAndBack(), {{"x"}, {"z"}, {}});
  SmallMaster::Step plain = master.Start(1, {Floats({1})});
  ASSERT_THAT(plain.Wait(), IsOk());
  EXPECT_FALSE(plain.results[0]->has_step_stats());
  EXPECT_EQ(plain.results[0]->partition_graph_size(), 0);

  SmallMaster::Step step = master.Start(2, {Floats({1})}, /*record=*/true);
  ASSERT_THAT(step.Wait(), IsOk());
  const tensorflow::RunGraphResponse& at_b = *step.results[1];
  ASSERT_EQ(at_b.step_stats().dev_stats_size(), 1);
  EXPECT_EQ(at_b.step_stats().dev_stats(0).device(), b_.device());
  std::map<std::string, tensorflow::NodeExecStats> rows;
  for (const auto& row : at_b.step_stats().dev_stats(0).node_stats()) rows[row.node_name()] = row;
  // y, and an end of each crossing.
  EXPECT_EQ(rows.size(), 3u);
  EXPECT_GT(rows.at("y").all_start_micros(), 1'600'000'000'000'000);
  ASSERT_EQ(master.crossings.size(), 2u);
  // As TensorFlow's timeline parses it: the op, and its inputs.
  EXPECT_EQ(rows.at("y").timeline_label(),
            absl::StrCat("y = Identity(", master.crossings[0].recv_node, ")"));
  EXPECT_EQ(rows.at("y").output_size(), 1);
  const std::string& label = rows.at(master.crossings[0].recv_node).timeline_label();
  EXPECT_THAT(label, AllOf(HasSubstr("[4B] edge_"),
                           HasSubstr(absl::StrCat(" from ", a_.device(), " to ", b_.device())),
                           GetParam() == WireProtocol::kGrpc
                               ? testing::Matcher<const std::string&>(HasSubstr(" by grpc"))
                               : AnyOf(HasSubstr(" by inline"), HasSubstr(" by eager"))));
  ASSERT_EQ(at_b.partition_graph_size(), 1);
  EXPECT_EQ(at_b.partition_graph(0).node_size(), 3);
}

TEST_P(WorkerService, PartialRunsAreFedAndFetchedInParts) {
  GraphWriter writer;
  for (const char* name : {"x", "y"}) {
    writer.Placeholder(name, kTask0);
    writer.AddFloat(absl::StrCat(name, "_out"), "Identity", {name}, kTask1);
  }
  SmallMaster master({&a_, &b_}, writer, {{"x", "y"}, {"x_out", "y_out"}, {}});
  const auto piece = [&](bool is_last) {
    tensorflow::RunGraphRequest request = RunRequestOf(master.handle(0), 5);
    request.set_is_partial(true);
    request.set_is_last_partial_run(is_last);
    return request;
  };
  coord::PendingCall other = b_.Start("RunGraph", RunRequestOf(master.handle(1), 5));
  tensorflow::RunGraphRequest first = piece(false);
  AddFeed(first, master.feed_key(0), Floats({1}));
  first.add_recv_key(master.fetch_key(0));
  const auto got_first = a_.Run(first);
  ASSERT_THAT(got_first, IsOk());
  ASSERT_EQ(got_first->recv_size(), 1);
  EXPECT_EQ(ToFloats(*TensorFromProto(got_first->recv(0).tensor())), std::vector<float>{1});
  EXPECT_FALSE(other.done());
  tensorflow::RunGraphRequest second = piece(true);
  AddFeed(second, master.feed_key(1), Floats({2}));
  second.add_recv_key(master.fetch_key(1));
  const auto got_second = a_.Run(second);
  ASSERT_THAT(got_second, IsOk());
  EXPECT_EQ(ToFloats(*TensorFromProto(got_second->recv(0).tensor())), std::vector<float>{2});
  EXPECT_THAT(WorkerEnd::ToResult(other.Wait()), IsOk());
  EXPECT_THAT(a_.Cleanup(5), IsOk());
  EXPECT_THAT(b_.Cleanup(5), IsOk());
  a_.ExpectClean();
}

TEST_P(WorkerService, ErrorOfAPartialRunEndsItsParts) {
  GraphWriter writer;
  writer.Placeholder("x", kTask0);
  writer.Placeholder("never_fed", kTask0);
  writer.AddFloat("a", "Identity", {"x"}, kTask0);
  writer.AddFloat("b", "Identity", {"never_fed"}, kTask0);
  SmallMaster master({&a_, &b_}, writer, {{"x"}, {"a", "b"}, {}});
  tensorflow::RunGraphRequest request = RunRequestOf(master.handle(0), 5);
  request.set_is_partial(true);
  request.add_recv_key(master.fetch_key(0));
  EXPECT_THAT(a_.Run(request), Fails(StatusCode::kInvalidArgument, HasSubstr("never_fed")));
  request.set_is_last_partial_run(true);
  EXPECT_THAT(a_.Run(request), Fails(StatusCode::kInvalidArgument, HasSubstr("never_fed")));
  EXPECT_THAT(a_.Cleanup(5), IsOk());
  a_.ExpectClean();
}

TEST_P(WorkerService, SessionsEndWithTheirGraphsAndSteps) {
  ASSERT_THAT(b_.CreateSession("s"), IsOk());
  ASSERT_THAT(a_.CreateSession("s"), IsOk());
  SmallMaster master({&a_, &b_}, ThereAndBack(), {{"x"}, {"z"}, {}}, "s");
  ASSERT_THAT(master.Run(1, {Floats({1})}), IsOk());
  EXPECT_EQ(b_.worker().graph_count(), 1u);
  coord::PendingCall waiting = b_.Start("RunGraph", RunRequestOf(master.handle(1), 2, "s"));
  ASSERT_TRUE(Eventually([this] { return b_.worker().step_count() == 1; }));
  tensorflow::DeleteWorkerSessionRequest request;
  request.set_session_handle("s");
  EXPECT_THAT(b_.Call<tensorflow::DeleteWorkerSessionResponse>("DeleteWorkerSession", request),
              IsOk());
  EXPECT_THAT(WorkerEnd::ToResult(waiting.Wait()), Fails(StatusCode::kAborted));
  EXPECT_EQ(b_.worker().graph_count(), 0u);
  EXPECT_EQ(b_.worker().session_count(), 0u);
  b_.ExpectClean();
  EXPECT_THAT(b_.Run(RunRequestOf(master.handle(1), 3, "s")),
              Fails(StatusCode::kAborted,
                    "Session handle is not found: \"s\". Possibly this worker "
                    "(\"/job:worker/replica:0/task:1\") just restarted."));
  // Twice is no error.
  EXPECT_THAT(b_.Call<tensorflow::DeleteWorkerSessionResponse>("DeleteWorkerSession", request),
              IsOk());
}

TEST_P(WorkerService, RestartedMaster_LosesItsPreviousSessions) {
  ASSERT_THAT(a_.CreateSession("old", "/job:m/replica:0/task:0", 1), IsOk());
  ASSERT_THAT(a_.CreateSession("old2", "/job:m/replica:0/task:0", 1), IsOk());
  ASSERT_THAT(a_.CreateSession("other", "/job:n/replica:0/task:0", 9), IsOk());
  EXPECT_EQ(a_.worker().session_count(), 3u);
  ASSERT_THAT(a_.CreateSession("new", "/job:m/replica:0/task:0", 2), IsOk());
  EXPECT_EQ(a_.worker().session_count(), 2u);
  // Once more is no error.
  EXPECT_THAT(a_.CreateSession("new", "/job:m/replica:0/task:0", 2), IsOk());
  EXPECT_THAT(a_.CreateSession(""),
              Fails(StatusCode::kInvalidArgument, "Session must be non-empty."));
}

TEST_P(WorkerService, RestartedWorker_IsDistinguishedFromItsPreviousIncarnation) {
  SmallMaster master({&a_, &b_}, ThereAndBack(), {{"x"}, {"z"}, {}});
  ASSERT_THAT(master.Run(1, {Floats({1})}), IsOk());
  // b requests a tensor that another incarnation of a was to send.
  tensorflow::GraphDef graph;
  tensorflow::NodeDef& node = *graph.add_node();
  node.set_name("r");
  node.set_op("_Recv");
  auto& attrs = *node.mutable_attr();
  attrs["tensor_type"].set_type(tensorflow::DT_FLOAT);
  attrs["tensor_name"].set_s("e");
  attrs["send_device"].set_s(a_.device());
  attrs["recv_device"].set_s(b_.device());
  attrs["send_device_incarnation"].set_i(4711);
  const absl::StatusOr<std::string> handle = b_.Register(graph);
  ASSERT_THAT(handle, IsOk());
  EXPECT_THAT(b_.Run(RunRequestOf(*handle, 2)),
              Fails(StatusCode::kAborted, HasSubstr("incarnation")));
  EXPECT_THAT(b_.Cleanup(2), IsOk());
}

TEST_P(WorkerService, ManyConcurrentStepsAndAThousandInARowLeaveNothing) {
  SmallMaster master({&a_, &b_}, ThereAndBack(), {{"x"}, {"z"}, {}});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&master, t] {
      for (int i = 0; i < 50; ++i) {
        const auto value = static_cast<float>(1000 * t + i);
        const auto fetched = master.Run(1 + 1000 * t + i, {Floats({value})});
        ASSERT_THAT(fetched, IsOk());
        EXPECT_EQ(ToFloats(fetched->at(0)), std::vector<float>{value});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Footprint before = Footprint::Now();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_THAT(master.Run(10'000 + i, {Floats({1})}), IsOk());
  }
  const Footprint after = Footprint::Now();
  EXPECT_LE(after.descriptors, before.descriptors + 8);
  EXPECT_LE(after.mappings, before.mappings + 4);
  master.Deregister();
  for (WorkerEnd* const worker : {&a_, &b_}) {
    worker->ExpectClean();
    EXPECT_EQ(worker->worker().graph_count(), 0u);
  }
}

}  // namespace
}  // namespace ferry
