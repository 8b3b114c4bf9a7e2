// SPDX-License-Identifier: Apache-2.0
// XLA's topology messages in both numberings, and fields that are unknown here.
#include "coord/wire/xla_topology_proto.h"

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/xla_topology.pb.h"

namespace ferry::coord {
namespace {

using ::testing::HasSubstr;

// By hand: LocalTopologyProto{1 node_id: 1, 2 boot_id: "bt", 3 devices: {DeviceProto{1: 0,
// 2: "A", 3: "V"}, DeviceProto{1: 1}}}.
std::string Newer() {
  return absl::HexStringToBytes(
      "0801"
      "12026274"
      "1a06"
      "120141"
      "1a0156"
      "1a020801");
}
// By hand: the seed's LocalTopologyProto{1 node_id: 1, 2 devices: {{2: "A", 3: "V"}, {1: 1}}}.
std::string Older() {
  return absl::HexStringToBytes(
      "0801"
      "1206"
      "120141"
      "1a0156"
      "12020801");
}

TEST(XlaTopology, DistinguishesTheNumberings) {
  EXPECT_FALSE(IsLegacyXlaTopology(Newer()));
  EXPECT_TRUE(IsLegacyXlaTopology(Older()));
  // A node without devices is ambiguous: the newer numbering, which real clients use.
  EXPECT_FALSE(IsLegacyXlaTopology(absl::HexStringToBytes("0801")));
  EXPECT_FALSE(IsLegacyXlaTopology(""));
  // jaxlib 0.4.13 sends a boot id of UUID form.
  ferry::xla::LocalTopology local;
  local.set_boot_id("6d3f0a2e-0b52-4c25-9f6a-3f2b8f9a7d11");
  EXPECT_FALSE(IsLegacyXlaTopology(local.SerializeAsString()));
  local.add_devices()->set_name("x");
  EXPECT_FALSE(IsLegacyXlaTopology(local.SerializeAsString()));
}

TEST(XlaTopology, OlderNumberingWithSeveralDevices) {
  ferry::xla::LegacyLocalTopology local;
  local.set_node_id(3);
  for (int i = 0; i < 8; ++i) {
    ferry::xla::DeviceProto& device = *local.add_devices();
    device.set_local_device_ordinal(i);
    device.set_name("Tesla V100");
    device.set_vendor("NVIDIA");
  }
  EXPECT_TRUE(IsLegacyXlaTopology(local.SerializeAsString()));
  const auto ours = FromXlaTopology(local.SerializeAsString());
  ASSERT_TRUE(ours.ok()) << ours.status();
  EXPECT_EQ(ours->node_id, 3);
  ASSERT_EQ(ours->devices.size(), 8u);
  EXPECT_EQ(ours->devices[7].kind, DeviceKind::kGpu);
  EXPECT_EQ(ours->devices[7].ordinal, 7);
  EXPECT_EQ(ours->devices[7].name, "Tesla V100");
}

TEST(XlaTopology, ConvertsToOurs) {
  ferry::xla::LocalTopology local;
  local.set_process_id(2);
  local.set_boot_id("boot");
  local.set_partition_index(1);
  ferry::xla::DeviceProto& gpu = *local.add_devices();
  gpu.set_name("NVIDIA H200");
  gpu.set_vendor("NVIDIA Corporation");
  gpu.set_compute_capability("9.0");
  gpu.set_core_count(132);
  gpu.set_fabric_uuid("aa/1");
  ferry::xla::DeviceProto& cpu = *local.add_devices();
  cpu.set_name("cpu");
  const auto ours = FromXlaTopology(local.SerializeAsString());
  ASSERT_TRUE(ours.ok()) << ours.status();
  EXPECT_EQ(ours->node_id, 2);
  EXPECT_EQ(ours->boot_id, "boot");
  EXPECT_EQ(ours->partition_index, 1);
  ASSERT_EQ(ours->devices.size(), 2u);
  EXPECT_EQ(ours->devices[0].kind, DeviceKind::kGpu);
  EXPECT_EQ(ours->devices[0].compute_major, 9);
  EXPECT_EQ(ours->devices[0].compute_minor, 0);
  EXPECT_EQ(ours->devices[0].core_count, 132);
  EXPECT_EQ(ours->devices[0].fabric_uuid, "aa/1");
  EXPECT_EQ(ours->devices[1].kind, DeviceKind::kHost);
}

TEST(XlaTopology, RoundTripKeepsANode) {
  LocalTopology local;
  local.node_id = 4;
  local.boot_id = "boot";
  local.devices.resize(2);
  for (int i = 0; i < 2; ++i) {
    local.devices[i].kind = DeviceKind::kGpu;
    local.devices[i].ordinal = i;
    local.devices[i].name = "NVIDIA H200";
    local.devices[i].vendor = "NVIDIA";
    local.devices[i].compute_major = 9;
    local.devices[i].core_count = 132;
  }
  const std::string bytes = ToXlaTopology(local);
  EXPECT_FALSE(IsLegacyXlaTopology(bytes));
  const auto back = FromXlaTopology(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->node_id, 4);
  EXPECT_EQ(back->boot_id, "boot");
  ASSERT_EQ(back->devices.size(), 2u);
  EXPECT_EQ(back->devices[1].ordinal, 1);
  EXPECT_EQ(back->devices[1].name, "NVIDIA H200");
  EXPECT_EQ(back->devices[1].compute_major, 9);
}

TEST(XlaTopology, GarbageIsRefused) {
  for (const std::string& bytes : {std::string("\xff\xff\xff"), std::string("\x1a\x05x"),
                                   std::string("\x12\x7f"), std::string("\x08")}) {
    EXPECT_EQ(FromXlaTopology(bytes).status().code(), absl::StatusCode::kInvalidArgument)
        << absl::CHexEscape(bytes);
    EXPECT_EQ(MergeXlaTopologies({Newer(), bytes}, false).status().code(),
              absl::StatusCode::kInvalidArgument)
        << absl::CHexEscape(bytes);
  }
}

std::string Node(int node, int devices) {
  ferry::xla::LocalTopology local;
  local.set_process_id(node);
  local.set_boot_id("boot");
  for (int i = 0; i < devices; ++i) local.add_devices()->set_local_device_ordinal(i);
  return local.SerializeAsString();
}

TEST(XlaTopologyMerge, NumbersDevicesDenselyInOrder) {
  for (const bool legacy : {false, true}) {
    const auto merged = MergeXlaTopologies({Node(0, 2), Node(1, 0), Node(2, 3)}, legacy);
    ASSERT_TRUE(merged.ok()) << merged.status();
    std::vector<int> ids;
    std::vector<int> nodes;
    if (legacy) {
      ferry::xla::LegacyGlobalTopology global;
      ASSERT_TRUE(global.ParseFromString(*merged));
      for (const auto& node : global.nodes()) {
        nodes.push_back(node.node_id());
        for (const auto& device : node.devices()) ids.push_back(device.global_device_id());
      }
    } else {
      ferry::xla::GlobalTopology global;
      ASSERT_TRUE(global.ParseFromString(*merged));
      for (const auto& node : global.processes()) {
        nodes.push_back(node.process_id());
        for (const auto& device : node.devices()) ids.push_back(device.global_device_id());
      }
    }
    EXPECT_THAT(nodes, ::testing::ElementsAre(0, 1, 2));
    EXPECT_THAT(ids, ::testing::ElementsAre(0, 1, 2, 3, 4));
  }
}

// A node of a job, for the tests of partitions.
struct PartitionNode {
  std::string boot_id;
  // One device each, a GPU.
  std::vector<std::string> fabrics;
  int partition_index = -1;
};

// The partition of each device, in the order of nodes; {-1} if the merge fails.
std::vector<int> PartitionsOf(const std::vector<PartitionNode>& nodes, bool legacy = false) {
  std::vector<std::string> locals;
  for (const PartitionNode& node : nodes) {
    ferry::xla::LocalTopology local;
    local.set_process_id(static_cast<int>(locals.size()));
    local.set_boot_id(node.boot_id);
    if (node.partition_index >= 0) local.set_partition_index(node.partition_index);
    for (const std::string& fabric : node.fabrics) {
      ferry::xla::DeviceProto& device = *local.add_devices();
      device.set_vendor("NVIDIA Corporation");
      device.set_fabric_uuid(fabric);
    }
    locals.push_back(local.SerializeAsString());
  }
  const auto merged = MergeXlaTopologies(locals, legacy);
  if (!merged.ok()) {
    EXPECT_EQ(merged.status().code(), absl::StatusCode::kInvalidArgument);
    return {-1};
  }
  std::vector<int> partitions;
  if (legacy) {
    ferry::xla::LegacyGlobalTopology global;
    EXPECT_TRUE(global.ParseFromString(*merged));
    for (const auto& node : global.nodes()) {
      for (const auto& device : node.devices()) partitions.push_back(device.partition_index());
    }
  } else {
    ferry::xla::GlobalTopology global;
    EXPECT_TRUE(global.ParseFromString(*merged));
    for (const auto& node : global.processes()) {
      for (const auto& device : node.devices()) partitions.push_back(device.partition_index());
    }
  }
  return partitions;
}

constexpr char kFabricOne[] = "00000000-0000-0000-0000-000000000001/0";
constexpr char kFabricTwo[] = "00000000-0000-0000-0000-000000000002/0";
constexpr char kNoFabric[] = "00000000-0000-0000-0000-000000000000/0";

// jax reads the slices of its devices from here: with 0 everywhere, hosts look like one machine.
TEST(XlaTopologyMerge, NodesOfSeveralMachines_GetAPartitionForEachBootId) {
  EXPECT_THAT(PartitionsOf({{"x", {"", ""}}, {"y", {""}}, {"x", {""}}, {"z", {"", ""}}}),
              ::testing::ElementsAre(0, 0, 1, 0, 2, 2));
  // A machine whose node has no devices is counted like the others.
  EXPECT_THAT(PartitionsOf({{"x", {}}, {"y", {""}}}), ::testing::ElementsAre(1));
  // As upstream does: nodes that do not report their machine are on one.
  EXPECT_THAT(PartitionsOf({{"", {""}}, {"x", {""}}, {"", {""}}}), ::testing::ElementsAre(0, 1, 0));
}

// The cases of upstream's tests: BuildGlobalTopologyWithFabricUuid and ...MultipleFabricUuid.
TEST(XlaTopologyMerge, DevicesOfFabrics_GetAPartitionForEachFabric) {
  EXPECT_THAT(PartitionsOf({{"", {kFabricOne, kFabricOne}}, {"", {kFabricOne, kFabricOne}}}),
              ::testing::ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(PartitionsOf({{"", {kFabricOne, kFabricOne}},
                            {"", {kFabricOne, kFabricOne}},
                            {"", {kFabricTwo, kFabricTwo}},
                            {"", {kFabricTwo, kFabricTwo}}}),
              ::testing::ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  // One machine in two fabrics.
  EXPECT_THAT(PartitionsOf({{"x", {kFabricTwo, kFabricOne}}, {"y", {kFabricOne}}}),
              ::testing::ElementsAre(0, 1, 1));
}

TEST(XlaTopologyMerge, OneDeviceInNoFabric_MakesMachinesThePartitions) {
  for (const char* const none : {"", kNoFabric}) {
    EXPECT_THAT(PartitionsOf({{"x", {kFabricOne}}, {"y", {kFabricOne, none}}}),
                ::testing::ElementsAre(0, 1, 1));
  }
}

// A node of ours has its host among its devices.
TEST(XlaTopologyMerge, HostDeviceBesideGpusOfAFabric_GoesWithThem) {
  std::vector<std::string> locals;
  for (const char* const fabric : {kFabricTwo, kFabricOne}) {
    LocalTopology node;
    node.node_id = static_cast<int>(locals.size());
    node.boot_id = fabric;
    node.devices.resize(2);
    node.devices[0].name = "host";
    node.devices[1].kind = DeviceKind::kGpu;
    node.devices[1].vendor = "NVIDIA";
    node.devices[1].fabric_uuid = fabric;
    locals.push_back(ToXlaTopology(node));
  }
  const auto merged = MergeXlaTopologies(locals, false);
  ASSERT_TRUE(merged.ok()) << merged.status();
  ferry::xla::GlobalTopology global;
  ASSERT_TRUE(global.ParseFromString(*merged));
  for (int node = 0; node < 2; ++node) {
    for (const auto& device : global.processes(node).devices()) {
      EXPECT_EQ(device.partition_index(), node);
    }
  }
}

// Upstream: BuildGlobalTopologyWithExplicitSliceIndices.
TEST(XlaTopologyMerge, NodesThatNameTheirPartition_KeepIt) {
  EXPECT_THAT(PartitionsOf({{"foo", {kFabricOne, kFabricOne}, 1}, {"foo", {"", ""}, 0}}),
              ::testing::ElementsAre(1, 1, 0, 0));
}

TEST(XlaTopologyMerge, SomeNodesNameTheirPartitionAndOthersNone_IsRefused) {
  EXPECT_THAT(PartitionsOf({{"x", {""}, 0}, {"y", {""}}}), ::testing::ElementsAre(-1));
  EXPECT_THAT(PartitionsOf({{"x", {""}}, {"y", {""}, 3}}), ::testing::ElementsAre(-1));
}

// Its devices have no such field.
TEST(XlaTopologyMerge, TheOlderNumberingHasNoPartitions) {
  EXPECT_THAT(PartitionsOf({{"x", {""}}, {"y", {""}}}, /*legacy=*/true),
              ::testing::ElementsAre(0, 0));
}

// 0.10.x sends network_nodes (5), attributes (11), debug strings (10): they reach the others.
TEST(XlaTopologyMerge, KeepsUnknownFields) {
  // LocalTopology{1: 0, 5: "net", 3: {2: "A", 10: "debug", 11: {1: "k", 2: {3: 7}}}, 99: 42}.
  const std::string device = absl::HexStringToBytes(
      "120141"
      "52056465627567"
      "5a070a016b12021807");
  const std::string local = absl::StrCat(
      absl::HexStringToBytes("2a036e6574"), absl::HexStringToBytes("1a"),
      std::string(1, static_cast<char>(device.size())), device, absl::HexStringToBytes("98062a"));
  const auto merged = MergeXlaTopologies({local}, false);
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_THAT(*merged, HasSubstr(absl::HexStringToBytes("2a036e6574")));
  EXPECT_THAT(*merged, HasSubstr(absl::HexStringToBytes("52056465627567")));
  EXPECT_THAT(*merged, HasSubstr(absl::HexStringToBytes("5a070a016b12021807")));
  EXPECT_THAT(*merged, HasSubstr(absl::HexStringToBytes("98062a")));
}

// A job in the middle of an upgrade.
TEST(XlaTopologyMerge, AcceptsBothNumberingsAtOnce) {
  for (const bool legacy : {false, true}) {
    const auto merged = MergeXlaTopologies({Older(), Newer()}, legacy);
    ASSERT_TRUE(merged.ok()) << merged.status();
    if (legacy) {
      ferry::xla::LegacyGlobalTopology global;
      ASSERT_TRUE(global.ParseFromString(*merged));
      ASSERT_EQ(global.nodes_size(), 2);
      EXPECT_EQ(global.nodes(0).devices_size(), 2);
      EXPECT_EQ(global.nodes(1).devices_size(), 2);
      EXPECT_EQ(global.nodes(1).devices(1).global_device_id(), 3);
    } else {
      ferry::xla::GlobalTopology global;
      ASSERT_TRUE(global.ParseFromString(*merged));
      ASSERT_EQ(global.processes_size(), 2);
      EXPECT_EQ(global.processes(0).devices_size(), 2);
      EXPECT_EQ(global.processes(1).devices(1).global_device_id(), 3);
      EXPECT_EQ(global.processes(1).boot_id(), "bt");
    }
  }
}

TEST(XlaTopologyMerge, NoNodesGiveAnEmptyTopology) {
  EXPECT_EQ(*MergeXlaTopologies({}, false), "");
  EXPECT_EQ(*MergeXlaTopologies({}, true), "");
}

}  // namespace
}  // namespace ferry::coord
