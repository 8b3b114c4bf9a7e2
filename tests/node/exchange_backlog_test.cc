// SPDX-License-Identifier: Apache-2.0
// A receiver that reads nothing for a while, with more requests than a control channel queues.
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "tests/node/exchange_kill.h"

namespace ferry {
namespace {

class ExchangeBacklog : public ExchangeKill {
 protected:
  static constexpr int kCount = 1500;

  // The receiver posts kCount receives.
  PeerProcess& Begin(bool is_eager) {
    Fork(1);
    TransferEngineOptions options;
    options.eager = is_eager;
    options.peer_queue_bytes = size_t{1} << 20;
    StartHere(options);
    PeerProcess& peer = Meet(0);
    ExpectWorks(peer);
    for (int i = 0; i < kCount; ++i) peer.Ask(absl::StrCat("recv t", i));
    // They are posted in order.
    Receipt last = Receive(peer.From("last"));
    EXPECT_EQ(peer.Ask("send last 8"), "OK");
    EXPECT_TRUE(last.Wait().ok());
    return peer;
  }
  // Sends the values while it reads nothing.
  void SendAll(PeerProcess& peer) {
    peer.Stop();
    const Tensor tensor = Pattern(16'000);
    for (int i = 0; i < kCount; ++i) {
      ASSERT_TRUE(step_->Send(peer.To(absl::StrCat("t", i)), tensor).ok()) << i;
    }
    peer.Continue();
    EXPECT_EQ(peer.Ask("wait"), "OK");
    ExpectWorks(peer);
  }
};

// Each small enough to be sent in one message; together far more than sockets, rings and the
// control channel's queue have room for, and more than the receiver's credit.
TEST_P(ExchangeBacklog, ManySmallTensors_EndNoChannel) { SendAll(Begin(/*is_eager=*/true)); }

TEST_P(ExchangeBacklog, ManySmallRequestedTensors_EndNoChannel) {
  PeerProcess& peer = Begin(/*is_eager=*/false);
  ASSERT_TRUE(Becomes([this] {
    int asked = 0;
    here_->engine->ForEachPending(absl::ZeroDuration(), [&asked](const auto&) { ++asked; });
    return asked >= kCount;
  }));
  SendAll(peer);
}

INSTANTIATE_TEST_SUITE_P(Over, ExchangeBacklog, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ferry
