// SPDX-License-Identifier: Apache-2.0
// A producer whose tensors lie in a GPU's memory, of the fake driver: what it keeps of those
// that were staged through the host.
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include "gpu/cuda/ready_tensor.h"
#include "gpu/gpus.h"
#include "tests/gpu/cuda_fixture.h"
#include "tests/rendezvous/tensor_responder_fixture.h"

namespace ferry {
namespace {

// Far longer than a copy of the fake driver takes: only a copy that never completes takes so long.
constexpr absl::Duration kNever = absl::Seconds(10);

class StagingTest : public TensorResponderTest {
 protected:
  StagingTest() {
    setenv("FERRY_CUDA_LIBRARY", FERRY_STRICT_CUDA, /*overwrite=*/1);
    gpus_ = *Gpus::Create(*cuda::CudaApi::Load(), AllocateHeapBuffer, nullptr, {});
    context_.gpus = gpus_.get();
    Open(/*sends_checksums=*/false);
    channel_->keeps_pings = false;
    // On a thread of the device.
    channel_->on_send = [this](PeerMessageType type) {
      if (type == PeerMessageType::kReadyToSend) is_told_.Notify();
    };
  }
  ~StagingTest() override {
    responder_->OnClosed(absl::UnavailableError("over"));
    gpus_->Stop();
  }

  std::unique_ptr<Gpus> gpus_;
  absl::Notification is_told_;
};

// A step is closed when none of its transfers is on the list: one that stays there keeps its
// memory, and Close waits forever.
TEST_F(StagingTest, SmallTensorOfAGpu_IsOffTheListWhenItsDescriptorIsSent) {
  const RendezvousKey key = *RendezvousKey::Parse(
      RendezvousKey::Text("/job:worker/replica:0/task:1/device:GPU:0", kProducer.incarnation,
                          "/job:worker/replica:0/task:2/device:CPU:0", "edge"));
  ASSERT_TRUE(Hear([&](ControlChannel& channel) {
                return SendRequest(channel, {1, kStep, /*may_reject=*/false, key.text()});
              }).ok());
  absl::StatusOr<Tensor> tensor = gpus_->Allocate(0, DataType::kUint8, *Shape::Create({100}));
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  ASSERT_TRUE(step_->Send(key, *std::move(tensor)).ok());
  ASSERT_TRUE(is_told_.WaitForNotificationWithTimeout(kNever));
  // The thread that has sent it removes it next.
  const absl::Time give_up = SteadyClock().Now() + kNever;
  while (NonEmptyTables(responder_->InnerTableSizes()) != "" && SteadyClock().Now() < give_up) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(NonEmptyTables(responder_->InnerTableSizes()), "");
  EXPECT_EQ(responder_->unfinished(), 0u);
}

// No peer can have received a tensor that is still being copied out of a GPU's memory. An ACK for
// it is ignored, and its value arrives.
TEST_F(StagingTest, AckForATensorThatIsBeingStaged_IsIgnored) {
  const RendezvousKey key = *RendezvousKey::Parse(
      RendezvousKey::Text("/job:worker/replica:0/task:1/device:GPU:0", kProducer.incarnation,
                          "/job:worker/replica:0/task:2/device:CPU:0", "edge"));
  const absl::StatusOr<Gpu*> gpu = gpus_->Get(0);
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  cuda::HeldStream held((*gpu)->device);
  const auto ready = cuda::ReadyEvent::Record(*(*gpu)->events, held.get());
  ASSERT_TRUE(ready.ok()) << ready.status();
  ASSERT_TRUE(Hear([&](ControlChannel& channel) {
                return SendRequest(channel, {1, kStep, /*may_reject=*/false, key.text()});
              }).ok());
  absl::StatusOr<Tensor> tensor = gpus_->Allocate(0, DataType::kUint8, *Shape::Create({100}));
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  ASSERT_TRUE(step_->Send(key, cuda::WithReady(*std::move(tensor), *ready)).ok());
  EXPECT_EQ(responder_->unfinished(), 1u);
  EXPECT_TRUE(
      Hear([](ControlChannel& channel) { return SendId(channel, PeerMessageType::kAck, 1); }).ok());
  EXPECT_EQ(responder_->unfinished(), 1u);
  held.Go();
  EXPECT_TRUE(is_told_.WaitForNotificationWithTimeout(kNever));
}

// The consumer dies while a path is selected. The value is lost from then on, and not only when its
// staging copy is complete: a step that is closed meanwhile must report it.
TEST_F(StagingTest, ChannelClosesBeforeATensorIsStaged_ItIsLostAtOnce) {
  const RendezvousKey key = *RendezvousKey::Parse(
      RendezvousKey::Text("/job:worker/replica:0/task:1/device:GPU:0", kProducer.incarnation,
                          "/job:worker/replica:0/task:2/device:CPU:0", "edge"));
  const absl::StatusOr<Gpu*> gpu = gpus_->Get(0);
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  // No copy ends before `held` is destroyed.
  cuda::HeldStream held((*gpu)->device);
  const auto ready = cuda::ReadyEvent::Record(*(*gpu)->events, held.get());
  ASSERT_TRUE(ready.ok()) << ready.status();
  ASSERT_TRUE(Hear([&](ControlChannel& channel) {
                return SendRequest(channel, {1, kStep, /*may_reject=*/false, key.text()});
              }).ok());
  absl::StatusOr<Tensor> tensor = gpus_->Allocate(0, DataType::kUint8, *Shape::Create({100}));
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  state_->on_cost = [this] { responder_->OnClosed(absl::UnavailableError("the peer is gone")); };
  ASSERT_TRUE(step_->Send(key, cuda::WithReady(*std::move(tensor), *ready)).ok());
  ASSERT_EQ(state_->on_cost, nullptr);
  EXPECT_EQ(step_->send_status().code(), absl::StatusCode::kUnavailable) << step_->send_status();
  EXPECT_EQ(NonEmptyTables(responder_->InnerTableSizes()), "");
}

}  // namespace
}  // namespace ferry
