// SPDX-License-Identifier: Apache-2.0
// Processes that are killed or stopped while they exchange tensors with this one.
#include "tests/node/exchange_kill.h"

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST_P(ExchangeKill, BeforeAnyConnection) {
  Fork(2);
  StartHere();
  PeerProcess& dead = Meet(0);
  dead.Kill();
  const Footprint before = Footprint::Now();
  Receipt receipt = Receive(dead.From("t"));
  ExpectNamesPeerAndPhase(receipt);
  ExpectNothingLeft(before);
  ExpectWorks(Meet(1));
}

TEST_P(ExchangeKill, DuringTheHandshake) {
  Fork(2);
  StartHere();
  PeerProcess& dead = Meet(0);
  const Footprint before = Footprint::Now();
  // The kernel accepts for it, and it never answers.
  dead.Stop();
  Receipt receipt = Receive(dead.From("t"));
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(receipt.is_done());
  dead.Kill();
  ExpectNamesPeerAndPhase(receipt);
  ExpectNothingLeft(before);
  ExpectWorks(Meet(1));
}

TEST_P(ExchangeKill, ProducerWithARequestPending) {
  Fork(2);
  StartHere();
  PeerProcess& dead = Meet(0);
  Warm(dead);
  Receipt receipt = Receive(dead.From("never"));
  EXPECT_EQ(dead.Ask("nothing"), "done");
  dead.Kill();
  ExpectNamesPeerAndPhase(receipt);
  EXPECT_TRUE(Becomes([this] { return here_->engine->fetcher().connection_count() == 0; }));
  ExpectWorks(Meet(1));
}

// Every so often it is dead before the first byte, or has sent the last one.
TEST_P(ExchangeKill, ProducerInTheMiddleOfALargeTransfer) {
  constexpr int kRounds = 6;
  Fork(kRounds + 2);
  StartHere();
  Warm(Meet(0));
  peers_[0]->Kill();
  EXPECT_TRUE(Becomes([this] { return here_->engine->fetcher().connection_count() == 0; }));
  const Footprint before = Footprint::Now();
  const Tensor expected = Pattern(kLarge);
  for (int i = 1; i <= kRounds; ++i) {
    PeerProcess& peer = Meet(i);
    // The control channel is there already.
    Receipt first = Receive(peer.From("first"));
    peer.Ask("send first 8");
    ASSERT_TRUE(first.Wait().ok()) << "round " << i << ": " << first.Wait().status();
    EXPECT_EQ(peer.Ask(absl::StrCat("send t ", kLarge)), "OK");
    Tensor into = *Tensor::Allocate(DataType::kUint8, *Shape::Create({kLarge}));
    Receipt receipt = Receive(peer.From("t"), into);
    absl::SleepFor(absl::Milliseconds(2 * i));
    peer.Kill();
    const auto received = receipt.Wait(kDetection);
    if (received.ok()) {
      EXPECT_TRUE(IsEqual(received->tensor, expected));
    } else {
      ExpectNamesPeerAndPhase(receipt);
    }
  }
  ExpectNothingLeft(before);
  ExpectWorks(Meet(kRounds + 1));
}

TEST_P(ExchangeKill, ConsumerInTheMiddleOfALargeTransfer) {
  constexpr int kRounds = 4;
  Fork(kRounds + 2);
  StartHere();
  Warm(Meet(0));
  peers_[0]->Kill();
  EXPECT_TRUE(Becomes([this] { return here_->engine->fetcher().connection_count() == 0; }));
  const Footprint before = Footprint::Now();
  for (int i = 1; i <= kRounds; ++i) {
    PeerProcess& peer = Meet(i);
    // A request that waits, on a control channel that is there.
    ASSERT_TRUE(step_->Send(peer.To("first"), Pattern(8)).ok());
    peer.Ask("recv first");
    ASSERT_EQ(peer.Ask("wait"), "OK");
    peer.Ask(absl::StrCat("into t ", kLarge));
    Tensor tensor = here_->Allocate(DataType::kUint8, *Shape::Create({kLarge}));
    ASSERT_TRUE(step_->Send(peer.To("t"), std::move(tensor)).ok());
    absl::SleepFor(absl::Milliseconds(3 * i));
    peer.Kill();
    // Whether it has been taken or not.
    EXPECT_TRUE(Becomes([this] { return here_->engine->fetcher().connection_count() == 0; }));
    EXPECT_TRUE(Becomes([this] { return here_->engine->fetcher().unfinished_sends() == 0; }));
    // Dead before its request came: the tensor waits for another one until the step ends.
    if (step_->HasQueued(peer.To("t"))) {
      step_->RecvLocalAsync(peer.To("t"), {}, [](const absl::Status&, const Received&) {});
    }
  }
  ExpectNothingLeft(before);
  ExpectWorks(Meet(kRounds + 1));
}

TEST_P(ExchangeKill, ViewOutlivesItsProducer) {
  Fork(3);
  StartHere();
  Warm(Meet(0));
  peers_[0]->Kill();
  EXPECT_TRUE(Becomes([this] { return here_->engine->fetcher().connection_count() == 0; }));
  const Footprint before = Footprint::Now();
  {
    PeerProcess& peer = Meet(1);
    EXPECT_EQ(peer.Ask(absl::StrCat("send t ", kLarge)), "OK");
    Receipt receipt = Receive(peer.From("t"));
    ASSERT_TRUE(receipt.Wait().ok()) << receipt.Wait().status();
    peer.Kill();
    EXPECT_TRUE(Becomes([this] { return here_->engine->fetcher().connection_count() == 0; }));
    EXPECT_TRUE(IsEqual(receipt.Wait()->tensor, Pattern(kLarge)));
  }
  ExpectNothingLeft(before);
  ExpectWorks(Meet(2));
}

TEST_P(ExchangeKill, ConsumerWithAView) {
  Fork(3);
  StartHere();
  Warm(Meet(0));
  peers_[0]->Kill();
  EXPECT_TRUE(Becomes([this] { return here_->engine->fetcher().connection_count() == 0; }));
  const Footprint before = Footprint::Now();
  PeerProcess& peer = Meet(1);
  ASSERT_TRUE(
      step_->Send(peer.To("t"), here_->Allocate(DataType::kUint8, *Shape::Create({kLarge}))).ok());
  peer.Ask("recv t");
  EXPECT_EQ(peer.Ask("wait"), "OK");
  peer.Kill();
  ExpectNothingLeft(before);
  ExpectWorks(Meet(2));
}

TEST_P(ExchangeKill, StoppedPeer_IsWaitedForUntilTheDeadline) {
  Fork(1);
  StartHere();
  PeerProcess& peer = Meet(0);
  Warm(peer);
  EXPECT_EQ(peer.Ask("send t 300000"), "OK");
  peer.Stop();
  Receipt receipt;
  RecvArgs args;
  args.deadline = SteadyClock().Now() + absl::Milliseconds(100);
  step_->RecvAsync(peer.From("t"), args, receipt.callback());
  here_->engine->NoteDeadline(args.deadline);
  const absl::Status status = receipt.Wait(kDetection).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "asked node 1")) << status;
  peer.Continue();
  ExpectWorks(peer);
}

INSTANTIATE_TEST_SUITE_P(Over, ExchangeKill, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ferry
