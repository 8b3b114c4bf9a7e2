// SPDX-License-Identifier: Apache-2.0
// A master in a coordinator's server, over gRPC on both sides.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"

#include "coord/grpc_server.h"
#include "master/grpc_master_host.h"
#include "proto/tf_grpc_master_service.grpc.pb.h"
#include "proto/tf_master.grpc.pb.h"
#include "tests/graph/graph_fixture.h"
#include "tests/master/wire_worker.h"

namespace ferry::master {
namespace {

using ::ferry::graph::GraphWriter;
using ::testing::AllOf;
using ::testing::HasSubstr;

// "INCARNATION ADDRESS GPUS".
absl::StatusOr<WorkerRecord> ReadRecord(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  WorkerRecord record;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &record.incarnation) ||
      !absl::SimpleAtoi(parts[2], &record.gpu_count)) {
    return absl::InvalidArgumentError("nonsense");
  }
  record.address = parts[1];
  return record;
}

std::string RecordKey(int32_t node) { return absl::StrCat("records/", node); }

class WireTest : public ::testing::Test {
 protected:
  explicit WireTest(int nodes = 1) : nodes_(nodes) {
    MasterOptions options;
    options.worker_timeout = absl::Milliseconds(700);
    host_ = std::make_unique<MasterHost>(options, WorkerRecords{"records/", RecordKey, ReadRecord});
    coord::ServerOptions server;
    server.listen = "127.0.0.1:0";
    server.stop_grace = absl::Milliseconds(200);
    server.coordinator.jobs = {{"jax_worker", nodes}};
    server.coordinator.register_barrier = false;
    server.more_services = [this](coord::Strand& strand, coord::RareMethods& rare) {
      return host_->Attach(strand, rare);
    };
    server_ = *coord::CoordinatorServer::Create(std::move(server));
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    stub_ = tensorflow::MasterService::NewStub(channel_);
    for (int i = 0; i < nodes; ++i) workers_.push_back(std::make_unique<WireWorker>());
  }
  ~WireTest() override {
    host_->Stop(absl::Seconds(2));
    server_->Stop();
  }

  // The node joins, with its devices.
  void Join(int32_t node, uint64_t incarnation) {
    server_->strand().Run([&](coord::Coordinator& coordinator) {
      const coord::TaskId task{node};
      coordinator.RegisterTask({task, coord::Incarnation(incarnation)}, [](absl::Status) {});
      LocalTopology topology;
      topology.node_id = node;
      topology.devices.emplace_back().name = "host";
      Device& gpu = topology.devices.emplace_back();
      gpu.kind = DeviceKind::kGpu;
      gpu.name = "NVIDIA H100";
      gpu.memory_bytes = 1000;
      gpu.compute_major = 9;
      coordinator.EnumerateDevices(task, topology, absl::Seconds(10), [](const auto&) {});
    });
  }
  void Publish(int32_t node, const std::string& record) {
    server_->strand().Run([&](coord::Coordinator& coordinator) {
      (void)coordinator.store().Put(RecordKey(node), record, /*overwrite=*/true);
    });
  }
  void JoinAll() {
    for (int i = 0; i < nodes_; ++i) {
      Join(i, 50 + static_cast<uint64_t>(i));
      Publish(i, absl::StrCat(50 + i, " ", workers_[static_cast<size_t>(i)]->address(), " 1"));
    }
  }

  struct Result {
    grpc::Status status;
    std::string session;
  };
  Result Create(const tensorflow::GraphDef& graph) {
    grpc::ClientContext context;
    tensorflow::CreateSessionRequest request;
    *request.mutable_graph_def() = graph;
    tensorflow::CreateSessionResponse response;
    const grpc::Status status = stub_->CreateSession(&context, request, &response);
    return {status, response.session_handle()};
  }
  grpc::Status Run(const tensorflow::RunStepRequest& request,
                   tensorflow::RunStepResponse& response) {
    grpc::ClientContext context;
    return stub_->RunStep(&context, request, &response);
  }

  const int nodes_;
  std::unique_ptr<MasterHost> host_;
  std::unique_ptr<coord::CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<tensorflow::MasterService::Stub> stub_;
  std::vector<std::unique_ptr<WireWorker>> workers_;
};

GraphWriter Graph(const char* name = "a") {
  GraphWriter graph;
  graph.Placeholder("x");
  graph.AddFloat(name, "Identity", {"x"});
  return graph;
}

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
    request.add_feed()->set_name("x:0");
    request.mutable_feed(0)->mutable_tensor()->set_tensor_content(std::string(bytes, 'y'));
    tensorflow::RunStepResponse response;
    // The client takes 4 MiB unless it is told.
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

// Clients of later releases say more than is known here.
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
  request.add_feed()->set_name("x:0");
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

TEST_F(WireTest, CancelsWhatItsClientLeaves) {
  JoinAll();
  const Result created = Create(Graph("hang").def());
  ASSERT_TRUE(created.status.ok());
  tensorflow::RunStepRequest request;
  request.set_session_handle(created.session);
  request.add_fetch("hang:0");
  request.add_feed()->set_name("x:0");
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
  EXPECT_EQ(workers_[0]->cancelled, 1);
}

TEST_F(WireTest, RefusesWhatIsNoMessage) {
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

class TwoNodesTest : public WireTest {
 protected:
  TwoNodesTest() : WireTest(2) {}

  std::string WhyNot() {
    const Result created = Create({});
    EXPECT_EQ(created.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    return created.status.error_message();
  }
};

// Every way in which a worker can be missing, and its name.
TEST_F(TwoNodesTest, SaysWhyAWorkerIsMissing) {
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
  // Nobody listens there.
  workers_[1]->Stop();
  Publish(1, absl::StrCat("51 ", workers_[1]->address(), " 0"));
  EXPECT_THAT(WhyNot(), AllOf(HasSubstr("From /job:worker/replica:0/task:1"),
                              HasSubstr("opening a session")));
  EXPECT_EQ(workers_[0]->sessions, 0);
}

// A session that waits is opened when the last worker comes.
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

// A node comes back in another life: the session is over, another one is not.
TEST_F(TwoNodesTest, NoticesANodeThatRestarts) {
  JoinAll();
  GraphWriter graph;
  graph.Placeholder("x", "/job:worker/task:0/device:CPU:0");
  graph.AddFloat("hang", "Identity", {"x"}, "/job:worker/task:1/device:CPU:0");
  const Result created = Create(graph.def());
  ASSERT_TRUE(created.status.ok()) << created.status.error_message();
  tensorflow::RunStepRequest request;
  request.set_session_handle(created.session);
  request.add_target("hang");
  request.add_feed()->set_name("x:0");
  tensorflow::RunStepResponse response;
  grpc::Status status;
  std::thread client([&] { status = Run(request, response); });
  workers_[1]->hangs.WaitForNotification();
  server_->strand().Run(
      [](coord::Coordinator& coordinator) { (void)coordinator.ResetTask(coord::TaskId{1}); });
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("/job:worker/replica:0/task:1"));
  workers_[1] = std::make_unique<WireWorker>();
  Join(1, 99);
  Publish(1, absl::StrCat("99 ", workers_[1]->address(), " 0"));
  EXPECT_TRUE(Create(graph.def()).status.ok());
}

// While it comes back, the job's topology is not known; the devices of those that stayed are.
TEST_F(TwoNodesTest, OthersGoOnWhileANodeComesBack) {
  JoinAll();
  GraphWriter graph;
  graph.Placeholder("x", "/job:worker/task:0/device:CPU:0");
  ASSERT_TRUE(Create(graph.def()).status.ok());
  server_->strand().Run([](coord::Coordinator& coordinator) {
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

// A client's word for never.
TEST_F(TwoNodesTest, TimeoutsBeyondAllClocksAreNone) {
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
