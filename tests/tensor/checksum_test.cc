// SPDX-License-Identifier: Apache-2.0
// A checksum is of the bytes and the seed, and of nothing that was there before.
#include "tensor/checksum.h"

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace ferry {
namespace {

std::string Bytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 37 >> 3);
  return bytes;
}

constexpr size_t kStack = 1024;

// Leaves rubbish where the next call's variables will lie: in the lower `count` bytes.
[[gnu::noinline]] void SoilTheStack(size_t count) {
  [[maybe_unused]] volatile char rubbish[kStack];
  for (size_t i = 0; i < count; ++i) rubbish[i] = static_cast<char>(i);
}

// The same as that of one piece, for any split.
TEST(Checksum, OfPartsEqualsThatOfTheWhole) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{16}, size_t{300}, size_t{5000}}) {
    const std::string bytes = Bytes(count);
    for (const uint64_t seed : {uint64_t{0}, uint64_t{3}, ~uint64_t{0}}) {
      const uint64_t whole = Checksum({absl::string_view(bytes)}, seed);
      if (seed == 0) {
        EXPECT_EQ(whole, Checksum(bytes.data(), bytes.size()));
      }
      for (size_t cut = 0; cut <= count; cut += 1 + count / 7) {
        const absl::string_view view(bytes);
        EXPECT_EQ(Checksum({view.substr(0, cut), view.substr(cut)}, seed), whole);
      }
    }
  }
}

// Nor does it depend on the stack's content, such as a part of the state of the same seed.
TEST(Checksum, DoesNotDependOnPreviousContent) {
  const std::string bytes = Bytes(300);
  const std::vector<absl::string_view> parts = {absl::string_view(bytes).substr(0, 20),
                                                absl::string_view(bytes).substr(20)};
  const uint64_t whole = Checksum({absl::string_view(bytes)}, 3);
  for (size_t soiled = 0; soiled <= kStack; soiled += 8) {
    // With nothing in between that uses the stack, too.
    const uint64_t before = Checksum(parts, 3);
    SoilTheStack(soiled);
    const uint64_t after = Checksum(parts, 3);
    EXPECT_EQ(before, whole);
    EXPECT_EQ(after, whole) << soiled;
  }
}

TEST(Checksum, EachBitAndTheSeedCount) {
  std::string bytes = Bytes(100);
  const uint64_t before = Checksum({absl::string_view(bytes)}, 7);
  EXPECT_NE(before, Checksum({absl::string_view(bytes)}, 8));
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(before, Checksum({absl::string_view(bytes)}, 7));
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  }
}

}  // namespace
}  // namespace ferry
