// SPDX-License-Identifier: Apache-2.0
// How a sender is notified of tensors that have arrived and were rejected by their receiver.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

#include "node/step.h"
#include "tests/node/engine_pair.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(30);

TransferEngineOptions Requires(const std::string& transport) {
  TransferEngineOptions options;
  options.require_transport = transport;
  return options;
}

TEST(RejectedTest, PathDiffersFromTheReceiversRequiredTransport) {
  Directory directory;
  EngineEnd a(directory, 1, Requires("tcp"));
  EngineEnd b(directory, 2, Requires("shm"));
  Step step = *a.engine->OpenStep(1);
  ASSERT_TRUE(step.Send(KeyBetween(a, b, "k"),
                        *Tensor::Allocate(DataType::kUint8, *Shape::Create({100'000})))
                  .ok());
  Receipt receipt;
  b.Step(1)->RecvAsync(KeyBetween(a, b, "k"), {}, receipt.callback());
  EXPECT_EQ(receipt.Wait().status().code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status status = step.Close(kSoon);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("node 2 did not take what it was sent: node 1 sends by tcp, and shm "
                              "is the required transport here, on node 2"),
                    HasSubstr("step 1 was sending "), HasSubstr(";k;")));
}

// Sizes that go in the transfer descriptor, as a view, and by TCP.
class WrongBuffer : public ::testing::TestWithParam<std::tuple<int64_t, const char*>> {};

TEST_P(WrongBuffer, ReachesTheSender) {
  const auto [elements, transport] = GetParam();
  Directory directory;
  EngineEnd a(directory, 1, Requires(transport));
  EngineEnd b(directory, 2, Requires(transport));
  Step sending = *a.engine->OpenStep(1);
  const Shape shape = *Shape::Create({elements});
  ASSERT_TRUE(sending.Send(KeyBetween(a, b, "k"), a.Allocate(DataType::kInt32, shape)).ok());
  // No call waits for its answer, so closing the step must.
  Receipt receipt;
  RecvArgs args;
  args.destination = b.Allocate(DataType::kDouble, shape);
  b.Step(1)->RecvAsync(KeyBetween(a, b, "k"), args, receipt.callback());
  const absl::Status status = sending.Close(kSoon);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("node 2 did not take what it was sent: what came is int32["),
                    HasSubstr("buffer is for double["), HasSubstr(";k;")));
  EXPECT_EQ(receipt.Wait().status().code(), absl::StatusCode::kInvalidArgument);
  // The control channel is as good as before.
  Step next = *a.engine->OpenStep(2);
  ASSERT_TRUE(next.Send(KeyBetween(a, b, "k"), a.Allocate(DataType::kInt32, shape)).ok());
  Receipt later;
  b.Step(2)->RecvAsync(KeyBetween(a, b, "k"), {}, later.callback());
  EXPECT_TRUE(later.Wait().ok()) << later.Wait().status();
  EXPECT_TRUE(next.Close(kSoon).ok());
}

INSTANTIATE_TEST_SUITE_P(Of, WrongBuffer,
                         ::testing::Values(std::tuple(4, ""), std::tuple(500'000, ""),
                                           std::tuple(4, "tcp"), std::tuple(500'000, "tcp")));

// A tensor from the heap is in flight while it is being copied to the arena: a sender that is
// notified of its receipt may leave.
TEST(RejectedTest, TensorStillBeingCopiedCountsAsUnreceived) {
  for (int i = 0; i < 4; ++i) {
    Directory directory;
    EngineEnd a(directory, 1);
    EngineEnd b(directory, 2);
    Step step = *a.engine->OpenStep(1);
    Receipt receipt;
    b.Step(1)->RecvAsync(KeyBetween(a, b, "k"), {}, receipt.callback());
    ASSERT_TRUE(step.Send(KeyBetween(a, b, "k"),
                          *Tensor::Allocate(DataType::kUint8, *Shape::Create({64 << 20})))
                    .ok());
    ASSERT_TRUE(step.Close(kSoon).ok());
    a.engine.reset();
    EXPECT_TRUE(receipt.Wait().ok()) << receipt.Wait().status();
  }
}

// On the loop no message can be received: the step is closed nonetheless.
TEST(RejectedTest, StepMayBeClosedOnTheLoop) {
  Directory directory;
  EngineEnd a(directory, 1);
  EngineEnd b(directory, 2);
  Receipt receipt;
  b.Step(1)->RecvAsync(KeyBetween(a, b, "k"), {}, receipt.callback());
  const auto is_asked = [&a] {
    size_t count = 0;
    a.engine->ForEachPending(absl::ZeroDuration(), [&count](const PendingStepOp&) { ++count; });
    return count > 0;
  };
  for (int i = 0; i < 2000 && !is_asked(); ++i) absl::SleepFor(absl::Milliseconds(5));
  ASSERT_TRUE(is_asked());
  absl::Notification closed;
  absl::Status status;
  a.engine->loop().Post([&] {
    Step step = *a.engine->OpenStep(1);
    EXPECT_TRUE(
        step.Send(KeyBetween(a, b, "k"), a.Allocate(DataType::kInt32, *Shape::Create({4}))).ok());
    status = step.Close(kSoon);
    closed.Notify();
  });
  ASSERT_TRUE(closed.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(receipt.Wait().ok());
}

// It names the untaken tensor, and does not wait for messages that only the same thread could
// receive.
TEST(StepCloseOnTheLoop, UntakenTensor_IsNamedAtOnce) {
  Directory directory;
  EngineEnd a(directory, 1);
  EngineEnd b(directory, 2);
  absl::Notification closed;
  absl::Status status;
  a.engine->loop().Post([&] {
    Step step = *a.engine->OpenStep(1);
    EXPECT_TRUE(
        step.Send(KeyBetween(a, b, "k"), a.Allocate(DataType::kInt32, *Shape::Create({4}))).ok());
    status = step.Close(absl::Hours(1));
    closed.Notify();
  });
  ASSERT_TRUE(closed.WaitForNotificationWithTimeout(kSoon));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("step 1 was closed inside a callback"), HasSubstr(";k;"),
                    HasSubstr("node 2 has not asked for it")));
}

}  // namespace
}  // namespace ferry
