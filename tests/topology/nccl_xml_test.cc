// SPDX-License-Identifier: Apache-2.0
// Reading and writing whole files: content survives a round trip.
#include "topology/nccl_xml.h"

#include "tests/topology/topology_test_util.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NcclXml, ReadsElementsWithTheirLines) {
  const absl::StatusOr<NcclTopology> topology = ReadNcclXml(
      "<!-- a comment with <tags> & signs -->\n"
      "<system version=\"1\">\n"
      "  <cpu numaid='0' arch=\"x86_64\">\n"
      "    <pci busid=\"0000:19:00.0\" class=\"0x030200\" link_width=\"\"/>\n"
      "  </cpu>\n"
      "</system>\n");
  FERRY_ASSERT_OK(topology);
  const NcclElement& cpu = topology->system.children.at(0);
  EXPECT_EQ(cpu.kind, NcclElementKind::kCpu);
  EXPECT_EQ(cpu.line, 3);
  EXPECT_EQ(cpu.Attribute("arch"), "x86_64");
  EXPECT_EQ(cpu.Attribute("vendor"), std::nullopt);
  EXPECT_EQ(cpu.NumberOr("numaid", -1), 0);
  const NcclElement& pci = cpu.children.at(0);
  EXPECT_EQ(pci.line, 4);
  EXPECT_EQ(pci.NumberOr("link_width", 16), 16);
}

TEST(NcclXml, KeepsAttributesItDoesNotKnowAndTheirOrder) {
  const absl::StatusOr<NcclTopology> topology =
      ReadNcclXml("<system future=\"a&lt;b &amp; &quot;c&quot;\" version=\"1\"></system>");
  FERRY_ASSERT_OK(topology);
  EXPECT_EQ(topology->system.Attribute("future"), "a<b & \"c\"");
  EXPECT_EQ(WriteNcclXml(*topology),
            "<system future=\"a&lt;b &amp; &quot;c&quot;\" version=\"1\"/>\n");
}

TEST(NcclXml, SkipsAndReportsElementsThatNcclDoesNotKnow) {
  const absl::StatusOr<NcclTopology> topology = ReadNcclXml(
      "<system version=\"1\">\n <cpu numaid=\"0\">\n  <thing><pci/></thing>\n </cpu>\n</system>");
  FERRY_ASSERT_OK(topology);
  EXPECT_TRUE(topology->system.children.at(0).children.empty());
  EXPECT_THAT(topology->ignored, ElementsAre("line 3: <thing>"));
}

TEST(NcclXml, DumpOfNcclRoundTripsByteForByte) {
  const std::string path = TestDataPath("dump.xml");
  const absl::StatusOr<NcclTopology> topology = ReadNcclXmlFile(path);
  FERRY_ASSERT_OK(topology);
  EXPECT_EQ(WriteNcclXml(*topology), ReadText(path));
}

class CloudFile : public ::testing::TestWithParam<const char*> {};

TEST_P(CloudFile, RoundTripIsEqualInContent) {
  const std::string path = SharedTopologyPath(GetParam());
  if (path.empty()) GTEST_SKIP() << "shared/topologies/" << GetParam() << " is not there";
  const absl::StatusOr<NcclTopology> topology = ReadNcclXmlFile(path);
  FERRY_ASSERT_OK(topology);
  EXPECT_TRUE(topology->ignored.empty());
  const absl::StatusOr<NcclTopology> again = ReadNcclXml(WriteNcclXml(*topology));
  FERRY_ASSERT_OK(again);
  EXPECT_EQ(*again, *topology);
}

INSTANTIATE_TEST_SUITE_P(Shared, CloudFile,
                         ::testing::Values("aws-p4d.24xlarge.xml", "azure-ndv4.xml"));

TEST(NcclXml, NamesTheFileInErrors) {
  EXPECT_THAT(ReadNcclXmlFile("/nonexistent/topo.xml"),
              FailsWith(absl::StatusCode::kNotFound,
                        HasSubstr("/nonexistent/topo.xml: No such file or directory")));
  const std::string path = TestDataPath("cut_off.xml");
  EXPECT_THAT(ReadNcclXmlFile(path), FailsWith(absl::StatusCode::kInvalidArgument,
                                               AllOf(HasSubstr(path), HasSubstr("line 6: <pci>"))));
  EXPECT_FALSE(ReadNcclXmlFile("/").ok());
}

}  // namespace
}  // namespace ferry
