// SPDX-License-Identifier: Apache-2.0
// The output of `ferry topo`.
#include "topology/format.h"

#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

#include "tests/topology/topology_test_util.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

LocalTopology Machine() {
  LocalTopology node = TestNode(0);
  node.devices.push_back(TestGpu(0, "GPU-a"));
  node.devices.push_back(TestGpu(1, "GPU-b"));
  node.SetLink(0, 1, PlainLink(LinkType::kPhb));
  node.SetLink(0, 2, PlainLink(LinkType::kPhb));
  node.SetLink(1, 2, NvLink(18, true, LinkType::kNode, 9, 0));
  return node;
}

TEST(FormatText, IsAlignedAndNamesItsDirection) {
  EXPECT_EQ(FormatText(Machine()),
            "device  name         pci bus id    numa  cores  memory      compute  uuid\n"
            "host:0  Xeon         -             -     64     1024.0 GiB  -        -\n"
            "gpu:0   NVIDIA H200  0000:19:00.0  0     132    140.4 GiB   9.0      GPU-a\n"
            "gpu:1   NVIDIA H200  0000:1a:00.0  0     132    140.4 GiB   9.0      GPU-b\n"
            "\n"
            "Link from row device to column device\n"
            "        host:0  gpu:0  gpu:1\n"
            "host:0  X       PHB    PHB\n"
            "gpu:0   PHB     X      NV18\n"
            "gpu:1   PHB     NV18   X\n"
            "\n"
            "Legend, near to far:\n"
            "  X    the device itself\n"
            "  NV#  that many NVLinks, directly or switched\n"
            "  NVL  NVLink, directly or through NVSwitches\n"
            "  PHB  the PCIe host bridge of one CPU\n");
}

TEST(FormatText, ReportsAnEmptyTopology) { EXPECT_EQ(FormatText(LocalTopology()), "no devices\n"); }

TEST(FormatText, JobNamesNodesAndTruncatesALargeMatrixVisibly) {
  std::vector<LocalTopology> nodes;
  for (int i = 0; i < 100; ++i) nodes.push_back(TestNode(i));
  const std::string text = FormatText(*BuildGlobalTopology(nodes), 8);
  EXPECT_THAT(text,
              HasSubstr("100 nodes; partitions 100, nodes in each 1, devices on each node 1\n"));
  EXPECT_THAT(text, HasSubstr("(the first 8 of 100 devices)\n"));
  EXPECT_THAT(text, HasSubstr("\nnode99/host:0"));
  EXPECT_THAT(text, HasSubstr("  NET  the network between machines\n"));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) EXPECT_LE(line.size(), 160u) << line;
}

TEST(FormatText, UnevenJobIsReported) {
  LocalTopology more = TestNode(1);
  more.devices.push_back(TestGpu(0));
  EXPECT_THAT(FormatText(*BuildGlobalTopology({TestNode(0), more})),
              HasSubstr("partitions uneven"));
}

TEST(FormatJson, HasDevicesAndLinks) {
  const nlohmann::json json = nlohmann::json::parse(FormatJson(Machine()));
  EXPECT_EQ(json["host_name"], "node-0000");
  ASSERT_EQ(json["devices"].size(), 3u);
  EXPECT_EQ(json["devices"][0]["device"], "host:0");
  EXPECT_TRUE(json["devices"][0]["compute_capability"].is_null());
  EXPECT_EQ(json["devices"][2]["compute_capability"], "9.0");
  EXPECT_EQ(json["devices"][2]["memory_bytes"], 150754820096);
  ASSERT_EQ(json["links"].size(), 3u);
  EXPECT_EQ(json["links"][2]["between"], (nlohmann::json{"gpu:0", "gpu:1"}));
  EXPECT_EQ(json["links"][2]["type"], "NVL");
  EXPECT_EQ(json["links"][2]["without_nvlink"], "NODE");
  EXPECT_EQ(json["links"][2]["nvlink_count"], 18);
}

TEST(FormatJson, JobHasGlobalIdsAndPartitions) {
  const nlohmann::json json =
      nlohmann::json::parse(FormatJson(*BuildGlobalTopology({TestNode(7), Machine()})));
  EXPECT_EQ(json["counts"]["partitions"], -1);
  EXPECT_EQ(json["nodes"][1]["node_id"], 7);
  EXPECT_EQ(json["nodes"][1]["partition"], 1);
  EXPECT_EQ(json["nodes"][1]["devices"][0]["global_id"], 3);
  EXPECT_EQ(json["nodes"][1]["devices"][0]["device"], "node7/host:0");
}

TEST(FormatJson, SurvivesInvalidUtf8Names) {
  LocalTopology node = TestNode(0);
  node.devices[0].name = "\xff\xfe\"\n";
  EXPECT_TRUE(nlohmann::json::accept(FormatJson(node)));
}

TEST(FormatDot, DrawsNodesAndLinksOnce) {
  const std::string dot = FormatDot(*BuildGlobalTopology({Machine(), TestNode(1)}));
  EXPECT_THAT(dot, HasSubstr("graph topology {"));
  EXPECT_THAT(dot, HasSubstr("\"node0/gpu:0\" -- \"node0/gpu:1\" [label=\"NV18\"];"));
  EXPECT_THAT(dot, Not(HasSubstr("\"node0/gpu:1\" -- \"node0/gpu:0\"")));
  EXPECT_THAT(dot, HasSubstr("\"node1/host:0\" -- network"));
}

TEST(FormatDot, EscapesNames) {
  LocalTopology node = TestNode(0);
  node.host_name = "a\"b\\c";
  EXPECT_THAT(FormatDot(node), HasSubstr("label=\"node0 a\\\"b\\\\c\""));
}

}  // namespace
}  // namespace ferry
