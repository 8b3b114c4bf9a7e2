// SPDX-License-Identifier: Apache-2.0
// Cutting graphs at devices.
#include "tensorflow/graph/partition.h"

#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tensorflow/graph/collective.h"
#include "tensorflow/graph/transfer.h"
#include "tests/tensorflow/graph/graph_fixture.h"

namespace ferry::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PartitionTest : public ::testing::Test {
 protected:
  void Cut(const DeviceSet& devices = Devices(3)) {
    const absl::StatusOr<Graph> graph = writer_.Create();
    ASSERT_EQ(graph.status(), absl::OkStatus());
    const absl::StatusOr<std::vector<int>> placement = Place(*graph, devices, {});
    ASSERT_EQ(placement.status(), absl::OkStatus());
    const absl::StatusOr<Partitioned> cut = PartitionByDevice(*graph, *placement, devices);
    ASSERT_EQ(cut.status(), absl::OkStatus());
    result_ = *cut;
    nodes_.clear();
    ops_.clear();
    for (const Partition& partition : result_.partitions) {
      for (const NodeDef& node : partition.graph.node()) {
        EXPECT_TRUE(nodes_.emplace(node.name(), node).second) << node.name() << " is there twice";
        EXPECT_EQ(node.device(), devices.device(partition.device).name);
        ops_[ShortName(devices, partition.device)].push_back(node.op());
      }
    }
  }

  const NodeDef& NodeNamed(const std::string& name) { return nodes_.at(name); }
  // The inputs of `name`, as text.
  std::vector<std::string> InputsOf(const std::string& name) {
    return {NodeNamed(name).input().begin(), NodeNamed(name).input().end()};
  }

  GraphWriter writer_;
  Partitioned result_;
  std::map<std::string, NodeDef> nodes_;
  // By device, sorted.
  std::map<std::string, std::vector<std::string>> ops_;
};

TEST_F(PartitionTest, OneDeviceIsOnePartition) {
  writer_.Const("a");
  writer_.AddFloat("b", "AddV2", {"a", "a"});
  writer_.Add("n", "NoOp", {"^b"});
  writer_.def().mutable_versions()->set_producer(7);
  Cut();
  ASSERT_EQ(result_.partitions.size(), 1u);
  EXPECT_THAT(result_.crossings, IsEmpty());
  EXPECT_EQ(result_.partitions[0].graph.node_size(), 3);
  EXPECT_EQ(result_.partitions[0].graph.versions().producer(), 7);
  EXPECT_THAT(InputsOf("b"), ElementsAre("a", "a"));
  EXPECT_THAT(InputsOf("n"), ElementsAre("^b"));
}

TEST_F(PartitionTest, ATensorIsSentAndReceived) {
  writer_.Const("a", kTask0);
  writer_.AddFloat("b", "Identity", {"a"}, kTask1);
  Cut();
  ASSERT_EQ(result_.partitions.size(), 2u);
  ASSERT_EQ(result_.crossings.size(), 1u);
  const Crossing& crossing = result_.crossings[0];
  EXPECT_EQ(crossing.src_node, "a");
  EXPECT_EQ(crossing.src_port, 0);
  EXPECT_THAT(InputsOf("b"), ElementsAre(crossing.recv_node));
  EXPECT_THAT(InputsOf(crossing.send_node), ElementsAre("a"));
  EXPECT_THAT(InputsOf(crossing.recv_node), IsEmpty());
  const auto& send = NodeNamed(crossing.send_node).attr();
  const auto& recv = NodeNamed(crossing.recv_node).attr();
  EXPECT_EQ(send.at("T").type(), tensorflow::DT_FLOAT);
  EXPECT_EQ(recv.at("tensor_type").type(), tensorflow::DT_FLOAT);
  EXPECT_EQ(send.at("tensor_name").s(), "edge_0_a");
  EXPECT_EQ(send.at("send_device").s(), "/job:worker/replica:0/task:0/device:CPU:0");
  EXPECT_EQ(send.at("recv_device").s(), "/job:worker/replica:0/task:1/device:CPU:0");
  EXPECT_FALSE(send.at("client_terminated").b());
  for (const char* attr : {"tensor_name", "send_device", "recv_device", "send_device_incarnation",
                           "client_terminated"}) {
    EXPECT_EQ(send.at(attr).SerializeAsString(), recv.at(attr).SerializeAsString()) << attr;
  }
  EXPECT_EQ(*KeyOf(NodeNamed(crossing.send_node)), crossing.key);
  EXPECT_EQ(*KeyOf(NodeNamed(crossing.recv_node)), crossing.key);
}

// The sender's incarnation, so that a restarted worker is detected.
TEST_F(PartitionTest, IncarnationsAreThoseOfTheSendersDevice) {
  writer_.Const("a", kTask1);
  writer_.AddFloat("b", "Identity", {"a"}, kTask0);
  const DeviceSet devices = *DeviceSet::Create(
      {{"/job:worker/task:0/cpu:0", 5}, {"/job:worker/task:1/cpu:0", 0xcbd59b2f3e24a1fe}},
      "/job:worker/task:0/cpu:0");
  Cut(devices);
  const auto& attrs = NodeNamed(result_.crossings[0].recv_node).attr();
  EXPECT_EQ(static_cast<uint64_t>(attrs.at("send_device_incarnation").i()), 0xcbd59b2f3e24a1fe);
  EXPECT_THAT(result_.crossings[0].key, HasSubstr(";cbd59b2f3e24a1fe;"));
}

TEST_F(PartitionTest, ATensorIsSentOnceToADevice) {
  writer_.Const("a", kTask0);
  writer_.AddFloat("b", "AddV2", {"a", "a"}, kTask1);
  writer_.AddFloat("c", "Identity", {"a"}, kTask1);
  writer_.AddFloat("d", "Identity", {"a"}, "/job:worker/task:2");
  Cut();
  ASSERT_EQ(result_.crossings.size(), 2u);
  EXPECT_EQ(InputsOf("b")[0], InputsOf("b")[1]);
  EXPECT_EQ(InputsOf("b")[0], InputsOf("c")[0]);
  EXPECT_NE(InputsOf("d")[0], InputsOf("c")[0]);
  EXPECT_NE(result_.crossings[0].key, result_.crossings[1].key);
}

TEST_F(PartitionTest, EachOutputHasItsOwnTransfer) {
  writer_.Const("x", kTask0);
  NodeDef& unpack = writer_.AddFloat("u", "Unpack", {"x"}, kTask0);
  (*unpack.mutable_attr())["num"].set_i(3);
  writer_.AddFloat("b", "AddV2", {"u:2", "u:1"}, kTask1);
  Cut();
  ASSERT_EQ(result_.crossings.size(), 2u);
  EXPECT_EQ(result_.crossings[0].src_port, 2);
  EXPECT_THAT(InputsOf(result_.crossings[0].send_node), ElementsAre("u:2"));
  EXPECT_THAT(InputsOf("b"),
              ElementsAre(result_.crossings[0].recv_node, result_.crossings[1].recv_node));
}

TEST_F(PartitionTest, ControlEdgeIsAnEmptyTensor) {
  writer_.Add("n", "NoOp", {}, kTask0);
  writer_.Add("m", "NoOp", {"^n"}, kTask1);
  writer_.Add("m2", "NoOp", {"^n"}, kTask1);
  Cut();
  ASSERT_EQ(result_.crossings.size(), 1u);
  const Crossing& crossing = result_.crossings[0];
  EXPECT_EQ(crossing.src_port, -1);
  ASSERT_EQ(InputsOf("m").size(), 1u);
  EXPECT_EQ(InputsOf("m"), InputsOf("m2"));
  const NodeDef& identity = NodeNamed(InputsOf("m")[0].substr(1));
  EXPECT_EQ(identity.op(), "Identity");
  EXPECT_EQ(identity.input(0), crossing.recv_node);
  const NodeDef& empty = NodeNamed(InputsOf(crossing.send_node)[0]);
  EXPECT_EQ(empty.op(), "Const");
  EXPECT_THAT(InputsOf(empty.name()), ElementsAre("^n"));
  const tensorflow::TensorProto& value = empty.attr().at("value").tensor();
  EXPECT_EQ(value.dtype(), tensorflow::DT_FLOAT);
  ASSERT_EQ(value.tensor_shape().dim_size(), 1);
  EXPECT_EQ(value.tensor_shape().dim(0).size(), 0);
}

// A control edge cannot replace a data edge, nor the other way round.
TEST_F(PartitionTest, ControlAndDataEdgeAreTwoTransfers) {
  writer_.Const("a", kTask0);
  writer_.AddFloat("b", "Identity", {"a", "^a"}, kTask1);
  Cut();
  ASSERT_EQ(result_.crossings.size(), 2u);
  EXPECT_EQ(result_.crossings[0].src_port, 0);
  EXPECT_EQ(result_.crossings[1].src_port, -1);
}

// A server of TensorFlow 2.15 refuses this graph.
TEST_F(PartitionTest, NewNodesHaveUniqueNames) {
  writer_.Const("a", kTask0);
  writer_.AddFloat("a_S0", "Identity", {"a"}, kTask1);
  writer_.AddFloat("a_S1", "Identity", {"a_S0"}, kTask1);
  writer_.Add("n", "NoOp", {"^a"}, kTask1);
  Cut();
  EXPECT_EQ(nodes_.size(), 4u + 2 * 2 + 2);
}

// TensorFlow keeps integers of 32 bits in the host's memory, since they are shapes.
TEST_F(PartitionTest, HostMemoryIsSeparateFromDeviceMemory) {
  const std::string gpu = "/job:worker/task:0/device:GPU:0";
  writer_.Const("i", gpu, 1, tensorflow::DT_INT32);
  writer_.Const("f", gpu);
  (*writer_.Add("j", "Identity", {"i"}, kTask1).mutable_attr())["T"].set_type(tensorflow::DT_INT32);
  writer_.def().mutable_node(2)->set_device("/job:worker/task:1/device:CPU:0");
  writer_.AddFloat("g", "Identity", {"f"}, "/job:worker/task:1/device:CPU:0");
  (*writer_.Add("k", "Identity", {"j"}, gpu).mutable_attr())["T"].set_type(tensorflow::DT_INT32);
  writer_.AddFloat("h", "Identity", {"g"}, gpu);
  Cut(Devices(2, 1));
  std::map<std::string, std::string> ops;
  for (const Crossing& crossing : result_.crossings) {
    ops[crossing.src_node] =
        NodeNamed(crossing.send_node).op() + NodeNamed(crossing.recv_node).op();
  }
  EXPECT_EQ(ops["i"], "_HostSend_Recv");
  EXPECT_EQ(ops["f"], "_Send_Recv");
  EXPECT_EQ(ops["j"], "_Send_HostRecv");
  EXPECT_EQ(ops["g"], "_Send_Recv");
}

// A GPU's node that needs on the device what another one produces in host memory.
TEST_F(PartitionTest, OneDeviceMayHaveTwoMemories) {
  const std::string gpu = "/job:worker/task:0/device:GPU:0";
  writer_.Const("i", gpu, 1, tensorflow::DT_INT32);
  NodeDef& both = writer_.Add("n", "IdentityN", {"i"}, gpu);
  (*both.mutable_attr())["T"].mutable_list()->add_type(tensorflow::DT_INT32);
  Cut(Devices(1, 1));
  ASSERT_EQ(result_.partitions.size(), 1u);
  ASSERT_EQ(result_.crossings.size(), 1u);
  EXPECT_EQ(NodeNamed(result_.crossings[0].send_node).op(), "_HostSend");
  EXPECT_EQ(NodeNamed(result_.crossings[0].recv_node).op(), "_Recv");
}

TEST_F(PartitionTest, AnyDeviceSendsToAnyOther) {
  const DeviceSet devices = Devices(2, 2);
  for (int src = 0; src < devices.size(); ++src) {
    for (int dst = 0; dst < devices.size(); ++dst) {
      writer_ = GraphWriter();
      writer_.Const("a", devices.device(src).name);
      writer_.AddFloat("b", "Identity", {"a"}, devices.device(dst).name);
      Cut(devices);
      ASSERT_EQ(result_.crossings.size(), src == dst ? 0u : 1u);
      EXPECT_EQ(NodeNamed("a").device(), devices.device(src).name);
      EXPECT_EQ(NodeNamed("b").device(), devices.device(dst).name);
    }
  }
}

// The participants are in the order of the devices, for any client.
TEST_F(PartitionTest, CollectivesListTheirParticipants) {
  const DeviceSet devices = Devices(3);
  for (const int task : {2, 0}) {
    NodeDef& node =
        writer_.AddFloat(absl::StrCat("c", task), "CollectiveGather", {absl::StrCat("x", task)},
                         absl::StrCat("/job:worker/task:", task));
    auto& attr = *node.mutable_attr();
    attr["group_size"].set_i(2);
    attr["group_key"].set_i(1);
    attr["instance_key"].set_i(1);
    attr["shape"].mutable_shape();
    writer_.Const(absl::StrCat("x", task), "/job:worker/task:1");
  }
  Cut(devices);
  std::vector<std::string> wanted;
  for (const int task : {0, 2}) {
    const int device =
        devices.Find(absl::StrCat("/job:worker/replica:0/task:", task, "/device:CPU:0"));
    wanted.push_back(absl::StrCat(devices.device(device).name, ";",
                                  absl::Hex(devices.device(device).incarnation, absl::kZeroPad16)));
  }
  for (const char* const name : {"c0", "c2"}) {
    const auto& list = NodeNamed(name).attr().at(std::string(kCollectiveDevices)).list();
    EXPECT_EQ(std::vector<std::string>(list.s().begin(), list.s().end()), wanted);
  }
  EXPECT_EQ(NodeNamed("x0").attr().count(std::string(kCollectiveDevices)), 0u);
}

TEST_F(PartitionTest, KeepsAttributes) {
  NodeDef& node = writer_.Const("a", kTask1, 42);
  (*node.mutable_attr())["_mine"].set_s("x");
  Cut();
  EXPECT_EQ(NodeNamed("a").attr().at("_mine").s(), "x");
  EXPECT_EQ(NodeNamed("a").attr().at("value").tensor().float_val(0), 42);
}

TEST(Partition, RefusesADeviceWithoutAKernel) {
  GraphWriter writer;
  writer.Const("a");
  writer.AddFloat("m", "MatMul", {"a", "a"});
  const Graph graph = *writer.Create();
  const DeviceSet devices = Devices(1, 1);
  EXPECT_THAT(PartitionByDevice(graph, {0, 0}, devices),
              Fails(absl::StatusCode::kInternal, HasSubstr("no kernel for MatMul")));
}

TEST(Transfer, KeysNeedAllAttributes) {
  GraphWriter writer;
  EXPECT_THAT(KeyOf(writer.Add("s", "_Send")),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("No attr named 'tensor_name'")));
}

// One node of the GPU reads it on the host, the other in device memory: one receive cannot serve
// both.
TEST_F(PartitionTest, TensorNeededInHostAndDeviceMemory_HasTwoReceives) {
  const std::string gpu = "/job:worker/task:0/device:GPU:0";
  writer_.Const("i", "/job:worker/task:1/device:CPU:0", 1, tensorflow::DT_INT32);
  (*writer_.Add("h", "Identity", {"i"}, gpu).mutable_attr())["T"].set_type(tensorflow::DT_INT32);
  NodeDef& both = writer_.Add("n", "IdentityN", {"i"}, gpu);
  (*both.mutable_attr())["T"].mutable_list()->add_type(tensorflow::DT_INT32);
  Cut(Devices(2, 1));
  std::multiset<std::string> ops;
  for (const Crossing& crossing : result_.crossings) ops.insert(NodeNamed(crossing.recv_node).op());
  EXPECT_THAT(ops, ElementsAre("_HostRecv", "_Recv"));
}

}  // namespace
}  // namespace ferry::graph
