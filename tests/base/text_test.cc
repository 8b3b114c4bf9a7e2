// SPDX-License-Identifier: Apache-2.0
// Quoted bytes and short durations, as messages show them.
#include "base/text.h"

#include <string>

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(Quoted, PutsQuotesAroundText) { EXPECT_EQ(Quoted("a/b"), "\"a/b\""); }

TEST(Quoted, ShowsEmptyText) { EXPECT_EQ(Quoted(""), "\"\""); }

TEST(Quoted, EscapesCursorMovement) {
  // A key from the wire must not be able to draw on the operator's terminal.
  EXPECT_EQ(Quoted("a\n\x1b[2J\""), "\"a\\n\\033[2J\\\"\"");
}

TEST(Quoted, ShowsEmbeddedNul) { EXPECT_EQ(Quoted(absl::string_view("a\0b", 3)), "\"a\\000b\""); }

TEST(Quoted, KeepsTextThatJustFits) {
  EXPECT_EQ(Quoted(std::string(120, 'x')), "\"" + std::string(120, 'x') + "\"");
}

TEST(Quoted, KeepsBothEndsOfLongText) {
  EXPECT_EQ(Quoted("start" + std::string(1000, '-') + "end", 6), "\"sta...end\" (1008 bytes)");
}

TEST(ShortDuration, UsesTheCustomaryUnit) {
  EXPECT_EQ(ShortDuration(absl::ZeroDuration()), "0us");
  EXPECT_EQ(ShortDuration(absl::Microseconds(20)), "20us");
  EXPECT_EQ(ShortDuration(absl::Milliseconds(3)), "3ms");
  EXPECT_EQ(ShortDuration(absl::Milliseconds(1200)), "1.2s");
  EXPECT_EQ(ShortDuration(absl::Seconds(41)), "41s");
  EXPECT_EQ(ShortDuration(absl::Seconds(125)), "2m05s");
  EXPECT_EQ(ShortDuration(absl::Minutes(125)), "2h05m");
}

TEST(ShortDuration, PrintsNegativeAndInfinite) {
  EXPECT_EQ(ShortDuration(absl::Seconds(-41)), "-41s");
  EXPECT_EQ(ShortDuration(absl::InfiniteDuration()), "forever");
  EXPECT_EQ(ShortDuration(-absl::InfiniteDuration()), "-forever");
}

TEST(ShortDuration, RoundsUpIntoTheNextUnit) {
  EXPECT_EQ(ShortDuration(absl::Microseconds(999700)), "1s");
  EXPECT_EQ(ShortDuration(absl::Milliseconds(9990)), "10s");
  EXPECT_EQ(ShortDuration(absl::Milliseconds(99900)), "1m39s");
}

}  // namespace
}  // namespace ferry
