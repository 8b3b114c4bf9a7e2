// SPDX-License-Identifier: Apache-2.0
// TensorResponderTest: a producer's end of a control channel whose frames the test inspects, with
// one step.
#ifndef FERRY_TESTS_RENDEZVOUS_TENSOR_RESPONDER_FIXTURE_H_
#define FERRY_TESTS_RENDEZVOUS_TENSOR_RESPONDER_FIXTURE_H_

#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "rendezvous/peer/tensor_responder.h"
#include "tests/rendezvous/peer_world.h"
#include "tests/rendezvous/recording_control_channel.h"
#include "tests/rendezvous/transfer_context_fixture.h"

namespace ferry {

class TensorResponderTest : public TransferContextTest {
 protected:
  TensorResponderTest() {
    context_.self.peer = kProducer;
    context_.manager = &manager_;
    context_.transports = &transports_;
    transports_.push_back(MakeFaultyTransport(state_, "views", true));
    step_ = *manager_.Find(kStep);
    EXPECT_TRUE(step_->Initialize({.job = "worker", .replica = 0, .task = kProducer.node_id}).ok());
    Open(/*sends_checksums=*/false);
  }
  ~TensorResponderTest() override { responder_->OnClosed(absl::UnavailableError("over")); }

  void Open(bool sends_checksums) {
    if (responder_ != nullptr) responder_->OnClosed(absl::UnavailableError("over"));
    Endpoint consumer;
    consumer.peer = kConsumer;
    consumer.transports = DescribeTransports(transports_);
    responder_ = std::make_shared<TensorResponder>(
        context_, consumer, sends_checksums, "",
        std::make_shared<LatencyProbe>(clock_, transports_.size()));
    channel_ = std::make_shared<RecordingControlChannel>(kConsumer);
    responder_->OnOpen(channel_);
  }
  static RendezvousKey KeyOf(const std::string& name, uint64_t incarnation = kProducer.incarnation,
                             int consumer = kConsumer.node_id) {
    return *RendezvousKey::Parse(RendezvousKey::Text(
        "/job:worker/replica:0/task:1/device:CPU:0", incarnation,
        absl::StrCat("/job:worker/replica:0/task:", consumer, "/device:CPU:0"), name));
  }
  // A frame from the consumer, as `send` makes it.
  absl::Status Hear(absl::FunctionRef<absl::Status(ControlChannel&)> send) {
    RecordingControlChannel consumer(kProducer);
    EXPECT_TRUE(send(consumer).ok());
    return responder_->OnFrame(static_cast<uint16_t>(consumer.types[0]), consumer.bodies[0], {});
  }
  // A value that is requested, and sent or dead.
  void Transfer(const std::string& name, DataType dtype, int64_t elements, bool may_reject,
                bool is_dead = false) {
    const RendezvousKey key = KeyOf(name);
    RecordingControlChannel asker(kProducer);
    ASSERT_TRUE(SendRequest(asker, {++id_, kStep, may_reject, key.text()}).ok());
    ASSERT_TRUE(
        responder_->OnFrame(static_cast<uint16_t>(asker.types[0]), asker.bodies[0], {}).ok());
    Tensor tensor;
    if (!is_dead) {
      const Shape shape = *Shape::Create({elements});
      tensor = dtype == DataType::kString ? *Tensor::OfStrings(shape, {"a", "b"})
                                          : *Tensor::Allocate(dtype, shape);
    }
    ASSERT_TRUE(step_->Send(key, tensor, is_dead).ok());
  }
  // And expects a PING for it.
  std::optional<uint64_t> StartFlush() {
    const size_t frames = channel_->types.size();
    const std::optional<uint64_t> flush = responder_->StartFlush(kStep);
    EXPECT_EQ(channel_->types.size(), frames + (flush ? 1 : 0));
    return flush;
  }
  bool MustAsk() {
    const std::optional<uint64_t> flush = StartFlush();
    if (!flush) return false;
    EXPECT_FALSE(responder_->IsFlushed(*flush));
    EXPECT_TRUE(responder_->OnFlushed(*DecodeId(channel_->bodies.back())).ok());
    EXPECT_TRUE(responder_->IsFlushed(*flush));
    return true;
  }

  TransferContext context_;
  std::shared_ptr<RemoteRendezvous> step_;
  std::shared_ptr<TensorResponder> responder_;
  std::shared_ptr<RecordingControlChannel> channel_;
  uint64_t id_ = 0;
};

}  // namespace ferry

#endif  // FERRY_TESTS_RENDEZVOUS_TENSOR_RESPONDER_FIXTURE_H_
