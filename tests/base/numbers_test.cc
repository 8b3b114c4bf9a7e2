// SPDX-License-Identifier: Apache-2.0
// Parsing of numbers: which texts are accepted, and which only look like numbers.
#include "base/numbers.h"

#include <cstdint>
#include <limits>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

// Texts that every parser has to refuse. Each is accepted by one of strtod, SimpleAtod, SimpleAtoi,
// ParseDuration and CLI11.
constexpr const char* kNoNumbers[] = {
    "",     " ",     "nan", "NaN", "-nan", "nan(1)", "inf", "-inf", "Infinity", "1e999", "-1e999",
    "0x10", "0X1p3", "1x",  "1 ",  " 1",   "\t1",    "1\n", "+1",   "--1",      "1,5",   "1_000",
    "one",  "true",  "-",   ".",   "e5",   "1e",     "0b1", "1 2",  "{}",       "-+1"};

TEST(Numbers, TextThatResemblesANumber_IsRefusedByAll) {
  for (const char* const text : kNoNumbers) {
    EXPECT_EQ(ParseWhole(text), std::nullopt) << text;
    EXPECT_EQ(ParseCount(text), std::nullopt) << text;
    EXPECT_EQ(ParseReal(text), std::nullopt) << text;
    EXPECT_EQ(ParseFiniteDuration(text), std::nullopt) << text;
  }
  // A string may contain a NUL, which terminates it for the C library.
  EXPECT_EQ(ParseWhole(absl::string_view("1\0", 2)), std::nullopt);
  EXPECT_EQ(ParseReal(absl::string_view("1\0", 2)), std::nullopt);
  EXPECT_EQ(ParseFiniteDuration(absl::string_view("1s\0", 3)), std::nullopt);
}

TEST(ParseWhole, WithinItsBounds_IsTheDecimalNumber) {
  EXPECT_EQ(ParseWhole("-12"), -12);
  EXPECT_EQ(ParseWhole("0"), 0);
  // Not octal.
  EXPECT_EQ(ParseWhole("010"), 10);
  EXPECT_EQ(ParseWhole("9223372036854775807"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ParseWhole("-9223372036854775808"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(ParseWhole("5", 5, 5), 5);
}

TEST(ParseWhole, OutsideOfItsBounds_IsNothing) {
  EXPECT_EQ(ParseWhole("9223372036854775808"), std::nullopt);
  EXPECT_EQ(ParseWhole("4", 5, 6), std::nullopt);
  EXPECT_EQ(ParseWhole("7", 5, 6), std::nullopt);
  EXPECT_EQ(ParseWhole("1.0"), std::nullopt);
  EXPECT_EQ(ParseWhole("1e3"), std::nullopt);
}

TEST(ParseCount, NegativeOrTooLarge_IsNothing) {
  EXPECT_EQ(ParseCount("18446744073709551615"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(ParseCount("18446744073709551616"), std::nullopt);
  EXPECT_EQ(ParseCount("-1"), std::nullopt);
  EXPECT_EQ(ParseCount("-0"), std::nullopt);
  EXPECT_EQ(ParseCount("3", 4), std::nullopt);
  EXPECT_EQ(ParseCount("4", 4, 4), 4u);
}

TEST(ParseReal, FiniteDecimal_IsThatNumber) {
  EXPECT_EQ(ParseReal("0.5"), 0.5);
  EXPECT_EQ(ParseReal("-2.5e+3"), -2500.0);
  EXPECT_EQ(ParseReal("1E-3"), 0.001);
  EXPECT_EQ(ParseReal("12"), 12.0);
  EXPECT_EQ(ParseReal("1.5.2"), std::nullopt);
  EXPECT_EQ(ParseReal("1e5e5"), std::nullopt);
}

TEST(ParseFiniteDuration, FiniteAndNotNegative_IsThatDuration) {
  EXPECT_EQ(ParseFiniteDuration("1h30m"), absl::Minutes(90));
  EXPECT_EQ(ParseFiniteDuration("0.5s"), absl::Milliseconds(500));
  EXPECT_EQ(ParseFiniteDuration("0"), absl::ZeroDuration());
  EXPECT_EQ(ParseFiniteDuration("-1s"), std::nullopt);
  EXPECT_EQ(ParseFiniteDuration("5"), std::nullopt);
  EXPECT_EQ(ParseFiniteDuration("1 s"), std::nullopt);
  EXPECT_EQ(ParseFiniteDuration("99999999999999999999h"), std::nullopt);
}

}  // namespace
}  // namespace ferry
