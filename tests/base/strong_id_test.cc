// SPDX-License-Identifier: Apache-2.0
// Strong ids: permitted operations, and code that must not compile.
#include "base/strong_id.h"

#include <cstdint>
#include <limits>
#include <type_traits>

#include <gtest/gtest.h>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash_testing.h"

namespace ferry {
namespace {

using RedId = StrongId<struct RedIdTag, int32_t>;
using BlueId = StrongId<struct BlueIdTag, int32_t>;
using LargeId = StrongId<struct LargeIdTag, uint64_t>;

template <typename A, typename B>
concept EqualityComparable = requires(A a, B b) {
  a == b;
};

// The reason for the type: none of these conversions compiles.
static_assert(!std::is_convertible_v<int32_t, RedId>);
static_assert(!std::is_convertible_v<RedId, int32_t>);
static_assert(!std::is_constructible_v<RedId, BlueId>);
static_assert(!EqualityComparable<RedId, BlueId>);
static_assert(!EqualityComparable<RedId, int32_t>);
static_assert(sizeof(RedId) == sizeof(int32_t));
static_assert(std::is_trivially_copyable_v<RedId>);

TEST(StrongId, IsZeroByDefault) { EXPECT_EQ(RedId().value(), 0); }

TEST(StrongId, ComparesAsItsNumber) {
  EXPECT_EQ(RedId(3), RedId(3));
  EXPECT_NE(RedId(3), RedId(4));
  EXPECT_LT(RedId(-1), RedId(0));
  EXPECT_GT(LargeId(std::numeric_limits<uint64_t>::max()), LargeId(0));
}

TEST(StrongId, KeepsItsWholeRange) {
  EXPECT_EQ(LargeId(std::numeric_limits<uint64_t>::max()).value(), 18446744073709551615u);
}

TEST(StrongId, IsAKeyOfHashTables) {
  EXPECT_TRUE(absl::VerifyTypeImplementsAbslHashCorrectly({RedId(0), RedId(1), RedId(-1)}));
  const absl::flat_hash_set<RedId> ids = {RedId(1), RedId(2), RedId(1)};
  EXPECT_EQ(ids.size(), 2u);
}

}  // namespace
}  // namespace ferry
