// SPDX-License-Identifier: Apache-2.0
// Early return on error.
#include "base/status_macros.h"

#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace ferry {
namespace {

absl::Status PassOn(absl::Status status, bool* went_on) {
  FERRY_RETURN_IF_ERROR(status);
  *went_on = true;
  return absl::OkStatus();
}

absl::StatusOr<int> Sum(absl::StatusOr<int> a, absl::StatusOr<int> b) {
  // Two in one function: their hidden names must not collide.
  FERRY_ASSIGN_OR_RETURN(const int first, std::move(a));
  FERRY_ASSIGN_OR_RETURN(const int second, std::move(b));
  return first + second;
}

absl::StatusOr<std::unique_ptr<int>> Unwrap(absl::StatusOr<std::unique_ptr<int>> boxed) {
  std::unique_ptr<int> value;
  FERRY_ASSIGN_OR_RETURN(value, std::move(boxed));
  return value;
}

TEST(ReturnIfError, ReturnsTheErrorUnchanged) {
  bool went_on = false;
  EXPECT_EQ(PassOn(absl::AbortedError("node 1"), &went_on), absl::AbortedError("node 1"));
  EXPECT_FALSE(went_on);
}

TEST(ReturnIfError, ContinuesIfOk) {
  bool went_on = false;
  EXPECT_TRUE(PassOn(absl::OkStatus(), &went_on).ok());
  EXPECT_TRUE(went_on);
}

TEST(AssignOrReturn, AssignsValues) { EXPECT_EQ(*Sum(2, 3), 5); }

TEST(AssignOrReturn, ReturnsTheFirstError) {
  EXPECT_EQ(Sum(absl::NotFoundError("a"), absl::AbortedError("b")).status(),
            absl::NotFoundError("a"));
  EXPECT_EQ(Sum(1, absl::AbortedError("b")).status(), absl::AbortedError("b"));
}

TEST(AssignOrReturn, MovesMoveOnlyValues) {
  EXPECT_EQ(**Unwrap(std::make_unique<int>(7)), 7);
  EXPECT_FALSE(Unwrap(absl::NotFoundError("")).ok());
}

TEST(CheckDeathTest, NamesTheFileAndTheCondition) {
  EXPECT_DEATH(FERRY_CHECK(1 + 1 == 3), "status_macros_test.cc:.*FERRY_CHECK failed: 1 \\+ 1 == 3");
}

TEST(Check, DoesNothingWhenTheConditionHolds) { FERRY_CHECK(1 + 1 == 2); }

}  // namespace
}  // namespace ferry
