// SPDX-License-Identifier: Apache-2.0
// The task table and GetAliveTasks over the wire; and WaitForAllTasks.
#include <string>
#include <vector>

#include "proto/tsl_coordination.pb.h"
#include "proto/xla_topology.pb.h"
#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

enum { kDisconnected = 2, kConnected = 3, kError = 4 };

using WatchWire = WireTest;
FERRY_IN_EVERY_DIALECT(WatchWire);

// Collectives check the incarnations in this table.
TEST_P(WatchWire, MinusOneAnswersAtOnceWithEveryTask) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  const WireTable table = tasks[0].Table(tasks[0].Watch(-1).Wait());
  ASSERT_EQ(table.tasks.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(table.tasks[i].task, i);
    EXPECT_EQ(table.tasks[i].state, kConnected);
    EXPECT_EQ(table.tasks[i].incarnation, 100u + i);
    EXPECT_EQ(table.tasks[i].error_code, 0);
    const bool named = GetParam() == Dialect::kTensorflow || GetParam() == Dialect::kNamed;
    EXPECT_EQ(table.tasks[i].job, named ? "jax_worker" : "");
  }
  EXPECT_GE(table.version, 0);
}

// 50, 51
TEST_P(WatchWire, ShowsTasksThatLeftAndTasksThatReturnedWithAnotherIncarnation) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  ASSERT_THAT(tasks[1].Reset().Wait(), IsOk());
  WireTable table = tasks[0].Table(tasks[0].Watch(-1).Wait());
  EXPECT_EQ(table.tasks[1].state, kDisconnected);
  EXPECT_EQ(table.tasks[1].incarnation, 101u);
  ASSERT_THAT(tasks[1].Register(102).Wait(), IsOk());
  table = tasks[0].Table(tasks[0].Watch(-1).Wait());
  EXPECT_EQ(table.tasks[1].state, kConnected);
  EXPECT_EQ(table.tasks[1].incarnation, 102u);
}

TEST_P(WatchWire, ShowsErrors) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  ASSERT_THAT(tasks[1].ReportError(StatusCode::kDataLoss, "gone").Wait(), IsOk());
  const WireTable table = tasks[0].Table(tasks[0].Watch(-1).Wait());
  EXPECT_EQ(table.tasks[1].state, kError);
  EXPECT_EQ(table.tasks[1].error_code, static_cast<int>(StatusCode::kDataLoss));
  EXPECT_THAT(table.tasks[1].error_message, ::testing::HasSubstr("gone"));
  EXPECT_TRUE(table.tasks[1].is_reported_error);
}

// 52
TEST_P(WatchWire, CurrentVersionWaitsForAChange) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  const int64_t version = tasks[0].Table(tasks[0].Watch(-1).Wait()).version;
  const PendingCall watch = tasks[0].Watch(version);
  ASSERT_TRUE(server.WaitUntilParked(1));
  EXPECT_THAT(tasks[0].Heartbeat(100).Wait(), IsOk());
  EXPECT_FALSE(watch.done());
  ASSERT_THAT(tasks[1].Shutdown().Wait(), IsOk());
  const WireTable table = tasks[0].Table(watch.Wait());
  EXPECT_GT(table.version, version);
  EXPECT_EQ(table.tasks[1].state, kDisconnected);
}

// 53
TEST_P(WatchWire, OldVersionAnswersAtOnceWithTheLatest) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  const int64_t version = tasks[0].Table(tasks[0].Watch(-1).Wait()).version;
  ASSERT_THAT(tasks[1].Reset().Wait(), IsOk());
  ASSERT_THAT(tasks[1].Register(777).Wait(), IsOk());
  const WireTable table = tasks[0].Table(tasks[0].Watch(version).Wait());
  EXPECT_EQ(table.tasks[1].incarnation, 777u);
}

// Upstream's server crashes on it.
TEST_P(WatchWire, VersionInTheFutureIsRefused) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  EXPECT_THAT(tasks[0].Watch(1'000'000).Wait(), Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(tasks[0].Heartbeat(100).Wait(), IsOk());
}

TEST_P(WatchWire, EndsEmptyWithVersionMinusOneWhenTheServiceStops) {
  TestServer server(1);
  auto tasks = server.Registered(GetParam(), 1);
  const PendingCall watch = tasks[0].Watch(tasks[0].Table(tasks[0].Watch(-1).Wait()).version);
  ASSERT_TRUE(server.WaitUntilParked(1));
  server->Stop();
  const WireTable table = tasks[0].Table(watch.Wait());
  EXPECT_THAT(table.tasks, IsEmpty());
  EXPECT_EQ(table.version, -1);
}

using AliveWire = WireTest;
FERRY_IN_EVERY_DIALECT(AliveWire);

// 123, 128
TEST_P(AliveWire, EveryCallOfARoundGetsTheSameAnswer) {
  TestServer server(3);
  auto tasks = server.Registered(GetParam(), 3);
  std::vector<PendingCall> calls = {tasks[0].Alive({0, 1, 2}), tasks[0].Alive({2, 1, 0}),
                                    tasks[1].Alive({0, 1, 2})};
  ASSERT_TRUE(server.WaitUntilParked(3));
  calls.push_back(tasks[2].Alive({0, 1, 2}));
  for (const PendingCall& call : calls) {
    const WireAlive alive = tasks[0].AliveTasks(call.Wait());
    ASSERT_THAT(alive.tasks, UnorderedElementsAre(0, 1, 2));
    ASSERT_EQ(alive.incarnations.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(alive.incarnations[i], 100u + alive.tasks[i]);
  }
}

// Also one that fails while the others wait.
TEST_P(AliveWire, TaskInErrorIsNotAlive) {
  ServerOptions options = TestOptions(4);
  options.coordinator.recoverable = true;
  TestServer server(options);
  auto tasks = server.Registered(GetParam(), 4);
  ASSERT_THAT(tasks[2].ReportError(StatusCode::kInternal, "x").Wait(), IsOk());
  const PendingCall first = tasks[0].Alive({0, 1, 2, 3});
  const PendingCall second = tasks[1].Alive({0, 1, 2, 3});
  ASSERT_TRUE(server.WaitUntilParked(2));
  ASSERT_THAT(tasks[3].ReportError(StatusCode::kInternal, "x").Wait(), IsOk());
  EXPECT_THAT(tasks[0].AliveTasks(first.Wait()).tasks, UnorderedElementsAre(0, 1));
  EXPECT_THAT(tasks[0].AliveTasks(second.Wait()).tasks, UnorderedElementsAre(0, 1));
}

// 126
TEST_P(AliveWire, RoundsOverDifferentSetsAreIndependent) {
  TestServer server(3);
  auto tasks = server.Registered(GetParam(), 3);
  const PendingCall left = tasks[0].Alive({0, 1});
  const PendingCall right = tasks[2].Alive({1, 2});
  ASSERT_TRUE(server.WaitUntilParked(2));
  EXPECT_THAT(tasks[1].AliveTasks(tasks[1].Alive({1, 2}).Wait()).tasks, UnorderedElementsAre(1, 2));
  EXPECT_THAT(right.Wait(), IsOk());
  EXPECT_FALSE(left.done());
  EXPECT_THAT(tasks[1].Alive({0, 1}).Wait(), IsOk());
  EXPECT_THAT(left.Wait(), IsOk());
}

// 127
TEST_P(AliveWire, CallerOutsideItsOwnListIsRefused) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  EXPECT_THAT(tasks[0].Alive({1}).Wait(), Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(tasks[0].Alive({}).Wait(), Fails(StatusCode::kInvalidArgument));
}

// WaitForAllTasks of G2 to G4: a barrier that also gathers device information.
TEST(WaitForAllTasks, GivesAllTasksTheDevicesOfAllInTheOrderOfTasks) {
  for (const Dialect dialect : {Dialect::kTensorflow, Dialect::kNamed, Dialect::kNumbered}) {
    TestServer server(2);
    auto tasks = server.Registered(dialect, 2);
    // Any{type_url: "t", value: "d0"}: not a topology, so it is only passed on.
    const PendingCall second = tasks[1].WaitForAll({std::string("\x0a\x01t\x12\x02") + "d1"});
    ASSERT_TRUE(server.WaitUntilParked(1));
    EXPECT_FALSE(second.done());
    const Answer first = tasks[0].WaitForAll({std::string("\x0a\x01t\x12\x02") + "d0"}).Wait();
    ASSERT_THAT(first, IsOk());
    tensorflow::WaitForAllTasksResponse response;
    ASSERT_TRUE(response.ParseFromString(first.body));
    EXPECT_EQ(response.leader_incarnation(), server.incarnation());
    EXPECT_THAT(response.device_info().device(),
                ElementsAre(std::string("\x0a\x01t\x12\x02") + "d0",
                            std::string("\x0a\x01t\x12\x02") + "d1"));
    EXPECT_EQ(second.Wait().body, first.body);
  }
}

// Any{type_url, value} of XLA's local topology of a node with one device.
std::string LocalAny(int node, const std::string& boot_id, int partition_index = -1) {
  ferry::xla::LocalTopology local;
  local.set_process_id(node);
  local.set_boot_id(boot_id);
  if (partition_index >= 0) local.set_partition_index(partition_index);
  local.add_devices()->set_name("gpu");
  ferry::xla::Any any;
  any.set_type_url("type.googleapis.com/xla.LocalTopologyProto");
  any.set_value(local.SerializeAsString());
  return any.SerializeAsString();
}

// jax reads the slices of all devices from this answer.
TEST(WaitForAllTasks, TopologiesOfTwoMachines_AreMergedWithTheirPartitions) {
  for (const Dialect dialect : {Dialect::kTensorflow, Dialect::kNamed, Dialect::kNumbered}) {
    TestServer server(3);
    auto tasks = server.Registered(dialect, 3);
    const PendingCall last = tasks[2].WaitForAll({LocalAny(2, "x")});
    const PendingCall second = tasks[1].WaitForAll({LocalAny(1, "y")});
    ASSERT_TRUE(server.WaitUntilParked(2));
    const Answer first = tasks[0].WaitForAll({LocalAny(0, "x")}).Wait();
    ASSERT_THAT(first, IsOk());
    tensorflow::WaitForAllTasksResponse response;
    ASSERT_TRUE(response.ParseFromString(first.body));
    ASSERT_EQ(response.device_info().device_size(), 1);
    ferry::xla::Any any;
    ASSERT_TRUE(any.ParseFromString(response.device_info().device(0)));
    EXPECT_EQ(any.type_url(), "type.googleapis.com/xla.GlobalTopologyProto");
    ferry::xla::GlobalTopology global;
    ASSERT_TRUE(global.ParseFromString(any.value()));
    ASSERT_EQ(global.processes_size(), 3);
    std::vector<int> partitions;
    std::vector<int> ids;
    for (const auto& node : global.processes()) {
      for (const auto& device : node.devices()) {
        partitions.push_back(device.partition_index());
        ids.push_back(device.global_device_id());
      }
    }
    EXPECT_THAT(partitions, ElementsAre(0, 1, 0));
    EXPECT_THAT(ids, ElementsAre(0, 1, 2));
    EXPECT_EQ(second.Wait().body, first.body);
    EXPECT_EQ(last.Wait().body, first.body);
  }
}

// A task that computes on nothing has no topology; the others keep their numbers.
TEST(WaitForAllTasks, TaskWithoutDevices_LeavesTheNumbersOfTheOthers) {
  TestServer server(3);
  auto tasks = server.Registered(Dialect::kTensorflow, 3);
  const PendingCall first = tasks[0].WaitForAll({});
  const PendingCall second = tasks[1].WaitForAll({LocalAny(1, "x")});
  ASSERT_TRUE(server.WaitUntilParked(2));
  const Answer last = tasks[2].WaitForAll({LocalAny(2, "y")}).Wait();
  ASSERT_THAT(last, IsOk());
  tensorflow::WaitForAllTasksResponse response;
  ASSERT_TRUE(response.ParseFromString(last.body));
  ASSERT_EQ(response.device_info().device_size(), 1);
  ferry::xla::Any any;
  ASSERT_TRUE(any.ParseFromString(response.device_info().device(0)));
  ferry::xla::GlobalTopology global;
  ASSERT_TRUE(global.ParseFromString(any.value()));
  ASSERT_EQ(global.processes_size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(global.processes(i).process_id(), i + 1);
    EXPECT_EQ(global.processes(i).devices(0).partition_index(), i);
  }
  EXPECT_EQ(first.Wait().body, last.body);
  EXPECT_EQ(second.Wait().body, last.body);
}

// The first clients of this service sent the topology of one node in another field.
TEST(WaitForAllTasks, TopologiesInTheFieldsOf2022_AreMergedWithTheirPartitions) {
  TestServer server(2);
  auto tasks = server.Registered(Dialect::kTensorflow, 2);
  std::vector<PendingCall> calls;
  for (int task = 1; task >= 0; --task) {
    ferry::xla::GlobalTopology own;
    own.add_processes()->set_boot_id(task == 0 ? "x" : "y");
    own.mutable_processes(0)->add_devices()->set_name("gpu");
    tensorflow::WaitForAllTasksRequest request;
    request.mutable_source_task()->set_job_name("jax_worker");
    request.mutable_source_task()->set_task_id(task);
    request.mutable_local_device_info()->mutable_xla()->set_devices(own.SerializeAsString());
    calls.push_back(PendingCall::Start(tasks[task].channel(),
                                       "/tensorflow.CoordinationService/WaitForAllTasks",
                                       request.SerializeAsString()));
  }
  for (const PendingCall& call : calls) {
    const Answer answer = call.Wait();
    ASSERT_THAT(answer, IsOk());
    tensorflow::WaitForAllTasksResponse response;
    ASSERT_TRUE(response.ParseFromString(answer.body));
    ferry::xla::GlobalTopology global;
    ASSERT_TRUE(global.ParseFromString(response.cluster_device_info().xla().devices()));
    ASSERT_EQ(global.processes_size(), 2);
    for (int node = 0; node < 2; ++node) {
      EXPECT_EQ(global.processes(node).devices(0).partition_index(), node);
    }
  }
}

// Any numbering of these would be wrong, and an answer without devices would look like an empty
// job.
TEST(WaitForAllTasks, SomeNodesNameTheirPartitionAndOthersNone_IsRefusedToAll) {
  TestServer server(2);
  auto tasks = server.Registered(Dialect::kTensorflow, 2);
  const PendingCall second = tasks[1].WaitForAll({LocalAny(1, "y", 3)});
  ASSERT_TRUE(server.WaitUntilParked(1));
  EXPECT_THAT(tasks[0].WaitForAll({LocalAny(0, "x")}).Wait(),
              Fails(StatusCode::kInvalidArgument, ::testing::HasSubstr("partition")));
  EXPECT_THAT(second.Wait(), Fails(StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace ferry::coord
