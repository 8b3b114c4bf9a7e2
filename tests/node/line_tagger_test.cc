// SPDX-License-Identifier: Apache-2.0
// LineTagger: lines out of arbitrary pieces.
#include "launch/line_tagger.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LineTaggerTest : public ::testing::Test {
 protected:
  void Append(absl::string_view bytes) {
    tagger_.Append(bytes, [this](absl::string_view line) { lines_.emplace_back(line); });
  }
  void Flush() {
    tagger_.Flush([this](absl::string_view line) { lines_.emplace_back(line); });
  }

  LineTagger tagger_{"[3] ", 8};
  std::vector<std::string> lines_;
};

TEST_F(LineTaggerTest, TagsEveryLine) {
  Append("one\ntwo\n");
  EXPECT_THAT(lines_, ElementsAre("[3] one\n", "[3] two\n"));
}

TEST_F(LineTaggerTest, WaitsForTheEndOfTheLine) {
  Append("o");
  Append("n");
  EXPECT_THAT(lines_, IsEmpty());
  Append("e\nt");
  EXPECT_THAT(lines_, ElementsAre("[3] one\n"));
}

TEST_F(LineTaggerTest, KeepsEmptyLines) {
  Append("\n\na\n");
  EXPECT_THAT(lines_, ElementsAre("[3] \n", "[3] \n", "[3] a\n"));
}

TEST_F(LineTaggerTest, FlushesAnUnfinishedLineOnce) {
  Append("end");
  Flush();
  Flush();
  EXPECT_THAT(lines_, ElementsAre("[3] end\n"));
}

TEST_F(LineTaggerTest, FlushesNothingAfterAWholeLine) {
  Append("a\n");
  Flush();
  EXPECT_THAT(lines_, ElementsAre("[3] a\n"));
}

TEST_F(LineTaggerTest, KeepsALineOfExactlyTheLimitWhole) {
  Append("12345678\n");
  EXPECT_THAT(lines_, ElementsAre("[3] 12345678\n"));
}

TEST_F(LineTaggerTest, BreaksALineBeyondTheLimit) {
  // A process that never ends its line must not fill our memory.
  Append("123456789abcdefghij\n");
  EXPECT_THAT(lines_, ElementsAre("[3] 12345678\n", "[3] 9abcdefg\n", "[3] hij\n"));
}

TEST_F(LineTaggerTest, BreaksEquallyForAnyFragmentation) {
  for (char c : std::string("123456789abcdefghij\n")) Append(absl::string_view(&c, 1));
  EXPECT_THAT(lines_, ElementsAre("[3] 12345678\n", "[3] 9abcdefg\n", "[3] hij\n"));
}

TEST_F(LineTaggerTest, ShowsAProgressBarWhileItMoves) {
  Append("\r10%\r20%");
  EXPECT_THAT(lines_, ElementsAre("[3] 10%\n"));
  Append("\n");
  EXPECT_THAT(lines_, ElementsAre("[3] 10%\n", "[3] 20%\n"));
}

TEST_F(LineTaggerTest, TreatsReturnAndLineFeedAsOneEnd) {
  Append("a\r");
  Append("\nb\r\n");
  EXPECT_THAT(lines_, ElementsAre("[3] a\n", "[3] b\n"));
}

TEST_F(LineTaggerTest, PassesOtherBytesThrough) {
  Append(absl::string_view("\0\xff\x1b\n", 4));
  EXPECT_THAT(lines_, ElementsAre(std::string("[3] \0\xff\x1b\n", 8)));
}

TEST_F(LineTaggerTest, ReturnsTheLineWithoutTheTag) {
  EXPECT_EQ(tagger_.Untagged("[3] text\n"), "text");
  EXPECT_EQ(tagger_.Untagged("[3] \n"), "");
}

}  // namespace
}  // namespace ferry
