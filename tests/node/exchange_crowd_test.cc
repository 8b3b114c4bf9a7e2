// SPDX-License-Identifier: Apache-2.0
// Two nodes that exchange large tensors while unauthenticated connections fill their listeners.
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "base/thread.h"
#include "net/sockets.h"
#include "tests/node/engine_pair.h"
#include "transport/control/auth_handshake.h"

namespace ferry {
namespace {

constexpr int64_t kLargeBytes = int64_t{64} << 20;
constexpr size_t kCrowd = 300;

// Some send nothing, some are of another job, some use another protocol, some stop in the middle of
// the handshake; all keep their connections until there are too many.
class Crowd final {
 public:
  explicit Crowd(std::vector<PeerAddresses> doors)
      : doors_(std::move(doors)), thread_("crowd", [this] { Run(); }) {}
  ~Crowd() { is_over_.store(true); }

  int came() const { return came_.load(); }

 private:
  std::string FirstWords(int number) const {
    AuthHandshakeOptions other;
    other.self = {7, 7};
    other.token = "another job";
    std::string hello =
        AuthHandshake::Client(other, {1, 1001}, ConnectionPurpose::kControl, 0).pending_output();
    switch (number % 5) {
      case 0:
        return "";
      case 1:
        return "GET / HTTP/1.1\r\nHost: ferry\r\n\r\n";
      case 2:
        return std::string(100'000, static_cast<char>(number));
      case 3:
        return hello.substr(0, hello.size() / 2);
      default:
        return hello;
    }
  }
  void Run() {
    std::deque<UniqueFd> sockets;
    while (!is_over_.load()) {
      const int number = came_.fetch_add(1);
      const PeerAddresses& door = doors_[static_cast<size_t>(number) % doors_.size()];
      auto socket =
          number % 3 == 0 ? BeginConnectUnix(door.unix_name) : BeginConnectTcp(door.tcp.at(0));
      if (socket.ok()) {
        const std::string words = FirstWords(number);
        // Best effort: it need not arrive.
        (void)send(socket->get(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        sockets.push_back(*std::move(socket));
      }
      if (sockets.size() > kCrowd) sockets.pop_front();
      absl::SleepFor(absl::Microseconds(500));
    }
  }

  const std::vector<PeerAddresses> doors_;
  std::atomic<bool> is_over_{false};
  std::atomic<int> came_{0};
  Thread thread_;
};

class ExchangeCrowd : public ::testing::TestWithParam<const char*> {
 protected:
  static TransferEngineOptions Options() {
    TransferEngineOptions options;
    options.require_transport = GetParam();
    return options;
  }
  // In both directions at the same time.
  void TransferEngine(EngineEnd& a, EngineEnd& b, int64_t step) {
    std::vector<Receipt> receipts(2);
    EngineEnd* const ends[] = {&a, &b};
    for (size_t i = 0; i < 2; ++i) {
      RecvArgs args;
      args.destination = into_[i];
      ends[1 - i]->Step(step)->RecvAsync(KeyBetween(*ends[i], *ends[1 - i], "t"), args,
                                         receipts[i].callback());
      ASSERT_TRUE(ends[i]->Step(step)->Send(KeyBetween(*ends[i], *ends[1 - i], "t"), sent_).ok());
    }
    for (size_t i = 0; i < 2; ++i) {
      const auto received = receipts[i].Wait();
      ASSERT_TRUE(received.ok()) << received.status();
      EXPECT_EQ(received->path, GetParam());
      EXPECT_TRUE(IsEqual(into_[i], sent_));
      std::memset(into_[i].mutable_data(), 0, 4096);
    }
    for (EngineEnd* end : ends) end->engine->rendezvous().Cleanup(step);
  }
  static Tensor Large() {
    return *Tensor::Allocate(DataType::kUint8, *Shape::Create({kLargeBytes}));
  }
  template <typename Condition>
  static bool Becomes(Condition condition) {
    for (int i = 0; i < 5000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(4));
    return condition();
  }

  Directory directory_;
  Tensor sent_ = Large();
  std::vector<Tensor> into_ = {Large(), Large()};
};

TEST_P(ExchangeCrowd, DelaysNoTransferAndLeavesNothingBehind) {
  constexpr int kRounds = 12;
  FillPattern(sent_, 5);
  EngineEnd a(directory_, 1, Options());
  EngineEnd b(directory_, 2, Options());
  TransferEngine(a, b, 1);
  const Footprint before = Footprint::Now();
  {
    Crowd crowd({a.engine->self().channels, b.engine->self().channels});
    for (int64_t round = 2; round < kRounds; ++round) TransferEngine(a, b, round);
    EXPECT_TRUE(Becomes([&] { return crowd.came() > 2 * static_cast<int>(kCrowd); }));
    // A node that joins now has to get through the crowd.
    EngineEnd c(directory_, 3, Options());
    TransferEngine(a, c, kRounds);
    TransferEngine(c, b, kRounds + 1);
  }
  EXPECT_GT(a.engine->connection_stats().refused, 0);
  EXPECT_GT(b.engine->connection_stats().refused, 0);
  EXPECT_TRUE(Becomes([&] {
    const Footprint now = Footprint::Now();
    return now.descriptors <= before.descriptors && now.threads <= before.threads &&
           now.mappings <= before.mappings;
  })) << Footprint::Now().descriptors
      << " descriptors, were " << before.descriptors << "; " << Footprint::Now().mappings
      << " mappings, were " << before.mappings << "; " << Footprint::Now().threads
      << " threads, were " << before.threads;
  TransferEngine(a, b, kRounds + 2);
}

INSTANTIATE_TEST_SUITE_P(Over, ExchangeCrowd, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ferry
