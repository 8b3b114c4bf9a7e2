// SPDX-License-Identifier: Apache-2.0
// The wire form: complete, small, one sequence of bytes for one job, and safe to parse.
#include "topology/topology_proto.h"

#include <algorithm>
#include <random>

#include "tests/topology/topology_test_util.h"

#include "topology/string_column_proto.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

LocalTopology FullNode(int32_t id) {
  LocalTopology node = TestNode(id);
  for (int i = 0; i < 8; ++i) {
    node.devices.push_back(
        TestGpu(i, absl::StrFormat("GPU-%08x-1234-5678-9abc-%012x", id * 40503u, i), "0abc/2"));
  }
  for (int i = 1; i <= 8; ++i) {
    node.SetLink(0, i, PlainLink(LinkType::kPhb));
    for (int j = i + 1; j <= 8; ++j) node.SetLink(i, j, NvLink(18, true, LinkType::kSys, 9, 0));
  }
  return node;
}

GlobalTopology Build(const std::vector<LocalTopology>& nodes) {
  absl::StatusOr<GlobalTopology> global = BuildGlobalTopology(nodes);
  EXPECT_TRUE(global.ok()) << global.status();
  return *std::move(global);
}

std::vector<LocalTopology> ManyHosts(int count) {
  std::vector<LocalTopology> nodes;
  for (int i = 0; i < count; ++i) nodes.push_back(TestNode(i));
  return nodes;
}

TEST(TopologyProto, LocalTopologyRoundTrips) {
  LocalTopology node = FullNode(7);
  node.partition_index = 0;
  const absl::StatusOr<LocalTopology> back = ParseLocalTopology(SerializeTopology(node));
  FERRY_ASSERT_OK(back);
  EXPECT_EQ(*back, node);
  EXPECT_EQ(*ParseLocalTopology(""), LocalTopology());
}

TEST(TopologyProto, GlobalTopologyRoundTrips) {
  std::vector<LocalTopology> nodes = {FullNode(1), TestNode(4), FullNode(1000)};
  nodes[1].devices[0].memory_bytes += 4096;
  nodes[2].devices[3].uuid.clear();
  nodes[2].devices[4].fabric_uuid.clear();
  nodes[1].boot_id = "not a uuid";
  nodes[1].endpoint.clear();
  for (const bool explicit_partitions : {false, true}) {
    if (explicit_partitions) {
      for (LocalTopology& node : nodes) node.partition_index = node.node_id / 10;
    }
    const GlobalTopology global = Build(nodes);
    const absl::StatusOr<GlobalTopology> back = ParseGlobalTopology(SerializeTopology(global));
    FERRY_ASSERT_OK(back);
    EXPECT_EQ(*back, global);
    EXPECT_EQ(back->nodes(), nodes);
    EXPECT_EQ(back->partitions(), global.partitions());
  }
}

// Every node must get the same bytes, in any order of reports.
TEST(TopologyProto, BytesDoNotDependOnTheOrderOfReports) {
  std::vector<LocalTopology> nodes = ManyHosts(50);
  nodes.push_back(FullNode(50));
  const std::string bytes = SerializeTopology(Build(nodes));
  std::mt19937 random(20240607);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(nodes.begin(), nodes.end(), random);
    EXPECT_EQ(SerializeTopology(Build(nodes)), bytes);
  }
}

// 4096 answers of this size leave the coordinator at once: 4096 * 40 bytes * 4096 is already 640
// MiB.
TEST(TopologyProto, TakesAtMostFortyBytesPerEqualNode) {
  const std::string bytes = SerializeTopology(Build(ManyHosts(4096)));
  RecordProperty("bytes_per_node", absl::StrCat(bytes.size() / 4096.0));
  EXPECT_LE(bytes.size(), 4096u * 40);
}

TEST(TopologyProto, StoresEqualHardwareOnceAndAGpuInSixteenBytes) {
  std::vector<LocalTopology> nodes;
  for (int i = 0; i < 512; ++i) nodes.push_back(FullNode(i));
  const GlobalTopology global = Build(nodes);
  EXPECT_EQ(ToProto(global).hardware_size(), 1);
  // Eight raw UUIDs, at two bytes each the fabrics, and the node's own forty.
  EXPECT_LE(SerializeTopology(global).size(), 512u * (8 * (16 + 2) + 40) + 4000);
}

TEST(TopologyProto, RefusesInvalidBytes) {
  EXPECT_THAT(ParseLocalTopology("\xff\xff"), FailsWith(kInvalid, HasSubstr("LocalTopology")));
  EXPECT_THAT(ParseGlobalTopology("\xff\xff"), FailsWith(kInvalid, HasSubstr("GlobalTopology")));
}

TEST(TopologyProto, ValidatesReceivedTopologies) {
  v1::LocalTopology proto = ToProto(FullNode(1));
  proto.mutable_links(0)->set_second(99);
  EXPECT_THAT(FromProto(proto), FailsWith(kInvalid, HasSubstr("link 0-99")));
  proto = ToProto(FullNode(1));
  proto.mutable_devices(1)->set_kind(static_cast<v1::DeviceKind>(7));
  EXPECT_THAT(FromProto(proto), FailsWith(kInvalid, HasSubstr("unknown kind")));
  proto = ToProto(FullNode(1));
  proto.set_node_id(4'000'000'000u);
  const absl::StatusOr<LocalTopology> huge = FromProto(proto);
  FERRY_ASSERT_OK(huge);
  EXPECT_EQ(huge->node_id, 2147483647);
}

TEST(TopologyProto, RefusesColumnsThatDoNotFit) {
  const v1::GlobalTopology good = ToProto(Build(ManyHosts(3)));
  v1::GlobalTopology proto = good;
  proto.add_hardware_indexes(0);
  EXPECT_THAT(FromProto(proto), FailsWith(kInvalid, HasSubstr("4 hardware indexes for 3 nodes")));
  proto = good;
  proto.set_hardware_indexes(1, 5);
  EXPECT_THAT(FromProto(proto), FailsWith(kInvalid, HasSubstr("hardware 5 of only 1")));
  proto = good;
  proto.add_partition_indexes(0);
  EXPECT_THAT(FromProto(proto), FailsWith(kInvalid, HasSubstr("1 partition indexes for 3")));
  proto = good;
  proto.add_host_memory_bytes(0);
  EXPECT_THAT(FromProto(proto), FailsWith(kInvalid, HasSubstr("4 host memories for 3")));
  proto = good;
  proto.set_node_id_deltas(1, 0);
  EXPECT_THAT(FromProto(proto), FailsWith(kInvalid, HasSubstr("appears twice")));
  proto = good;
  proto.mutable_boot_ids()->mutable_own()->pop_back();
  EXPECT_THAT(FromProto(proto), FailsWith(kInvalid, HasSubstr("column boot_ids")));
}

// A short message must not become gigabytes.
TEST(TopologyProto, RefusesMessagesThatExpandTooFar) {
  v1::GlobalTopology proto;
  LocalTopology wide;
  for (int i = 0; i < 1000; ++i) wide.devices.push_back(TestGpu(i));
  *proto.add_hardware() = *ToProto(Build({wide})).mutable_hardware(0);
  for (int i = 0; i < 60000; ++i) {
    proto.add_node_id_deltas(1);
    proto.add_hardware_indexes(0);
  }
  EXPECT_THAT(FromProto(proto),
              FailsWith(absl::StatusCode::kResourceExhausted, HasSubstr("60000000 devices")));
}

TEST(StringColumn, SharesCommonPrefixesOfNeighbours) {
  const v1::StringColumn column = PackStrings({"node-1", "node-2", "", "node-2"});
  EXPECT_EQ(column.own(), "node-12node-2");
  const absl::StatusOr<std::vector<std::string>> back = UnpackStrings(column, 4, 100, "names");
  FERRY_ASSERT_OK(back);
  EXPECT_THAT(*back, ::testing::ElementsAre("node-1", "node-2", "", "node-2"));
}

TEST(StringColumn, StoresUuidsRaw) {
  const std::vector<std::string> uuids = {"GPU-01234567-89ab-cdef-0123-456789abcdef",
                                          "GPU-f1234567-89ab-cdef-0123-456789abcdef"};
  const v1::StringColumn column = PackStrings(uuids);
  EXPECT_EQ(column.own().size(), 32u);
  EXPECT_EQ(column.shared_bytes_size(), 0);
  EXPECT_EQ(*UnpackStrings(column, 2, 100, "uuids"), uuids);
}

TEST(StringColumn, KeepsUuidsOfAnotherSpellingAsText) {
  for (const char* text : {"GPU-01234567-89AB-cdef-0123-456789abcdef",
                           "01234567-89ab-cdef-0123-456789abcde", "GPU-x"}) {
    const std::vector<std::string> strings = {text, "01234567-89ab-cdef-0123-456789abcdef"};
    EXPECT_EQ(*UnpackStrings(PackStrings(strings), 2, 100, "uuids"), strings);
  }
}

TEST(StringColumn, RefusesImpossibleLengths) {
  v1::StringColumn column = PackStrings({"abc", "abd"});
  column.set_shared_bytes(1, 4);
  EXPECT_THAT(UnpackStrings(column, 2, 100, "names"), FailsWith(kInvalid, HasSubstr("string 1")));
  column = PackStrings({"abc", "abd"});
  column.set_own_bytes(1, 2);
  EXPECT_THAT(UnpackStrings(column, 2, 100, "names"), FailsWith(kInvalid, HasSubstr("string 1")));
  column = PackStrings({"abc", "abd"});
  column.mutable_own()->push_back('x');
  EXPECT_THAT(UnpackStrings(column, 2, 100, "names"), FailsWith(kInvalid, HasSubstr("too many")));
  column = PackStrings({"abc", "abd"});
  EXPECT_THAT(UnpackStrings(column, 3, 100, "names"), FailsWith(kInvalid, HasSubstr("3 strings")));
  EXPECT_THAT(UnpackStrings(column, 2, 2, "names"), FailsWith(kInvalid, HasSubstr("string 0")));
  column.set_uuids(true);
  EXPECT_THAT(UnpackStrings(column, 2, 100, "names"), FailsWith(kInvalid, HasSubstr("UUID of 3")));
}

}  // namespace
}  // namespace ferry
