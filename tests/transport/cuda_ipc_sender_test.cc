// SPDX-License-Identifier: Apache-2.0
// A sender whose peer answers probes: what it lends, it gets back on each path.
#include "transport/cuda_ipc/cuda_ipc_sender.h"

#include <optional>

#include "tests/transport/cuda_ipc_fixture.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

// More than a pair of devices has events.
constexpr int kManyTimes = 80;

class CudaIpcSenderTest : public CudaIpcTest {
 protected:
  CudaIpcSenderTest() {
    sender_ = std::make_shared<CudaIpcSender>(environment_, peer_,
                                              std::make_shared<DeferredReleaseQueue>(*loop_));
    sender_->SetControlChannel([this](absl::string_view body, absl::Span<const int>) {
      absl::MutexLock lock(&mu_);
      sent_.emplace_back(body);
      return absl::OkStatus();
    });
  }
  ~CudaIpcSenderTest() override {
    sender_->Abort(absl::UnavailableError("over"));
    // It keeps what the peer may still have open, for a while.
    sender_ = nullptr;
    Finish();
  }

  // The end of an Expose.
  struct End {
    absl::Notification is_over;
    absl::StatusOr<TransferDescriptor> descriptor = absl::UnknownError("not called");
    // Called with it.
    std::function<void()> then;
  };
  std::shared_ptr<End> Expose(uint64_t id, const Tensor& tensor,
                              std::function<void()> then = nullptr) {
    auto end = std::make_shared<End>();
    end->then = std::move(then);
    sender_->Expose(id, tensor, {MemorySpace::kCuda, 0},
                    [end](absl::StatusOr<TransferDescriptor> descriptor) {
                      end->descriptor = std::move(descriptor);
                      if (end->then) end->then();
                      end->is_over.Notify();
                    });
    return end;
  }
  Tensor Allocate() { return *gpus_->Allocate(0, DataType::kUint8, *Shape::Create({1000})); }
  // Complete when `held` is.
  Tensor NotReady(const cuda::HeldStream& held) {
    return cuda::WithReady(Allocate(), *cuda::ReadyEvent::Record(*gpu_->events, held.get()));
  }
  // The first message of the kind; nothing: there is none in time.
  std::optional<std::string> Await(CudaIpcMessage kind) {
    std::optional<std::string> found;
    const auto is_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      for (const std::string& each : sent_) {
        if (*KindOfCudaIpc(each) == kind) found = each;
      }
      return found.has_value();
    };
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(&is_there), kPatience);
    return found;
  }
  // The peer can open memory and events.
  void Open() {
    const auto first = Expose(1, Allocate());
    const auto probe = Await(CudaIpcMessage::kProbe);
    ASSERT_TRUE(probe.has_value());
    const CudaIpcProbe sent = *DecodeCudaIpcProbe(*probe);
    ASSERT_TRUE(sender_->OnControlMessage(EncodeCudaIpcProbed({sent.pair, sent.seed, ""})).ok());
    ASSERT_TRUE(first->is_over.WaitForNotificationWithTimeout(kPatience));
    ASSERT_TRUE(first->descriptor.ok()) << first->descriptor.status();
    sender_->Release(1);
  }
  // Blocks until a stream can wait for an event: only then one of the pair's events is used.
  void AwaitIdleStream() {
    for (bool is_idle = false; !is_idle;) {
      absl::Notification has_run;
      ASSERT_TRUE(gpu_->executor
                      ->Post([&] {
                        is_idle = gpu_->waits->TakeIdle() != nullptr;
                        has_run.Notify();
                      })
                      .ok());
      has_run.WaitForNotification();
    }
  }
  // A tensor that is not ready is exposed at once, and the receiver waits for it: there is an
  // event.
  void ExpectAnEvent() {
    AwaitIdleStream();
    cuda::HeldStream held(gpu_->device);
    const auto end = Expose(999, NotReady(held));
    Flush(*gpu_->executor);
    ASSERT_TRUE(end->is_over.HasBeenNotified()) << "the host waits for the tensor";
    ASSERT_TRUE(end->descriptor.ok()) << end->descriptor.status();
    const CudaIpcDescriptor descriptor = *DecodeCudaIpcDescriptor(end->descriptor->body);
    EXPECT_NE(descriptor.ready.sequence, 0u);
    sender_->Release(999);
  }

  absl::Mutex mu_;
  std::vector<std::string> sent_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<CudaIpcSender> sender_;
};

TEST_F(CudaIpcSenderTest, ReleasedTensors_ReturnTheirEvents) {
  Open();
  for (uint64_t id = 2; id < 2 + kManyTimes; ++id) {
    AwaitIdleStream();
    cuda::HeldStream held(gpu_->device);
    const auto end = Expose(id, NotReady(held));
    Flush(*gpu_->executor);
    ASSERT_TRUE(end->descriptor.ok()) << end->descriptor.status();
    ASSERT_NE(DecodeCudaIpcDescriptor(end->descriptor->body)->ready.sequence, 0u);
    sender_->Release(id);
  }
  ExpectAnEvent();
}

TEST_F(CudaIpcSenderTest, TensorsReleasedWhileBeingExposed_ReturnTheirEvents) {
  Open();
  for (uint64_t id = 2; id < 2 + kManyTimes; ++id) {
    AwaitIdleStream();
    cuda::HeldStream held(gpu_->device);
    std::shared_ptr<End> end;
    WhileHeld(*gpu_->executor, [&] {
      end = Expose(id, NotReady(held));
      sender_->Release(id);
    });
    ASSERT_TRUE(end->is_over.HasBeenNotified());
    EXPECT_TRUE(absl::IsCancelled(end->descriptor.status())) << end->descriptor.status();
  }
  ExpectAnEvent();
}

// The descriptor of the ring's memory cannot be made; the tensor's receiver is told.
TEST_F(CudaIpcSenderTest, SlicesThatCannotBeAnnounced_ReturnTheirEventsAndSlots) {
  Open();
  const cuda::ScopedCurrent current(*gpu_->device);
  cuda::DevicePointer pointer = 0;
  ASSERT_EQ(gpu_->device->table().memory_alloc(&pointer, 1000), cuda::kSuccess);
  {
    // Not of an arena, and too small to be mapped.
    const Tensor tensor = *Tensor::Create(
        DataType::kUint8, *Shape::Create({1000}),
        WrapForeignBuffer(cuda::AsHostPointer(pointer), 1000, [] {}, {MemorySpace::kCuda, 0}));
    for (uint64_t id = 2; id < 2 + kManyTimes; ++id) {
      const auto end = Expose(id, tensor, [] {
        // The slot has been taken, and its slice is copied and announced next.
        cuda::FailNext("cuMemExportToShareableHandle", cuda::kErrorOutOfMemory);
      });
      ASSERT_TRUE(end->is_over.WaitForNotificationWithTimeout(kPatience));
      ASSERT_TRUE(end->descriptor.ok()) << end->descriptor.status();
      EXPECT_TRUE(DecodeCudaIpcDescriptor(end->descriptor->body)->is_staged());
      Flush(*gpu_->executor);
      sender_->Release(id);
    }
    const auto failed = Await(CudaIpcMessage::kFailed);
    ASSERT_TRUE(failed.has_value());
    EXPECT_THAT(DecodeCudaIpcFailed(*failed)->why, HasSubstr("cuMemExportToShareableHandle"));
  }
  ExpectAnEvent();
  const auto are_free = [this] {
    const cuda::StagingRingStats stats = gpu_->ring->stats();
    return stats.free_count == stats.slot_count;
  };
  EXPECT_TRUE(loop_->WaitUntil(are_free, SteadyClock().Now() + kPatience));
  EXPECT_EQ(gpu_->device->table().memory_free(pointer), cuda::kSuccess);
}

}  // namespace
}  // namespace ferry
