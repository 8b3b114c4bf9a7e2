// SPDX-License-Identifier: Apache-2.0
// The order and the words of the ladder.
#include "topology/link.h"

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(Link, RungsGoFromNearToFar) {
  const char* const names[] = {"LOC", "NVL", "PIX", "PXB", "PHB", "NODE", "SYS", "NET", "DIS"};
  for (size_t i = 0; i < kLinkTypes.size(); ++i) {
    EXPECT_EQ(LinkTypeName(kLinkTypes[i]), names[i]);
    EXPECT_EQ(ParseLinkType(names[i]), kLinkTypes[i]);
    EXPECT_FALSE(ExplainLinkType(kLinkTypes[i]).empty());
    for (size_t j = 0; j < kLinkTypes.size(); ++j) {
      EXPECT_EQ(IsNearer(kLinkTypes[i], kLinkTypes[j]), i < j) << names[i] << " " << names[j];
    }
  }
  EXPECT_EQ(ParseLinkType("pix"), std::nullopt);
}

TEST(Link, NvLinksAreCountedInTheText) {
  EXPECT_EQ(LinkText(NvLink(12, true, LinkType::kSys, 8, 0)), "NV12");
  EXPECT_EQ(LinkText(NvLink(0, true, LinkType::kSys, 8, 0)), "NVL");
  EXPECT_EQ(LinkText(PlainLink(LinkType::kPxb)), "PXB");
}

// NVIDIA's data sheets give both directions together: A100 600, H100 900, B200 1800 GB/s.
TEST(Link, BandwidthIsThatOfTheDataSheetInOneDirection) {
  EXPECT_EQ(NvLink(12, true, LinkType::kSys, 8, 0).bandwidth_bytes_per_s, 300'000'000'000u);
  EXPECT_EQ(NvLink(18, true, LinkType::kSys, 9, 0).bandwidth_bytes_per_s, 450'000'000'000u);
  EXPECT_EQ(NvLink(18, true, LinkType::kSys, 10, 0).bandwidth_bytes_per_s, 900'000'000'000u);
  EXPECT_EQ(NvLink(4, false, LinkType::kSys, 99, 0).bandwidth_bytes_per_s, 0u);
}

}  // namespace
}  // namespace ferry
