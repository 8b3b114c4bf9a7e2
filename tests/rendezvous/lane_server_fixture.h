// SPDX-License-Identifier: Apache-2.0
// LaneServerTest: a producer's end of a lane whose frames the test inspects, with one step.
#ifndef FERRY_TESTS_RENDEZVOUS_LANE_SERVER_FIXTURE_H_
#define FERRY_TESTS_RENDEZVOUS_LANE_SERVER_FIXTURE_H_

#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "rendezvous/peer/lane_server.h"
#include "tests/rendezvous/keeping_lane.h"
#include "tests/rendezvous/lane_exchange_fixture.h"
#include "tests/rendezvous/lane_world.h"

namespace ferry {

class LaneServerTest : public LaneExchangeTest {
 protected:
  LaneServerTest() {
    exchange_.self.peer = kProducer;
    exchange_.manager = &manager_;
    exchange_.transports = &transports_;
    transports_.push_back(MakeFaultyTransport(state_, "views", true));
    step_ = *manager_.Find(kStep);
    EXPECT_TRUE(step_->Initialize({.job = "worker", .replica = 0, .task = kProducer.node_id}).ok());
    Open(/*sends_seals=*/false);
  }
  ~LaneServerTest() override { server_->OnClosed(absl::UnavailableError("over")); }

  void Open(bool sends_seals) {
    if (server_ != nullptr) server_->OnClosed(absl::UnavailableError("over"));
    Endpoint consumer;
    consumer.peer = kConsumer;
    server_ = std::make_shared<LaneServer>(exchange_, consumer, sends_seals, "",
                                           std::make_shared<LanePing>(clock_, transports_.size()));
    lane_ = std::make_shared<KeepingLane>(kConsumer);
    server_->OnOpen(lane_);
  }
  static RendezvousKey KeyOf(const std::string& name, uint64_t incarnation = kProducer.incarnation,
                             int consumer = kConsumer.node_id) {
    return *RendezvousKey::Parse(RendezvousKey::Text(
        "/job:worker/replica:0/task:1/device:CPU:0", incarnation,
        absl::StrCat("/job:worker/replica:0/task:", consumer, "/device:CPU:0"), name));
  }
  // A frame from the consumer, as `send` makes it.
  absl::Status Hear(absl::FunctionRef<absl::Status(Lane&)> send) {
    KeepingLane consumer(kProducer);
    EXPECT_TRUE(send(consumer).ok());
    return server_->OnFrame(static_cast<uint16_t>(consumer.types[0]), consumer.bodies[0], {});
  }
  // A value that is asked for, and sent or dead.
  void Exchange(const std::string& name, DataType dtype, int64_t elements, bool may_decline,
                bool is_dead = false) {
    const RendezvousKey key = KeyOf(name);
    KeepingLane asker(kProducer);
    ASSERT_TRUE(SendRequest(asker, {++id_, kStep, may_decline, key.text()}).ok());
    ASSERT_TRUE(server_->OnFrame(static_cast<uint16_t>(asker.types[0]), asker.bodies[0], {}).ok());
    Tensor tensor;
    if (!is_dead) {
      const Shape shape = *Shape::Create({elements});
      tensor = dtype == DataType::kString ? *Tensor::OfStrings(shape, {"a", "b"})
                                          : *Tensor::Allocate(dtype, shape);
    }
    ASSERT_TRUE(step_->Send(key, tensor, is_dead).ok());
  }
  // And that a PING goes out for it.
  std::optional<uint64_t> StartFlush() {
    const size_t frames = lane_->types.size();
    const std::optional<uint64_t> flush = server_->StartFlush(kStep);
    EXPECT_EQ(lane_->types.size(), frames + (flush ? 1 : 0));
    return flush;
  }
  bool MustAsk() {
    const std::optional<uint64_t> flush = StartFlush();
    if (!flush) return false;
    EXPECT_FALSE(server_->IsFlushed(*flush));
    EXPECT_TRUE(server_->OnFlushed(*DecodeId(lane_->bodies.back())).ok());
    EXPECT_TRUE(server_->IsFlushed(*flush));
    return true;
  }

  LaneExchange exchange_;
  std::shared_ptr<RemoteRendezvous> step_;
  std::shared_ptr<LaneServer> server_;
  std::shared_ptr<KeepingLane> lane_;
  uint64_t id_ = 0;
};

}  // namespace ferry

#endif  // FERRY_TESTS_RENDEZVOUS_LANE_SERVER_FIXTURE_H_
