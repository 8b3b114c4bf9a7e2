// SPDX-License-Identifier: Apache-2.0
// Which characters may reach a terminal.
#include "launch/printable.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"

namespace ferry {
namespace {

TEST(Printable, LeavesTextOfAnyLanguage) {
  EXPECT_EQ(Printable("plain \"quoted\" \\ text"), "plain \"quoted\" \\ text");
  EXPECT_EQ(Printable("na\xc3\xafve \xe6\x97\xa5 \xf0\x9f\x9a\xa2"),
            "na\xc3\xafve \xe6\x97\xa5 \xf0\x9f\x9a\xa2");
}

TEST(Printable, EscapesCursorMovement) {
  EXPECT_EQ(Printable("a\n\r\t\x1b[31m\x7f"), "a\\n\\r\\t\\033[31m\\177");
  // The control characters of ISO 6429 in two bytes: U+009B begins a sequence as ESC [ does.
  EXPECT_EQ(Printable("\xc2\x9b"), "\\302\\233");
}

TEST(Printable, EscapesDirectionChanges) {
  EXPECT_EQ(Printable("\xe2\x80\xae"), "\\342\\200\\256");
}

TEST(Printable, EscapesInvalidUtf8) {
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

// The characters on both sides of each boundary.
TEST(Printable, KeepsAndEscapesUpToItsBoundaries) {
  for (const char* const kept : {
           " ", "~", "\xc2\xa0",                // U+00A0
           "\xdf\xbf", "\xe0\xa0\x80",          // U+07FF, U+0800
           "\xe2\x80\xa7", "\xe2\x80\xaf",      // U+2027, U+202F
           "\xe2\x81\xa5", "\xe2\x81\xaa",      // U+2065, U+206A
           "\xed\x9f\xbf", "\xee\x80\x80",      // U+D7FF, U+E000
           "\xef\xbf\xbf", "\xf0\x90\x80\x80",  // U+FFFF, U+10000
           "\xf4\x8f\xbf\xbf"                   // U+10FFFF
       }) {
    EXPECT_EQ(Printable(kept), kept) << absl::BytesToHexString(kept);
  }
  for (const char* const escaped : {
           "\x1f", "\x7f", "\xc2\x80", "\xc2\x9f",     // controls
           "\xe2\x80\xa8", "\xe2\x80\xae",             // U+2028, U+202E
           "\xe2\x81\xa6", "\xe2\x81\xa9",             // U+2066, U+2069
           "\xed\xa0\x80", "\xed\xbf\xbf",             // surrogates
           "\xc1\xbf", "\xe0\x9f\xbf",                 // overlong
           "\xf0\x8f\xbf\xbf",                         // overlong
           "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",     // over U+10FFFF
           "\x80", "\xe2\x80", "\xf0\x90\x80", "\xc2"  // cut short
       }) {
    EXPECT_EQ(Printable(escaped)[0], '\\') << absl::BytesToHexString(escaped);
  }
}

}  // namespace
}  // namespace ferry
