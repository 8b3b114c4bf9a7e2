// SPDX-License-Identifier: Apache-2.0
// What may and what may not reach a terminal.
#include "launch/printable.h"

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(Printable, LeavesTextOfAnyLanguage) {
  EXPECT_EQ(Printable("plain \"quoted\" \\ text"), "plain \"quoted\" \\ text");
  EXPECT_EQ(Printable("na\xc3\xafve \xe6\x97\xa5 \xf0\x9f\x9a\xa2"),
            "na\xc3\xafve \xe6\x97\xa5 \xf0\x9f\x9a\xa2");
}

TEST(Printable, EscapesWhatMovesACursor) {
  EXPECT_EQ(Printable("a\n\r\t\x1b[31m\x7f"), "a\\n\\r\\t\\033[31m\\177");
  // The control characters of ISO 6429 in two bytes: U+009B begins a sequence as ESC [ does.
  EXPECT_EQ(Printable("\xc2\x9b"), "\\302\\233");
}

TEST(Printable, EscapesWhatTurnsTheDirection) {
  EXPECT_EQ(Printable("\xe2\x80\xae"), "\\342\\200\\256");
}

TEST(Printable, EscapesWhatIsNotUtf8) {
  EXPECT_EQ(Printable("\xff\x80"), "\\377\\200");
  EXPECT_EQ(Printable("\xc0\xaf"), "\\300\\257");           // overlong
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\355\\240\\200");  // a surrogate
  EXPECT_EQ(Printable("\xe6\x97"), "\\346\\227");           // cut short
  EXPECT_EQ(Printable("\xc3"
                      "a"),
            "\\303"
            "a");
}

TEST(PrintableText, LeavesLines) { EXPECT_EQ(PrintableText("a\n\tb\x1b"), "a\n\tb\\033"); }

}  // namespace
}  // namespace ferry
