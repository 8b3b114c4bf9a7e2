// SPDX-License-Identifier: Apache-2.0
// Valid reports of a node, and differences between two reports.
#include "topology/local_topology.h"

#include "tests/topology/topology_test_util.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

LocalTopology TwoGpus() {
  LocalTopology node = TestNode(3);
  node.devices.push_back(TestGpu(0, "GPU-a"));
  node.devices.push_back(TestGpu(1, "GPU-b"));
  node.SetLink(2, 1, PlainLink(LinkType::kPix));
  return node;
}

TEST(LocalTopology, LinksAreTheSameInBothDirections) {
  const LocalTopology node = TwoGpus();
  EXPECT_EQ(node.LinkBetween(1, 2).type, LinkType::kPix);
  EXPECT_EQ(node.LinkBetween(2, 1).type, LinkType::kPix);
  EXPECT_EQ(node.LinkBetween(1, 1).type, LinkType::kLoc);
  EXPECT_EQ(node.LinkBetween(0, 1).type, LinkType::kDis);
}

TEST(LocalTopology, SettingALinkAgainReplacesIt) {
  LocalTopology node = TwoGpus();
  node.SetLink(1, 2, PlainLink(LinkType::kSys));
  EXPECT_EQ(node.links.size(), 1u);
  EXPECT_EQ(node.LinkBetween(2, 1).type, LinkType::kSys);
}

TEST(LocalTopology, LinksAreEqualInAnyOrderOfSetting) {
  LocalTopology a = TwoGpus();
  a.SetLink(0, 1, PlainLink(LinkType::kPhb));
  LocalTopology b = TestNode(3);
  b.devices = a.devices;
  b.SetLink(1, 0, PlainLink(LinkType::kPhb));
  b.SetLink(1, 2, PlainLink(LinkType::kPix));
  EXPECT_EQ(a, b);
  EXPECT_EQ(DescribeDifference(a, b), "");
}

TEST(Validate, AcceptsANodeWithoutDevices) {
  LocalTopology node;
  EXPECT_TRUE(Validate(node).ok());
  EXPECT_TRUE(Validate(TwoGpus()).ok());
}

TEST(Validate, RefusesNegativeNumbers) {
  LocalTopology node = TwoGpus();
  node.node_id = -1;
  EXPECT_THAT(Validate(node), FailsWith(kInvalid, HasSubstr("node id is negative")));
  node = TwoGpus();
  node.partition_index = -2;
  EXPECT_THAT(Validate(node), FailsWith(kInvalid, HasSubstr("partition index -2")));
  node = TwoGpus();
  node.devices[1].ordinal = -1;
  EXPECT_THAT(Validate(node), FailsWith(kInvalid, HasSubstr("gpu:-1")));
  node = TwoGpus();
  node.devices[1].numa_node = -2;
  EXPECT_THAT(Validate(node), FailsWith(kInvalid, HasSubstr("gpu:0 has a negative NUMA node")));
}

TEST(Validate, RefusesADeviceTwice) {
  LocalTopology node = TwoGpus();
  node.devices[2].ordinal = 0;
  EXPECT_THAT(Validate(node),
              FailsWith(kInvalid, AllOf(HasSubstr("node 3"), HasSubstr("gpu:0 appears twice"))));
  node = TwoGpus();
  node.devices[2].uuid = "GPU-a";
  EXPECT_THAT(Validate(node), FailsWith(kInvalid, HasSubstr("GPU-a appears twice")));
}

TEST(Validate, AcceptsSlicesOfOnePciDevice) {
  LocalTopology node = TwoGpus();
  node.devices[2].pci_bus_id = node.devices[1].pci_bus_id;
  EXPECT_TRUE(Validate(node).ok());
}

TEST(Validate, RefusesBadLinks) {
  const auto with_links = [](std::vector<DeviceLink> links) {
    LocalTopology node = TwoGpus();
    node.links = std::move(links);
    return Validate(node);
  };
  EXPECT_THAT(with_links({{0, 3, {}}}),
              FailsWith(kInvalid, HasSubstr("link 0-3 joins no devices")));
  EXPECT_THAT(with_links({{-1, 1, {}}}), FailsWith(kInvalid, HasSubstr("link -1-1")));
  EXPECT_THAT(with_links({{1, 1, {}}}), FailsWith(kInvalid, HasSubstr("smaller index first")));
  EXPECT_THAT(with_links({{0, 1, {}}, {0, 1, {}}}),
              FailsWith(kInvalid, HasSubstr("link 0-1 comes after link 0-1")));
  EXPECT_THAT(with_links({{1, 2, {}}, {0, 1, {}}}), FailsWith(kInvalid, HasSubstr("comes after")));
  EXPECT_THAT(with_links({{0, 1, PlainLink(static_cast<LinkType>(9))}}),
              FailsWith(kInvalid, HasSubstr("unknown type")));
}

TEST(Validate, RefusesReportsOverTheLimits) {
  LocalTopology node = TwoGpus();
  node.host_name = std::string(kMaxTopologyTextBytes + 1, 'a');
  EXPECT_THAT(Validate(node), FailsWith(kInvalid, HasSubstr("host_name has 513 bytes")));
  node = TestNode(0);
  for (int i = 0; i < static_cast<int>(kMaxDevicesPerNode); ++i) node.devices.push_back(TestGpu(i));
  EXPECT_THAT(Validate(node), FailsWith(kInvalid, HasSubstr("1025 devices")));
}

TEST(DescribeDifference, NamesTheFirstDifference) {
  const LocalTopology before = TwoGpus();
  LocalTopology now = before;
  now.devices.pop_back();
  EXPECT_EQ(DescribeDifference(before, now), "devices: 3 before, 2 now");
  now = before;
  now.devices[1].uuid = "GPU-c";
  EXPECT_THAT(DescribeDifference(before, now),
              AllOf(HasSubstr("device 1"), HasSubstr("GPU-a"), HasSubstr("GPU-c")));
  now = before;
  now.SetLink(1, 2, PlainLink(LinkType::kSys));
  EXPECT_EQ(DescribeDifference(before, now), "link gpu:0 to gpu:1: \"PIX\" before, \"SYS\" now");
  now = before;
  now.partition_index = 4;
  EXPECT_EQ(DescribeDifference(before, now), "partition index: \"none\" before, \"4\" now");
}

}  // namespace
}  // namespace ferry
