// SPDX-License-Identifier: Apache-2.0
// Processes that are killed, stopped, or run out of something, while they exchange tensors with
// this one.
#include <sys/resource.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "tests/runtime/exchange_pair.h"
#include "tests/runtime/peer_process.h"

namespace ferry {
namespace {

constexpr int64_t kLarge = int64_t{64} << 20;
// For whoever survives to hear of it.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr absl::Duration kDetection = absl::Seconds(10);
#else
constexpr absl::Duration kDetection = absl::Seconds(2);
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
  void StartHere(ExchangeOptions options = {}) {
    options.require_transport = GetParam();
    options.spin = absl::Microseconds(5);
    here_ = std::make_unique<ExchangeEnd>(directory_, kHere, options);
    step_ = here_->Step(kStepId);
  }
  PeerProcess& Meet(int index) {
    peers_[static_cast<size_t>(index)]->Meet(directory_, here_->exchange->self());
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
  static bool Becomes(Condition condition, absl::Duration patience = kDetection) {
    for (const absl::Time end = SteadyClock().Now() + patience; SteadyClock().Now() < end;) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return condition();
  }
  // Also what a lane has here once nobody is at its other end.
  void ExpectNothingLeft(const Footprint& before) {
    EXPECT_TRUE(Becomes([this] { return here_->exchange->fetcher().lane_count() == 0; }));
    EXPECT_TRUE(Becomes([this] { return here_->exchange->arena().stats().block_count == 0; }));
    EXPECT_TRUE(Becomes([&] {
      const Footprint now = Footprint::Now();
      return now.descriptors <= before.descriptors && now.mappings <= before.mappings &&
             now.threads <= before.threads;
    })) << Footprint::Now().descriptors
        << " descriptors, were " << before.descriptors << "; " << Footprint::Now().mappings
        << " mappings, were " << before.mappings << "; " << Footprint::Now().threads
        << " threads, were " << before.threads;
  }
  // A tensor each way, with a peer that nothing has happened to.
  void ExpectWorks(PeerProcess& peer, int64_t bytes = 100'000) {
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
  std::unique_ptr<ExchangeEnd> here_;
  std::shared_ptr<RemoteRendezvous> step_;
};

TEST_P(ExchangeKill, BeforeAnybodyConnects) {
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
  // The kernel accepts for it, and nobody answers.
  dead.Stop();
  Receipt receipt = Receive(dead.From("t"));
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(receipt.is_done());
  dead.Kill();
  ExpectNamesPeerAndPhase(receipt);
  ExpectNothingLeft(before);
  ExpectWorks(Meet(1));
}

TEST_P(ExchangeKill, TheProducerWithARequestPending) {
  Fork(2);
  StartHere();
  PeerProcess& dead = Meet(0);
  Warm(dead);
  Receipt receipt = Receive(dead.From("never"));
  EXPECT_EQ(dead.Ask("nothing"), "done");
  dead.Kill();
  ExpectNamesPeerAndPhase(receipt);
  EXPECT_TRUE(Becomes([this] { return here_->exchange->fetcher().lane_count() == 0; }));
  ExpectWorks(Meet(1));
}

// Every so often it is dead before the first byte, or has sent the last one.
TEST_P(ExchangeKill, TheProducerInTheMiddleOfALargeTransfer) {
  constexpr int kRounds = 6;
  Fork(kRounds + 2);
  StartHere();
  Warm(Meet(0));
  peers_[0]->Kill();
  EXPECT_TRUE(Becomes([this] { return here_->exchange->fetcher().lane_count() == 0; }));
  const Footprint before = Footprint::Now();
  const Tensor expected = Pattern(kLarge);
  for (int i = 1; i <= kRounds; ++i) {
    PeerProcess& peer = Meet(i);
    // The lane is there already.
    Receipt first = Receive(peer.From("first"));
    peer.Ask("send first 8");
    ASSERT_TRUE(first.Wait().ok());
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

TEST_P(ExchangeKill, TheConsumerInTheMiddleOfALargeTransfer) {
  constexpr int kRounds = 4;
  Fork(kRounds + 2);
  StartHere();
  Warm(Meet(0));
  peers_[0]->Kill();
  EXPECT_TRUE(Becomes([this] { return here_->exchange->fetcher().lane_count() == 0; }));
  const Footprint before = Footprint::Now();
  for (int i = 1; i <= kRounds; ++i) {
    PeerProcess& peer = Meet(i);
    // A request that waits, on a lane that is there.
    ASSERT_TRUE(step_->Send(peer.To("first"), Pattern(8)).ok());
    peer.Ask("recv first");
    ASSERT_EQ(peer.Ask("wait"), "OK");
    peer.Ask(absl::StrCat("into t ", kLarge));
    Tensor tensor = here_->Allocate(DataType::kUint8, *Shape::Create({kLarge}));
    ASSERT_TRUE(step_->Send(peer.To("t"), std::move(tensor)).ok());
    absl::SleepFor(absl::Milliseconds(3 * i));
    peer.Kill();
    // Whether it has been taken or not.
    EXPECT_TRUE(Becomes([this] { return here_->exchange->fetcher().lane_count() == 0; }));
    EXPECT_TRUE(Becomes([this] { return here_->exchange->fetcher().unfinished_sends() == 0; }));
  }
  ExpectNothingLeft(before);
  ExpectWorks(Meet(kRounds + 1));
}

TEST_P(ExchangeKill, AViewOutlivesItsProducer) {
  Fork(3);
  StartHere();
  Warm(Meet(0));
  peers_[0]->Kill();
  EXPECT_TRUE(Becomes([this] { return here_->exchange->fetcher().lane_count() == 0; }));
  const Footprint before = Footprint::Now();
  {
    PeerProcess& peer = Meet(1);
    EXPECT_EQ(peer.Ask(absl::StrCat("send t ", kLarge)), "OK");
    Receipt receipt = Receive(peer.From("t"));
    ASSERT_TRUE(receipt.Wait().ok()) << receipt.Wait().status();
    peer.Kill();
    EXPECT_TRUE(Becomes([this] { return here_->exchange->fetcher().lane_count() == 0; }));
    EXPECT_TRUE(IsEqual(receipt.Wait()->tensor, Pattern(kLarge)));
  }
  ExpectNothingLeft(before);
  ExpectWorks(Meet(2));
}

TEST_P(ExchangeKill, TheConsumerWithAView) {
  Fork(3);
  StartHere();
  Warm(Meet(0));
  peers_[0]->Kill();
  EXPECT_TRUE(Becomes([this] { return here_->exchange->fetcher().lane_count() == 0; }));
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

TEST_P(ExchangeKill, APeerThatIsStoppedIsWaitedForInVain) {
  Fork(1);
  StartHere();
  PeerProcess& peer = Meet(0);
  Warm(peer);
  EXPECT_EQ(peer.Ask("send t 100000"), "OK");
  peer.Stop();
  Receipt receipt;
  RecvArgs args;
  args.deadline = SteadyClock().Now() + absl::Milliseconds(100);
  here_->exchange->NoteDeadline(args.deadline);
  step_->RecvAsync(peer.From("t"), args, receipt.callback());
  const absl::Status status = receipt.Wait(kDetection).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "asked node 1")) << status;
  peer.Continue();
  ExpectWorks(peer);
}

INSTANTIATE_TEST_SUITE_P(Over, ExchangeKill, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

using ExchangeShortage = ExchangeKill;

// A segment that is new comes with a descriptor, and the first large tensor over TCP needs
// connections.
TEST_P(ExchangeShortage, OfDescriptorsEndsReceivesAndPasses) {
  Fork(1);
  StartHere();
  PeerProcess& peer = Meet(0);
  ExpectWorks(peer, 8);
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(peer.Ask(absl::StrCat("send t ", kLarge)), "OK");
  // A segment that nobody needs here costs nobody the lane.
  ExpectWorks(peer, 8);
  Receipt receipt = Receive(peer.From("t"), Pattern(kLarge));
  const absl::Status status = receipt.Wait(kDetection).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "node 1")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "ulimit -n") ||
              absl::StrContains(status.message(), "Too many open files"))
      << status;
  ExpectWorks(peer, kLarge);
}

INSTANTIATE_TEST_SUITE_P(Over, ExchangeShortage, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

using ExchangeArena = ExchangeKill;

TEST_P(ExchangeArena, ThatIsFullInTheSenderIsToldToTheReceiver) {
  peers_.push_back(std::make_unique<PeerProcess>(GetParam(), 100, size_t{64} << 20));
  StartHere();
  PeerProcess& peer = Meet(0);
  // From memory that is not the arena's, and so has to be copied there.
  EXPECT_EQ(peer.Ask(absl::StrCat("send_heap t ", 2 * kLarge)), "OK");
  Receipt receipt = Receive(peer.From("t"));
  const absl::Status status = receipt.Wait(kDetection).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "node 1")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "budget_bytes")) << status;
  ExpectWorks(peer);
}

// What is on its way keeps its memory, whatever the arena counts.
TEST_P(ExchangeArena, ThatGivesBackKeepsNothingForAPeerThatReadsNothing) {
  Fork(1);
  ExchangeOptions options;
  options.arena.segment_bytes = size_t{1} << 20;
  options.arena.budget_bytes = size_t{6} << 20;
  StartHere(options);
  PeerProcess& peer = Meet(0);
  ExpectWorks(peer);
  peer.Stop();
  const Footprint before = Footprint::Now();
  for (int i = 0; i < 100; ++i) {
    // Of two classes, of which only one has room.
    here_->Allocate(DataType::kUint8, *Shape::Create({(i % 2 == 0 ? 4 : 3) << 20}));
  }
  EXPECT_LE(peer.UntakenDescriptors(), 2);
  EXPECT_LE(Footprint::Now().descriptors, before.descriptors + 1);
  peer.Continue();
  ExpectWorks(peer);
}

// TCP sends from where the tensor lies.
INSTANTIATE_TEST_SUITE_P(Over, ExchangeArena, ::testing::Values("shm"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ferry
