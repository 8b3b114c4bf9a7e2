// SPDX-License-Identifier: Apache-2.0
// CUDA, NVML, sysfs and NCCL spell one PCI device differently.
#include "topology/pci_bus_id.h"

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(NormalizePciBusId, MakesTheSpellingsEqual) {
  EXPECT_EQ(NormalizePciBusId("0000:1A:00.0"), "0000:1a:00.0");
  EXPECT_EQ(NormalizePciBusId("00000000:1A:00.0"), "0000:1a:00.0");
  EXPECT_EQ(NormalizePciBusId("0000:1a:00.0"), "0000:1a:00.0");
}

TEST(NormalizePciBusId, KeepsAWideDomain) {
  EXPECT_EQ(NormalizePciBusId("00010000:01:00.0"), "10000:01:00.0");
}

TEST(NormalizePciBusId, RefusesInvalidIds) {
  for (const char* text : {"", "0000", "000:1a:00.0", "0000:1a:00", "0000:1g:00.0", "0000-1a:00.0",
                           "0000:1a:00.0 ", "000000000:1a:00.0", "fffffff:ffff:ff"}) {
    EXPECT_EQ(NormalizePciBusId(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace ferry
