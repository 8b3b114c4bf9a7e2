// SPDX-License-Identifier: Apache-2.0
// xla.DistributedRuntimeService, the first generation (G0) of the coordination protocol.
#include <string>
#include <vector>

#include "proto/xla_distributed_runtime.pb.h"
#include "proto/xla_topology.pb.h"
#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// A node's client, after jaxlib's: Shutdown does not name its node.
class Node {
 public:
  Node(TestServer& server, int id) : channel_(server.Channel()), id_(id) {}

  PendingCall Connect(uint64_t client, int timeout_ms = 20'000, int version = 3) {
    ::xla::ConnectRequest request;
    request.set_protocol_version(version);
    request.set_timeout_milliseconds(timeout_ms);
    request.set_node_id(id_);
    request.set_client_id(client);
    return Start("Connect", request);
  }
  // Reads the session out of the answer.
  void Connected(const PendingCall& call) {
    const Answer answer = call.Wait();
    EXPECT_THAT(answer, IsOk());
    ::xla::ConnectResponse response;
    EXPECT_TRUE(response.ParseFromString(answer.body));
    session = response.session_id();
  }
  PendingCall Enumerate(const std::string& local) {
    ::xla::EnumerateDevicesRequest request;
    request.set_session_id(session);
    request.set_local_topology(local);
    return Start("EnumerateDevices", request);
  }
  PendingCall Heartbeat() {
    ::xla::HeartbeatRequest request;
    request.set_session_id(session);
    request.set_node_id(id_);
    return Start("Heartbeat", request);
  }
  PendingCall Shutdown() {
    ::xla::ShutdownRequest request;
    request.set_session_id(session);
    return Start("Shutdown", request);
  }
  PendingCall Get(const std::string& key, int timeout_ms) {
    ::xla::KeyValueGetRequest request;
    request.set_session_id(session);
    request.set_key(key);
    request.set_timeout_milliseconds(timeout_ms);
    return Start("KeyValueGet", request);
  }
  PendingCall Set(const std::string& key, const std::string& value) {
    ::xla::KeyValueSetRequest request;
    request.set_session_id(session);
    request.set_key(key);
    request.set_value(value);
    return Start("KeyValueSet", request);
  }
  PendingCall Barrier(const std::string& id, int timeout_ms) {
    ::xla::WaitAtBarrierRequest request;
    request.set_session_id(session);
    request.set_barrier_id(id);
    request.set_node_id(id_);
    request.set_timeout_milliseconds(timeout_ms);
    return Start("WaitAtBarrier", request);
  }

  uint64_t session = 0;

 private:
  PendingCall Start(const std::string& method, const google::protobuf::Message& request) {
    return PendingCall::Start(channel_, "/xla.DistributedRuntimeService/" + method,
                              request.SerializeAsString());
  }

  std::shared_ptr<grpc::Channel> channel_;
  int id_;
};

std::vector<Node> Nodes(TestServer& server, int count) {
  std::vector<Node> nodes;
  for (int i = 0; i < count; ++i) nodes.emplace_back(server, i);
  return nodes;
}
std::vector<Node> ConnectedNodes(TestServer& server, int count) {
  std::vector<Node> nodes = Nodes(server, count);
  std::vector<PendingCall> calls;
  for (int i = 0; i < count; ++i) calls.push_back(nodes[i].Connect(1000 + i));
  for (int i = 0; i < count; ++i) nodes[i].Connected(calls[i]);
  return nodes;
}

TEST(RuntimeConnect, ReturnsOneSessionWhenAllHaveConnected) {
  TestServer server(BarrierOptions(3));
  auto nodes = Nodes(server, 3);
  const PendingCall first = nodes[0].Connect(1);
  const PendingCall second = nodes[2].Connect(2);
  ASSERT_TRUE(server.WaitUntilParked(2));
  EXPECT_FALSE(first.done());
  nodes[1].Connected(nodes[1].Connect(3));
  nodes[0].Connected(first);
  nodes[2].Connected(second);
  EXPECT_NE(nodes[0].session, 0u);
  EXPECT_EQ(nodes[0].session, nodes[1].session);
  EXPECT_EQ(nodes[0].session, nodes[2].session);
}

// Also without the register barrier that the other services may do without.
TEST(RuntimeConnect, WaitsForAllWhateverTheOthersDo) {
  TestServer server(TestOptions(2));
  auto nodes = Nodes(server, 2);
  const PendingCall first = nodes[0].Connect(1);
  ASSERT_TRUE(server.WaitUntilParked(1));
  nodes[1].Connected(nodes[1].Connect(2));
  nodes[0].Connected(first);
}

// 135
TEST(RuntimeConnect, RefusesWrongVersionsAndNodes) {
  TestServer server(BarrierOptions(2));
  EXPECT_THAT(Node(server, 0).Connect(1, 1000, 2).Wait(), Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(Node(server, 0).Connect(1, 1000, 4).Wait(), Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(Node(server, -1).Connect(1).Wait(), Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(Node(server, 2).Connect(1).Wait(), Fails(StatusCode::kFailedPrecondition));
  // The version is looked at first.
  EXPECT_THAT(Node(server, 2).Connect(1, 1000, 2).Wait(), Fails(StatusCode::kInvalidArgument));
}

// The node that was on time may try again, as jaxlib does with a new client id.
TEST(RuntimeConnect, TimesOutWhenOneIsMissingAndCanBeRetried) {
  TestServer server(BarrierOptions(2));
  auto nodes = Nodes(server, 2);
  EXPECT_THAT(nodes[0].Connect(1, 100).Wait(), Fails(StatusCode::kDeadlineExceeded));
  // Node 0 is absent again: node 1 alone is not enough.
  EXPECT_THAT(nodes[1].Connect(2, 100).Wait(), Fails(StatusCode::kDeadlineExceeded));
  const PendingCall first = nodes[0].Connect(3);
  nodes[1].Connected(nodes[1].Connect(4));
  nodes[0].Connected(first);
}

// 136
TEST(RuntimeConnect, NewerClientOfANodeReplacesIt) {
  TestServer server(BarrierOptions(2));
  auto nodes = Nodes(server, 2);
  const PendingCall old = nodes[0].Connect(1);
  ASSERT_TRUE(server.WaitUntilParked(1));
  const PendingCall fresh = nodes[0].Connect(2);
  EXPECT_THAT(old.Wait(), Fails(StatusCode::kAborted, HasSubstr("Duplicate node ID")));
  nodes[1].Connected(nodes[1].Connect(3));
  nodes[0].Connected(fresh);
}

TEST(RuntimeConnect, IsAbortedOnceTheJobRuns) {
  TestServer server(BarrierOptions(2));
  auto nodes = ConnectedNodes(server, 2);
  EXPECT_THAT(nodes[0].Connect(1000, 200).Wait(), Fails(StatusCode::kAborted));
  EXPECT_THAT(nodes[0].Connect(55, 200).Wait(), Fails(StatusCode::kAborted));
  EXPECT_THAT(nodes[0].Heartbeat().Wait(), IsOk());
}

// Every method, with another session and before there is one.
TEST(RuntimeSession, AnyOtherSessionIsRefused) {
  TestServer server(BarrierOptions(1));
  for (int connected = 0; connected < 2; ++connected) {
    Node node(server, 0);
    if (connected == 1) {
      node.Connected(node.Connect(1));
      node.session ^= 1;
    }
    EXPECT_THAT(node.Heartbeat().Wait(), Fails(StatusCode::kFailedPrecondition));
    EXPECT_THAT(node.Get("k", 100).Wait(), Fails(StatusCode::kFailedPrecondition));
    EXPECT_THAT(node.Set("k", "v").Wait(), Fails(StatusCode::kFailedPrecondition));
    EXPECT_THAT(node.Barrier("b", 100).Wait(), Fails(StatusCode::kFailedPrecondition));
    EXPECT_THAT(node.Enumerate("").Wait(), Fails(StatusCode::kFailedPrecondition));
    EXPECT_THAT(node.Shutdown().Wait(), Fails(StatusCode::kFailedPrecondition));
  }
}

// 80; the answer is `12 01 77` as captured: `found` stays unset.
TEST(RuntimeStore, KeepsRawKeysAndTheLastValue) {
  TestServer server(BarrierOptions(1));
  auto nodes = ConnectedNodes(server, 1);
  EXPECT_THAT(nodes[0].Set("/a//b", "v").Wait(), IsOk());
  EXPECT_THAT(nodes[0].Set("/a//b", "w").Wait(), IsOk());
  EXPECT_EQ(nodes[0].Get("/a//b", 1000).Wait().body, "\x12\x01w");
  const Answer missing = nodes[0].Get("a/b", 50).Wait();
  EXPECT_THAT(missing, Fails(StatusCode::kNotFound, "a/b"));
  EXPECT_EQ(missing.details, "");
  const PendingCall get = nodes[0].Get(std::string("\xff\0late", 6), 20'000);
  ASSERT_TRUE(server.WaitUntilAwaited("late"));
  EXPECT_THAT(nodes[0].Set(std::string("\xff\0late", 6), "x").Wait(), IsOk());
  EXPECT_EQ(get.Wait().body, "\x12\x01x");
}

// 114
TEST(RuntimeBarrier, CanBeUsedOnce) {
  TestServer server(BarrierOptions(2));
  auto nodes = ConnectedNodes(server, 2);
  const PendingCall first = nodes[0].Barrier("b", 20'000);
  ASSERT_TRUE(server.WaitUntilAwaited("b"));
  EXPECT_THAT(nodes[1].Barrier("b", 20'000).Wait(), IsOk());
  EXPECT_THAT(first.Wait(), IsOk());
  EXPECT_THAT(nodes[1].Barrier("b", 20'000).Wait(), Fails(StatusCode::kFailedPrecondition));
  EXPECT_THAT(nodes[0].Barrier("slow", 100).Wait(), Fails(StatusCode::kDeadlineExceeded));
  EXPECT_THAT(nodes[1].Barrier("slow", 100).Wait(), Fails(StatusCode::kFailedPrecondition));
}

// 122
TEST(RuntimeShutdown, WaitsForAllNodes) {
  TestServer server(BarrierOptions(3));
  auto nodes = ConnectedNodes(server, 3);
  const PendingCall first = nodes[2].Shutdown();
  const PendingCall second = nodes[0].Shutdown();
  ASSERT_TRUE(server.WaitUntilParked(2));
  EXPECT_FALSE(first.done());
  EXPECT_THAT(nodes[1].Shutdown().Wait(), IsOk());
  EXPECT_THAT(first.Wait(), IsOk());
  EXPECT_THAT(second.Wait(), IsOk());
}

// 122
TEST(RuntimeShutdown, TimesOut) {
  ServerOptions options = BarrierOptions(2);
  options.coordinator.shutdown_timeout = absl::Milliseconds(200);
  TestServer server(options);
  auto nodes = ConnectedNodes(server, 2);
  EXPECT_THAT(nodes[0].Shutdown().Wait(), Fails(StatusCode::kDeadlineExceeded));
}

// 122
TEST(RuntimeShutdown, IsAbortedWhenANodeStopsBeating) {
  ServerOptions options = BarrierOptions(2);
  options.coordinator.heartbeat_timeout = absl::Milliseconds(500);
  TestServer server(options);
  auto nodes = ConnectedNodes(server, 2);
  const PendingCall shutdown = nodes[0].Shutdown();
  ASSERT_TRUE(Eventually([&] {
    (void)nodes[0].Heartbeat().Wait();
    return shutdown.done();
  }));
  EXPECT_THAT(shutdown.Wait(), Fails(StatusCode::kAborted, HasSubstr("1")));
  EXPECT_THAT(nodes[0].Heartbeat().Wait(), Fails(StatusCode::kAborted));
  EXPECT_THAT(nodes[0].Set("k", "v").Wait(), Fails(StatusCode::kAborted));
}

TEST(RuntimeStop, EndsPendingCalls) {
  TestServer server(BarrierOptions(2));
  auto nodes = ConnectedNodes(server, 2);
  const PendingCall get = nodes[0].Get("k", 20'000);
  const PendingCall barrier = nodes[0].Barrier("b", 20'000);
  ASSERT_TRUE(server.WaitUntilParked(2));
  server->Stop();
  EXPECT_FALSE(get.Wait().code == StatusCode::kOk);
  EXPECT_THAT(barrier.Wait(), AnyOf(Fails(StatusCode::kAborted), Fails(StatusCode::kCancelled)));
}

// --- Devices ---

// jaxlib 0.4.13 sends the newer numbering: the boot id is field 2, the devices are field 3.
std::string Newer(int node, int devices) {
  ferry::xla::LocalTopology local;
  local.set_process_id(node);
  local.set_boot_id("boot" + std::to_string(node));
  for (int i = 0; i < devices; ++i) {
    ferry::xla::DeviceProto& device = *local.add_devices();
    device.set_local_device_ordinal(i);
    device.set_name("gpu");
    device.set_vendor("NVIDIA");
  }
  return local.SerializeAsString();
}
std::string Older(int node, int devices) {
  ferry::xla::LegacyLocalTopology local;
  local.set_node_id(node);
  for (int i = 0; i < devices; ++i) {
    ferry::xla::DeviceProto& device = *local.add_devices();
    device.set_local_device_ordinal(i);
    device.set_name("gpu");
  }
  return local.SerializeAsString();
}

std::string GlobalOf(const Answer& answer) {
  EXPECT_THAT(answer, IsOk());
  ::xla::EnumerateDevicesResponse response;
  EXPECT_TRUE(response.ParseFromString(answer.body));
  return response.global_topology();
}

// 129
TEST(RuntimeDevices, AreNumberedDenselyInTheOrderOfNodesInTheNewerLayout) {
  TestServer server(BarrierOptions(2));
  auto nodes = ConnectedNodes(server, 2);
  const PendingCall last = nodes[1].Enumerate(Newer(1, 3));
  ASSERT_TRUE(server.WaitUntilParked(1));
  const std::string bytes = GlobalOf(nodes[0].Enumerate(Newer(0, 2)).Wait());
  EXPECT_EQ(GlobalOf(last.Wait()), bytes);
  ferry::xla::GlobalTopology global;
  ASSERT_TRUE(global.ParseFromString(bytes));
  ASSERT_EQ(global.processes_size(), 2);
  int next_id = 0;
  for (int node = 0; node < 2; ++node) {
    EXPECT_EQ(global.processes(node).process_id(), node);
    EXPECT_EQ(global.processes(node).boot_id(), "boot" + std::to_string(node));
    ASSERT_EQ(global.processes(node).devices_size(), 2 + node);
    for (const auto& device : global.processes(node).devices()) {
      EXPECT_EQ(device.global_device_id(), next_id++);
      // Each is a machine of its own.
      EXPECT_EQ(device.partition_index(), node);
    }
  }
}

TEST(RuntimeDevices, AreAnsweredInTheOlderLayoutToOlderClients) {
  TestServer server(BarrierOptions(2));
  auto nodes = ConnectedNodes(server, 2);
  const PendingCall last = nodes[1].Enumerate(Older(1, 1));
  ASSERT_TRUE(server.WaitUntilParked(1));
  const std::string bytes = GlobalOf(nodes[0].Enumerate(Older(0, 2)).Wait());
  EXPECT_EQ(GlobalOf(last.Wait()), bytes);
  ferry::xla::LegacyGlobalTopology global;
  ASSERT_TRUE(global.ParseFromString(bytes));
  ASSERT_EQ(global.nodes_size(), 2);
  ASSERT_EQ(global.nodes(0).devices_size(), 2);
  ASSERT_EQ(global.nodes(1).devices_size(), 1);
  EXPECT_EQ(global.nodes(0).devices(1).global_device_id(), 1);
  EXPECT_EQ(global.nodes(1).devices(0).global_device_id(), 2);
  EXPECT_EQ(global.nodes(1).node_id(), 1);
}

// 130, 131
TEST(RuntimeDevices, SameDevicesMayBeSentAgain) {
  TestServer server(BarrierOptions(2));
  auto nodes = ConnectedNodes(server, 2);
  const PendingCall early = nodes[0].Enumerate(Newer(0, 2));
  ASSERT_TRUE(server.WaitUntilParked(1));
  const PendingCall again = nodes[0].Enumerate(Newer(0, 2));
  const std::string bytes = GlobalOf(nodes[1].Enumerate(Newer(1, 1)).Wait());
  EXPECT_EQ(GlobalOf(again.Wait()), bytes);
  EXPECT_EQ(GlobalOf(nodes[0].Enumerate(Newer(0, 2)).Wait()), bytes);
  EXPECT_FALSE(nodes[0].Enumerate(Newer(0, 3)).Wait().code == StatusCode::kOk);
  EXPECT_EQ(GlobalOf(nodes[1].Enumerate(Newer(1, 1)).Wait()), bytes);
  (void)early.Wait();
}

// Unknown fields in a node's topology are passed on to the others.
TEST(RuntimeDevices, UnknownFields_ReachTheOthers) {
  TestServer server(BarrierOptions(2));
  auto nodes = ConnectedNodes(server, 2);
  const PendingCall last = nodes[1].Enumerate(Newer(1, 1));
  // LocalTopology{99: 42}.
  const std::string unknown = "\x98\x06\x2a";
  EXPECT_THAT(GlobalOf(nodes[0].Enumerate(Newer(0, 1) + unknown).Wait()), HasSubstr(unknown));
  (void)last.Wait();
}

TEST(RuntimeDevices, TimeoutNamesTheMissing) {
  ServerOptions options = BarrierOptions(2);
  options.coordinator.enumerate_timeout = absl::Milliseconds(100);
  TestServer server(options);
  auto nodes = ConnectedNodes(server, 2);
  EXPECT_THAT(nodes[0].Enumerate(Newer(0, 1)).Wait(),
              Fails(StatusCode::kDeadlineExceeded, HasSubstr("1")));
}

TEST(RuntimeDevices, UnknownNodeOrGarbageIsRefused) {
  TestServer server(BarrierOptions(2));
  auto nodes = ConnectedNodes(server, 2);
  EXPECT_FALSE(nodes[0].Enumerate(Newer(7, 1)).Wait().code == StatusCode::kOk);
  EXPECT_THAT(nodes[0].Enumerate("\xff\xff\xff").Wait(), Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(nodes[0].Heartbeat().Wait(), IsOk());
}

}  // namespace
}  // namespace ferry::coord
