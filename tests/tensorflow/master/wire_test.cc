// SPDX-License-Identifier: Apache-2.0
// A master in a coordinator's server, over gRPC on both sides.
#include <memory>
#include <string>
#include <thread>

#include <grpcpp/generic/generic_stub.h>

#include "absl/synchronization/notification.h"

#include "proto/tf_grpc_master_service.grpc.pb.h"
#include "tests/tensorflow/master/wire_fixture.h"

namespace ferry::master {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(WireTest, ServesSessionsFromBeginningToEnd) {
  JoinAll();
  const Result created = Create(Graph().def());
  ASSERT_TRUE(created.status.ok()) << created.status.error_message();
  EXPECT_EQ(workers_[0]->sessions, 1);
  // Small, and large enough for other threads.
  for (const size_t bytes : {size_t{4}, size_t{8} << 20}) {
    tensorflow::RunStepRequest request;
    request.set_session_handle(created.session);
    request.add_fetch("a:0");
    AddFeed(request, bytes);
    tensorflow::RunStepResponse response;
    // The client accepts 4 MiB by default.
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    const auto stub = tensorflow::MasterService::NewStub(grpc::CreateCustomChannel(
        server_->address(), grpc::InsecureChannelCredentials(), arguments));
    grpc::ClientContext context;
    const grpc::Status status = stub->RunStep(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response.tensor_size(), 1);
    EXPECT_EQ(response.tensor(0).name(), "a:0");
    EXPECT_EQ(response.tensor(0).tensor().tensor_content(), std::string(bytes, 'x'));
  }
  grpc::ClientContext context;
  tensorflow::CloseSessionRequest close;
  close.set_session_handle(created.session);
  tensorflow::CloseSessionResponse closed;
  EXPECT_TRUE(stub_->CloseSession(&context, close, &closed).ok());
  EXPECT_EQ(workers_[0]->sessions, 0);
  EXPECT_EQ(workers_[0]->cleaned, 2);
}

TEST_F(WireTest, ServesBothNames) {
  JoinAll();
  const auto other = tensorflow::grpc::MasterService::NewStub(channel_);
  grpc::ClientContext context;
  tensorflow::ListDevicesResponse listed;
  ASSERT_TRUE(other->ListDevices(&context, tensorflow::ListDevicesRequest(), &listed).ok());
  ASSERT_EQ(listed.local_device_size(), 2);
  EXPECT_EQ(listed.local_device(0).name(), "/job:worker/replica:0/task:0/device:CPU:0");
  EXPECT_EQ(listed.local_device(1).name(), "/job:worker/replica:0/task:0/device:GPU:0");
  EXPECT_EQ(listed.local_device(1).memory_limit(), 1000);
  EXPECT_EQ(listed.local_device(1).incarnation(), 50u);
  EXPECT_THAT(listed.local_device(1).physical_device_desc(),
              HasSubstr("name: NVIDIA H100, pci bus id: , compute capability: 9.0"));
  grpc::ClientContext run_context;
  tensorflow::RunStepResponse response;
  tensorflow::RunStepRequest request;
  request.set_session_handle("none");
  const grpc::Status status = other->RunStep(&run_context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(), "Session none is not found.");
}

// Clients of later releases send fields that are unknown here.
TEST_F(WireTest, KeepsUnknownFields) {
  JoinAll();
  tensorflow::CreateSessionRequest request;
  request.mutable_config()
      ->GetReflection()
      ->MutableUnknownFields(request.mutable_config())
      ->AddVarint(4000, 1);
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(77, "x");
  grpc::ClientContext context;
  tensorflow::CreateSessionResponse response;
  EXPECT_TRUE(stub_->CreateSession(&context, request, &response).ok());
}

// However long: 1 MB in the response, and as much as fits in a trailer.
TEST_F(WireTest, CarriesLongErrors) {
  JoinAll();
  workers_[0]->error = std::string(1 << 20, 'e') + "fantasia!";
  const Result created = Create(Graph("fail").def());
  ASSERT_TRUE(created.status.ok()) << created.status.error_message();
  tensorflow::RunStepRequest request;
  request.set_session_handle(created.session);
  request.add_fetch("fail:0");
  AddFeed(request);
  tensorflow::RunStepResponse response;
  const grpc::Status status = Run(request, response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(status.error_message(), HasSubstr("From /job:worker/replica:0/task:0"));
  EXPECT_LT(status.error_message().size(), 4000u);
  request.set_store_errors_in_response_body(true);
  ASSERT_TRUE(Run(request, response).ok());
  EXPECT_EQ(response.status_code(), tensorflow::error::INTERNAL);
  EXPECT_THAT(response.status_error_message(), HasSubstr(workers_[0]->error));
}

TEST_F(WireTest, CancelsCallsOfADisconnectedClient) {
  JoinAll();
  const Result created = Create(Graph("hang").def());
  ASSERT_TRUE(created.status.ok());
  tensorflow::RunStepRequest request;
  request.set_session_handle(created.session);
  request.add_fetch("hang:0");
  AddFeed(request);
  grpc::ClientContext context;
  std::thread canceller([&] {
    workers_[0]->hangs.WaitForNotification();
    context.TryCancel();
  });
  tensorflow::RunStepResponse response;
  EXPECT_EQ(stub_->RunStep(&context, request, &response).error_code(), grpc::StatusCode::CANCELLED);
  canceller.join();
  grpc::ClientContext close_context;
  tensorflow::CloseSessionRequest close;
  close.set_session_handle(created.session);
  tensorflow::CloseSessionResponse closed;
  // It ends when the step has, and was cleaned up.
  EXPECT_TRUE(stub_->CloseSession(&close_context, close, &closed).ok());
  EXPECT_EQ(workers_[0]->cleaned, 1);
  // gRPC notifies the worker on a thread of its own, perhaps after the master has received the end.
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (workers_[0]->cancelled == 0 && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(workers_[0]->cancelled, 1);
}

TEST_F(WireTest, RefusesMalformedMessages) {
  JoinAll();
  grpc::GenericStub stub(channel_);
  for (const char* method : {"RunStep", "CreateSession", "Nonsense"}) {
    for (const absl::string_view text : {"\xff\xff\xff", "\x0a\x05x"}) {
      grpc::ClientContext context;
      const grpc::Slice slice(text.data(), text.size());
      const grpc::ByteBuffer request(&slice, 1);
      grpc::ByteBuffer response;
      grpc::Status status;
      absl::Notification done;
      stub.UnaryCall(&context, absl::StrCat("/tensorflow.MasterService/", method), {}, &request,
                     &response, [&](grpc::Status result) {
                       status = std::move(result);
                       done.Notify();
                     });
      done.WaitForNotification();
      EXPECT_EQ(status.error_code(), std::string(method) == "Nonsense"
                                         ? grpc::StatusCode::UNIMPLEMENTED
                                         : grpc::StatusCode::INTERNAL)
          << method << " " << status.error_message();
    }
  }
}

// Refused by its bytes, before it is made into ten thousand objects; also if it was compressed.
TEST_F(WireTest, CountsNodesBeforeTheyAreParsed) {
  JoinAll();
  tensorflow::CreateSessionRequest request;
  for (int i = 0; i < 10'001; ++i) request.mutable_graph_def()->add_node();
  for (const auto algorithm : {GRPC_COMPRESS_NONE, GRPC_COMPRESS_GZIP}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    tensorflow::CreateSessionResponse response;
    const grpc::Status status = stub_->CreateSession(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(),
                HasSubstr("The request has 10001 nodes, and --max-graph-nodes is 10000"));
  }
}

// The job's token, which its nodes have left in the store.
TEST_F(WireTest, AuthenticatesToWorkers) {
  JoinAll();
  ASSERT_TRUE(Create(Graph().def()).status.ok());
  EXPECT_EQ(workers_[0]->proved, 0);
  server_->executor().Run([](coord::Coordinator& coordinator) {
    (void)coordinator.store().Put("token", "secret", /*overwrite=*/true);
  });
  ASSERT_TRUE(Create(Graph().def()).status.ok());
  EXPECT_EQ(workers_[0]->proved, 1);
}

class TwoNodesTest : public WireTest {
 protected:
  TwoNodesTest() : WireTest(2) {}

  std::string WhyNot() {
    const Result created = Create({});
    EXPECT_EQ(created.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    return created.status.error_message();
  }
};

// Every reason why a worker can be missing, and its name.
TEST_F(TwoNodesTest, ReportsWhyAWorkerIsMissing) {
  EXPECT_THAT(WhyNot(),
              AllOf(HasSubstr("task:0 (has not joined)"), HasSubstr("task:1 (has not joined)")));
  Join(0, 50);
  Publish(0, absl::StrCat("50 ", workers_[0]->address(), " 0"));
  EXPECT_THAT(WhyNot(), HasSubstr("task:0 (has joined, but the devices of all nodes"));
  Join(1, 51);
  EXPECT_THAT(WhyNot(), AllOf(HasSubstr("task:1 (has joined, but serves no graphs"),
                              ::testing::Not(HasSubstr("task:0 ("))));
  Publish(1, "gibberish");
  EXPECT_THAT(WhyNot(), HasSubstr("cannot be read: nonsense"));
  Publish(1, "49 127.0.0.1:1 0");
  EXPECT_THAT(WhyNot(), HasSubstr("has restarted"));
  Publish(1, "51  0");
  EXPECT_THAT(WhyNot(), HasSubstr("serves no graphs"));
  // No process listens there.
  workers_[1]->Stop();
  Publish(1, absl::StrCat("51 ", workers_[1]->address(), " 0"));
  EXPECT_THAT(WhyNot(), AllOf(HasSubstr("From /job:worker/replica:0/task:1"),
                              HasSubstr("opening a session")));
  EXPECT_EQ(workers_[0]->sessions, 0);
}

// A session that waits is opened when the last worker registers.
TEST_F(TwoNodesTest, WaitsForWorkers) {
  Join(0, 50);
  Publish(0, absl::StrCat("50 ", workers_[0]->address(), " 0"));
  Result created;
  std::thread client([&] { created = Create(Graph().def()); });
  Join(1, 51);
  Publish(1, absl::StrCat("51 ", workers_[1]->address(), " 0"));
  client.join();
  EXPECT_TRUE(created.status.ok()) << created.status.error_message();
  EXPECT_EQ(workers_[1]->sessions, 1);
}

// A node comes back in another incarnation: the session is over, another one is not.
TEST_F(TwoNodesTest, DetectsANodeThatRestarts) {
  JoinAll();
  GraphWriter graph;
  graph.Placeholder("x", "/job:worker/task:0/device:CPU:0");
  graph.AddFloat("hang", "Identity", {"x"}, "/job:worker/task:1/device:CPU:0");
  const Result created = Create(graph.def());
  ASSERT_TRUE(created.status.ok()) << created.status.error_message();
  tensorflow::RunStepRequest request;
  request.set_session_handle(created.session);
  request.add_target("hang");
  AddFeed(request);
  tensorflow::RunStepResponse response;
  grpc::Status status;
  std::thread client([&] { status = Run(request, response); });
  workers_[1]->hangs.WaitForNotification();
  server_->executor().Run(
      [](coord::Coordinator& coordinator) { (void)coordinator.ResetTask(coord::TaskId{1}); });
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("/job:worker/replica:0/task:1"));
  workers_[1] = std::make_unique<WireWorker>();
  Join(1, 99);
  Publish(1, absl::StrCat("99 ", workers_[1]->address(), " 0"));
  EXPECT_TRUE(Create(graph.def()).status.ok());
}

// While it comes back, the job's topology is not known; the devices of the remaining nodes are.
TEST_F(TwoNodesTest, OthersContinueWhileANodeComesBack) {
  JoinAll();
  GraphWriter graph;
  graph.Placeholder("x", "/job:worker/task:0/device:CPU:0");
  ASSERT_TRUE(Create(graph.def()).status.ok());
  server_->executor().Run([](coord::Coordinator& coordinator) {
    (void)coordinator.ResetTask(coord::TaskId{1});
    coordinator.RegisterTask({coord::TaskId{1}, coord::Incarnation(99)}, [](absl::Status) {});
  });
  grpc::ClientContext context;
  tensorflow::CreateSessionRequest request;
  *request.mutable_graph_def() = graph.def();
  request.mutable_config()->add_device_filters("/job:worker/task:0");
  request.mutable_config()->set_operation_timeout_in_ms(2000);
  tensorflow::CreateSessionResponse response;
  const grpc::Status status = stub_->CreateSession(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

// A client's value for "never".
TEST_F(TwoNodesTest, TimeoutsBeyondAllClocksAreInfinite) {
  JoinAll();
  grpc::ClientContext context;
  tensorflow::CreateSessionRequest request;
  *request.mutable_graph_def() = Graph().def();
  request.mutable_config()->set_operation_timeout_in_ms(int64_t{1} << 62);
  tensorflow::CreateSessionResponse response;
  const grpc::Status status = stub_->CreateSession(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace ferry::master
