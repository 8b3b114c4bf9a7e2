// SPDX-License-Identifier: Apache-2.0
// Every execution of small worlds of the eager protocol.
#include <cstdio>

#include <gmock/gmock.h>

#include "tests/rendezvous/eager_world.h"

namespace ferry::eager_test {
namespace {

constexpr ValueOptions Small(int name = 0, int step = 0) {
  return {step, name, ValueOptions::Kind::kSmall};
}
constexpr ValueOptions Large(int name = 0, int step = 0) {
  return {step, name, ValueOptions::Kind::kLarge};
}
constexpr ValueOptions Dead(int name = 0, int step = 0) {
  return {step, name, ValueOptions::Kind::kDead};
}

void ExpectAllIsWell(const char* what, const WorldOptions& options) {
  const SearchResult result = Search(options);
  std::printf("%s: %lld states\n", what, static_cast<long long>(result.states));
  EXPECT_EQ(result.violation, "");
  EXPECT_TRUE(result.is_complete);
  for (const std::string& line : result.trace) std::printf("    %s\n", line.c_str());
}

TEST(EagerSearch, OneKeyWithOneValueOfCredit) {
  WorldOptions options;
  options.values = {Small(), Small(), Dead()};
  options.receives = {{}, {}, {}};
  ExpectAllIsWell("one key, credit of one value", options);
}

}  // namespace
}  // namespace ferry::eager_test
