// SPDX-License-Identifier: Apache-2.0
// Values: each type and size, either side first, many at once, by every path.
#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "tests/node/conformance/conformance.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

using ConformanceOfValues = Conformance;

TEST_P(ConformanceOfValues, EachTypeAndSizeEitherSideFirst) {
  int number = 0;
  for (int type = 1; type < 40; ++type) {
    const std::optional<DataType> dtype = DataTypeOfNumber(type);
    if (!dtype || !IsFixedSize(*dtype)) continue;
    for (const std::vector<int64_t>& dims :
         {std::vector<int64_t>{}, {0}, {1}, {3, 0, 2}, {5, 7}, {20'011}, {300'007}}) {
      const Tensor sent = Pattern(*dtype, dims, static_cast<uint32_t>(number));
      const RendezvousKey key = KeyTo(absl::StrCat("t", ++number));
      absl::Status status;
      if (number % 2 == 0) status = source_->Step(1)->Send(key, sent);
      Receipt receipt = Receive(1, key, sent);
      if (number % 2 == 1) status = source_->Step(1)->Send(key, sent);
      ASSERT_TRUE(status.ok()) << status;
      const absl::StatusOr<Received> received = receipt.Wait();
      ASSERT_TRUE(received.ok()) << received.status();
      EXPECT_TRUE(IsEqual(received->tensor, sent)) << ToString(sent);
    }
  }
}

// A sender whose booleans have bytes other than 0 and 1, by every path: in the transfer descriptor,
// in shared memory, copied from there, streamed.
TEST_P(ConformanceOfValues, BooleansThatAreNeither0Nor1_AreRefused) {
  int number = 0;
  for (const int64_t count : {1, 64, 5000, 300'007, 5'000'011}) {
    Tensor sent = Pattern(DataType::kBool, {count}, static_cast<uint32_t>(count));
    auto* const bytes = static_cast<uint8_t*>(sent.mutable_data());
    for (const int64_t at : {int64_t{0}, count / 2, count - 1}) {
      const uint8_t was = std::exchange(bytes[at], uint8_t{2});
      const RendezvousKey key = KeyTo(absl::StrCat("b", ++number));
      ASSERT_TRUE(source_->Step(1)->Send(key, sent).ok());
      const absl::Status status = Receive(1, key, sent).Wait().status();
      // Within a process the tensor is trusted and passed on unchanged.
      if (absl::StartsWith(::testing::PrintToString(GetParam()), "local")) {
        EXPECT_TRUE(status.ok()) << status;
        bytes[at] = was;
        continue;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      const std::string text(status.message());
      EXPECT_NE(text.find(absl::StrCat("element ", at, " of bool[", count, "] is 2")),
                std::string::npos)
          << text;
      EXPECT_NE(text.find(key.text()), std::string::npos) << text;
      // Neither side is affected otherwise.
      bytes[at] = was;
      ASSERT_TRUE(source_->Step(1)->Send(key, sent).ok());
      const absl::StatusOr<Received> received = Receive(1, key, sent).Wait();
      ASSERT_TRUE(received.ok()) << received.status();
      EXPECT_TRUE(IsEqual(received->tensor, sent));
    }
  }
}

TEST_P(ConformanceOfValues, StringsDeadValuesAndOneByte) {
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

TEST_P(ConformanceOfValues, SixtyFourMebibytesAndThree) {
  constexpr int64_t kBytes = (int64_t{64} << 20) + 3;
  for (const bool in_arena : {false, true}) {
    const Shape shape = *Shape::Create({kBytes});
    Tensor sent = in_arena ? source_->Allocate(DataType::kUint8, shape)
                           : *Tensor::Allocate(DataType::kUint8, shape);
    FillPattern(sent, in_arena ? 5 : 6);
    const RendezvousKey key = KeyTo(absl::StrCat("big", in_arena));
    ASSERT_TRUE(source_->Step(1)->Send(key, sent).ok());
    Receipt receipt = Receive(1, key, sent);
    const auto received = receipt.Wait();
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_TRUE(IsEqual(received->tensor, sent));
    EXPECT_EQ(received->path, GetParam().path);
  }
}

TEST_P(ConformanceOfValues, IntoTheReceiversBuffer) {
  Step step = *sink_->engine->OpenStep(1);
  for (const int64_t count : {1, 1000, 100'000, 3'000'001}) {
    const Tensor sent = Pattern(DataType::kInt32, {count}, static_cast<uint32_t>(count));
    const Tensor buffer = sink_->Allocate(DataType::kInt32, *Shape::Create({count}));
    const RendezvousKey key = KeyTo(absl::StrCat("into", count));
    ASSERT_TRUE(source_->Step(1)->Send(key, sent).ok());
    const absl::Status status = step.RecvInto(key, buffer, absl::Seconds(30));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_NE(buffer.data(), sent.data());
    EXPECT_TRUE(IsEqual(buffer, sent));
  }
}

TEST_P(ConformanceOfValues, BufferOfAnotherSizeIsRefusedAndTheChannelStays) {
  Step step = *sink_->engine->OpenStep(1);
  const Tensor buffer = sink_->Allocate(DataType::kInt32, *Shape::Create({10}));
  ASSERT_TRUE(source_->Step(1)->Send(KeyTo("odd"), Pattern(DataType::kInt32, {100'000}, 1)).ok());
  const absl::Status status = step.RecvInto(KeyTo("odd"), buffer, absl::Seconds(30));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("int32[100000]"));
  const Tensor sent = Pattern(DataType::kInt32, {100'000}, 2);
  Receipt next = Receive(1, KeyTo("even"), sent);
  ASSERT_TRUE(source_->Step(1)->Send(KeyTo("even"), sent).ok());
  ASSERT_TRUE(next.Wait().ok()) << next.Wait().status();
  EXPECT_TRUE(IsEqual(next.Wait()->tensor, sent));
}

TEST_P(ConformanceOfValues, ManyInFlightInRandomOrder) {
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
    const auto index = static_cast<size_t>(i);
    receipts[index] = Receive(2, KeyTo(absl::StrCat(i)), sent[index]);
  }
  std::shuffle(order.begin(), order.end(), random);
  for (const int i : order) {
    ASSERT_TRUE(source_->Step(2)->Send(KeyTo(absl::StrCat(i)), sent[static_cast<size_t>(i)]).ok());
  }
  std::shuffle(order.begin(), order.end(), random);
  for (const int i : order) {
    if (i % 2 == 1) continue;
    const auto index = static_cast<size_t>(i);
    receipts[index] = Receive(2, KeyTo(absl::StrCat(i)), sent[index]);
  }
  for (int i = 0; i < kCount; ++i) {
    const auto received = receipts[static_cast<size_t>(i)].Wait();
    ASSERT_TRUE(received.ok()) << i << ": " << received.status();
    ASSERT_TRUE(IsEqual(received->tensor, sent[static_cast<size_t>(i)])) << i;
  }
}

TEST_P(ConformanceOfValues, SendersOnManyThreadsAtOnce) {
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
        // Many size classes, so that new segments are made now and then.
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

TEST_P(ConformanceOfValues, ValuesOfOneKeyKeepTheirOrder) {
  for (int i = 0; i < 50; ++i) {
    // Sizes that take different paths.
    ASSERT_TRUE(source_->Step(1)
                    ->Send(KeyTo("fifo"), Pattern(DataType::kUint8, {i % 2 == 0 ? 10 : 70'000},
                                                  static_cast<uint32_t>(i)))
                    .ok());
  }
  for (int i = 0; i < 50; ++i) {
    const Tensor expected =
        Pattern(DataType::kUint8, {i % 2 == 0 ? 10 : 70'000}, static_cast<uint32_t>(i));
    const auto received = Receive(1, KeyTo("fifo"), expected).Wait();
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_TRUE(IsEqual(received->tensor, expected));
  }
}

INSTANTIATE_TEST_SUITE_P(By, ConformanceOfValues, ::testing::ValuesIn(AllPaths()), NameOfPath);

}  // namespace
}  // namespace ferry
