// SPDX-License-Identifier: Apache-2.0
// The report of Close to a step's sender about tensors that are in flight.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/time/clock.h"

#include "base/thread.h"
#include "node/step.h"
#include "tests/node/engine_pair.h"
#include "tests/support/tcp_proxy.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// More than sockets and windows hold.
constexpr int64_t kBytes = int64_t{96} << 20;
#if defined(__SANITIZE_THREAD__)
// For each piece that gRPC's threads have written, without being instrumented, the sanitizer looks
// up the access that it then suppresses: half a minute for so many bytes on a quiet machine.
constexpr absl::Duration kTimeout = absl::Minutes(4);
#else
constexpr absl::Duration kTimeout = absl::Seconds(30);
#endif

// The timeout for a receiver that does not answer: far longer than an immediate return takes on a
// loaded machine.
constexpr absl::Duration kHear = absl::Seconds(30);
// The same where a test waits for all of it, once.
constexpr absl::Duration kShortHear = absl::Seconds(6);

// A proxy between the two that can stop their traffic, and cut it off.
class StepClose : public ::testing::TestWithParam<std::string> {
 protected:
  static TransferEngineOptions Options(absl::Duration hear) {
    TransferEngineOptions options;
    options.flush_timeout = hear;
    if (GetParam() == "grpc") {
      options.protocol = WireProtocol::kGrpc;
    } else {
      options.require_transport = GetParam();
    }
    return options;
  }
  explicit StepClose(absl::Duration hear = kHear)
      : source_(directory_, 1, Options(hear)), sink_(directory_, 2, Options(hear)) {
    Endpoint seen = source_.engine->self();
    std::string& address = GetParam() == "grpc" ? seen.grpc_address : seen.channels.tcp.at(0);
    proxy_ = std::make_unique<TcpProxy>(std::stoi(address.substr(address.rfind(':') + 1)));
    address = proxy_->address();
    seen.channels.tcp.resize(1);
    directory_.Publish(seen);
  }
  // The receiver has sent its request, and the proxy is stopped; then the tensor is sent.
  Receipt SendIntoAJam() {
    Receipt receipt;
    sink_.Step(1)->RecvAsync(key_, {}, receipt.callback());
    EXPECT_TRUE(Becomes([this] { return Pending() == 1; }));
    proxy_->SetStalled(true);
    EXPECT_TRUE(
        step_.Send(key_, *Tensor::Allocate(DataType::kUint8, *Shape::Create({kBytes}))).ok());
    return receipt;
  }
  size_t Pending() {
    size_t count = 0;
    source_.engine->rendezvous().ForEachPending(absl::ZeroDuration(),
                                                [&count](const PendingStepOp&) { ++count; });
    return count;
  }
  std::vector<PendingStepOp> Transfers() {
    std::vector<PendingStepOp> transfers;
    source_.engine->ForEachPending(absl::ZeroDuration(), [&](const PendingStepOp& op) {
      if (op.side == PendingStepOp::Side::kTransfer) transfers.push_back(op);
    });
    return transfers;
  }
  template <typename Condition>
  static bool Becomes(Condition condition) {
    for (int i = 0; i < 4000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(5));
    return condition();
  }

  Directory directory_;
  EngineEnd source_;
  EngineEnd sink_;
  Step step_{*source_.engine, source_.Step(1)};
  RendezvousKey key_ = KeyBetween(source_, sink_, "t");
  std::unique_ptr<TcpProxy> proxy_;
};

TEST_P(StepClose, TensorsInFlightAreListed) {
  Receipt receipt = SendIntoAJam();
  const std::vector<PendingStepOp> transfers = Transfers();
  ASSERT_EQ(transfers.size(), 1u);
  EXPECT_EQ(transfers[0].step_id, 1);
  EXPECT_EQ(transfers[0].key, key_);
  EXPECT_EQ(transfers[0].bytes, static_cast<size_t>(kBytes));
  EXPECT_THAT(transfers[0].phase, AllOf(HasSubstr("being sent to"), HasSubstr("by " + GetParam())));
  EXPECT_FALSE(transfers[0].outlives_sender);
  proxy_->SetStalled(false);
  const absl::Status arrived = receipt.Wait(kTimeout).status();
  EXPECT_TRUE(arrived.ok()) << arrived;
  EXPECT_TRUE(Becomes([this] { return Transfers().empty(); }));
  EXPECT_TRUE(step_.Close(absl::Seconds(20)).ok());
}

TEST_P(StepClose, WaitsForTensorsInFlightAndNamesThem) {
  SendIntoAJam();
  const absl::Status status = step_.Close(absl::Milliseconds(50));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr(key_.text()), HasSubstr("being sent to"), HasSubstr("by " + GetParam())));
  proxy_->SetStalled(false);
}

// Other steps may take any time.
TEST_P(StepClose, WaitsForItsOwnTensorsOnly) {
  Receipt receipt = SendIntoAJam();
  Step other(*source_.engine, source_.Step(2));
  const absl::Time start = SteadyClock().Now();
  EXPECT_TRUE(other.Close(absl::Seconds(20)).ok());
  EXPECT_LT(SteadyClock().Now() - start, kHear);
  proxy_->SetStalled(false);
  const absl::Status arrived = receipt.Wait(kTimeout).status();
  EXPECT_TRUE(arrived.ok()) << arrived;
}

class StepCloseThatHears : public StepClose {
 protected:
  StepCloseThatHears() : StepClose(kShortHear) {}
};

// A receiver that receives nothing, so that it cannot have rejected anything either.
TEST_P(StepCloseThatHears, SilentReceiver_IsWaitedForOnce) {
  constexpr int64_t kSteps = 6;
  const Shape shape = *Shape::Create({4});
  std::vector<Receipt> receipts(kSteps);
  for (int64_t i = 0; i < kSteps; ++i) {
    sink_.Step(10 + i)->RecvAsync(key_, {}, receipts[i].callback());
  }
  ASSERT_TRUE(Becomes([this] { return Pending() == kSteps; }));
  proxy_->SetStalled(true);
  const absl::Time start = SteadyClock().Now();
  for (int64_t i = 0; i < kSteps; ++i) {
    Step step(*source_.engine, source_.Step(10 + i));
    ASSERT_TRUE(step.Send(key_, *Tensor::Allocate(DataType::kUint8, shape)).ok());
    EXPECT_TRUE(step.Close(absl::Seconds(20)).ok());
  }
  // Waiting each time would have taken six times as long.
  EXPECT_LT(SteadyClock().Now() - start, (kSteps - 1) * kShortHear);
  proxy_->SetStalled(false);
  for (Receipt& each : receipts) EXPECT_TRUE(each.Wait(kTimeout).ok());
  // A receiver that answers again is waited for again.
  RecvArgs args;
  args.destination = sink_.Allocate(DataType::kDouble, shape);
  Receipt receipt;
  sink_.Step(30)->RecvAsync(key_, args, receipt.callback());
  Step step(*source_.engine, source_.Step(30));
  ASSERT_TRUE(step.Send(key_, *Tensor::Allocate(DataType::kUint8, shape)).ok());
  EXPECT_EQ(step.Close(absl::Seconds(20)).code(), absl::StatusCode::kInvalidArgument);
}

// It was sent, requested and exposed, and no process has received it.
TEST_P(StepClose, ReceiverDiesMidTransfer_ReturnsTheLoss) {
  Receipt receipt = SendIntoAJam();
  ASSERT_EQ(Transfers().size(), 1u);
  proxy_->SetRefusing(true);
  proxy_->Cut();
  const absl::Status status = step_.Close(absl::Seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("step 1"), HasSubstr(key_.text())));
  EXPECT_FALSE(receipt.Wait().ok());
}

// It hangs, or its machine has vanished; the coordinator reports it, and no connection does.
TEST_P(StepClose, ReceiverIsDeclaredDeadMidTransfer_ReturnsTheLoss) {
  Receipt receipt = SendIntoAJam();
  ASSERT_EQ(Transfers().size(), 1u);
  const absl::Time start = SteadyClock().Now();
  source_.engine->FailNode(2, absl::UnavailableError("node 2 has died: no heartbeat"));
  const absl::Status status = step_.Close(absl::Seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("node 2 has died: no heartbeat"), HasSubstr(key_.text())));
  // And nothing keeps this one from leaving.
  source_.engine.reset();
  EXPECT_LT(SteadyClock().Now() - start, kHear);
}

// The job has failed, for instance: tensors in flight may never arrive, and no report of it would.
TEST_P(StepClose, AbortedStep_TensorsInFlightCountAsLost) {
  Receipt receipt = SendIntoAJam();
  ASSERT_EQ(Transfers().size(), 1u);
  step_.Abort(absl::AbortedError("enough"));
  source_.engine->FailNode(2, absl::UnavailableError("node 2 has died: no heartbeat"));
  const absl::Status status = step_.Close(absl::Seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("enough"), HasSubstr(key_.text())));
}

INSTANTIATE_TEST_SUITE_P(Over, StepClose, ::testing::Values("tcp", "grpc"),
                         [](const auto& info) { return info.param; });
// Over gRPC receivers do not acknowledge.
INSTANTIATE_TEST_SUITE_P(Over, StepCloseThatHears, ::testing::Values("tcp"),
                         [](const auto& info) { return info.param; });

// The rest of it is useless, and may take long.
TEST(StepAbort, EndsTransfersInFlightByGrpc) {
  Directory directory;
  TransferEngineOptions options;
  options.protocol = WireProtocol::kGrpc;
  EngineEnd source(directory, 1, options);
  EngineEnd sink(directory, 2, options);
  Endpoint seen = source.engine->self();
  TcpProxy proxy(std::stoi(seen.grpc_address.substr(seen.grpc_address.rfind(':') + 1)));
  seen.grpc_address = proxy.address();
  directory.Publish(seen);
  Step step(*source.engine, source.Step(1));
  const RendezvousKey key = KeyBetween(source, sink, "t");
  Receipt receipt;
  proxy.SetStalled(true);
  ASSERT_TRUE(
      step.Send(key, *Tensor::Allocate(DataType::kUint8, *Shape::Create({4 * kBytes}))).ok());
  sink.Step(1)->RecvAsync(key, {}, receipt.callback());
  proxy.SetStalled(false);
  bool is_under_way = false;
  for (int i = 0; i < 100'000 && !is_under_way; ++i) {
    source.engine->ForEachTransfer(absl::ZeroDuration(),
                                   [&](const PendingStepOp&) { is_under_way = true; });
    if (!is_under_way) absl::SleepFor(absl::Microseconds(100));
  }
  ASSERT_TRUE(is_under_way);
  proxy.SetStalled(true);
  step.Abort(absl::AbortedError("enough"));
  proxy.SetStalled(false);
  const absl::Status status = receipt.Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 1 is over, in the middle"));
}

// A view is the receiver's for any time, and no reason to wait.
TEST(StepCloseOverMemory, ExportedTensorsAreListedAndNotWaitedFor) {
  Directory directory;
  EngineEnd source(directory, 1);
  EngineEnd sink(directory, 2);
  Step step(*source.engine, source.Step(1));
  const RendezvousKey key = KeyBetween(source, sink, "t");
  ASSERT_TRUE(step.Send(key, source.Allocate(DataType::kUint8, *Shape::Create({1 << 20}))).ok());
  absl::StatusOr<Received> view;
  {
    Receipt receipt;
    sink.Step(1)->RecvAsync(key, {}, receipt.callback());
    view = receipt.Wait();
  }
  ASSERT_TRUE(view.ok()) << view.status();
  // The receiver may have it before the sender has recorded the notification.
  std::vector<std::string> phases;
  bool is_lent = false;
  for (int i = 0; i < 4000 && !is_lent; ++i) {
    if (i > 0) absl::SleepFor(absl::Milliseconds(5));
    phases.clear();
    source.engine->ForEachTransfer(absl::ZeroDuration(), [&](const PendingStepOp& op) {
      is_lent = op.outlives_sender;
      phases.push_back(op.phase);
    });
  }
  EXPECT_TRUE(is_lent);
  EXPECT_THAT(phases, ::testing::ElementsAre("lent to node 2 by shm; not given back yet"));
  EXPECT_TRUE(step.Close(absl::Seconds(20)).ok());
}

// While the sender's loop still computes the checksum of a requested tensor.
TEST(StepCloseOverMemory, WaitsForTensorsThatJustLeftTheTable) {
  Directory directory;
  TransferEngineOptions options;
  options.require_transport = "tcp";
  options.checksum = true;
  auto source = std::make_unique<EngineEnd>(directory, 1, options);
  EngineEnd sink(directory, 2, options);
  const RendezvousKey key = KeyBetween(*source, sink, "t");
  Tensor tensor = *Tensor::Allocate(DataType::kUint8, *Shape::Create({2 * kBytes}));
  FillPattern(tensor, 1);
  Receipt receipt;
  {
    Step step(*source->engine, source->Step(1));
    ASSERT_TRUE(step.Send(key, std::move(tensor)).ok());
    sink.Step(1)->RecvAsync(key, {}, receipt.callback());
    const auto is_waiting = [&source] {
      bool found = false;
      source->engine->rendezvous().ForEachPending(absl::ZeroDuration(),
                                                  [&found](const PendingStepOp&) { found = true; });
      return found;
    };
    for (const absl::Time end = SteadyClock().Now() + absl::Seconds(20);
         is_waiting() && SteadyClock().Now() < end;) {
    }
    const absl::Status status = step.Close(absl::Seconds(20));
    EXPECT_TRUE(status.ok()) << status;
  }
  // No node leaves with tensors that others have been promised.
  source = nullptr;
  const absl::Status status = receipt.Wait().status();
  EXPECT_TRUE(status.ok()) << status;
}

// It was matched, and its receiver dies before it is listed as a transfer.
TEST(StepCloseOverMemory, ReceiverDiesWhileAValueIsPrepared_ReturnsTheLoss) {
  Directory directory;
  TransferEngineOptions options;
  options.require_transport = "tcp";
  options.checksum = true;
  EngineEnd source(directory, 1, options);
  EngineEnd sink(directory, 2, options);
  Step step(*source.engine, source.Step(1));
  const RendezvousKey key = KeyBetween(source, sink, "t");
  Tensor tensor = *Tensor::Allocate(DataType::kUint8, *Shape::Create({2 * kBytes}));
  FillPattern(tensor, 1);
  Receipt receipt;
  sink.Step(1)->RecvAsync(key, {}, receipt.callback());
  const auto is_waiting = [&source] {
    bool found = false;
    source.engine->rendezvous().ForEachPending(absl::ZeroDuration(),
                                               [&found](const PendingStepOp&) { found = true; });
    return found;
  };
  for (int i = 0; i < 4000 && !is_waiting(); ++i) absl::SleepFor(absl::Milliseconds(5));
  ASSERT_TRUE(is_waiting());
  Thread death("death", [&] {
    while (is_waiting()) {
    }
    source.engine->fetcher().Forget(2, absl::UnavailableError("node 2 has died"));
  });
  ASSERT_TRUE(step.Send(key, std::move(tensor)).ok());
  const absl::Status status = step.Close(absl::Seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_FALSE(receipt.Wait().ok());
}

// It has left the table, and no process has it: its sender must not take it for received.
TEST(StepCloseOverMemory, ValueCouldNotBeSent_ReturnsTheLoss) {
  Directory directory;
  TransferEngineOptions by_shm;
  by_shm.require_transport = "shm";
  EngineEnd source(directory, 1, by_shm, 0, "machine a");
  EngineEnd sink(directory, 2, by_shm, 0, "machine b");
  Step step(*source.engine, source.Step(1));
  const RendezvousKey key = KeyBetween(source, sink, "t");
  ASSERT_TRUE(step.Send(key, source.Allocate(DataType::kUint8, *Shape::Create({1 << 20}))).ok());
  Receipt receipt;
  sink.Step(1)->RecvAsync(key, {}, receipt.callback());
  EXPECT_FALSE(receipt.Wait().ok());
  const absl::Status status = step.Close(absl::Seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("two machines"), HasSubstr("step 1"), HasSubstr(key.text())));
}

TEST(StepCloseOverMemory, NoRoomForAValueInFlight_ReturnsTheLoss) {
  Directory directory;
  TransferEngineOptions small;
  small.require_transport = "shm";
  small.arena.budget_bytes = size_t{1} << 20;
  small.arena.segment_bytes = size_t{1} << 18;
  EngineEnd source(directory, 1, small);
  EngineEnd sink(directory, 2, small);
  Step step(*source.engine, source.Step(1));
  const RendezvousKey key = KeyBetween(source, sink, "t");
  ASSERT_TRUE(step.Send(key, *Tensor::Allocate(DataType::kUint8, *Shape::Create({4 << 20}))).ok());
  Receipt receipt;
  sink.Step(1)->RecvAsync(key, {}, receipt.callback());
  EXPECT_EQ(receipt.Wait().status().code(), absl::StatusCode::kResourceExhausted);
  const absl::Status status = step.Close(absl::Seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_host_bytes"));
}

// Nothing waits any more once the step was aborted, and yet nothing was taken.
TEST(StepAbortTest, AbortDuringClose_ReturnsWhyNothingWasReceived) {
  Directory directory;
  EngineEnd source(directory, 1);
  EngineEnd sink(directory, 2);
  Step step = *source.engine->OpenStep(1);
  const Tensor tensor = source.Allocate(DataType::kUint8, *Shape::Create({100}));
  ASSERT_TRUE(step.Send(KeyBetween(source, sink, "k"), tensor).ok());
  Thread aborting("aborting", [step]() mutable {
    absl::SleepFor(absl::Milliseconds(50));
    step.Abort(absl::AbortedError("enough"));
  });
  EXPECT_EQ(step.Close(kTimeout), absl::AbortedError("enough"));
}

}  // namespace
}  // namespace ferry
