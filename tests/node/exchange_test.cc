// SPDX-License-Identifier: Apache-2.0
// Exchanges of several nodes: path selection, failed peers, and unauthenticated connections.
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/engine_pair.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PathPolicyTest, RequiredTransportThatIsUnavailable_FailsWithTheReason) {
  Directory directory;
  TransferEngineOptions options;
  options.require_transport = "shm";
  EngineEnd a(directory, 1, options, 0, "machine a");
  EngineEnd b(directory, 2, options, 0, "machine b");
  ASSERT_TRUE(a.Step(1)
                  ->Send(KeyBetween(a, b, "k"),
                         *Tensor::Allocate(DataType::kUint8, *Shape::Create({100'000})))
                  .ok());
  Receipt receipt;
  b.Step(1)->RecvAsync(KeyBetween(a, b, "k"), {}, receipt.callback());
  const absl::Status status = receipt.Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("two machines"));
}

// The sender selects the path of a tensor, and may have other options.
TEST(PathPolicyTest, TransportThatTheReceiverForbids_IsRefusedThere) {
  Directory directory;
  TransferEngineOptions by_tcp;
  by_tcp.require_transport = "tcp";
  TransferEngineOptions by_shm;
  by_shm.require_transport = "shm";
  EngineEnd a(directory, 1, by_tcp);
  EngineEnd b(directory, 2, by_shm);
  ASSERT_TRUE(a.Step(1)
                  ->Send(KeyBetween(a, b, "k"),
                         *Tensor::Allocate(DataType::kUint8, *Shape::Create({100'000})))
                  .ok());
  Receipt receipt;
  b.Step(1)->RecvAsync(KeyBetween(a, b, "k"), {}, receipt.callback());
  const absl::Status status = receipt.Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("sends by tcp, and shm is the required"));
}

TEST(PathPolicyTest, CheapestPathIsExplained) {
  Directory directory;
  EngineEnd a(directory, 1);
  EngineEnd b(directory, 2);
  const auto near = b.engine->PathFrom(a.engine->self(), 1 << 20, true);
  ASSERT_TRUE(near.ok()) << near.status();
  EXPECT_THAT(Explain(*near), ::testing::StartsWith("shm ("));
  EXPECT_THAT(Explain(*near), HasSubstr("not tcp ("));
  EngineEnd c(directory, 3, {}, 0, "another machine");
  const auto far = c.engine->PathFrom(a.engine->self(), 1 << 20, true);
  ASSERT_TRUE(far.ok()) << far.status();
  EXPECT_THAT(Explain(*far), ::testing::StartsWith("not shm: they are on two machines"));
  EXPECT_THAT(Explain(*far), HasSubstr("; tcp ("));
}

// A caller that inspects a received tensor may find the sender gone.
TEST(PathPolicyTest, PathIsExplainedByTheChannelThatWasUsed) {
  Directory directory;
  TransferEngineOptions by_tcp;
  by_tcp.require_transport = "tcp";
  auto a = std::make_unique<EngineEnd>(directory, 1, by_tcp);
  EngineEnd b(directory, 2);
  const Tensor value = *Tensor::Allocate(DataType::kUint8, *Shape::Create({300'000}));
  // It opens the control channel, for both directions.
  Receipt first;
  a->Step(1)->RecvAsync(KeyBetween(b, *a, "k"), {}, first.callback());
  ASSERT_TRUE(b.Step(1)->Send(KeyBetween(b, *a, "k"), value).ok());
  ASSERT_TRUE(first.Wait().ok());
  ASSERT_TRUE(a->Step(1)->Send(KeyBetween(*a, b, "k"), value).ok());
  Receipt second;
  b.Step(1)->RecvAsync(KeyBetween(*a, b, "k"), {}, second.callback());
  ASSERT_TRUE(second.Wait().ok());
  const Endpoint sender = a->engine->self();
  for (const bool has_gone : {false, true}) {
    if (has_gone) {
      a = nullptr;
      const absl::Time deadline = SteadyClock().Now() + absl::Seconds(20);
      while (b.engine->fetcher().RequesterOf(sender.peer) != nullptr) {
        ASSERT_LT(SteadyClock().Now(), deadline);
        absl::SleepFor(absl::Milliseconds(1));
      }
    }
    const auto path = b.engine->PathFrom(sender, 1 << 20, true);
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_THAT(Explain(*path), HasSubstr("not shm: descriptors cannot be passed between them: "
                                          "node 1 came over TCP; tcp ("));
  }
  // Another incarnation, unknown to any control channel.
  Endpoint other = sender;
  ++other.peer.incarnation;
  const auto path = b.engine->PathFrom(other, 1 << 20, true);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(Explain(*path), HasSubstr("node 1 listens on no Unix socket; tcp ("));
}

TEST(PathPolicyTest, WithinAProcess_IsLocal) {
  Directory directory;
  for (const char* required : {"", "local", "tcp"}) {
    TransferEngineOptions options;
    options.require_transport = required;
    EngineEnd a(directory, 1, options);
    const auto path = a.engine->PathFrom(a.engine->self(), 1 << 20, true);
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_THAT(Explain(*path), HasSubstr("local ("));
    EXPECT_THAT(Explain(*path), ::testing::Not(HasSubstr("not local")));
    const RendezvousKey key = KeyBetween(a, a, "k");
    const Tensor sent = a.Allocate(DataType::kUint8, *Shape::Create({300'000}));
    ASSERT_TRUE(a.Step(1)->Send(key, sent).ok());
    Receipt receipt;
    a.Step(1)->RecvAsync(key, {}, receipt.callback());
    const auto received = receipt.Wait();
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_EQ(received->tensor.data(), sent.data());
    EXPECT_EQ(received->path, "local");
  }
}

TEST(PathPolicyTest, LocalCannotConnectTwoProcesses) {
  Directory directory;
  TransferEngineOptions options;
  options.require_transport = "local";
  EngineEnd a(directory, 1, options);
  EngineEnd b(directory, 2, options);
  const auto path = b.engine->PathFrom(a.engine->self(), 1 << 20, true);
  EXPECT_EQ(path.status().code(), absl::StatusCode::kFailedPrecondition) << path.status();
  EXPECT_THAT(std::string(path.status().message()),
              HasSubstr("local: they are two processes, node 1 and node 2"));
  ASSERT_TRUE(a.Step(1)
                  ->Send(KeyBetween(a, b, "k"),
                         *Tensor::Allocate(DataType::kUint8, *Shape::Create({300'000})))
                  .ok());
  Receipt receipt;
  b.Step(1)->RecvAsync(KeyBetween(a, b, "k"), {}, receipt.callback());
  EXPECT_EQ(receipt.Wait().status().code(), path.status().code());
  EXPECT_THAT(std::string(receipt.Wait().status().message()),
              AllOf(HasSubstr(path.status().message()), HasSubstr("step 1 needed")));
}

TEST(PathPolicyTest, UnknownTransportNamesAreRefused) {
  TransferEngineOptions options;
  options.require_transport = "pigeon";
  options.listen = "127.0.0.1:0";
  options.token = "t";
  const auto started = TransferEngine::Start(options, {}, {});
  EXPECT_EQ(started.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(started.status().message()), HasSubstr("there are shm, tcp"));
}

TEST(ExchangeTest, AnotherIncarnationOfTheProducer_AnswersAborted) {
  Directory directory;
  EngineEnd sink(directory, 2);
  auto first = std::make_unique<EngineEnd>(directory, 1, TransferEngineOptions{}, 77);
  const RendezvousKey key = KeyBetween(*first, sink, "k");
  first = std::make_unique<EngineEnd>(directory, 1, TransferEngineOptions{}, 78);
  Receipt receipt;
  sink.Step(1)->RecvAsync(key, {}, receipt.callback());
  const absl::Status status = receipt.Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("RecvTensor expects a different device incarnation: 77 vs. 78"));
}

TEST(ExchangeTest, DeadNode_FailsItsDependentsOnly) {
  Directory directory;
  EngineEnd a(directory, 1);
  EngineEnd b(directory, 2);
  EngineEnd c(directory, 3);
  Receipt of_a;
  Receipt of_b;
  c.Step(1)->RecvAsync(KeyBetween(a, c, "k"), {}, of_a.callback());
  c.Step(1)->RecvAsync(KeyBetween(b, c, "k"), {}, of_b.callback());
  c.engine->FailNode(1, absl::UnavailableError("node 1 has died: no heartbeat"));
  const absl::Status status = of_a.Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("node 1 has died"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 1 needed"));
  Tensor sent = *Tensor::Allocate(DataType::kInt32, *Shape::Create({4}));
  FillPattern(sent, 1);
  ASSERT_TRUE(b.Step(1)->Send(KeyBetween(b, c, "k"), sent).ok());
  ASSERT_TRUE(of_b.Wait().ok()) << of_b.Wait().status();
}

// A CancellationToken may be of a whole session, with very many receives, each of which would be
// kept.
TEST(ExchangeTest, FinishedReceives_LeaveNothingWithTheirCancellation) {
  Directory directory;
  EngineEnd a(directory, 1);
  EngineEnd b(directory, 2);
  const RendezvousKey key = KeyBetween(a, b, "k");
  CancellationToken cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  Step step = *b.engine->OpenStep(1);
  EXPECT_EQ(step.RecvValue(key, absl::Milliseconds(1), args).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(cancellation.registered_count(), 0u);
  // The sender may match a value with the cancelled request until it confirms the cancellation.
  const std::shared_ptr<TensorRequester> requester =
      b.engine->fetcher().RequesterOf(a.engine->self().peer);
  ASSERT_NE(requester, nullptr);
  EXPECT_TRUE(b.engine->loop().WaitUntil(
      [&] { return requester->InnerTableSizes()["requester.cancelled"] == 0; },
      SteadyClock().Now() + absl::Seconds(30)));
  ASSERT_TRUE(a.Step(1)->Send(key, *Tensor::Allocate(DataType::kInt32, *Shape::Create({4}))).ok());
  const auto received = step.RecvValue(key, absl::Minutes(1), args);
  EXPECT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(cancellation.registered_count(), 0u);
}

TEST(ExchangeTest, WrongTokensNeverConnect) {
  Directory directory;
  TransferEngineOptions other;
  other.token = "another job";
  EngineEnd a(directory, 1);
  EngineEnd b(directory, 2, other);
  Receipt receipt;
  b.Step(1)->RecvAsync(KeyBetween(a, b, "k"), {}, receipt.callback());
  EXPECT_EQ(receipt.Wait().status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_GE(a.engine->connection_stats().refused, 1);
}

TEST(ExchangeTest, WrongTokensNeverConnectOverGrpcEither) {
  Directory directory;
  TransferEngineOptions options;
  options.protocol = WireProtocol::kGrpc;
  options.require_auth = true;
  EngineEnd a(directory, 1, options);
  EngineEnd b(directory, 2, options);
  options.token = "another job";
  EngineEnd c(directory, 3, options);
  Receipt of_friend;
  Receipt of_stranger;
  b.Step(1)->RecvAsync(KeyBetween(a, b, "k"), {}, of_friend.callback());
  c.Step(1)->RecvAsync(KeyBetween(a, c, "k"), {}, of_stranger.callback());
  EXPECT_EQ(of_stranger.Wait().status().code(), absl::StatusCode::kUnauthenticated);
  ASSERT_TRUE(
      a.Step(1)
          ->Send(KeyBetween(a, b, "k"), *Tensor::Allocate(DataType::kInt32, *Shape::Create({4})))
          .ok());
  EXPECT_TRUE(of_friend.Wait().ok()) << of_friend.Wait().status();
}

}  // namespace
}  // namespace ferry
