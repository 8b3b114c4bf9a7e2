// SPDX-License-Identifier: Apache-2.0
// A receiver that reads nothing for a while, with more requests than a control channel queues.
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "tests/node/exchange_kill.h"

namespace ferry {
namespace {

using ExchangeBacklog = ExchangeKill;

// Each small enough to come with its transfer descriptor; together far more than sockets, rings and
// the control channel's queue have room for.
TEST_P(ExchangeBacklog, ManySmallTensors_EndNoChannel) {
  constexpr int kCount = 1500;
  constexpr int64_t kBytes = 16'000;
  Fork(1);
  TransferEngineOptions options;
  options.peer_queue_bytes = size_t{1} << 20;
  StartHere(options);
  PeerProcess& peer = Meet(0);
  ExpectWorks(peer);
  for (int i = 0; i < kCount; ++i) peer.Ask(absl::StrCat("recv t", i));
  // They are requested in order.
  Receipt last = Receive(peer.From("last"));
  EXPECT_EQ(peer.Ask("send last 8"), "OK");
  ASSERT_TRUE(last.Wait().ok());
  ASSERT_TRUE(Becomes([this] {
    int asked = 0;
    here_->engine->ForEachPending(absl::ZeroDuration(), [&asked](const auto&) { ++asked; });
    return asked >= kCount;
  }));
  peer.Stop();
  const Tensor tensor = Pattern(kBytes);
  for (int i = 0; i < kCount; ++i) {
    ASSERT_TRUE(step_->Send(peer.To(absl::StrCat("t", i)), tensor).ok()) << i;
  }
  peer.Continue();
  EXPECT_EQ(peer.Ask("wait"), "OK");
  ExpectWorks(peer);
}

INSTANTIATE_TEST_SUITE_P(Over, ExchangeBacklog, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ferry
