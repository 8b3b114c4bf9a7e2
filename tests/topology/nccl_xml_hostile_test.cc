// SPDX-License-Identifier: Apache-2.0
// Files that are broken by accident or on purpose: each error names line and element.
#include <random>

#include "tests/topology/topology_test_util.h"

#include "topology/nccl_xml.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kExhausted = absl::StatusCode::kResourceExhausted;

// Line 2 is the cpu element, line 3 the first one inside.
std::string InCpu(const std::string& inside) {
  return absl::StrCat("<system version=\"1\">\n<cpu numaid=\"0\">\n", inside,
                      "\n</cpu>\n</system>");
}

void ExpectInvalid(const std::string& text, const std::string& message) {
  EXPECT_THAT(ReadNcclXml(text), FailsWith(kInvalid, HasSubstr(message))) << text.substr(0, 200);
}

TEST(HostileXml, EmptyFilesAreRefused) {
  ExpectInvalid("", "line 1: the file holds no element");
  ExpectInvalid("\n\n<!-- only this -->\n", "line 4: the file holds no element");
}

TEST(HostileXml, NonXmlIsRefused) {
  ExpectInvalid("\nhello", "line 2: text \"hello\" between the elements");
  ExpectInvalid(std::string("<system version=\"1\">\n\0</system>", 30), "line 2: a zero byte");
  ExpectInvalid("<system version=\"1\">\n<!-- </system>", "line 2: a comment that never ends");
  ExpectInvalid("<system version=\"1\">\n< cpu/></system>", "line 2: '<' without the name");
  ExpectInvalid(InCpu("<![CDATA[x]]>"), "line 3: a CDATA section");
}

TEST(HostileXml, TruncatedFilesNameTheOpenElement) {
  ExpectInvalid("<system version=\"1\">\n<cpu numaid=\"0\">\n",
                "line 3: <cpu> of line 2 is still open");
  ExpectInvalid("<system version=\"1\">\n<cpu numaid=\"0",
                "<cpu> of line 2: the file ends within a quoted");
  ExpectInvalid("<system version=\"1\">\n<cpu\nnumaid",
                "line 3: <cpu> of line 2: the file ends within the tag");
  ExpectInvalid("<system version=\"1\">\n</syst", "line 2: a closing tag that the file cuts off");
}

// Every prefix of a good file must give an error or a topology, never a crash.
TEST(HostileXml, EveryPrefixOfAFileIsRefused) {
  const std::string text = ReadText(TestDataPath("dump.xml"));
  ASSERT_GT(text.size(), 1000u);
  const size_t last_byte = text.rfind('>');
  for (size_t bytes = 0; bytes <= last_byte; ++bytes) {
    EXPECT_FALSE(ReadNcclXml(text.substr(0, bytes)).ok()) << bytes;
  }
}

// Random damage must give an error with its line, or a usable topology; never a crash.
TEST(HostileXml, DamagedFilesAreRefusedOrUsable) {
  const std::string text = ReadText(TestDataPath("dump.xml"));
  constexpr unsigned kSeed = 20240607;
  std::mt19937 random(kSeed);
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = text;
    for (int change = 0; change < 3; ++change) {
      const size_t place = random() % damaged.size();
      const size_t other = random() % damaged.size();
      switch (random() % 3) {
        case 0:
          damaged[place] = static_cast<char>(random());
          break;
        case 1:
          damaged.erase(place, random() % 40);
          break;
        default:
          damaged.insert(place, damaged, other, random() % 80);
      }
    }
    const absl::StatusOr<NcclTopology> topology = ReadNcclXml(damaged);
    if (topology.ok()) {
      ++accepted;
      EXPECT_EQ(*ReadNcclXml(WriteNcclXml(*topology)), *topology) << "seed " << kSeed;
      EXPECT_TRUE(ToLocalTopology(*topology).ok()) << "seed " << kSeed << " round " << round;
    } else {
      EXPECT_THAT(std::string(topology.status().message()), StartsWith("line "));
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(HostileXml, MisnestedElementsNameBoth) {
  ExpectInvalid(InCpu("<pci busid=\"0000:10:00.0\">\n</cpu>"),
                "line 4: </cpu> where <pci> of line 3 must be closed first");
  ExpectInvalid("<system version=\"1\"/>\n</system>", "line 2: </system> closes nothing");
  ExpectInvalid("<system version=\"1\"/>\n<system version=\"1\"/>",
                "line 2: <system> after the end of <system>");
}

TEST(HostileXml, ElementsInTheWrongPlaceAreRefused) {
  ExpectInvalid(InCpu("<gpu dev=\"0\"/>"),
                "line 3: <gpu dev=\"0\">: stands in <cpu numaid=\"0\">, but belongs in <pci>");
  ExpectInvalid("<system version=\"1\">\n<pci busid=\"0000:10:00.0\"/></system>",
                "line 2: <pci busid=\"0000:10:00.0\">: stands in <system>");
  ExpectInvalid(InCpu("<pci busid=\"0000:10:00.0\">\n<system version=\"1\"/></pci>"),
                "line 4: <system>: stands in <pci busid=\"0000:10:00.0\">");
  ExpectInvalid("<graphs version=\"1\"/>",
                "line 1: <graphs>: a topology file begins with <system>");
  ExpectInvalid("<html/>", "begins with <system>");
}

// The classic attack: a few lines of entities that expand to gigabytes.
TEST(HostileXml, EntitiesAndDocumentTypesAreRefused) {
  ExpectInvalid(
      "<?xml version=\"1.0\"?>\n<!DOCTYPE lolz [<!ENTITY lol \"lol\">]>\n<system version=\"1\"/>",
      "line 2: a document type or entity declaration");
  ExpectInvalid("<system version=\"1\"\n name=\"&lol;\"/>", "line 2: <system> of line 1: '&'");
  ExpectInvalid("<system version=\"1\" name=\"&#0;\"/>", "<system> of line 1: '&'");
  ExpectInvalid("<!DOCTYPE system SYSTEM \"file:///etc/passwd\"><system version=\"1\"/>",
                "line 1: a document type");
}

// Elements that NCCL would skip must still be valid XML.
TEST(HostileXml, FaultsInsideElementsThatAreIgnored_AreFound) {
  ExpectInvalid(InCpu("<thing>\nwords</thing>"), "line 4: text \"words\" between the elements");
  ExpectInvalid(InCpu("<thing a=\"1\"\nb=\"&x;\"/>"), "line 4: <thing> of line 3: '&'");
  ExpectInvalid(InCpu("<thing/></other>"), "line 3: </other> where <cpu> of line 2 must be closed");
}

// Closing tags and comments between the last element and the fault.
TEST(HostileXml, NestingFaultsBehindComments_NameTheOpenElement) {
  ExpectInvalid(InCpu("<thing>\n<!-- </thing></cpu> -->\n</thing >\n</thing>"),
                "line 6: </thing> where <cpu> of line 2 must be closed first");
  ExpectInvalid("<system version=\"1\">\n<cpu numaid=\"0\">\n</cpu><?x </system>?>\n",
                "line 4: <system> of line 1 is still open where the file ends");
}

TEST(HostileXml, PredefinedEntitiesInValues_AreReplacedOnce) {
  const auto topology =
      ReadNcclXml("<system version=\"1\" name=\"&amp;lt; &lt;&gt;&quot;&apos;\"/>");
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->system.Attribute("name"), "&lt; <>\"'");
}

TEST(HostileXml, MalformedAttributesAreRefused) {
  ExpectInvalid(InCpu("<pci busid=0000:10:00.0/>"), "line 3: <pci>");
  ExpectInvalid(InCpu("<pci busid=\"0000:10:00.0\" class/>"), "line 3: <pci>");
  ExpectInvalid(InCpu("<pci busid=\"<\"/>"), "line 3: <pci> of line 3: '<' before the tag ends");
}

TEST(HostileXml, MissingAttributesAreRefused) {
  ExpectInvalid("<system/>", "line 1: <system>: attribute version is missing");
  ExpectInvalid("<system version=\"2\"/>", "line 1: <system>: version must be 1");
  ExpectInvalid("<system version=\"1\">\n<cpu/></system>",
                "line 2: <cpu>: attribute numaid is missing");
  ExpectInvalid(InCpu("<pci class=\"0x03\"/>"), "line 3: <pci>: attribute busid is missing");
  ExpectInvalid(InCpu("<pci busid=\"0000:10:00.0\"><gpu>\n<nvlink target=\"a\"/></gpu></pci>"),
                "line 4: <nvlink target=\"a\">: attribute count is missing");
}

TEST(HostileXml, BadNumbersAreRefused) {
  const std::string pci = "<pci busid=\"0000:10:00.0\" ";
  ExpectInvalid(
      InCpu(pci + "link_width=\"wide\"/>"),
      "line 3: <pci busid=\"0000:10:00.0\">: attribute link_width=\"wide\" is not a whole number");
  for (const char* width : {"16 ", "0x", "1e3", "--1", "+1", "99999999999", "4.5"}) {
    ExpectInvalid(InCpu(absl::StrCat(pci, "link_width=\"", width, "\"/>")),
                  "is not a whole number");
  }
  ExpectInvalid(InCpu(pci + "class=\"bridge\"/>"), "class=\"bridge\" is not a hexadecimal number");
  ExpectInvalid("<system version=\"\"/>", "attribute version=\"\" is empty");
  ExpectInvalid(InCpu("<pci busid=\"10:00.0\"/>"), "busid=\"10:00.0\" is not a PCI bus id");
  ExpectInvalid(InCpu("<nic>\n<net latency=\"nan\"/></nic>"),
                "line 4: <net>: attribute latency=\"nan\"");
  ExpectInvalid(InCpu("<nic><net guid=\"0x12345678123456781\"/></nic>"), "guid");
  ExpectInvalid("<system version=\"1\"><cpu numaid=\"0\" affinity=\"xyz\"/></system>",
                "affinity=\"xyz\" is not a mask");
}

TEST(HostileXml, NumbersAsWrittenByNcclAreAccepted) {
  const std::string net =
      "<nic><net speed=\"-1\" latency=\"0.000000\" guid=\"0x5662550003a1420c\" "
      "maxconn=\"0x20\"/></nic>";
  EXPECT_TRUE(ReadNcclXml(InCpu(net)).ok());
  EXPECT_TRUE(ReadNcclXml("<system version=\"1\"><cpu numaid=\"-1\"/></system>").ok());
}

// A tree with a node below itself is a cycle: walking it would never end.
TEST(HostileXml, BusIdBelowItselfIsACycle) {
  ExpectInvalid(
      InCpu("<pci busid=\"0000:10:00.0\">\n<pci busid=\"0000:11:00.0\">\n"
            "<pci busid=\"0000:10:00.0\"/></pci></pci>"),
      "line 5: <pci busid=\"0000:10:00.0\">: is inside itself: its bus id is that of line 3");
}

TEST(HostileXml, DuplicateBusIdOrNumaNodeIsRefusedInAnySpelling) {
  ExpectInvalid(InCpu("<pci busid=\"0000:1A:00.0\"/>\n<pci busid=\"0000:1a:00.0\"/>"),
                "line 4: <pci busid=\"0000:1a:00.0\">: has the same bus id as line 3");
  ExpectInvalid("<system version=\"1\">\n<cpu numaid=\"0\"/>\n<cpu numaid=\"0x0\"/></system>",
                "line 3: <cpu numaid=\"0x0\">: has the same numaid as line 2");
}

TEST(HostileXml, ControlBytesDoNotReachTheTerminal) {
  const absl::Status status = ReadNcclXml(InCpu("<pci busid=\"\x1b[31m\"/>")).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("\\033[31m"));
  EXPECT_EQ(status.message().find('\x1b'), absl::string_view::npos);
}

TEST(HostileXml, DepthIsLimited) {
  std::string text = "<system version=\"1\">\n<cpu numaid=\"0\">";
  for (int i = 0; i < 100'000; ++i) {
    absl::StrAppend(&text, absl::StrFormat("\n<pci busid=\"%08x:00:00.0\">", i));
  }
  EXPECT_THAT(ReadNcclXml(text),
              FailsWith(kExhausted, StartsWith("line 65: <pci>: nested more than 64")));
}

TEST(HostileXml, SizesAreLimited) {
  EXPECT_THAT(ReadNcclXml(std::string(kMaxNcclXmlBytes + 1, ' ')),
              FailsWith(kExhausted, HasSubstr("16777217 bytes")));
  std::string many = "<system version=\"1\">";
  for (size_t i = 0; i < kMaxNcclXmlElements; ++i) absl::StrAppend(&many, "\n<x/>");
  EXPECT_THAT(ReadNcclXml(many),
              FailsWith(kExhausted, HasSubstr("line 65537: <x>: more than 65536")));
  EXPECT_THAT(
      ReadNcclXml(absl::StrCat("<system version=\"1\" name=\"", std::string(255, 'a'), "\"/>")),
      FailsWith(kExhausted, HasSubstr("line 1: <system>: attribute name is longer than")));
}

// NCCL has room for 16 attributes of an element, and reads over the rest.
TEST(HostileXml, AttributesBehindThe16th_AreIgnoredAsByNccl) {
  const auto with = [](int others, const std::string& last) {
    std::string text = "<system version=\"1\">\n<cpu numaid=\"0\"";
    for (int i = 0; i < others; ++i) absl::StrAppend(&text, " a", i, "=\"", i, "\"");
    return text + last + "/></system>";
  };
  for (const int others : {14, 15, 16, 40}) {
    const auto topology = ReadNcclXml(with(others, " familyid=\"6\""));
    ASSERT_TRUE(topology.ok()) << topology.status();
    const NcclElement& cpu = topology->system.children[0];
    // With 14 others it is the sixteenth.
    EXPECT_EQ(cpu.NumberOr("familyid", 0), others == 14 ? 6 : 0) << others;
    EXPECT_EQ(cpu.attributes.size(), 16u);
    ASSERT_EQ(topology->ignored.size(), static_cast<size_t>(others) - 14);
    if (others == 14) continue;
    EXPECT_EQ(topology->ignored.back(),
              "line 2: <cpu numaid=\"0\">: attribute familyid, after the first 16");
  }
  // It is ignored, so its value may be anything; but NCCL fails on a value that is too long for its
  // buffer.
  EXPECT_TRUE(ReadNcclXml(with(15, " familyid=\"no number\"")).ok());
  EXPECT_THAT(ReadNcclXml(with(20, " x=\"" + std::string(255, 'a') + "\"")),
              FailsWith(kExhausted, HasSubstr("attribute x is longer than")));
  // A required attribute beyond the limit counts as missing, as it does for NCCL.
  std::string late = "<system version=\"1\">\n<cpu";
  for (int i = 0; i < 16; ++i) absl::StrAppend(&late, " a", i, "=\"\"");
  ExpectInvalid(late + " numaid=\"0\"/></system>", "attribute numaid is missing");
}

TEST(HostileXml, RepeatedAttribute_IsIgnoredAsByNccl) {
  const auto topology =
      ReadNcclXml(InCpu("<pci busid=\"0000:10:00.0\" busid=\"0000:11:00.0\" class=\"0x06\"/>"));
  ASSERT_TRUE(topology.ok()) << topology.status();
  const NcclElement& pci = topology->system.children[0].children[0];
  EXPECT_EQ(pci.Attribute("busid"), "0000:10:00.0");
  EXPECT_EQ(pci.Attribute("class"), "0x06");
  ASSERT_EQ(topology->ignored.size(), 1u);
  EXPECT_EQ(topology->ignored[0],
            "line 3: <pci busid=\"0000:10:00.0\">: duplicate attribute busid");
}

// A name of sixteen megabytes must not fill a log.
TEST(HostileXml, LongNamesAreCutInMessages) {
  const absl::Status status = ReadNcclXml("<" + std::string(1 << 20, 'a') + ">").status();
  EXPECT_FALSE(status.ok());
  EXPECT_LT(status.message().size(), 300u);
}

}  // namespace
}  // namespace ferry
