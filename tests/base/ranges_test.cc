// SPDX-License-Identifier: Apache-2.0
// Compact ranges, as users see them when tasks are missing.
#include "base/ranges.h"

#include <climits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int> Even(int count) {
  std::vector<int> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(2 * i);
  return numbers;
}

void ExpectRefused(absl::string_view text) {
  const absl::StatusOr<std::vector<int>> numbers = ParseRanges(text);
  ASSERT_FALSE(numbers.ok()) << text;
  EXPECT_EQ(numbers.status().code(), absl::StatusCode::kInvalidArgument) << text;
}

TEST(FormatRanges, WritesARunAsItsEnds) { EXPECT_EQ(FormatRanges({3, 4, 5, 6, 17}), "3-6,17"); }

TEST(FormatRanges, WritesAPairAsTwoNumbers) { EXPECT_EQ(FormatRanges({1, 2, 9}), "1,2,9"); }

TEST(FormatRanges, WritesNothingForAnEmptyList) { EXPECT_EQ(FormatRanges({}), ""); }

TEST(FormatRanges, WritesOneNumberAlone) { EXPECT_EQ(FormatRanges({0}), "0"); }

TEST(FormatRanges, IgnoresOrderAndRepeats) { EXPECT_EQ(FormatRanges({6, 3, 5, 3, 4, 6}), "3-6"); }

TEST(FormatRanges, SurvivesTheLargestNumbers) {
  // The successor of INT_MAX does not exist.
  EXPECT_EQ(FormatRanges({INT_MAX, INT_MAX - 1, INT_MAX - 2}), "2147483645-2147483647");
}

TEST(FormatRanges, CountsNumbersThatDoNotFit) {
  EXPECT_EQ(FormatRanges({0, 2, 4, 6, 8}, 5), "0,2,4 and 2 more");
}

TEST(FormatRanges, CountsNumbersAndNotRangesThatDoNotFit) {
  EXPECT_EQ(FormatRanges({0, 10, 11, 12, 13}, 3), "0 and 4 more");
}

TEST(FormatRanges, StaysWithinItsLimitForThousandsOfTasks) {
  // A message of unlimited length would not fit the trailers that carry it.
  const std::string text = FormatRanges(Even(10000), 1024);
  EXPECT_LE(text.size(), 1024 + std::string(" and 10000 more").size());
  EXPECT_THAT(text, HasSubstr(" more"));
}

TEST(ParseRanges, ReadsNumbersAndRanges) {
  EXPECT_THAT(*ParseRanges("3-6,17"), ElementsAre(3, 4, 5, 6, 17));
}

TEST(ParseRanges, ParsesNothingFromEmptyText) { EXPECT_THAT(*ParseRanges(""), IsEmpty()); }

TEST(ParseRanges, SortsAndDropsRepeats) {
  EXPECT_THAT(*ParseRanges("5,1-3,2"), ElementsAre(1, 2, 3, 5));
}

TEST(ParseRanges, ReadsARangeOfOne) { EXPECT_THAT(*ParseRanges("7-7"), ElementsAre(7)); }

TEST(ParseRanges, ReadsARangeThatEndsAtTheLargestNumber) {
  EXPECT_THAT(*ParseRanges("2147483646-2147483647"), ElementsAre(INT_MAX - 1, INT_MAX));
}

TEST(ParseRanges, RefusesOtherText) {
  for (absl::string_view text : {"a", "1,", ",1", "1-", "-1", "3-1", "1-2-3", "1..3", "2147483648",
                                 "1,,2", "0x10", "1 and 4 more"}) {
    ExpectRefused(text);
  }
}

TEST(ParseRanges, RefusesMoreThanTheLimit) {
  // "0-2147483647" is a dozen bytes of text and eight gigabytes of numbers.
  ExpectRefused("0-2147483647");
  EXPECT_TRUE(ParseRanges("1-4", 4).ok());
  EXPECT_FALSE(ParseRanges("1-5", 4).ok());
  EXPECT_FALSE(ParseRanges("1-4,9", 4).ok());
}

TEST(ParseRanges, RoundTrips) {
  constexpr unsigned kSeed = 20240607;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    std::set<int> numbers;
    for (int i = 0; i < round; ++i) numbers.insert(static_cast<int>(random() % 300));
    const std::vector<int> expected(numbers.begin(), numbers.end());
    EXPECT_EQ(*ParseRanges(FormatRanges(expected, 1 << 20)), expected);
  }
}

}  // namespace
}  // namespace ferry
