// SPDX-License-Identifier: Apache-2.0
// Calls of a job that has ended by the time they are processed: they must not affect the next job.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "control_stream.h"
#include "coord/server/coordination_service.h"
#include "coord/server/runtime_service.h"
#include "coord/wire/bytes.h"
#include "proto/tsl_coordination.pb.h"
#include "proto/xla_coordination.pb.h"
#include "proto/xla_distributed_runtime.pb.h"
#include "proto/xla_topology.pb.h"
#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;

constexpr int kTasks = 2;

// The tasks leave and others replace them: another job, with another incarnation of the service.
void BeginNextJob(CoordinatorExecutor& executor) {
  executor.Run([](Coordinator& coordinator) {
    const int64_t epoch = coordinator.epoch();
    for (int i = 0; i < kTasks; ++i) EXPECT_TRUE(coordinator.ResetTask(TaskId(i)).ok());
    for (int i = 0; i < kTasks; ++i) {
      Registration registration;
      registration.task = TaskId(i);
      registration.incarnation = Incarnation(static_cast<uint64_t>(9000 + 10 * epoch + i));
      coordinator.RegisterTask(std::move(registration),
                               [](absl::Status status) { EXPECT_TRUE(status.ok()) << status; });
    }
    EXPECT_EQ(coordinator.epoch(), epoch + 1);
  });
}

// A call that does not arrive through gRPC. Runs `between` once, in the handler: where it checks
// its caller or is about to wait, whichever is first.
class FakeCall final : public DeferredCall {
 public:
  explicit FakeCall(std::string peer, std::function<void()> between = nullptr)
      : peer_(std::move(peer)), between_(std::move(between)) {}

  std::string peer() const override {
    RunBetween();
    return peer_;
  }
  absl::Duration TimeLeft() const override { return absl::InfiniteDuration(); }
  void SetWait(WaitId wait) override { wait_ = wait; }
  void Answer(grpc::Status status, grpc::ByteBuffer response) override {
    EXPECT_FALSE(is_answered_);
    is_answered_ = true;
    status_ = status;
    response_ = response;
  }

  // True once `between` has run.
  bool has_run() const { return between_ == nullptr; }
  bool is_answered() const { return is_answered_; }
  absl::Status status() const {
    return absl::Status(static_cast<StatusCode>(status_.error_code()), status_.error_message());
  }
  template <typename Message>
  Message As() {
    Message message;
    EXPECT_TRUE(is_answered_ && status_.ok()) << status();
    EXPECT_TRUE(ParseMessage(response_, message));
    return message;
  }

 private:
  DeferredCall* Keep() override {
    RunBetween();
    return this;
  }
  void RunBetween() const {
    if (const auto between = std::exchange(between_, nullptr)) between();
  }

  const std::string peer_;
  mutable std::function<void()> between_;
  WaitId wait_ = kNoWait;
  bool is_answered_ = false;
  grpc::Status status_;
  grpc::ByteBuffer response_;
};

CoordinatorOptions TogetherOptions() {
  CoordinatorOptions options;
  options.jobs = {{"jax_worker", kTasks}};
  options.register_barrier = true;
  options.reuse = true;
  options.heartbeat_timeout = absl::Minutes(10);
  return options;
}

// The services of a coordinator, without a server.
class JobChange : public ::testing::Test {
 protected:
  JobChange()
      : executor_(*Coordinator::Create(TogetherOptions(), SteadyClock(), 77)),
        frontend_(executor_),
        rare_(frontend_),
        runtime_(MakeRuntimeService(frontend_, rare_)),
        tensorflow_(
            MakeCoordinationService(CoordinationPath::kTensorflow, frontend_, devices_, rare_)),
        xla_(MakeCoordinationService(CoordinationPath::kXla, frontend_, devices_, rare_)) {}

  // Passes a call to the service of `method`, such as "Barrier".
  static void Serve(const UnaryService& service, const std::string& path, FakeCall& call,
                    const google::protobuf::MessageLite& request) {
    const UnaryHandler* handler = service.Find(path);
    ASSERT_NE(handler, nullptr) << path;
    grpc::ByteBuffer bytes = SerializeMessage(request);
    (*handler)(call, bytes);
  }
  void Runtime(const std::string& method, FakeCall& call,
               const google::protobuf::MessageLite& request) {
    Serve(*runtime_, "/xla.DistributedRuntimeService/" + method, call, request);
  }
  void Xla(const std::string& method, FakeCall& call,
           const google::protobuf::MessageLite& request) {
    Serve(*xla_, "/xla.coordination.CoordinationService/" + method, call, request);
  }
  void Tensorflow(const std::string& method, FakeCall& call,
                  const google::protobuf::MessageLite& request) {
    Serve(*tensorflow_, "/tensorflow.CoordinationService/" + method, call, request);
  }

  static ::xla::ConnectRequest ConnectOf(int node) {
    ::xla::ConnectRequest request;
    request.set_protocol_version(3);
    request.set_timeout_milliseconds(60'000);
    request.set_node_id(node);
    request.set_client_id(static_cast<uint64_t>(100 + node));
    return request;
  }
  // Both nodes connect, each from an address of its own unless they share one. Returns the session.
  uint64_t ConnectAll(bool shared = false) {
    FakeCall first("a");
    FakeCall second(shared ? "a" : "b");
    Runtime("Connect", first, ConnectOf(0));
    Runtime("Connect", second, ConnectOf(1));
    EXPECT_EQ(first.As<::xla::ConnectResponse>().session_id(),
              second.As<::xla::ConnectResponse>().session_id());
    return second.As<::xla::ConnectResponse>().session_id();
  }
  // Both tasks register in the coordination service. Returns the incarnation of the service.
  uint64_t RegisterAll() {
    return executor_.Run([](Coordinator& coordinator) {
      for (int i = 0; i < kTasks; ++i) Register(coordinator, i);
      return coordinator.incarnation().value();
    });
  }
  static void Register(Coordinator& coordinator, int task) {
    Registration registration;
    registration.task = TaskId(task);
    registration.incarnation = Incarnation(static_cast<uint64_t>(100 + task));
    coordinator.RegisterTask(std::move(registration),
                             [](absl::Status status) { EXPECT_TRUE(status.ok()) << status; });
  }
  // Registers the last task, and begins the next job before the answers to the others are made.
  void RegisterLastAndBeginNextJob() {
    executor_.Run([this](Coordinator& coordinator) {
      BeginNextJobFirst(coordinator);
      Register(coordinator, 1);
    });
  }
  // The next job begins before any other callback that is due after this critical section.
  void BeginNextJobFirst(Coordinator& coordinator) {
    coordinator.WatchTasks(
        -1, kCoordinatorItself,
        [this](const absl::StatusOr<Coordinator::TablePtr>&) { BeginNextJob(executor_); });
  }

  uint64_t incarnation() {
    return executor_.Run([](Coordinator& c) { return c.incarnation().value(); });
  }
  // The present job has everything that it began with, and nothing else.
  void ExpectUntouched(const std::string& by) {
    executor_.Run([&](Coordinator& coordinator) {
      EXPECT_EQ(coordinator.epoch(), 2) << by;
      EXPECT_EQ(coordinator.wait_count(), 0u) << by;
      EXPECT_TRUE(coordinator.barriers().OpenBarriers().empty()) << by;
      EXPECT_EQ(coordinator.store().key_count(), 0u) << by;
      EXPECT_EQ(coordinator.membership().connected_count(), kTasks) << by;
    });
  }

  CoordinatorExecutor executor_;
  Frontend frontend_;
  GenericMethodTable rare_;
  DeviceInfoMerger devices_;
  std::unique_ptr<UnaryService> runtime_;
  std::unique_ptr<UnaryService> tensorflow_;
  std::unique_ptr<UnaryService> xla_;
};

TEST_F(JobChange, RuntimeGetOfTheOldSession_DoesNotWaitInTheNewJob) {
  ::xla::KeyValueGetRequest request;
  request.set_session_id(ConnectAll());
  request.set_key("k");
  request.set_timeout_milliseconds(60'000);
  FakeCall call("a", [this] { BeginNextJob(executor_); });
  Runtime("KeyValueGet", call, request);
  ASSERT_TRUE(call.has_run());
  ASSERT_TRUE(call.is_answered());
  EXPECT_THAT(call.status(), Fails(StatusCode::kFailedPrecondition, HasSubstr("session")));
  ExpectUntouched("KeyValueGet");
}

TEST_F(JobChange, RuntimeDevicesOfTheOldSession_AreNotThoseOfTheNewJob) {
  ferry::xla::LocalTopology local;
  local.set_boot_id("boot");
  local.add_devices()->set_name("old");
  ::xla::EnumerateDevicesRequest request;
  request.set_session_id(ConnectAll());
  request.set_local_topology(local.SerializeAsString());
  FakeCall call("a", [this] { BeginNextJob(executor_); });
  Runtime("EnumerateDevices", call, request);
  ASSERT_TRUE(call.has_run());
  ASSERT_TRUE(call.is_answered());
  EXPECT_THAT(call.status(), Fails(StatusCode::kFailedPrecondition, HasSubstr("session")));
  ExpectUntouched("EnumerateDevices");
}

TEST_F(JobChange, RuntimeBarrierAndShutdownOfTheOldSession_DoNotTouchTheNewJob) {
  const uint64_t session = ConnectAll();
  ::xla::WaitAtBarrierRequest barrier;
  barrier.set_session_id(session);
  barrier.set_barrier_id("b");
  barrier.set_timeout_milliseconds(60'000);
  FakeCall waiting("a", [this] { BeginNextJob(executor_); });
  Runtime("WaitAtBarrier", waiting, barrier);
  ASSERT_TRUE(waiting.has_run());
  EXPECT_THAT(waiting.status(), Fails(StatusCode::kFailedPrecondition));
  ::xla::ShutdownRequest shutdown;
  shutdown.set_session_id(session);
  FakeCall leaving("a");
  Runtime("Shutdown", leaving, shutdown);
  EXPECT_THAT(leaving.status(), Fails(StatusCode::kFailedPrecondition));
  ExpectUntouched("WaitAtBarrier and Shutdown");
}

// Two nodes share a connection, on which a client shuts down a session that has ended.
TEST_F(JobChange, RuntimeShutdownOfAnotherSession_DoesNotCountForTheNode) {
  ::xla::ShutdownRequest request;
  request.set_session_id(ConnectAll(/*shared=*/true));
  FakeCall first("a");
  Runtime("Shutdown", first, request);
  EXPECT_FALSE(first.is_answered());
  ::xla::ShutdownRequest other;
  other.set_session_id(request.session_id() + 1);
  FakeCall stray("a");
  Runtime("Shutdown", stray, other);
  EXPECT_THAT(stray.status(), Fails(StatusCode::kFailedPrecondition));
  FakeCall second("a");
  Runtime("Shutdown", second, request);
  ASSERT_TRUE(second.is_answered());
  EXPECT_THAT(first.status(), IsOk());
  EXPECT_THAT(second.status(), IsOk());
}

// A node that received the new job's session could act in it without having joined.
TEST_F(JobChange, RuntimeConnect_IsAnsweredWithTheSessionThatItJoined) {
  FakeCall connecting("a");
  Runtime("Connect", connecting, ConnectOf(0));
  ASSERT_FALSE(connecting.is_answered());
  RegisterLastAndBeginNextJob();
  ::xla::KeyValueSetRequest request;
  request.set_session_id(connecting.As<::xla::ConnectResponse>().session_id());
  request.set_key("k");
  FakeCall set("a");
  Runtime("KeyValueSet", set, request);
  EXPECT_THAT(set.status(), Fails(StatusCode::kFailedPrecondition));
  ExpectUntouched("KeyValueSet");
}

// Every waiting method of the newest layout, meant for the previous incarnation of the service.
TEST_F(JobChange, RequestForThePreviousIncarnationOfTheService_DoesNotWaitInTheNewJob) {
  for (const std::string method :
       {"Barrier", "ShutdownTask", "PollForError", "GetAliveTasks", "WatchTasks", "GetKeyValue"}) {
    CoordinatorExecutor executor(*Coordinator::Create(TogetherOptions(), SteadyClock(), 77));
    Frontend frontend(executor);
    GenericMethodTable rare(frontend);
    const auto service = MakeCoordinationService(CoordinationPath::kXla, frontend, devices_, rare);
    const uint64_t life = executor.Run([](Coordinator& coordinator) {
      for (int i = 0; i < kTasks; ++i) Register(coordinator, i);
      return coordinator.incarnation().value();
    });
    std::unique_ptr<google::protobuf::MessageLite> request;
    const auto make = [&](auto message) {
      message.mutable_incarnations()->set_service_incarnation(life);
      request = std::make_unique<decltype(message)>(std::move(message));
    };
    if (method == "Barrier") {
      ::xla::coordination::BarrierRequest barrier;
      barrier.set_barrier_id("b");
      barrier.set_barrier_timeout_in_ms(60'000);
      make(std::move(barrier));
    } else if (method == "ShutdownTask") {
      make(::xla::coordination::ShutdownTaskRequest());
    } else if (method == "PollForError") {
      make(::xla::coordination::PollForErrorRequest());
    } else if (method == "GetAliveTasks") {
      ::xla::coordination::GetAliveTasksRequest alive;
      alive.add_tasks(0);
      alive.add_tasks(1);
      make(std::move(alive));
    } else if (method == "WatchTasks") {
      ::xla::coordination::WatchTasksRequest watch;
      watch.set_version_number(1'000'000);
      make(std::move(watch));
    } else {
      ::xla::coordination::GetKeyValueRequest get;
      get.set_key("k");
      make(std::move(get));
    }
    FakeCall call("a", [&executor] { BeginNextJob(executor); });
    Serve(*service, "/xla.coordination.CoordinationService/" + method, call, *request);
    ASSERT_TRUE(call.has_run()) << method;
    ASSERT_TRUE(call.is_answered()) << method;
    EXPECT_THAT(call.status(), Fails(StatusCode::kInternal, HasSubstr("wrong service incarnation")))
        << method;
    executor.Run([&](Coordinator& coordinator) {
      EXPECT_EQ(coordinator.epoch(), 2) << method;
      EXPECT_EQ(coordinator.wait_count(), 0u) << method;
      EXPECT_TRUE(coordinator.barriers().OpenBarriers().empty()) << method;
      EXPECT_EQ(coordinator.membership().connected_count(), kTasks) << method;
    });
  }
}

// Later requests of the task name the incarnation in the answer.
TEST_F(JobChange, RegisterTask_IsAnsweredWithTheIncarnationOfTheServiceThatItJoined) {
  const uint64_t life = incarnation();
  ::xla::coordination::RegisterTaskRequest request;
  request.set_incarnation(100);
  FakeCall call("a");
  Xla("RegisterTask", call, request);
  ASSERT_FALSE(call.is_answered());
  RegisterLastAndBeginNextJob();
  EXPECT_EQ(call.As<::xla::coordination::RegisterTaskResponse>().leader_incarnation(), life);
  EXPECT_NE(incarnation(), life);
}

TEST_F(JobChange, WaitForAllTasks_IsAnsweredWithTheIncarnationOfTheServiceThatItWasFor) {
  const uint64_t life = RegisterAll();
  tensorflow::WaitForAllTasksRequest request;
  request.mutable_source_task()->set_job_name("jax_worker");
  FakeCall call("a");
  Tensorflow("WaitForAllTasks", call, request);
  ASSERT_FALSE(call.is_answered());
  executor_.Run([this](Coordinator& coordinator) {
    BeginNextJobFirst(coordinator);
    coordinator.WaitForAllTasks(TaskId(1), "",
                                [](const absl::StatusOr<Coordinator::DeviceInfos>&) {});
  });
  EXPECT_EQ(call.As<tensorflow::WaitForAllTasksResponse>().leader_incarnation(), life);
  EXPECT_NE(incarnation(), life);
}

// A rank sends its devices after its registration, and is replaced in between.
TEST(JobChangeControl, DevicesBehindARegistration_AreNotThoseOfTheNewJob) {
  ServerOptions options = BarrierOptions(kTasks);
  options.coordinator.reuse = true;
  TestServer server(options);
  ControlStream stream(server.Channel());
  v1::Hello hello;
  hello.mutable_node()->set_node_id(0);
  hello.mutable_node()->set_incarnation(100);
  stream.Attach(hello);
  std::vector<v1::Request> requests(2);
  requests[0].set_id(1);
  requests[0].mutable_register_();
  requests[1].set_id(2);
  requests[1].mutable_enumerate();
  stream.Send(std::move(requests));
  ASSERT_TRUE(server.WaitUntilParked(1));
  server->executor().Run([&server](Coordinator& coordinator) {
    coordinator.WatchTasks(-1, kCoordinatorItself,
                           [&server](const absl::StatusOr<Coordinator::TablePtr>&) {
                             BeginNextJob(server->executor());
                           });
    Registration registration;
    registration.task = TaskId(1);
    registration.incarnation = Incarnation(101);
    coordinator.RegisterTask(std::move(registration), [](absl::Status) {});
  });
  EXPECT_EQ(stream.ReplyTo(1).code(), 0);
  EXPECT_EQ(stream.ReplyTo(2).code(), static_cast<int>(StatusCode::kAborted));
  // Neither its devices nor its poll for errors waits in the new job.
  EXPECT_EQ(server.parked(), 0u);
}

}  // namespace
}  // namespace ferry::coord
