// SPDX-License-Identifier: Apache-2.0
// half and bfloat16, against their definitions.
#include "gpu/kernels/small_floats.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace ferry::cuda {
namespace {

// IEEE 754: a sign, 5 bits of exponent, 10 of mantissa.
double HalfValue(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int mantissa = bits & 0x3ff;
  const double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == 0x1f) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, EveryHalfRoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 half{static_cast<uint16_t>(bits)};
    const double expected = HalfValue(half.bits);
    const float value = ToFloat(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(value)))) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), expected) << bits;
    ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
    ASSERT_EQ(ToFloat16(value).bits, half.bits);
  }
}

// The nearest half, found among all positive ones: the one above and the one below.
uint16_t NearestHalf(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(static_cast<double>(value));
  uint16_t below = 0;
  uint16_t above = 0x7c00;
  while (above - below > 1) {
    const auto middle = static_cast<uint16_t>((below + above) / 2);
    (HalfValue(middle) <= magnitude ? below : above) = middle;
  }
  // Infinity has the bits of the next larger number.
  const double upper = above == 0x7c00 ? 65536 : HalfValue(above);
  const double to_below = magnitude - HalfValue(below);
  const double to_above = upper - magnitude;
  const bool goes_up = to_above < to_below || (to_above == to_below && below % 2 != 0);
  return static_cast<uint16_t>(sign | (goes_up ? above : below));
}

TEST(Half, FloatsRoundToNearestEven) {
  std::mt19937 random(1);
  for (int i = 0; i < 300'000; ++i) {
    // All magnitudes that a half can represent, and some beyond; often halfway between two.
    uint32_t bits = (random() % 50 + 95) << 23 | (random() & 0x807fffff);
    if (i % 3 == 0) bits &= ~0xfffu;
    const float value = BitsAs<float>(bits);
    ASSERT_EQ(ToFloat16(value).bits, NearestHalf(value)) << value << " " << bits;
  }
  EXPECT_EQ(ToFloat16(65519.99f).bits, 0x7bff);
  EXPECT_EQ(ToFloat16(65520).bits, 0x7c00);
  EXPECT_EQ(ToFloat16(-std::numeric_limits<float>::infinity()).bits, 0xfc00);
  EXPECT_EQ(ToFloat16(std::ldexp(1.0f, -25)).bits, 0);
  EXPECT_EQ(ToFloat16(std::ldexp(1.5f, -25)).bits, 1);
  EXPECT_EQ(ToFloat16(std::numeric_limits<float>::denorm_min()).bits, 0);
}

TEST(Bfloat16, IsTheUpperHalfRounded) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 value{static_cast<uint16_t>(bits)};
    const float wide = ToFloat(value);
    ASSERT_EQ(BitsAs<uint32_t>(wide), bits << 16);
    if (!std::isnan(wide)) {
      ASSERT_EQ(ToBrain16(wide).bits, bits);
    } else {
      ASSERT_TRUE(std::isnan(ToFloat(ToBrain16(wide))));
    }
  }
  EXPECT_EQ(ToBrain16(BitsAs<float>(0x3f808000u)).bits, 0x3f80);  // halfway, to even
  EXPECT_EQ(ToBrain16(BitsAs<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_EQ(ToBrain16(BitsAs<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_EQ(ToBrain16(std::numeric_limits<float>::max()).bits, 0x7f80);
  // Its upper half alone would be infinity.
  EXPECT_TRUE(std::isnan(ToFloat(ToBrain16(BitsAs<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace ferry::cuda
