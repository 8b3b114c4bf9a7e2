// SPDX-License-Identifier: Apache-2.0
// Processes that end or hang between two messages of the protocol.
#include <algorithm>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "node/step.h"
#include "tests/node/exchange_kill.h"
#include "tests/node/rogue_process.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// More than fits in a transfer descriptor, and more than the sockets of a control channel buffer.
constexpr int64_t kBytes = int64_t{64} << 20;

class ExchangeWord : public ExchangeKill {
 protected:
  // One to warm up, one for later, and the one that ends.
  void Begin(Word at, int signal) {
    Fork(2);
    rogue_ = std::make_unique<RogueProcess>(GetParam(), at, signal, kBytes);
    StartHere();
    Warm(Meet(0));
    peers_[0]->Kill();
    EXPECT_TRUE(Becomes([this] { return here_->engine->fetcher().connection_count() == 0; }));
    before_ = Footprint::Now();
    rogue_->Meet(directory_, here_->engine->self());
  }
  // Nothing of it is left, and the next one is served.
  void End() {
    rogue_->Kill();
    EXPECT_TRUE(Becomes([this] { return here_->engine->fetcher().unfinished_sends() == 0; }));
    ExpectNothingLeft(before_);
    ExpectWorks(Meet(1), kBytes);
  }
  Step StepWithSend() {
    Step step(*here_->engine, here_->Step(kStepOfRogue));
    Tensor tensor = here_->Allocate(DataType::kUint8, *Shape::Create({kBytes}));
    EXPECT_TRUE(step.Send(rogue_->To("t"), std::move(tensor)).ok());
    return step;
  }

  std::unique_ptr<RogueProcess> rogue_;
  Footprint before_;
};

TEST_P(ExchangeWord, ProducerIsKilledAfterItReceivedTheRequest) {
  Begin(Word::kRequestHeard, SIGKILL);
  Receipt receipt = Receive(rogue_->From("t"));
  ExpectNamesPeerAndPhase(receipt);
  End();
}

TEST_P(ExchangeWord, ProducerIsKilledAfterItSentTheDescriptor) {
  Begin(Word::kReadyToSendSent, SIGKILL);
  {
    Receipt receipt = Receive(rogue_->From("t"));
    const auto received = receipt.Wait(kDetection);
    // A view of memory that was announced is as good as before.
    if (received.ok()) {
      EXPECT_EQ(GetParam(), std::string("shm"));
      EXPECT_TRUE(IsEqual(received->tensor, Pattern(kBytes)));
    } else {
      ExpectNamesPeerAndPhase(receipt);
    }
  }
  End();
}

TEST_P(ExchangeWord, ProducerHangsAfterItReceivedTheRequest) {
  Begin(Word::kRequestHeard, SIGSTOP);
  Step step(*here_->engine, step_);
  const absl::Status status = step.Recv(rogue_->From("t"), absl::Seconds(2)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("asked node 1, which has not sent it"));
  // Its answer comes too late, and is ignored.
  ASSERT_TRUE(rogue_->HasGone());
  rogue_->Continue();
  End();
}

TEST_P(ExchangeWord, ProducerHangsAfterItSentTheDescriptor) {
  Begin(Word::kReadyToSendSent, SIGSTOP);
  Tensor into = *Tensor::Allocate(DataType::kUint8, *Shape::Create({kBytes}));
  std::memset(into.mutable_data(), 0, into.bytes());
  Step step(*here_->engine, step_);
  const absl::Status status = step.RecvInto(rogue_->From("t"), into, absl::Seconds(3));
  ASSERT_TRUE(rogue_->HasGone());
  if (GetParam() == std::string("shm")) {
    // Nothing more is needed of it.
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(IsEqual(into, Pattern(kBytes)));
  } else {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("receiving from node 1 by tcp"));
    // The owner of the buffer may reuse it.
    std::memset(into.mutable_data(), 1, into.bytes());
    rogue_->Continue();
    absl::SleepFor(absl::Milliseconds(100));
    const auto* bytes = static_cast<const unsigned char*>(into.data());
    EXPECT_TRUE(std::all_of(bytes, bytes + into.bytes(), [](unsigned char b) { return b == 1; }));
  }
  End();
}

TEST_P(ExchangeWord, ConsumerIsKilledAfterItSentTheRequest) {
  Begin(Word::kRequestSent, SIGKILL);
  rogue_->AskFor(rogue_->To("t"));
  ASSERT_TRUE(rogue_->HasGone());
  EXPECT_TRUE(Becomes([this] { return here_->engine->fetcher().connection_count() == 0; }));
  // No process has received it.
  const absl::Status status = StepWithSend().Close(absl::Milliseconds(50));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(";t;"));
  End();
}

TEST_P(ExchangeWord, ConsumerIsKilledAfterItReceivedTheDescriptor) {
  Begin(Word::kReadyToSendReceived, SIGKILL);
  Step step = StepWithSend();
  rogue_->AskFor(rogue_->To("t"));
  ASSERT_TRUE(rogue_->HasGone());
  const absl::Status status = step.Close(absl::Seconds(20));
  if (GetParam() == std::string("tcp")) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("node 1"), HasSubstr(";t;")));
  }
  End();
}

TEST_P(ExchangeWord, ConsumerHangsAfterItReceivedTheDescriptor) {
  Begin(Word::kReadyToSendReceived, SIGSTOP);
  Step step = StepWithSend();
  rogue_->AskFor(rogue_->To("t"));
  ASSERT_TRUE(rogue_->HasGone());
  const absl::Time start = SteadyClock().Now();
  const absl::Status status = step.Close(absl::Seconds(2));
  // The deadline is two seconds; only a Close that ignores it takes so much longer.
  EXPECT_LT(SteadyClock().Now() - start, absl::Seconds(30));
  if (GetParam() == std::string("tcp")) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("being sent to node 1"));
  }
  // It is exported as long as the consumer may read it.
  EXPECT_GT(here_->engine->arena().stats().block_count, 0u);
  rogue_->Kill();
  End();
}

TEST_P(ExchangeWord, ConsumerIsKilledAfterItRejectedTheTensor) {
  Begin(Word::kRejectedSent, SIGKILL);
  Step step = StepWithSend();
  rogue_->AskFor(rogue_->To("t"));
  ASSERT_TRUE(rogue_->HasGone());
  const absl::Status status = step.Close(absl::Seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("it smells"));
  End();
}

TEST_P(ExchangeWord, ConsumerIsKilledAfterItSentTheAck) {
  Begin(Word::kAckSent, SIGKILL);
  Step step = StepWithSend();
  rogue_->AskFor(rogue_->To("t"));
  ASSERT_TRUE(rogue_->HasGone());
  const absl::Status status = step.Close(absl::Seconds(20));
  EXPECT_TRUE(status.ok()) << status;
  End();
}

INSTANTIATE_TEST_SUITE_P(Over, ExchangeWord, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ferry
