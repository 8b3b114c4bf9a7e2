// SPDX-License-Identifier: Apache-2.0
// Callbacks are called once, and not once they are taken back.
#include "rendezvous/cancellation.h"

#include <vector>

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(Cancellation, CallsWhatIsRegisteredOnce) {
  Cancellation cancellation;
  int calls = 0;
  const auto token = cancellation.Register([&calls] { ++calls; });
  EXPECT_NE(token, Cancellation::kNoToken);
  EXPECT_FALSE(cancellation.is_cancelled());
  cancellation.Cancel();
  cancellation.Cancel();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(cancellation.is_cancelled());
  EXPECT_FALSE(cancellation.Deregister(token));
}

TEST(Cancellation, ForgetsWhatIsDeregistered) {
  Cancellation cancellation;
  int calls = 0;
  const auto token = cancellation.Register([&calls] { ++calls; });
  EXPECT_TRUE(cancellation.Deregister(token));
  EXPECT_FALSE(cancellation.Deregister(token));
  cancellation.Cancel();
  EXPECT_EQ(calls, 0);
}

TEST(Cancellation, KeepsNothingOnceCancelled) {
  Cancellation cancellation;
  cancellation.Cancel();
  int calls = 0;
  EXPECT_EQ(cancellation.Register([&calls] { ++calls; }), Cancellation::kNoToken);
  EXPECT_EQ(calls, 0);
}

// Many watch one, come and go, and each is told once or not at all.
TEST(Cancellation, KeepsThoseOfManyApart) {
  Cancellation cancellation;
  std::vector<int> calls(6, 0);
  std::vector<Cancellation::Token> tokens;
  for (int& each : calls) tokens.push_back(cancellation.Register([&each] { ++each; }));
  EXPECT_TRUE(cancellation.Deregister(tokens[0]));
  EXPECT_TRUE(cancellation.Deregister(tokens[3]));
  EXPECT_FALSE(cancellation.Deregister(tokens[0]));
  int late = 0;
  const auto token = cancellation.Register([&late] { ++late; });
  EXPECT_NE(token, tokens[0]);
  cancellation.Cancel();
  EXPECT_EQ(calls, (std::vector<int>{0, 1, 1, 0, 1, 1}));
  EXPECT_EQ(late, 1);
  EXPECT_FALSE(cancellation.Deregister(token));
}

// A callback may register and deregister others.
TEST(Cancellation, MayBeUsedFromItsCallbacks) {
  Cancellation cancellation;
  Cancellation::Token second = Cancellation::kNoToken;
  bool second_was_there = true;
  cancellation.Register([&] {
    second_was_there = cancellation.Deregister(second);
    EXPECT_EQ(cancellation.Register([] {}), Cancellation::kNoToken);
  });
  second = cancellation.Register([] {});
  cancellation.Cancel();
  EXPECT_FALSE(second_was_there);
}

}  // namespace
}  // namespace ferry
