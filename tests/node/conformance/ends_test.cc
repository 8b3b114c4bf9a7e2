// SPDX-License-Identifier: Apache-2.0
// Ends: operations that are cancelled, aborted, or lose their peer, by every path.
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/conformance/conformance.h"

namespace ferry {
namespace {

using ConformanceOfEnds = Conformance;
// For peers that leave.
using ConformanceOfPeers = Conformance;

TEST_P(ConformanceOfEnds, CancelWhilePendingLeavesTheValueToOthers) {
  CancellationToken cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  Receipt cancelled;
  sink_->Step(1)->RecvAsync(KeyTo("c"), args, cancelled.callback());
  // Until the producer has received the cancellation.
  const auto waiting_at_source = [this] {
    int count = 0;
    source_->Step(1)->ForEachPending(absl::ZeroDuration(), [&](const PendingStepOp&) { ++count; });
    return count;
  };
  EXPECT_TRUE(Becomes([&] { return waiting_at_source() == 1; }));
  cancellation.Cancel();
  EXPECT_EQ(cancelled.Wait().status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Becomes([&] { return waiting_at_source() == 0; }));
  const Tensor sent = Pattern(DataType::kUint8, {50'000}, 9);
  ASSERT_TRUE(source_->Step(1)->Send(KeyTo("c"), sent).ok());
  Receipt next = Receive(1, KeyTo("c"), sent);
  ASSERT_TRUE(next.Wait().ok()) << next.Wait().status();
  EXPECT_TRUE(IsEqual(next.Wait()->tensor, sent));
}

TEST_P(ConformanceOfEnds, CancelAtAnyTimeNeverHangsOrMixesUp) {
  std::mt19937 random(11);
  for (int i = 0; i < 300; ++i) {
    const RendezvousKey key = KeyTo(absl::StrCat("x", i));
    const Tensor sent = Pattern(DataType::kUint8, {40'000}, static_cast<uint32_t>(i));
    CancellationToken cancellation;
    Receipt receipt = Receive(1, key, sent, &cancellation);
    std::thread canceller([&cancellation, pause = random() % 200] {
      absl::SleepFor(absl::Microseconds(pause));
      cancellation.Cancel();
    });
    ASSERT_TRUE(source_->Step(1)->Send(key, sent).ok());
    const auto received = receipt.Wait();
    canceller.join();
    if (received.ok()) {
      EXPECT_TRUE(IsEqual(received->tensor, sent));
    } else {
      EXPECT_EQ(received.status().code(), absl::StatusCode::kCancelled);
    }
  }
  // Cancelled requests have left nothing behind at the producer once the step is over.
  sink_->engine->rendezvous().Cleanup(1);
  source_->engine->rendezvous().Cleanup(1);
  EXPECT_EQ(source_->engine->rendezvous().step_count(), 0u);
  EXPECT_TRUE(HasNothingLent());
}

TEST_P(ConformanceOfEnds, AbortOfTheStepEndsItOnBothSides) {
  Receipt here;
  sink_->Step(1)->RecvAsync(KeyTo("a"), {}, here.callback());
  sink_->Step(1)->StartAbort(absl::AbortedError("enough"));
  EXPECT_EQ(here.Wait().status().code(), absl::StatusCode::kAborted);
  Receipt there;
  const auto step = sink_->Step(2);
  step->RecvAsync(KeyTo("b"), {}, there.callback());
  absl::SleepFor(absl::Milliseconds(20));
  source_->engine->rendezvous().Cleanup(2);
  const auto status = there.Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  Receipt late;
  step->RecvAsync(KeyTo("late"), {}, late.callback());
  EXPECT_EQ(late.Wait().status().code(), absl::StatusCode::kAborted);
}

TEST_P(ConformanceOfPeers, ProducerLeaves) {
  Receipt pending;
  sink_->Step(1)->RecvAsync(KeyTo("never"), {}, pending.callback());
  const Tensor sent = Pattern(DataType::kUint8, {300'000}, 1);
  ASSERT_TRUE(source_->Step(1)->Send(KeyTo("t"), sent).ok());
  Receipt taken = Receive(1, KeyTo("t"), sent);
  const auto received = taken.Wait();
  ASSERT_TRUE(received.ok()) << received.status();
  const RendezvousKey later = KeyTo("later");
  source_.reset();
  const absl::Status status = pending.Wait().status();
  // Reported by the end of the step there, or of the connection.
  EXPECT_TRUE(absl::IsAborted(status) || absl::IsUnavailable(status)) << status;
  // Received tensors stay valid.
  EXPECT_TRUE(IsEqual(received->tensor, sent));
  Receipt after;
  sink_->Step(1)->RecvAsync(later, {}, after.callback());
  EXPECT_EQ(after.Wait().status().code(), absl::StatusCode::kUnavailable) << after.Wait().status();
}

TEST_P(ConformanceOfPeers, ConsumerLeavesAndItsMemoryIsReleased) {
  Tensor sent = source_->Allocate(DataType::kUint8, *Shape::Create({1 << 20}));
  FillPattern(sent, 4);
  ASSERT_TRUE(source_->Step(1)->Send(KeyTo("t"), sent).ok());
  Receipt taken = Receive(1, KeyTo("t"), sent);
  ASSERT_TRUE(taken.Wait().ok());
  sent = Tensor();
  const Tensor kept = taken.Wait()->tensor;
  const RendezvousKey next = KeyTo("next");
  sink_.reset();
  EXPECT_TRUE(HasNothingLent());
  EXPECT_TRUE(source_->Step(1)->Send(next, kept).ok());
}

TEST_P(ConformanceOfEnds, ReleasedViewsReturnTheMemory) {
  for (int i = 0; i < 20; ++i) {
    Tensor sent = source_->Allocate(DataType::kUint8, *Shape::Create({300'000}));
    FillPattern(sent, static_cast<uint32_t>(i));
    const Tensor like = *Tensor::Allocate(DataType::kUint8, sent.shape());
    ASSERT_TRUE(source_->Step(1)->Send(KeyTo(absl::StrCat(i)), std::move(sent)).ok());
    ASSERT_TRUE(Receive(1, KeyTo(absl::StrCat(i)), like).Wait().ok());
  }
  EXPECT_TRUE(HasNothingLent());
}

TEST_P(ConformanceOfPeers, NothingLeaksOverManyIncarnations) {
  const auto live = [this] {
    sink_ = std::make_shared<EngineEnd>(directory_, 2, Options());
    const Tensor sent = Pattern(DataType::kUint8, {300'000}, 1);
    Receipt receipt = Receive(1, KeyTo("k"), sent);
    ASSERT_TRUE(source_->Step(1)->Send(KeyTo("k"), sent).ok());
    ASSERT_TRUE(receipt.Wait().ok()) << receipt.Wait().status();
    sink_ = nullptr;
  };
  live();
  const auto settle = [this] {
    for (int i = 0; i < 1000 && source_->engine->fetcher().connection_count() > 0; ++i) {
      absl::SleepFor(absl::Milliseconds(2));
    }
  };
  sink_ = nullptr;
  settle();
  const Footprint before = Footprint::Now();
  for (int i = 0; i < 10; ++i) live();
  settle();
  const Footprint after = Footprint::Now();
  EXPECT_LE(after.mappings, before.mappings + 2);
  // gRPC's threads and connections are not under this test's control.
  if (GetParam().is_grpc()) return;
  EXPECT_LE(after.descriptors, before.descriptors + 2);
  EXPECT_EQ(after.threads, before.threads);
}

INSTANTIATE_TEST_SUITE_P(By, ConformanceOfEnds, ::testing::ValuesIn(AllPaths()), NameOfPath);
INSTANTIATE_TEST_SUITE_P(By, ConformanceOfPeers, ::testing::ValuesIn(PathsBetweenProcesses()),
                         NameOfPath);

}  // namespace
}  // namespace ferry
