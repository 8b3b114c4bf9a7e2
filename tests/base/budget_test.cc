// SPDX-License-Identifier: Apache-2.0
// Shares that are taken, joined and given back.
#include "base/budget.h"

#include <cstdint>
#include <utility>

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(Budget, GrantsNoMoreThanItsTotal) {
  Budget budget(100);
  Budget::Share a;
  EXPECT_TRUE(budget.Take(60, a));
  {
    Budget::Share b;
    EXPECT_FALSE(budget.Take(41, b));
    EXPECT_FALSE(budget.Take(SIZE_MAX, b));
    EXPECT_EQ(b.bytes(), 0u);
    EXPECT_TRUE(budget.Take(40, b));
    EXPECT_EQ(budget.used(), 100u);
  }
  EXPECT_EQ(budget.used(), 60u);
}

TEST(Budget, SharesMoveAndGrow) {
  Budget budget(100);
  Budget::Share a;
  ASSERT_TRUE(budget.Take(10, a));
  ASSERT_TRUE(budget.Take(20, a));
  EXPECT_EQ(a.bytes(), 30u);
  Budget::Share b = std::move(a);
  Budget::Share c;
  ASSERT_TRUE(budget.Take(5, c));
  c.Add(std::move(b));
  EXPECT_EQ(c.bytes(), 35u);
  EXPECT_EQ(budget.used(), 35u);
  c = Budget::Share();
  EXPECT_EQ(budget.used(), 0u);
}

}  // namespace
}  // namespace ferry
