// SPDX-License-Identifier: Apache-2.0
// What every transport has to do, over the list of them, and the other carrier too.
#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/exchange_pair.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

class TransportConformance : public ::testing::TestWithParam<std::string> {
 protected:
  static ExchangeOptions Options() {
    ExchangeOptions options;
    if (GetParam() == "grpc") {
      options.carrier = Carrier::kGrpc;
    } else {
      options.require_transport = GetParam();
    }
    options.checksum = true;
    return options;
  }

  RendezvousKey KeyTo(const std::string& name) { return KeyBetween(*source_, *sink_, name); }

  // What is sent, on the heap: every transport has to take any memory.
  static Tensor Pattern(DataType dtype, std::vector<int64_t> dims, uint32_t seed) {
    Tensor tensor = *Tensor::Allocate(dtype, *Shape::Create(dims));
    FillPattern(tensor, seed);
    return tensor;
  }

  Directory directory_;
  std::unique_ptr<ExchangeEnd> source_ = std::make_unique<ExchangeEnd>(directory_, 1, Options());
  std::unique_ptr<ExchangeEnd> sink_ = std::make_unique<ExchangeEnd>(directory_, 2, Options());
};

TEST_P(TransportConformance, EachTypeAndSizeEitherSideFirst) {
  int number = 0;
  for (int type = 1; type < 40; ++type) {
    const std::optional<DataType> dtype = DataTypeOfNumber(type);
    if (!dtype || !IsFixedSize(*dtype)) continue;
    for (const std::vector<int64_t>& dims :
         {std::vector<int64_t>{}, {0}, {1}, {3, 0, 2}, {5, 7}, {20'011}, {300'007}}) {
      const Tensor sent = Pattern(*dtype, dims, static_cast<uint32_t>(number));
      const RendezvousKey key = KeyTo(absl::StrCat("t", ++number));
      Receipt receipt;
      absl::Status status;
      if (number % 2 == 0) status = source_->Step(1)->Send(key, sent);
      sink_->Step(1)->RecvAsync(key, {}, receipt.callback());
      if (number % 2 == 1) status = source_->Step(1)->Send(key, sent);
      ASSERT_TRUE(status.ok()) << status;
      const absl::StatusOr<Received> received = receipt.Wait();
      ASSERT_TRUE(received.ok()) << received.status();
      EXPECT_TRUE(IsEqual(received->tensor, sent)) << ToString(sent);
    }
  }
}

TEST_P(TransportConformance, StringsDeadValuesAndOneByte) {
  const Tensor strings =
      *Tensor::OfStrings(*Shape::Create({3}), {"", "short", std::string(200'000, 's') + "end"});
  ASSERT_TRUE(source_->Step(1)->Send(KeyTo("s"), strings).ok());
  ASSERT_TRUE(source_->Step(1)->Send(KeyTo("dead"), Tensor(), true).ok());
  Receipt of_strings;
  Receipt of_dead;
  sink_->Step(1)->RecvAsync(KeyTo("s"), {}, of_strings.callback());
  sink_->Step(1)->RecvAsync(KeyTo("dead"), {}, of_dead.callback());
  const auto received = of_strings.Wait();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_TRUE(IsEqual(received->tensor, strings));
  const auto dead = of_dead.Wait();
  ASSERT_TRUE(dead.ok()) << dead.status();
  EXPECT_TRUE(dead->is_dead);
  EXPECT_FALSE(dead->tensor.is_valid());
}

TEST_P(TransportConformance, SixtyFourMebibytesAndThree) {
  constexpr int64_t kBytes = (int64_t{64} << 20) + 3;
  for (const bool in_arena : {false, true}) {
    Tensor sent = in_arena ? source_->Allocate(DataType::kUint8, *Shape::Create({kBytes}))
                           : Pattern(DataType::kUint8, {kBytes}, 1);
    FillPattern(sent, in_arena ? 5 : 6);
    const RendezvousKey key = KeyTo(absl::StrCat("big", in_arena));
    ASSERT_TRUE(source_->Step(1)->Send(key, sent).ok());
    Receipt receipt;
    sink_->Step(1)->RecvAsync(key, {}, receipt.callback());
    const auto received = receipt.Wait();
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_TRUE(IsEqual(received->tensor, sent));
    EXPECT_EQ(received->path, GetParam());
  }
}

TEST_P(TransportConformance, IntoTheReceiversBuffer) {
  for (const int64_t count : {1, 1000, 100'000, 3'000'001}) {
    const Tensor sent = Pattern(DataType::kInt32, {count}, static_cast<uint32_t>(count));
    Tensor buffer = sink_->Allocate(DataType::kInt32, *Shape::Create({count}));
    const RendezvousKey key = KeyTo(absl::StrCat("into", count));
    RecvArgs args;
    args.destination = buffer;
    Receipt receipt;
    sink_->Step(1)->RecvAsync(key, args, receipt.callback());
    ASSERT_TRUE(source_->Step(1)->Send(key, sent).ok());
    const auto received = receipt.Wait();
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_EQ(received->tensor.data(), buffer.data());
    EXPECT_TRUE(IsEqual(buffer, sent));
  }
}

TEST_P(TransportConformance, ABufferOfAnotherSizeIsRefusedAndTheLaneLives) {
  RecvArgs args;
  args.destination = sink_->Allocate(DataType::kInt32, *Shape::Create({10}));
  Receipt receipt;
  sink_->Step(1)->RecvAsync(KeyTo("odd"), args, receipt.callback());
  ASSERT_TRUE(source_->Step(1)->Send(KeyTo("odd"), Pattern(DataType::kInt32, {100'000}, 1)).ok());
  const auto received = receipt.Wait();
  EXPECT_EQ(received.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(received.status().message()), HasSubstr("int32[100000]"));
  const Tensor sent = Pattern(DataType::kInt32, {100'000}, 2);
  Receipt next;
  sink_->Step(1)->RecvAsync(KeyTo("even"), {}, next.callback());
  ASSERT_TRUE(source_->Step(1)->Send(KeyTo("even"), sent).ok());
  ASSERT_TRUE(next.Wait().ok()) << next.Wait().status();
  EXPECT_TRUE(IsEqual(next.Wait()->tensor, sent));
}

TEST_P(TransportConformance, ManyInFlightInRandomOrder) {
  constexpr int kCount = 600;
  std::mt19937 random(3);
  std::vector<int> order(kCount);
  for (int i = 0; i < kCount; ++i) order[static_cast<size_t>(i)] = i;
  std::vector<Tensor> sent;
  std::vector<Receipt> receipts(kCount);
  for (int i = 0; i < kCount; ++i) {
    sent.push_back(Pattern(DataType::kUint8, {static_cast<int64_t>(random() % 90'000)},
                           static_cast<uint32_t>(i)));
  }
  std::shuffle(order.begin(), order.end(), random);
  for (const int i : order) {
    if (i % 2 == 0) continue;
    sink_->Step(2)->RecvAsync(KeyTo(absl::StrCat(i)), {},
                              receipts[static_cast<size_t>(i)].callback());
  }
  std::shuffle(order.begin(), order.end(), random);
  for (const int i : order) {
    ASSERT_TRUE(source_->Step(2)->Send(KeyTo(absl::StrCat(i)), sent[static_cast<size_t>(i)]).ok());
  }
  std::shuffle(order.begin(), order.end(), random);
  for (const int i : order) {
    if (i % 2 == 1) continue;
    sink_->Step(2)->RecvAsync(KeyTo(absl::StrCat(i)), {},
                              receipts[static_cast<size_t>(i)].callback());
  }
  for (int i = 0; i < kCount; ++i) {
    const auto received = receipts[static_cast<size_t>(i)].Wait();
    ASSERT_TRUE(received.ok()) << i << ": " << received.status();
    ASSERT_TRUE(IsEqual(received->tensor, sent[static_cast<size_t>(i)])) << i;
  }
}

TEST_P(TransportConformance, SendersOnManyThreadsAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kEach = 60;
  std::vector<Receipt> receipts(kThreads * kEach);
  for (int i = 0; i < kThreads * kEach; ++i) {
    sink_->Step(1)->RecvAsync(KeyTo(absl::StrCat(i)), {},
                              receipts[static_cast<size_t>(i)].callback());
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (int i = t; i < kThreads * kEach; i += kThreads) {
        // Of many size classes, so that segments are new now and then.
        Tensor sent = source_->Allocate(DataType::kUint8, *Shape::Create({5000 + i * 2000}));
        FillPattern(sent, static_cast<uint32_t>(i));
        ASSERT_TRUE(source_->Step(1)->Send(KeyTo(absl::StrCat(i)), std::move(sent)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kThreads * kEach; ++i) {
    const auto received = receipts[static_cast<size_t>(i)].Wait();
    ASSERT_TRUE(received.ok()) << i << ": " << received.status();
    Tensor expected = *Tensor::Allocate(DataType::kUint8, *Shape::Create({5000 + i * 2000}));
    FillPattern(expected, static_cast<uint32_t>(i));
    ASSERT_TRUE(IsEqual(received->tensor, expected)) << i;
  }
}

TEST_P(TransportConformance, ValuesOfOneKeyKeepTheirOrder) {
  for (int i = 0; i < 50; ++i) {
    // Of sizes that go by different ways.
    ASSERT_TRUE(source_->Step(1)
                    ->Send(KeyTo("fifo"), Pattern(DataType::kUint8, {i % 2 == 0 ? 10 : 70'000},
                                                  static_cast<uint32_t>(i)))
                    .ok());
  }
  for (int i = 0; i < 50; ++i) {
    Receipt receipt;
    sink_->Step(1)->RecvAsync(KeyTo("fifo"), {}, receipt.callback());
    const auto received = receipt.Wait();
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_TRUE(IsEqual(received->tensor, Pattern(DataType::kUint8, {i % 2 == 0 ? 10 : 70'000},
                                                  static_cast<uint32_t>(i))));
  }
}

TEST_P(TransportConformance, CancelWhilePendingLeavesTheValueToOthers) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  Receipt cancelled;
  sink_->Step(1)->RecvAsync(KeyTo("c"), args, cancelled.callback());
  // Until the producer has heard of it.
  for (int i = 0; i < 1000; ++i) {
    int count = 0;
    source_->Step(1)->ForEachPending(absl::ZeroDuration(), [&](const PendingStepOp&) { ++count; });
    if (count == 1) break;
    absl::SleepFor(absl::Milliseconds(5));
  }
  cancellation.Cancel();
  EXPECT_EQ(cancelled.Wait().status().code(), absl::StatusCode::kCancelled);
  for (int i = 0; i < 1000; ++i) {
    int count = 0;
    source_->Step(1)->ForEachPending(absl::ZeroDuration(), [&](const PendingStepOp&) { ++count; });
    if (count == 0) break;
    absl::SleepFor(absl::Milliseconds(5));
  }
  const Tensor sent = Pattern(DataType::kUint8, {50'000}, 9);
  ASSERT_TRUE(source_->Step(1)->Send(KeyTo("c"), sent).ok());
  Receipt next;
  sink_->Step(1)->RecvAsync(KeyTo("c"), {}, next.callback());
  ASSERT_TRUE(next.Wait().ok()) << next.Wait().status();
  EXPECT_TRUE(IsEqual(next.Wait()->tensor, sent));
}

TEST_P(TransportConformance, CancelAtAnyTimeNeverHangsOrMixesUp) {
  std::mt19937 random(11);
  for (int i = 0; i < 300; ++i) {
    const RendezvousKey key = KeyTo(absl::StrCat("x", i));
    const Tensor sent = Pattern(DataType::kUint8, {40'000}, static_cast<uint32_t>(i));
    Cancellation cancellation;
    RecvArgs args;
    args.cancellation = &cancellation;
    Receipt receipt;
    sink_->Step(1)->RecvAsync(key, args, receipt.callback());
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
  // What was cancelled has left nothing behind at the producer once the step is over.
  sink_->exchange->rendezvous().Cleanup(1);
  source_->exchange->rendezvous().Cleanup(1);
  EXPECT_EQ(source_->exchange->rendezvous().step_count(), 0u);
}

TEST_P(TransportConformance, AbortOfTheStepEndsItOnBothSides) {
  Receipt here;
  sink_->Step(1)->RecvAsync(KeyTo("a"), {}, here.callback());
  sink_->Step(1)->StartAbort(absl::AbortedError("enough"));
  EXPECT_EQ(here.Wait().status().code(), absl::StatusCode::kAborted);
  Receipt there;
  sink_->Step(2)->RecvAsync(KeyTo("b"), {}, there.callback());
  absl::SleepFor(absl::Milliseconds(20));
  source_->exchange->rendezvous().Cleanup(2);
  const auto status = there.Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  Receipt late;
  sink_->Step(2)->RecvAsync(KeyTo("late"), {}, late.callback());
  EXPECT_EQ(late.Wait().status().code(), absl::StatusCode::kAborted);
}

TEST_P(TransportConformance, TheProducerGoesAway) {
  Receipt pending;
  sink_->Step(1)->RecvAsync(KeyTo("never"), {}, pending.callback());
  Receipt taken;
  const Tensor sent = Pattern(DataType::kUint8, {100'000}, 1);
  ASSERT_TRUE(source_->Step(1)->Send(KeyTo("t"), sent).ok());
  sink_->Step(1)->RecvAsync(KeyTo("t"), {}, taken.callback());
  const auto received = taken.Wait();
  ASSERT_TRUE(received.ok()) << received.status();
  const RendezvousKey later = KeyTo("later");
  source_.reset();
  const absl::Status status = pending.Wait().status();
  // Told by the step's end there, or by that of the connection.
  EXPECT_TRUE(absl::IsAborted(status) || absl::IsUnavailable(status)) << status;
  // What was taken stays good.
  EXPECT_TRUE(IsEqual(received->tensor, sent));
  Receipt after;
  sink_->Step(1)->RecvAsync(later, {}, after.callback());
  EXPECT_EQ(after.Wait().status().code(), absl::StatusCode::kUnavailable) << after.Wait().status();
}

TEST_P(TransportConformance, TheConsumerGoesAwayAndItsMemoryComesBack) {
  Tensor sent = source_->Allocate(DataType::kUint8, *Shape::Create({1 << 20}));
  FillPattern(sent, 4);
  ASSERT_TRUE(source_->Step(1)->Send(KeyTo("t"), sent).ok());
  Receipt taken;
  sink_->Step(1)->RecvAsync(KeyTo("t"), {}, taken.callback());
  ASSERT_TRUE(taken.Wait().ok());
  sent = Tensor();
  const Tensor kept = taken.Wait()->tensor;
  const RendezvousKey next = KeyTo("next");
  sink_.reset();
  for (int i = 0; i < 2000 && source_->exchange->arena().stats().block_count > 0; ++i) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(source_->exchange->arena().stats().block_count, 0);
  EXPECT_TRUE(source_->Step(1)->Send(next, kept).ok());
}

TEST_P(TransportConformance, ReleasedViewsGiveTheMemoryBack) {
  for (int i = 0; i < 20; ++i) {
    Tensor sent = source_->Allocate(DataType::kUint8, *Shape::Create({100'000}));
    FillPattern(sent, static_cast<uint32_t>(i));
    ASSERT_TRUE(source_->Step(1)->Send(KeyTo(absl::StrCat(i)), std::move(sent)).ok());
    Receipt receipt;
    sink_->Step(1)->RecvAsync(KeyTo(absl::StrCat(i)), {}, receipt.callback());
    ASSERT_TRUE(receipt.Wait().ok());
  }
  for (int i = 0; i < 2000 && source_->exchange->arena().stats().block_count > 0; ++i) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(source_->exchange->arena().stats().block_count, 0);
}

TEST_P(TransportConformance, NothingLeaksOverManyLives) {
  const auto live = [this] {
    sink_ = std::make_unique<ExchangeEnd>(directory_, 2, Options());
    Receipt receipt;
    sink_->Step(1)->RecvAsync(KeyTo("k"), {}, receipt.callback());
    ASSERT_TRUE(source_->Step(1)->Send(KeyTo("k"), Pattern(DataType::kUint8, {100'000}, 1)).ok());
    ASSERT_TRUE(receipt.Wait().ok()) << receipt.Wait().status();
    sink_ = nullptr;
  };
  sink_ = std::make_unique<ExchangeEnd>(directory_, 2, Options());
  live();
  const auto settle = [this] {
    for (int i = 0; i < 1000 && source_->exchange->fetcher().lane_count() > 0; ++i) {
      absl::SleepFor(absl::Milliseconds(2));
    }
  };
  sink_ = nullptr;
  settle();
  const Footprint before = Footprint::Now();
  for (int i = 0; i < 10; ++i) {
    sink_ = std::make_unique<ExchangeEnd>(directory_, 2, Options());
    live();
  }
  settle();
  const Footprint after = Footprint::Now();
  EXPECT_LE(after.mappings, before.mappings + 2);
  // gRPC has threads and connections that come and go as it likes.
  if (GetParam() == "grpc") return;
  EXPECT_LE(after.descriptors, before.descriptors + 2);
  EXPECT_EQ(after.threads, before.threads);
}

INSTANTIATE_TEST_SUITE_P(Over, TransportConformance, ::testing::Values("shm", "tcp", "grpc"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace ferry
