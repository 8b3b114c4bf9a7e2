// SPDX-License-Identifier: Apache-2.0
// One control channel for both directions of a pair: who opens it, how many there are, and what its
// end affects.
#include <cstdint>
#include <filesystem>
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
namespace {

constexpr int64_t kLargeValue = int64_t{64} << 20;

template <typename Condition>
bool Becomes(Condition condition) {
  for (const absl::Time end = SteadyClock().Now() + absl::Seconds(10); SteadyClock().Now() < end;) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return condition();
}

Tensor Small() {
  Tensor tensor = *Tensor::Allocate(DataType::kUint8, *Shape::Create({300'000}));
  FillPattern(tensor, 7);
  return tensor;
}

TransferEngineOptions Over(const std::string& transport) {
  TransferEngineOptions options;
  options.require_transport = transport;
  options.transports.tcp.connections = 1;
  options.spin = absl::Microseconds(5);
  return options;
}

class ControlChannelSharing : public ::testing::TestWithParam<const char*> {
 protected:
  // The first receive opens the control channel.
  void Pass(EngineEnd& from, EngineEnd& to, const std::string& name) {
    Receipt receipt;
    to.Step(1)->RecvAsync(KeyBetween(from, to, name), {}, receipt.callback());
    ASSERT_TRUE(from.Step(1)->Send(KeyBetween(from, to, name), Small()).ok());
    const auto received = receipt.Wait();
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_TRUE(IsEqual(received->tensor, Small()));
    EXPECT_EQ(received->path, GetParam());
  }

  Directory directory_;
};

TEST_P(ControlChannelSharing, EitherSideOpensIt_BothUseIt) {
  for (const bool smaller_opens : {true, false}) {
    EngineEnd a(directory_, 1, Over(GetParam()));
    EngineEnd b(directory_, 2, Over(GetParam()));
    EngineEnd& opener = smaller_opens ? a : b;
    EngineEnd& other = smaller_opens ? b : a;
    Pass(other, opener, "there");
    const auto channel = opener.engine->fetcher().RequesterOf(other.engine->self().peer);
    ASSERT_NE(channel, nullptr);
    // It was established by HELLO alone, and carries what the store would have.
    const auto back = other.engine->fetcher().RequesterOf(opener.engine->self().peer);
    ASSERT_NE(back, nullptr);
    EXPECT_EQ(back->producer().boot_id, opener.engine->self().boot_id);
    EXPECT_EQ(back->producer().channels.tcp, opener.engine->self().channels.tcp);
    for (int i = 0; i < 3; ++i) {
      Pass(opener, other, absl::StrCat("back ", i));
      Pass(other, opener, absl::StrCat("there ", i));
    }
    EXPECT_EQ(other.engine->fetcher().RequesterOf(opener.engine->self().peer), back);
    EXPECT_EQ(a.engine->fetcher().connection_count(), 1u);
    EXPECT_EQ(b.engine->fetcher().connection_count(), 1u);
  }
}

// All to all at once: half as many as with one per direction.
TEST_P(ControlChannelSharing, AsManyChannelsAsPairs) {
  constexpr int kNodes = 6;
  std::vector<std::unique_ptr<EngineEnd>> nodes;
  for (int i = 0; i < kNodes; ++i) {
    nodes.push_back(std::make_unique<EngineEnd>(directory_, i, Over(GetParam())));
  }
  const auto sockets = [] {
    int count = 0;
    for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const auto target = std::filesystem::read_symlink(each.path(), error);
      count += absl::StartsWith(target.string(), "socket:") ? 1 : 0;
    }
    return count;
  };
  const int before = sockets();
  std::vector<Receipt> receipts;
  for (int to = 0; to < kNodes; ++to) {
    for (int from = 0; from < kNodes; ++from) {
      if (from == to) continue;
      receipts.emplace_back();
      nodes[to]->Step(1)->RecvAsync(KeyBetween(*nodes[from], *nodes[to], "k"), {},
                                    receipts.back().callback());
    }
  }
  for (int from = 0; from < kNodes; ++from) {
    for (int to = 0; to < kNodes; ++to) {
      if (from == to) continue;
      // In the transfer descriptor, so that there are no other connections.
      ASSERT_TRUE(nodes[from]
                      ->Step(1)
                      ->Send(KeyBetween(*nodes[from], *nodes[to], "k"),
                             *Tensor::Allocate(DataType::kInt32, *Shape::Create({2})))
                      .ok());
    }
  }
  for (Receipt& each : receipts) ASSERT_TRUE(each.Wait().ok()) << each.Wait().status();
  // Both ends are in this process. Attempts that were given up take a moment to go.
  constexpr int kPairs = kNodes * (kNodes - 1) / 2;
  EXPECT_TRUE(Becomes([&] { return sockets() - before == 2 * kPairs; }))
      << sockets() - before << " sockets, and " << kPairs << " pairs";
  for (const auto& node : nodes) {
    EXPECT_EQ(node->engine->fetcher().connection_count(), static_cast<size_t>(kNodes - 1));
  }
}

TEST_P(ControlChannelSharing, AnotherIncarnation_GetsAnotherChannel) {
  EngineEnd a(directory_, 1, Over(GetParam()));
  int round = 0;
  for (const bool restarted_opens : {true, false}) {
    const std::string suffix = absl::StrCat(" ", ++round);
    auto b = std::make_unique<EngineEnd>(directory_, 2, Over(GetParam()), 77);
    Pass(*b, a, "of the first" + suffix);
    Pass(a, *b, "to the first" + suffix);
    const PeerId first = b->engine->self().peer;
    b = nullptr;
    b = std::make_unique<EngineEnd>(directory_, 2, Over(GetParam()), 78);
    if (restarted_opens) Pass(a, *b, "to the second" + suffix);
    Pass(*b, a, "of the second" + suffix);
    Pass(a, *b, "to the second again" + suffix);
    EXPECT_TRUE(Becomes([&] { return a.engine->fetcher().RequesterOf(first) == nullptr; }));
    // The report of the old incarnation's end does not end the new one's control channel.
    a.engine->fetcher().Forget(2, absl::AbortedError("node 2 was restarted"), 78);
    Pass(*b, a, "still of the second" + suffix);
    EXPECT_TRUE(Becomes([&] { return a.engine->fetcher().connection_count() == 1; }));
    b = nullptr;
    EXPECT_TRUE(Becomes([&] { return a.engine->fetcher().connection_count() == 0; }));
  }
}

// Receives, tensors in flight, and exported memory, in both directions at once.
TEST_P(ControlChannelSharing, DeadPeer_EndsBothDirectionsOnce) {
  constexpr int kRounds = 6;
  std::vector<std::unique_ptr<PeerProcess>> peers;
  for (int i = 0; i <= kRounds; ++i) {
    peers.push_back(std::make_unique<PeerProcess>(GetParam(), 100u + static_cast<uint64_t>(i)));
  }
  EngineEnd here(directory_, kHere, Over(GetParam()));
  const auto step = here.Step(kStepId);
  int round = 0;
  for (const auto& peer : peers) {
    peer->Meet(directory_, here.engine->self());
    const bool is_last = ++round == kRounds + 1;
    // Either side opens the control channel, or both do at once.
    Receipt first;
    const auto receive_first = [&] { step->RecvAsync(peer->From("first"), {}, first.callback()); };
    if (round % 2 == 0) receive_first();
    ASSERT_TRUE(step->Send(peer->To(absl::StrCat("first", round)), Small()).ok());
    peer->Ask(absl::StrCat("recv first", round));
    if (round % 2 == 1) receive_first();
    EXPECT_EQ(peer->Ask("send first 300000"), "OK");
    ASSERT_TRUE(first.Wait().ok()) << first.Wait().status();
    EXPECT_EQ(peer->Ask("wait"), "OK");
    EXPECT_TRUE(Becomes([&] { return here.engine->fetcher().connection_count() == 1; }));
    if (is_last) break;

    Receipt never;
    Receipt large;
    step->RecvAsync(peer->From("never"), {}, never.callback());
    EXPECT_EQ(peer->Ask(absl::StrCat("send large ", kLargeValue)), "OK");
    RecvArgs args;
    args.destination = *Tensor::Allocate(DataType::kUint8, *Shape::Create({kLargeValue}));
    peer->Ask(absl::StrCat("into large", round, " ", kLargeValue));
    peer->Ask(absl::StrCat("recv never", round));
    ASSERT_TRUE(step->Send(peer->To(absl::StrCat("large", round)),
                           here.Allocate(DataType::kUint8, *Shape::Create({kLargeValue})))
                    .ok());
    step->RecvAsync(peer->From("large"), args, large.callback());
    absl::SleepFor(absl::Milliseconds(3 * round));
    peer->Kill();
    const absl::Status status = never.Wait().status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "node 1")) << status;
    // Whether it was all there or not; it has ended.
    const absl::Status of_large = large.Wait().status();
    EXPECT_FALSE(absl::IsDeadlineExceeded(of_large)) << of_large;
    EXPECT_TRUE(Becomes([&] { return here.engine->fetcher().connection_count() == 0; }));
    EXPECT_EQ(here.engine->fetcher().unfinished_sends(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Over, ControlChannelSharing, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ferry
