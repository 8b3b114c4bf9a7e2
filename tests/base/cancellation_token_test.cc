// SPDX-License-Identifier: Apache-2.0
// Callbacks are called once, and not once they are taken back.
#include "base/cancellation_token.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"

namespace ferry {
namespace {

TEST(CancellationToken, RunsRegisteredCallbacksOnce) {
  CancellationToken cancellation;
  int calls = 0;
  const auto token = cancellation.Register([&calls] { ++calls; });
  EXPECT_NE(token, CancellationToken::kNoCallback);
  EXPECT_FALSE(cancellation.is_cancelled());
  cancellation.Cancel();
  cancellation.Cancel();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(cancellation.is_cancelled());
  EXPECT_FALSE(cancellation.Deregister(token));
}

TEST(CancellationToken, ForgetsDeregisteredCallbacks) {
  CancellationToken cancellation;
  int calls = 0;
  const auto token = cancellation.Register([&calls] { ++calls; });
  EXPECT_TRUE(cancellation.Deregister(token));
  EXPECT_FALSE(cancellation.Deregister(token));
  cancellation.Cancel();
  EXPECT_EQ(calls, 0);
}

TEST(CancellationToken, KeepsNothingOnceCancelled) {
  CancellationToken cancellation;
  cancellation.Cancel();
  int calls = 0;
  EXPECT_EQ(cancellation.Register([&calls] { ++calls; }), CancellationToken::kNoCallback);
  EXPECT_EQ(calls, 0);
}

// Many watch one token, register and deregister, and each callback runs once or not at all.
TEST(CancellationToken, CallbacksOfManyThreadsAreIndependent) {
  CancellationToken cancellation;
  std::vector<int> calls(6, 0);
  std::vector<CancellationToken::CallbackId> tokens;
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
TEST(CancellationToken, MayBeUsedFromItsCallbacks) {
  CancellationToken cancellation;
  CancellationToken::CallbackId second = CancellationToken::kNoCallback;
  bool second_was_there = true;
  cancellation.Register([&] {
    second_was_there = cancellation.Deregister(second);
    EXPECT_EQ(cancellation.Register([] {}), CancellationToken::kNoCallback);
  });
  second = cancellation.Register([] {});
  cancellation.Cancel();
  EXPECT_FALSE(second_was_there);
}

TEST(CancellationToken, FirstReason_Counts) {
  CancellationToken cancellation;
  absl::Status seen;
  cancellation.Register([&] { seen = cancellation.status(); });
  EXPECT_FALSE(cancellation.Cancel(absl::OkStatus()));
  EXPECT_FALSE(cancellation.is_cancelled());
  EXPECT_TRUE(cancellation.status().ok());
  EXPECT_TRUE(cancellation.Cancel(absl::AbortedError("first")));
  EXPECT_FALSE(cancellation.Cancel(absl::InternalError("second")));
  EXPECT_EQ(cancellation.status(), absl::AbortedError("first"));
  EXPECT_EQ(seen, absl::AbortedError("first"));
}

TEST(CancellationToken, WithoutAReason_IsCancelled) {
  CancellationToken cancellation;
  EXPECT_TRUE(cancellation.Cancel());
  EXPECT_EQ(cancellation.status().code(), absl::StatusCode::kCancelled);
}

// The captures of a callback are destroyed when it is deregistered, and when it has run.
TEST(CancellationToken, CallbacksAreDestroyedOnceUnused) {
  CancellationToken cancellation;
  const auto held = std::make_shared<int>(0);
  const auto first = cancellation.Register([held] {});
  const auto second = cancellation.Register([held] {});
  cancellation.Register([held] {});
  EXPECT_EQ(cancellation.registered_count(), 3u);
  EXPECT_EQ(held.use_count(), 4);
  EXPECT_TRUE(cancellation.Deregister(first));
  EXPECT_TRUE(cancellation.Deregister(second));
  EXPECT_FALSE(cancellation.Deregister(CancellationToken::kNoCallback));
  EXPECT_EQ(cancellation.registered_count(), 1u);
  EXPECT_EQ(held.use_count(), 2);
  // The slot of the first is free again.
  cancellation.Register([held] {});
  EXPECT_EQ(cancellation.registered_count(), 2u);
  cancellation.Cancel();
  EXPECT_EQ(cancellation.registered_count(), 0u);
  EXPECT_EQ(held.use_count(), 1);
  cancellation.Register([held] {});
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace ferry
