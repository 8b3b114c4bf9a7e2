// SPDX-License-Identifier: Apache-2.0
// ExchangeKill: this process and others that are killed, stopped, starved or shut away by a test.
#ifndef FERRY_TESTS_NODE_EXCHANGE_KILL_H_
#define FERRY_TESTS_NODE_EXCHANGE_KILL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "tests/node/engine_pair.h"
#include "tests/node/peer_process.h"

namespace ferry {

inline constexpr int64_t kLarge = int64_t{64} << 20;
// Until the survivor has been notified.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr absl::Duration kDetection = absl::Seconds(10);
#else
inline constexpr absl::Duration kDetection = absl::Seconds(2);
#endif

// Over one transport; the others are not allowed.
class ExchangeKill : public ::testing::TestWithParam<const char*> {
 protected:
  // All processes that a test needs, before this one has threads.
  void Fork(int count) {
    for (int i = 0; i < count; ++i) {
      peers_.push_back(std::make_unique<PeerProcess>(GetParam(), 100u + static_cast<uint64_t>(i)));
    }
  }
  void StartHere(TransferEngineOptions options = {}) {
    options.require_transport = GetParam();
    options.spin = absl::Microseconds(5);
    here_ = std::make_unique<EngineEnd>(directory_, kHere, options);
    step_ = here_->Step(kStepId);
  }
  PeerProcess& Meet(int index) {
    peers_[static_cast<size_t>(index)]->Meet(directory_, here_->engine->self());
    return *peers_[static_cast<size_t>(index)];
  }
  Receipt Receive(const RendezvousKey& key, Tensor destination = Tensor()) {
    Receipt receipt;
    RecvArgs args;
    args.destination = std::move(destination);
    step_->RecvAsync(key, args, receipt.callback());
    return receipt;
  }
  static Tensor Pattern(int64_t bytes) {
    Tensor tensor = *Tensor::Allocate(DataType::kUint8, *Shape::Create({bytes}));
    FillPattern(tensor, 7);
    return tensor;
  }
  void ExpectNamesPeerAndPhase(Receipt& receipt) {
    const absl::Status status = receipt.Wait(kDetection).status();
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(absl::StrContains(status.message(), "node 1")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "while") ||
                absl::StrContains(status.message(), "before") ||
                absl::StrContains(status.message(), "cannot reach"))
        << status;
  }
  template <typename Condition>
  static bool Becomes(Condition condition, absl::Duration timeout = kDetection) {
    for (const absl::Time end = SteadyClock().Now() + timeout; SteadyClock().Now() < end;) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return condition();
  }
  // Also the state that a control channel has here once its other end is gone.
  void ExpectNothingLeft(const Footprint& before) {
    EXPECT_TRUE(Becomes([this] { return here_->engine->fetcher().connection_count() == 0; }))
        << here_->engine->fetcher().connection_count() << " control channels are left";
    EXPECT_TRUE(Becomes([this] { return here_->engine->arena().stats().block_count == 0; }))
        << here_->engine->arena().stats().block_count << " blocks of the arena are left";
    EXPECT_TRUE(Becomes([&] {
      const Footprint now = Footprint::Now();
      return now.descriptors <= before.descriptors && now.mappings <= before.mappings &&
             now.threads <= before.threads;
    })) << Footprint::Now().descriptors
        << " descriptors, were " << before.descriptors << "; " << Footprint::Now().mappings
        << " mappings, were " << before.mappings << "; " << Footprint::Now().threads
        << " threads, were " << before.threads;
  }
  // A tensor in each direction, with a peer that is not affected.
  void ExpectWorks(PeerProcess& peer, int64_t bytes = 300'000) {
    Receipt receipt = Receive(peer.From("works"));
    EXPECT_EQ(peer.Ask(absl::StrCat("send works ", bytes)), "OK");
    const auto received = receipt.Wait();
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_TRUE(IsEqual(received->tensor, Pattern(bytes)));
    EXPECT_TRUE(step_->Send(peer.To("back"), Pattern(bytes)).ok());
    peer.Ask("recv back");
    EXPECT_EQ(peer.Ask("wait"), "OK");
  }
  // The arena keeps segments for later users: they are no leak.
  void Warm(PeerProcess& peer) {
    ExpectWorks(peer);
    Tensor block = here_->Allocate(DataType::kUint8, *Shape::Create({kLarge}));
  }

  Directory directory_;
  std::vector<std::unique_ptr<PeerProcess>> peers_;
  std::unique_ptr<EngineEnd> here_;
  std::shared_ptr<RemoteRendezvous> step_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_NODE_EXCHANGE_KILL_H_
