// SPDX-License-Identifier: Apache-2.0
// Names that TensorFlow's server accepts, and those that it refuses.
#include "tensorflow/graph/names.h"

#include <limits>

#include <gtest/gtest.h>

namespace ferry::graph {
namespace {

TEST(NodeName, AcceptsTensorFlowsNames) {
  for (const char* name : {"a", "A9", ".a", "9", "a_b-c/d.e", "a\\b", "a>b", "a>b>.c"}) {
    EXPECT_TRUE(IsNodeName(name)) << name;
  }
  for (const char* name : {"", "_a", "a:b", "a:0", "a b", "/a", "-a", "a>", "a>_b", ">a", "a>>b",
                           "^a", "a;b", "\xc3\xa4"}) {
    EXPECT_FALSE(IsNodeName(name)) << name;
  }
  EXPECT_FALSE(IsNodeName(absl::string_view("a\0b", 3)));
}

TEST(InputName, IsDataOrControl) {
  const InputName plain = *ParseInputName("a");
  EXPECT_EQ(plain.node, "a");
  EXPECT_EQ(plain.port, 0);
  EXPECT_FALSE(plain.is_control);
  EXPECT_EQ(ParseInputName("a:0")->port, 0);
  EXPECT_EQ(ParseInputName("a/b:12")->port, 12);
  const InputName control = *ParseInputName("^a");
  EXPECT_EQ(control.node, "a");
  EXPECT_TRUE(control.is_control);
}

TEST(InputName, RefusesWhatTensorFlowRefuses) {
  for (const char* input : {"a:first", "_a", "_a:0", "a:01", "a:-1", "^_a", "^a:0", "", " a",
                            "a:", "a:0:0", "a: 1", "^", "^^a", ":0", "a:00"}) {
    EXPECT_FALSE(ParseInputName(input).has_value()) << input;
  }
}

// TensorFlow reads another number then.
TEST(InputName, TooLargeANumberIsTheLargest) {
  EXPECT_EQ(ParseInputName("a:99999999999")->port, std::numeric_limits<int>::max());
  EXPECT_EQ(ParseInputName("a:2147483648")->port, std::numeric_limits<int>::max());
  EXPECT_EQ(ParseInputName("a:2147483646")->port, 2147483646);
}

TEST(TensorName, IsParsedLeniently) {
  EXPECT_EQ(ParseTensorName("a").node, "a");
  EXPECT_EQ(ParseTensorName("a:3").port, 3);
  EXPECT_EQ(ParseTensorName("a:00").port, 0);
  EXPECT_EQ(ParseTensorName("a:x").node, "a:x");
  EXPECT_EQ(ParseTensorName("a:").node, "a:");
  EXPECT_TRUE(ParseTensorName("^a").is_control);
}

TEST(Shown, IsPrintable) {
  EXPECT_EQ(Shown("a/b"), "a/b");
  EXPECT_EQ(Shown(absl::string_view("\x1b[2J\0", 5)), "\\033[2J\\000");
  EXPECT_LT(Shown(std::string(1 << 20, 'x')).size(), 300u);
}

}  // namespace
}  // namespace ferry::graph
