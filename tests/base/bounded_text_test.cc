// SPDX-License-Identifier: Apache-2.0
// Names and lists of names in messages.
#include "base/bounded_text.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(BoundedName, ShortName_IsKept) {
  EXPECT_EQ(BoundedName("/job:w/task:0;edge"), "/job:w/task:0;edge");
  EXPECT_EQ(BoundedName(std::string(400, 'x')), std::string(400, 'x'));
}

// A key from the wire must not be able to draw on the operator's terminal.
TEST(BoundedName, ControlCharacters_AreEscaped) { EXPECT_EQ(BoundedName("\x1b[2J"), "\\033[2J"); }

// The name of a tensor may have 31744 bytes, more than many logs keep of a line.
TEST(BoundedName, LongName_KeepsBothEndsAndItsLength) {
  EXPECT_EQ(BoundedName("start" + std::string(31'000, '-') + "end", 6), "sta...end (31008 bytes)");
  EXPECT_LT(BoundedName(std::string(31'744, 'x')).size(), 450u);
}

TEST(BoundedList, NamesThatFit_AreAllThere) {
  EXPECT_EQ(BoundedList({}, 3), "");
  EXPECT_EQ(BoundedList({"a"}, 3), "a");
  EXPECT_EQ(BoundedList({"a", "b", "c"}, 3), "a, b, c");
  EXPECT_EQ(BoundedList({"a", "b"}, 3, " "), "a b");
}

TEST(BoundedList, NamesThatDoNotFit_AreCounted) {
  EXPECT_EQ(BoundedList({"a", "b", "c", "d", "e"}, 3), "a, b, c and 2 more");
  EXPECT_EQ(BoundedList({"a", "b", "c", "d"}, 3, " "), "a b c and 1 more");
}

// Callers with very many names keep only the first ones.
TEST(BoundedList, NamesThatWereNotKept_AreCounted) {
  EXPECT_EQ(BoundedList({"a", "b"}, 2, 10'000), "a, b and 9998 more");
}

}  // namespace
}  // namespace ferry
