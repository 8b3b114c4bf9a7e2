// SPDX-License-Identifier: Apache-2.0
// The ladder between GPUs of a file. Expected values come from reading the files by hand.
#include "tests/topology/topology_test_util.h"

#include "topology/nccl_xml.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LocalTopology Read(absl::string_view text) {
  absl::StatusOr<NcclTopology> topology = ReadNcclXml(text);
  EXPECT_TRUE(topology.ok()) << topology.status();
  if (!topology.ok()) return LocalTopology();
  absl::StatusOr<LocalTopology> local = ToLocalTopology(*topology);
  EXPECT_TRUE(local.ok()) << local.status();
  return local.ok() ? *std::move(local) : LocalTopology();
}

// The cells of the matrix above the diagonal, row by row.
std::vector<std::string> Upper(const LocalTopology& local) {
  std::vector<std::string> cells;
  const int count = static_cast<int>(local.devices.size());
  for (int i = 0; i < count; ++i) {
    for (int j = i + 1; j < count; ++j) cells.push_back(LinkText(local.LinkBetween(i, j)));
  }
  return cells;
}

std::string Gpu(const std::string& bus_id, const std::string& inside = "") {
  return absl::StrCat("<pci busid=\"0000:", bus_id, ":00.0\" class=\"0x030200\">", inside,
                      "</pci>");
}

std::string Bridge(const std::string& bus_id, const std::string& inside,
                   const std::string& more = "") {
  return absl::StrCat("<pci busid=\"0000:", bus_id, ":00.0\" class=\"0x060400\" ", more, ">",
                      inside, "</pci>");
}

std::string Cpu(int numa, const std::string& inside, const std::string& host = "0x1") {
  return absl::StrCat("<cpu numaid=\"", numa, "\" host_hash=\"", host, "\">", inside, "</cpu>");
}

LocalTopology ReadSystem(const std::string& inside) {
  return Read(absl::StrCat("<system version=\"1\">", inside, "</system>"));
}

TEST(NcclLinks, OneSwitchIsPix) {
  EXPECT_THAT(Upper(ReadSystem(Cpu(0, Bridge("10", Gpu("11") + Gpu("12"))))), ElementsAre("PIX"));
}

TEST(NcclLinks, SeveralSwitchesArePxb) {
  EXPECT_THAT(Upper(ReadSystem(Cpu(
                  0, Bridge("10", Bridge("20", Gpu("21")) + Bridge("30", Gpu("31")) + Gpu("11"))))),
              ElementsAre("PXB", "PXB", "PXB"));
}

TEST(NcclLinks, OneCpuIsPhbAndTwoAreSys) {
  EXPECT_THAT(Upper(ReadSystem(Cpu(0, Gpu("11") + Bridge("20", Gpu("21"))) + Cpu(1, Gpu("31")))),
              ElementsAre("PHB", "SYS", "SYS"));
}

TEST(NcclLinks, TwoHostsAreNet) {
  EXPECT_THAT(Upper(ReadSystem(Cpu(0, Gpu("11"), "0xa") + Cpu(0, Gpu("11"), "0xb"))),
              ElementsAre("NET"));
}

// Source: NCCL's own rule for these ids; without it a DGX A100 would look one rung farther than it
// is.
TEST(NcclLinks, BothHalvesOfABroadcomSwitchCountAsOne) {
  const auto halves = [](const std::string& device, const std::string& up, const std::string& low) {
    const std::string ids = "vendor=\"0x1000\" subsystem_vendor=\"0x1000\" device=\"" + device +
                            "\" subsystem_device=\"";
    return Upper(ReadSystem(Cpu(0, Bridge("10",
                                          Bridge("20", Gpu("21"), ids + low + "\"") +
                                              Bridge("30", Gpu("31"), ids + low + "\""),
                                          ids + up + "\""))));
  };
  EXPECT_THAT(halves("0xc010", "0xa096", "0xa064"), ElementsAre("PIX"));
  EXPECT_THAT(halves("0xc030", "0x0001", "0x1002"), ElementsAre("PIX"));
  EXPECT_THAT(halves("0xc030", "0x1001", "0x1002"), ElementsAre("PXB"));
  EXPECT_THAT(halves("0xc020", "0xa096", "0xa064"), ElementsAre("PXB"));
}

TEST(NcclLinks, LinkBetweenSwitchesKeepsTheCpuOutOfThePath) {
  const std::string pcilink = "<pcilink target=\"0000:20:00.0\"/>";
  EXPECT_THAT(Upper(ReadSystem(Cpu(0, Bridge("10", Gpu("11") + pcilink)) +
                               Cpu(1, Bridge("20", Gpu("21"))))),
              ElementsAre("PXB"));
}

TEST(NcclLinks, SwitchedNvlinkJoinsAllGpusWithIt) {
  const std::string nvswitch =
      "<gpu dev=\"%d\" sm=\"90\"><nvlink target=\"0000:c7:00.0\" count=\"9\" tclass=\"0x068000\"/>"
      "<nvlink target=\"fffffff:ffff:ff\" count=\"9\" tclass=\"0x068000\"/></gpu>";
  const auto with = [&nvswitch](int dev) {
    std::string text = nvswitch;
    return text.replace(text.find("%d"), 2, absl::StrCat(dev));
  };
  const LocalTopology local =
      ReadSystem(Cpu(0, Gpu("11", with(0)) + Gpu("12", with(1)) + Gpu("13", "<gpu dev=\"2\"/>")));
  EXPECT_THAT(Upper(local), ElementsAre("NV18", "PHB", "PHB"));
  const Link link = local.LinkBetween(0, 1);
  EXPECT_TRUE(link.nvlink_switched);
  EXPECT_EQ(link.pcie, LinkType::kPhb);
  EXPECT_EQ(link.bandwidth_bytes_per_s, 450'000'000'000u);
}

// NCCL writes no class for devices it cannot look up; in virtual machines those are switches.
TEST(NcclLinks, TargetWithoutClassIsAGpuOfTheFileOrElseASwitch) {
  const std::string direct = "<gpu dev=\"0\"><nvlink target=\"0000:12:00.0\" count=\"3\"/></gpu>";
  EXPECT_THAT(Upper(ReadSystem(Cpu(0, Gpu("11", direct) + Gpu("12", "<gpu dev=\"1\"/>")))),
              ElementsAre("NV3"));
  const std::string away = "<nvlink target=\"0000:99:00.0\" count=\"2\"/></gpu>";
  EXPECT_THAT(Upper(ReadSystem(Cpu(
                  0, Gpu("11", "<gpu dev=\"0\">" + away) + Gpu("12", "<gpu dev=\"1\">" + away)))),
              ElementsAre("NV2"));
}

// gpu/@dev says 12:00.0 is GPU 1, 13:00.0 is GPU 0, 22:00.0 is GPU 2.
TEST(NcclLinks, DumpIsNumberedByItsDevAttributes) {
  const absl::StatusOr<NcclTopology> topology = ReadNcclXmlFile(TestDataPath("dump.xml"));
  FERRY_ASSERT_OK(topology);
  const absl::StatusOr<LocalTopology> local = ToLocalTopology(*topology);
  FERRY_ASSERT_OK(local);
  ASSERT_EQ(local->devices.size(), 3u);
  EXPECT_EQ(local->devices[0].pci_bus_id, "0000:13:00.0");
  EXPECT_EQ(local->devices[1].pci_bus_id, "0000:12:00.0");
  EXPECT_EQ(local->devices[2].numa_node, 1);
  EXPECT_EQ(local->devices[2].compute_major, 7);
  EXPECT_THAT(Upper(*local), ElementsAre("NV1", "SYS", "NV2"));
  EXPECT_EQ(local->LinkBetween(0, 1).pcie, LinkType::kPxb);
  EXPECT_EQ(local->LinkBetween(1, 2).pcie, LinkType::kSys);
  EXPECT_FALSE(local->LinkBetween(1, 2).nvlink_switched);
}

TEST(NcclLinks, WithoutDevAttributesTheOrderOfTheFileCounts) {
  const LocalTopology local = ReadSystem(Cpu(0, Gpu("12") + Gpu("11", "<gpu dev=\"0\"/>")));
  EXPECT_EQ(local.devices[0].pci_bus_id, "0000:12:00.0");
  EXPECT_EQ(local.devices[1].ordinal, 1);
}

TEST(NcclLinks, FileWithoutGpusHasNoDevices) {
  EXPECT_TRUE(ReadSystem(Cpu(0, Bridge("10", ""))).devices.empty());
}

TEST(NcclLinks, TooManyGpusAreRefused) {
  std::string gpus;
  for (int i = 0; i < 1025; ++i) {
    absl::StrAppend(&gpus, absl::StrFormat("<pci busid=\"%04x:00:00.0\" class=\"0x03\"/>", i));
  }
  const absl::StatusOr<NcclTopology> topology =
      ReadNcclXml(absl::StrCat("<system version=\"1\">", Cpu(0, gpus), "</system>"));
  FERRY_ASSERT_OK(topology);
  EXPECT_THAT(ToLocalTopology(*topology),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("1025 GPUs")));
}

// In both cloud files each pair of neighbours hangs on one switch. AWS has two switches per socket.
TEST(NcclLinks, AwsP4dHasPairsOnSwitchesAndTwoSwitchesPerSocket) {
  const std::string path = SharedTopologyPath("aws-p4d.24xlarge.xml");
  if (path.empty()) GTEST_SKIP() << "shared/topologies/aws-p4d.24xlarge.xml is not there";
  const LocalTopology local = Read(ReadText(path));
  ASSERT_EQ(local.devices.size(), 8u);
  EXPECT_EQ(local.devices[0].pci_bus_id, "0000:10:1c.0");
  EXPECT_EQ(local.devices[7].pci_bus_id, "0000:a0:1d.0");
  EXPECT_EQ(local.devices[3].numa_node, 0);
  EXPECT_EQ(local.devices[4].numa_node, 1);
  EXPECT_EQ(local.devices[0].vendor, "NVIDIA");
  EXPECT_THAT(Upper(local), ElementsAre("PIX", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS",  // GPU 0
                                        "PHB", "PHB", "SYS", "SYS", "SYS", "SYS",         // GPU 1
                                        "PIX", "SYS", "SYS", "SYS", "SYS",                // GPU 2
                                        "SYS", "SYS", "SYS", "SYS",                       // GPU 3
                                        "PIX", "PHB", "PHB",                              // GPU 4
                                        "PHB", "PHB",                                     // GPU 5
                                        "PIX"));                                          // GPU 6
}

// Azure has one switch per NUMA node, and four of those.
TEST(NcclLinks, AzureNdv4HasOneSwitchPerNumaNode) {
  const std::string path = SharedTopologyPath("azure-ndv4.xml");
  if (path.empty()) GTEST_SKIP() << "shared/topologies/azure-ndv4.xml is not there";
  const LocalTopology local = Read(ReadText(path));
  std::vector<std::string> bus_ids;
  std::vector<int> numa_nodes;
  for (const Device& device : local.devices) {
    bus_ids.push_back(device.pci_bus_id);
    numa_nodes.push_back(device.numa_node);
  }
  EXPECT_THAT(bus_ids, ElementsAre("0003:00:00.0", "0004:00:00.0", "0001:00:00.0", "0002:00:00.0",
                                   "000d:00:00.0", "000e:00:00.0", "000b:00:00.0", "000c:00:00.0"));
  EXPECT_THAT(numa_nodes, ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  EXPECT_THAT(Upper(local), ElementsAre("PIX", "SYS", "SYS", "SYS", "SYS", "SYS", "SYS",  // GPU 0
                                        "SYS", "SYS", "SYS", "SYS", "SYS", "SYS",         // GPU 1
                                        "PIX", "SYS", "SYS", "SYS", "SYS",                // GPU 2
                                        "SYS", "SYS", "SYS", "SYS",                       // GPU 3
                                        "PIX", "SYS", "SYS",                              // GPU 4
                                        "SYS", "SYS",                                     // GPU 5
                                        "PIX"));                                          // GPU 6
}

// Two levels are the halves of one switch, and count as one; a third level is another switch.
TEST(NcclLinks, ThreeSwitchLevels_ArePxb) {
  const std::string ids =
      "vendor=\"0x1000\" subsystem_vendor=\"0x1000\" device=\"0xc010\" "
      "subsystem_device=\"0xa096\"";
  EXPECT_THAT(
      Upper(ReadSystem(
          Cpu(0, Bridge("10", Bridge("20", Gpu("21") + Bridge("30", Gpu("31"), ids), ids), ids)))),
      ElementsAre("PXB"));
}

}  // namespace
}  // namespace ferry
