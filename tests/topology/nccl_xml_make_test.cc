// SPDX-License-Identifier: Apache-2.0
// Files made from discovered topologies: read again, they must give the same ladder.
#include "tests/topology/topology_test_util.h"

#include "topology/nccl_xml.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

LocalTopology Gpus(int count) {
  LocalTopology local;
  for (int i = 0; i < count; ++i) local.devices.push_back(TestGpu(i));
  return local;
}

void SetAll(LocalTopology& local, const std::vector<Link>& upper) {
  size_t next = 0;
  const int count = static_cast<int>(local.devices.size());
  for (int i = 0; i < count; ++i) {
    for (int j = i + 1; j < count; ++j) local.SetLink(i, j, upper.at(next++));
  }
}

// Makes a file, writes it, reads it, and returns its ladder.
LocalTopology ThroughFile(const LocalTopology& local) {
  const absl::StatusOr<NcclTopology> made = ToNcclTopology(local);
  EXPECT_TRUE(made.ok()) << made.status();
  const absl::StatusOr<NcclTopology> read = ReadNcclXml(WriteNcclXml(*made));
  EXPECT_TRUE(read.ok()) << read.status() << "\n" << WriteNcclXml(*made);
  EXPECT_EQ(*read, *made);
  absl::StatusOr<LocalTopology> back = ToLocalTopology(*read);
  EXPECT_TRUE(back.ok()) << back.status();
  return *std::move(back);
}

TEST(NcclMake, KeepsTheLadderOfPcie) {
  LocalTopology local = Gpus(5);  // GPUs 0 to 3 on NUMA node 0, GPU 4 on 1
  const Link pix = PlainLink(LinkType::kPix);
  const Link pxb = PlainLink(LinkType::kPxb);
  const Link phb = PlainLink(LinkType::kPhb);
  const Link sys = PlainLink(LinkType::kSys);
  SetAll(local, {pix, pxb, phb, sys, pxb, phb, sys, phb, sys, sys});
  const LocalTopology back = ThroughFile(local);
  EXPECT_EQ(back.links, local.links);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(back.devices[i].pci_bus_id, local.devices[i].pci_bus_id);
    EXPECT_EQ(back.devices[i].numa_node, local.devices[i].numa_node);
    EXPECT_EQ(back.devices[i].compute_major, local.devices[i].compute_major);
  }
}

TEST(NcclMake, KeepsNvlinksDirectAndSwitched) {
  LocalTopology local = Gpus(3);
  SetAll(local, {NvLink(4, false, LinkType::kPix, 9, 0), PlainLink(LinkType::kPhb),
                 NvLink(2, false, LinkType::kPhb, 9, 0)});
  EXPECT_EQ(ThroughFile(local).links, local.links);
  const Link switched = NvLink(18, true, LinkType::kPhb, 9, 0);
  SetAll(local, {switched, switched, switched});
  EXPECT_EQ(ThroughFile(local).links, local.links);
}

TEST(NcclMake, GroupsByTheLadderWhereNumaNodesAreUnknown) {
  LocalTopology local = Gpus(3);
  for (Device& device : local.devices) device.numa_node = -1;
  SetAll(local, {PlainLink(LinkType::kPhb), PlainLink(LinkType::kSys), PlainLink(LinkType::kSys)});
  EXPECT_EQ(ThroughFile(local).links, local.links);
}

// NCCL has one element for a NUMA node, so several host bridges in one cannot be told apart.
TEST(NcclMake, NodeBecomesPhb) {
  LocalTopology local = Gpus(2);
  SetAll(local, {PlainLink(LinkType::kNode)});
  EXPECT_EQ(ThroughFile(local).LinkBetween(0, 1).type, LinkType::kPhb);
}

TEST(NcclMake, OmitsHosts) {
  LocalTopology local = TestNode(0);
  local.devices.push_back(TestGpu(0));
  local.SetLink(0, 1, PlainLink(LinkType::kPhb));
  const LocalTopology back = ThroughFile(local);
  ASSERT_EQ(back.devices.size(), 1u);
  EXPECT_EQ(back.devices[0].kind, DeviceKind::kGpu);
  EXPECT_EQ(back.host_name, "node-0000");
  EXPECT_TRUE(ThroughFile(TestNode(0)).devices.empty());
}

TEST(NcclMake, RefusesGpusItCannotPlace) {
  LocalTopology local = Gpus(2);
  local.devices[1].pci_bus_id.clear();
  EXPECT_THAT(ToNcclTopology(local),
              FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr("gpu:1")));
  local.devices[1].pci_bus_id = local.devices[0].pci_bus_id;
  EXPECT_THAT(ToNcclTopology(local), FailsWith(absl::StatusCode::kFailedPrecondition,
                                               HasSubstr("gpu:0 and gpu:1 are one PCI device")));
}

}  // namespace
}  // namespace ferry
