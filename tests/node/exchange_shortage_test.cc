// SPDX-License-Identifier: Apache-2.0
// Processes that run out of descriptors or memory while they exchange tensors.
#include <sys/resource.h>

#include <fstream>

#include <gtest/gtest.h>

#include "tests/node/exchange_kill.h"

namespace ferry {
namespace {

using ExchangeShortage = ExchangeKill;

// Limits this process's address space.
rlim_t VirtualBytes() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

// A new segment comes with a descriptor, and the first large tensor over TCP needs connections.
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
  // An unneeded segment does not end the control channel.
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

// Over the next control channel if the error has ended this one.
TEST_P(ExchangeShortage, OfDescriptors_ReceivePostedInTheCallbackOfTheError_IsServed) {
  Fork(1);
  StartHere();
  PeerProcess& peer = Meet(0);
  ExpectWorks(peer, 8);
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(peer.Ask(absl::StrCat("send t ", kLarge)), "OK");
  Receipt ended;
  Receipt next;
  step_->RecvAsync(peer.From("t"), {.destination = Pattern(kLarge)},
                   [&, done = ended.callback()](absl::Status status, Received received) mutable {
                     setrlimit(RLIMIT_NOFILE, &limit);
                     step_->RecvAsync(peer.From("next"), {}, next.callback());
                     std::move(done)(std::move(status), std::move(received));
                   });
  EXPECT_FALSE(ended.Wait(kDetection).ok());
  // Until the producer has noticed the end of the channel it may send on that one, and what it
  // sends is lost. It has noticed by the time the next channel is open.
  EXPECT_TRUE(Becomes([this] {
    bool is_open = false;
    step_->ForEachPending(absl::ZeroDuration(), [&](const PendingStepOp& op) {
      is_open |= absl::StrContains(op.phase, "has not");
    });
    return is_open;
  }));
  EXPECT_EQ(peer.Ask("send next 8"), "OK");
  EXPECT_TRUE(next.Wait().ok()) << next.Wait().status();
}

// The producer has none: neither for a segment of its arena nor for new connections.
TEST_P(ExchangeShortage, OfDescriptorsAtTheProducerIsReported) {
  Fork(1);
  StartHere();
  PeerProcess& peer = Meet(0);
  ExpectWorks(peer, 8);
  const Footprint before = Footprint::Now();
  ASSERT_EQ(peer.Ask("limit descriptors 0"), "done");
  EXPECT_EQ(peer.Ask(absl::StrCat("send_heap t ", kLarge)), "OK");
  Receipt receipt;
  RecvArgs args;
  args.deadline = SteadyClock().Now() + absl::Seconds(3);
  step_->RecvAsync(peer.From("t"), args, receipt.callback());
  here_->engine->NoteDeadline(args.deadline);
  const auto received = receipt.Wait(absl::Seconds(3) + kDetection);
  const absl::Status& status = received.status();
  // TCP connections wait in its kernel until it has descriptors again, so they end at the deadline.
  EXPECT_TRUE(absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "node 1")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "ulimit -n") ||
              absl::StrContains(status.message(), "receiving from node 1 by tcp"))
      << status;
  ASSERT_EQ(peer.Ask("unlimit"), "done");
  ExpectWorks(peer, 8);
  ExpectWorks(peer, kLarge);
  peer.Kill();
  EXPECT_TRUE(Becomes([this] { return here_->engine->fetcher().connection_count() == 0; }));
  EXPECT_TRUE(Becomes([&] { return Footprint::Now().threads == before.threads; }));
}

// The connecting side is notified, and transfers without descriptors go on over the same control
// channel, since there could be no other.
TEST_P(ExchangeShortage, OfDescriptorsAtTheProducerEndsNoChannel) {
  Fork(1);
  TransferEngineOptions options;
  options.connect_timeout = absl::Seconds(3);
  StartHere(options);
  PeerProcess& peer = Meet(0);
  ExpectWorks(peer, 8);
  ASSERT_EQ(peer.Ask("use_up"), "done");
  EXPECT_EQ(peer.Ask(absl::StrCat("send_heap t ", kLarge)), "OK");
  Receipt receipt = Receive(peer.From("t"));
  const absl::Status status = receipt.Wait(options.connect_timeout + kDetection).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "node 1")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "ulimit -n")) << status;
  ExpectWorks(peer, 8);
  ASSERT_EQ(peer.Ask("give_back"), "done");
  ExpectWorks(peer, kLarge);
}

// Early connections are accepted once there are some.
TEST_P(ExchangeShortage, OfDescriptorsThatPassesIsWaitedFor) {
  Fork(1);
  StartHere();
  PeerProcess& peer = Meet(0);
  ASSERT_EQ(peer.Ask("use_up"), "done");
  Receipt receipt = Receive(peer.From("t"));
  EXPECT_FALSE(Becomes([&] { return receipt.is_done(); }, absl::Milliseconds(300)));
  ASSERT_EQ(peer.Ask("give_back"), "done");
  EXPECT_EQ(peer.Ask("send t 8"), "OK");
  EXPECT_TRUE(receipt.Wait().ok()) << receipt.Wait().status();
}

// Connections to it fail, and it does not spin.
TEST_P(ExchangeShortage, OfDescriptorsBeforeTheFirstChannel) {
  Fork(1);
  StartHere();
  PeerProcess& peer = Meet(0);
  ASSERT_EQ(peer.Ask("limit descriptors 0"), "done");
  Receipt receipt;
  RecvArgs args;
  args.deadline = SteadyClock().Now() + absl::Milliseconds(300);
  step_->RecvAsync(peer.From("t"), args, receipt.callback());
  here_->engine->NoteDeadline(args.deadline);
  const absl::Status status = receipt.Wait(kDetection).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "connecting to node 1")) << status;
  ASSERT_EQ(peer.Ask("unlimit"), "done");
  ExpectWorks(peer);
}

// Neither its arena nor its heap has room for the tensor.
TEST_P(ExchangeShortage, OfMemoryAtTheReceiverEndsThatReceive) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's own memory has no limit";
#endif
  Fork(1);
  StartHere();
  PeerProcess& peer = Meet(0);
  ExpectWorks(peer);
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
  // Without room for another segment; threads that are begun have theirs.
  const rlimit little = {VirtualBytes() + (rlim_t{8} << 20), limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
  EXPECT_EQ(peer.Ask(absl::StrCat("send t ", kLarge)), "OK");
  Receipt receipt = Receive(peer.From("t"));
  const absl::Status status = receipt.Wait(kDetection).status();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "node 1")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "Cannot allocate memory") ||
              absl::StrContains(status.message(), "the heap has no"))
      << status;
  ExpectWorks(peer, kLarge);
}

INSTANTIATE_TEST_SUITE_P(Over, ExchangeShortage, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

using ExchangeArena = ExchangeKill;

TEST_P(ExchangeArena, FullArenaOfTheSender_IsReportedToTheReceiver) {
  peers_.push_back(std::make_unique<PeerProcess>(GetParam(), 100, size_t{64} << 20));
  StartHere();
  PeerProcess& peer = Meet(0);
  // From memory that is not the arena's, and so has to be copied there.
  EXPECT_EQ(peer.Ask(absl::StrCat("send_heap t ", 2 * kLarge)), "OK");
  Receipt receipt = Receive(peer.From("t"));
  const absl::Status status = receipt.Wait(kDetection).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "node 1")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "max_host_bytes")) << status;
  ExpectWorks(peer);
}

// The kernel refuses memory, as the budget does.
TEST_P(ExchangeArena, KernelRefusesMemory_IsReportedToTheReceiver) {
  Fork(1);
  StartHere();
  PeerProcess& peer = Meet(0);
  ExpectWorks(peer);
  ASSERT_EQ(peer.Ask("limit files 1000000"), "done");
  EXPECT_EQ(peer.Ask(absl::StrCat("send_heap t ", kLarge)), "OK");
  Receipt receipt = Receive(peer.From("t"));
  const absl::Status status = receipt.Wait(kDetection).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "node 1 cannot send it")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "raise `ulimit -f`")) << status;
  ExpectWorks(peer);
  ASSERT_EQ(peer.Ask("unlimit"), "done");
  EXPECT_EQ(peer.Ask(absl::StrCat("send_heap u ", kLarge)), "OK");
  Receipt next = Receive(peer.From("u"));
  EXPECT_TRUE(next.Wait().ok()) << next.Wait().status();
}

// Tensors in flight keep their memory, whatever the arena counts.
TEST_P(ExchangeArena, ReleasedMemory_IsNotKeptForAPeerThatReadsNothing) {
  Fork(1);
  TransferEngineOptions options;
  options.arena.segment_bytes = size_t{1} << 20;
  options.arena.budget_bytes = size_t{6} << 20;
  StartHere(options);
  PeerProcess& peer = Meet(0);
  ExpectWorks(peer);
  peer.Stop();
  const Footprint before = Footprint::Now();
  for (int i = 0; i < 100; ++i) {
    // Two classes, of which only one has room.
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
