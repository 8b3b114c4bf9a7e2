// SPDX-License-Identifier: Apache-2.0
// CoordinatorServer as a whole: its port, its limits, its end, and its other services.
#include <future>
#include <string>
#include <vector>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server_builder.h>

#include "absl/synchronization/notification.h"

#include "control_stream.h"
#include "proto/tsl_coordination.grpc.pb.h"
#include "test_server.h"
#include "tests/support/tcp_proxy.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// jax.distributed compresses its requests from 0.4.36 on.
TEST(Server, TakesCompressedRequestsOnEveryService) {
  TestServer server(1);
  TaskClient task = server.Task(Dialect::kTensorflow, 0);
  const std::string value(1 << 20, 'z');
  PendingCall::Options gzip;
  gzip.gzip = true;
  for (const Dialect dialect : kDialects) {
    TaskClient client = server.Task(dialect, 0);
    auto request = client.New("GetKeyValueDirRequest");
    const char* path = dialect == Dialect::kTensorflow
                           ? "/tensorflow.CoordinationService/GetKeyValueDir"
                           : "/xla.coordination.CoordinationService/GetKeyValueDir";
    EXPECT_THAT(
        PendingCall::Start(client.channel(), path, request->SerializeAsString(), gzip).Wait(),
        IsOk());
  }
  tensorflow::InsertKeyValueRequest insert;
  insert.mutable_kv()->set_key("k");
  insert.mutable_kv()->set_value(value);
  EXPECT_THAT(PendingCall::Start(task.channel(), "/tensorflow.CoordinationService/InsertKeyValue",
                                 insert.SerializeAsString(), gzip)
                  .Wait(),
              IsOk());
  EXPECT_TRUE(task.Entry("GetKeyValue", task.Get("k").Wait()).second == value);
}

// Compiled executables are shared through the store.
TEST(Server, ValueOf64MebibytesPassesInBothDirections) {
  TestServer server(1);
  const std::string value(64 << 20, 'x');
  for (const Dialect dialect : {Dialect::kTensorflow, Dialect::kIncarnations}) {
    TaskClient task = server.Task(dialect, 0);
    ASSERT_THAT(task.Insert("k", value, true).Wait(), IsOk());
    EXPECT_TRUE(task.Entry("GetKeyValue", task.Get("k").Wait()).second == value);
  }
}

TEST(Server, ReflectionListsEveryService) {
  TestServer server(1);
  auto channel = server.Channel();
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kTimeout));
  std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel.get(),
          grpc::internal::RpcMethod(
              "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              grpc::internal::RpcMethod::BIDI_STREAMING),
          &context));
  // ServerReflectionRequest{list_services = 7: ""}.
  grpc::Slice slice(std::string("\x3a\x00", 2));
  stream->Write(grpc::ByteBuffer(&slice, 1));
  grpc::ByteBuffer response;
  ASSERT_TRUE(stream->Read(&response));
  stream->WritesDone();
  grpc::Slice flat;
  ASSERT_TRUE(response.DumpToSingleSlice(&flat).ok());
  const std::string text(flat.begin(), flat.end());
  for (const char* service :
       {"xla.DistributedRuntimeService", "tensorflow.CoordinationService",
        "xla.coordination.CoordinationService", "ferry.v1.Control", "grpc.health.v1.Health"}) {
    EXPECT_THAT(text, HasSubstr(service));
  }
  grpc::ByteBuffer rest;
  EXPECT_FALSE(stream->Read(&rest));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(Server, IsHealthy) {
  TestServer server(1);
  // HealthCheckResponse{status = 1: SERVING}.
  EXPECT_EQ(PendingCall::Start(server.Channel(), "/grpc.health.v1.Health/Check", "").Wait().body,
            "\x08\x01");
}

TEST(Server, UnknownMethodsAreUnimplemented) {
  TestServer server(1);
  auto channel = server.Channel();
  for (const char* path :
       {"/tensorflow.CoordinationService/Nonsense",
        "/xla.coordination.CoordinationService/Nonsense", "/xla.DistributedRuntimeService/Get",
        "/nowhere.Service/Get", "/ferry.v1.Control/Detach"}) {
    EXPECT_THAT(PendingCall::Start(channel, path, "").Wait(), Fails(StatusCode::kUnimplemented))
        << path;
  }
}

// A client that calls a worker's methods at the coordinator's port; TensorFlow's servers have one
// port for both.
TEST(Server, MethodsOfWorkers_AreUnimplementedAndNameTheirServer) {
  TestServer server(1);
  auto channel = server.Channel();
  for (const char* path :
       {"/tensorflow.WorkerService/GetStatus", "/tensorflow.WorkerService/RecvTensor",
        "/ferry.v1.TensorStream/Recv", "/ferry.v1.Trace/GetSteps"}) {
    EXPECT_THAT(PendingCall::Start(channel, path, "").Wait(),
                Fails(StatusCode::kUnimplemented, AllOf(HasSubstr("this is the coordinator's port"),
                                                        HasSubstr(path), HasSubstr("by workers"))))
        << path;
  }
  EXPECT_THAT(PendingCall::Start(channel, "/nowhere.Service/Get", "").Wait(),
              Fails(StatusCode::kUnimplemented, HasSubstr("no method \"/nowhere.Service/Get\"")));
}

// The answer to a call whose client closes it before it has sent a request.
grpc::Status CallWithoutRequest(grpc::Channel* channel, const std::string& path) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kTimeout));
  std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel,
          grpc::internal::RpcMethod(path.c_str(), grpc::internal::RpcMethod::BIDI_STREAMING),
          &context));
  stream->WritesDone();
  grpc::ByteBuffer none;
  EXPECT_FALSE(stream->Read(&none));
  return stream->Finish();
}

// Only frequent methods are registered with gRPC; a client must not notice the difference.
TEST(Server, MissingRequestIsAnsweredAlikeByFrequentAndRareMethods) {
  TestServer server(1);
  const auto channel = server.Channel();
  const grpc::Status frequent =
      CallWithoutRequest(channel.get(), "/tensorflow.CoordinationService/Heartbeat");
  const grpc::Status rare =
      CallWithoutRequest(channel.get(), "/tensorflow.CoordinationService/RegisterTask");
  EXPECT_EQ(rare.error_code(), frequent.error_code());
  EXPECT_EQ(rare.error_message(), frequent.error_message());
  EXPECT_FALSE(rare.ok());
}

// WatchJobState's name of G5; clients of the older path never knew it.
TEST(Server, OlderServiceHasNoWatchTasks) {
  TestServer server(1);
  PendingCall::Options options;
  options.deadline = absl::Seconds(2);
  EXPECT_THAT(PendingCall::Start(server.Channel(), "/tensorflow.CoordinationService/WatchTasks", "",
                                 options)
                  .Wait(),
              Fails(StatusCode::kUnimplemented));
}

// The one call in the other direction; clients cannot make it here.
TEST(Server, ReportErrorToTaskIsUnimplementedAtTheCoordinator) {
  TestServer server(1);
  EXPECT_THAT(
      PendingCall::Start(server.Channel(), "/tensorflow.CoordinationService/ReportErrorToTask", "")
          .Wait(),
      Fails(StatusCode::kUnimplemented));
}

// 32, 75, 113
TEST(ServerStop, EndsEveryKindOfWaitAndThenRefusesConnections) {
  auto server = std::make_unique<TestServer>(2);
  auto tasks = server->Registered(Dialect::kTensorflow, 2);
  const PendingCall poll = tasks[0].Poll();
  const PendingCall barrier = tasks[0].Barrier("b", absl::Minutes(1));
  const PendingCall get = tasks[0].Get("k");
  const PendingCall alive = tasks[0].Alive({0, 1});
  ASSERT_TRUE(server->WaitUntilParked(4));
  const std::string address = server->address();
  (*server)->Stop();
  EXPECT_THAT(poll.Wait(), Fails(StatusCode::kCancelled));
  EXPECT_THAT(barrier.Wait(), Fails(StatusCode::kAborted));
  EXPECT_THAT(get.Wait(), Fails(StatusCode::kCancelled));
  EXPECT_THAT(alive.Wait(), Fails(StatusCode::kCancelled));
  (*server)->Stop();
  EXPECT_THAT(
      PendingCall::Start(NewChannel(address), "/tensorflow.CoordinationService/GetKeyValueDir", "")
          .Wait(),
      Fails(StatusCode::kUnavailable));
  server.reset();
}

TEST(ServerStop, IsQuickWithoutConnectionsAndWithIdleOnes) {
  ServerOptions options = TestOptions(1);
  // Waiting for the idle connection would take this long: far longer than a loaded machine takes to
  // stop.
  options.stop_grace = absl::Minutes(1);
  TestServer server(options);
  TaskClient task = server.Task(Dialect::kTensorflow, 0);
  ASSERT_THAT(task.Insert("k", "v").Wait(), IsOk());
  const absl::Time start = absl::Now();
  server->Stop();
  EXPECT_LT(absl::Now() - start, options.stop_grace);
}

TEST(ServerStart, PortInUseIsUnavailable) {
  TestServer server(1);
  ServerOptions options = TestOptions(1);
  options.listen = server.address();
  EXPECT_THAT(CoordinatorServer::Create(options),
              Fails(StatusCode::kUnavailable, HasSubstr(server.address())));
}

TEST(ServerStart, RefusesBadOptions) {
  ServerOptions options = TestOptions(1);
  options.coordinator.jobs.clear();
  EXPECT_THAT(CoordinatorServer::Create(options), Fails(StatusCode::kInvalidArgument));
  options = TestOptions(0);
  EXPECT_THAT(CoordinatorServer::Create(options), Fails(StatusCode::kInvalidArgument));
  for (const char* address : {"", "nonsense", "127.0.0.1:99999", "256.1.1.1:0"}) {
    options = TestOptions(1);
    options.listen = address;
    EXPECT_THAT(CoordinatorServer::Create(options),
                AnyOf(Fails(StatusCode::kInvalidArgument), Fails(StatusCode::kUnavailable)))
        << address;
  }
}

TEST(ServerStart, ListensOnBothFamilies) {
  ServerOptions options = TestOptions(1);
  options.listen = "[::]:0";
  TestServer server(options);
  const std::string address = "127.0.0.1:" + std::to_string(server->port());
  EXPECT_THAT(
      PendingCall::Start(NewChannel(address), "/tensorflow.CoordinationService/GetKeyValueDir", "")
          .Wait(),
      IsOk());
}

// Every JAX client leaves a get of "RECEIVED_PREEMPTION_NOTICE" behind; upstream keeps them.
TEST(ServerWaits, TenThousandAbandonedGetsAreDroppedAndCounted) {
  TestServer server(1);
  TcpProxy proxy(server->port());
  TaskClient task(Dialect::kTensorflow, NewChannel(proxy.address()), 0, 0);
  std::vector<PendingCall> gets;
  for (int i = 0; i < 10'000; ++i) gets.push_back(task.Get("never/" + std::to_string(i % 100)));
  ASSERT_TRUE(server.WaitUntilParked(10'000));
  proxy.Cut();
  EXPECT_TRUE(server.WaitUntilParked(0)) << server.parked();
  EXPECT_TRUE(Eventually([&] { return server->frontend().dropped_waits() == 10'000; }));
  for (const PendingCall& get : gets) EXPECT_THAT(get.Wait(), Fails(StatusCode::kUnavailable));
  EXPECT_THAT(server.Task(Dialect::kTensorflow, 0).Insert("never/1", "v").Wait(), IsOk());
}

// A wait that ends by the client's own deadline is dropped as well.
TEST(ServerWaits, AreDroppedWhenTheClientsDeadlinePasses) {
  TestServer server(1);
  auto tasks = server.Registered(Dialect::kTensorflow, 1);
  PendingCall::Options options;
  options.deadline = absl::Milliseconds(100);
  tensorflow::GetKeyValueRequest request;
  request.set_key("never");
  const PendingCall get =
      PendingCall::Start(server.Channel(), "/tensorflow.CoordinationService/GetKeyValue",
                         request.SerializeAsString(), options);
  EXPECT_THAT(get.Wait(), Fails(StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(server.WaitUntilParked(0));
}

// A poll is a method that gRPC's table does not list.
TEST(ServerWaits, RareMethodsAreDroppedAndCountedToo) {
  TestServer server(1);
  auto tasks = server.Registered(Dialect::kTensorflow, 1);
  PendingCall::Options options;
  options.deadline = absl::Milliseconds(100);
  tensorflow::PollForErrorRequest request;
  request.mutable_source_task()->set_job_name("jax_worker");
  const PendingCall poll =
      PendingCall::Start(server.Channel(), "/tensorflow.CoordinationService/PollForError",
                         request.SerializeAsString(), options);
  EXPECT_THAT(poll.Wait(), Fails(StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(server.WaitUntilParked(0));
  EXPECT_TRUE(Eventually([&] { return server->frontend().dropped_waits() == 1; }));
}

TEST(ServerWaits, MoreThanTheLimitAreRefusedNamingTheOption) {
  ServerOptions options = TestOptions(1);
  options.coordinator.max_pending_gets = 10;
  TestServer server(options);
  TaskClient task = server.Task(Dialect::kTensorflow, 0);
  std::vector<PendingCall> gets;
  for (int i = 0; i < 10; ++i) gets.push_back(task.Get("k"));
  ASSERT_TRUE(server.WaitUntilParked(10));
  EXPECT_THAT(task.Get("k").Wait(), Fails(StatusCode::kResourceExhausted, HasSubstr("wait")));
  ASSERT_THAT(task.Insert("k", "v").Wait(), IsOk());
  for (const PendingCall& get : gets) EXPECT_THAT(get.Wait(), IsOk());
}

// The service of a rank of 2022 that the coordinator calls.
class ErrorListener final : public tensorflow::CoordinationService::Service {
 public:
  ErrorListener() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  grpc::Status ReportErrorToTask(grpc::ServerContext*,
                                 const tensorflow::ReportErrorToTaskRequest* request,
                                 tensorflow::ReportErrorToTaskResponse*) override {
    request_ = *request;
    called_.Notify();
    return grpc::Status::OK;
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  bool Wait() { return called_.WaitForNotificationWithTimeout(kTimeout); }
  // After Wait.
  const tensorflow::ReportErrorToTaskRequest& request() const { return request_; }

 private:
  int port_ = 0;
  tensorflow::ReportErrorToTaskRequest request_;
  absl::Notification called_;
  std::unique_ptr<grpc::Server> server_;
};

TEST(ServerErrors, CallARankThatServesReportErrorToTask) {
  ErrorListener listener;
  TestServer server(2);
  v1::Hello hello = RankHello(0, 1, "host0");
  hello.mutable_node()->set_error_address(listener.address());
  ControlStream rank(server.Channel());
  rank.Attach(hello);
  v1::Request join;
  join.set_id(1);
  join.mutable_register_();
  auto other = server.Task(Dialect::kTensorflow, 1);
  rank.Send({join});
  ASSERT_THAT(other.Register(5).Wait(), IsOk());
  ASSERT_EQ(rank.ReplyTo(1).code(), 0);
  ASSERT_THAT(other.ReportError(StatusCode::kDataLoss, "loss is nan").Wait(), IsOk());
  ASSERT_TRUE(listener.Wait());
  EXPECT_EQ(listener.request().error_code(), static_cast<int>(StatusCode::kDataLoss));
  EXPECT_THAT(listener.request().error_message(), HasSubstr("loss is nan"));
}

}  // namespace
}  // namespace ferry::coord
