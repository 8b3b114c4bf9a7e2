// SPDX-License-Identifier: Apache-2.0
// A sender whose peer answers probes: memory that the peer had is released on each path.
#include "transport/cuda_ipc/cuda_ipc_sender.h"

#include <fcntl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/transport/cuda_ipc_fixture.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

// More than a pair of devices has events.
constexpr int kManyTimes = 80;

class CudaIpcSenderTest : public CudaIpcTest {
 protected:
  // Streams wait on the device, so that events between the processes are used.
  CudaIpcSenderTest() : CudaIpcSenderTest(WaitingOnDevice()) {}
  explicit CudaIpcSenderTest(const GpusOptions& options) : CudaIpcTest(options) {
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

  static GpusOptions WaitingOnDevice() {
    GpusOptions options;
    options.waits_on_device = true;
    return options;
  }

  absl::Mutex mu_;
  std::vector<std::string> sent_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<CudaIpcSender> sender_;
};

// By default the executor queries the events of tensors.
class CudaIpcSenderQueryTest : public CudaIpcSenderTest {
 protected:
  CudaIpcSenderQueryTest() : CudaIpcSenderTest(GpusOptions()) {}
};

TEST_F(CudaIpcSenderQueryTest, IncompleteTensor_IsExposedWhenItIsComplete) {
  Open();
  cuda::HeldStream held(gpu_->device);
  const auto end = Expose(2, NotReady(held));
  Flush(*gpu_->executor);
  EXPECT_FALSE(end->is_over.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
  // None of the streams for waits has got the wait.
  EXPECT_EQ(gpu_->waits->TakeIdle(), gpu_->waits->TakeIdleOrAny());
  held.Go();
  ASSERT_TRUE(end->is_over.WaitForNotificationWithTimeout(kPatience));
  ASSERT_TRUE(end->descriptor.ok()) << end->descriptor.status();
  EXPECT_EQ(DecodeCudaIpcDescriptor(end->descriptor->body)->ready.sequence, 0u);
  sender_->Release(2);
  held.Finish();
}

// The receiver cancels while the stream still writes: the transfer ends at once, and the memory is
// kept until the stream has passed.
TEST_F(CudaIpcSenderQueryTest, IncompleteTensorIsReleased_TheTransferEndsAndTheMemoryIsKept) {
  Open();
  cuda::HeldStream held(gpu_->device);
  Tensor tensor = NotReady(held);
  const std::weak_ptr<Buffer> memory = cuda::MemoryOf(tensor);
  const auto end = Expose(2, std::exchange(tensor, Tensor()));
  Flush(*gpu_->executor);
  sender_->Release(2);
  ASSERT_TRUE(end->is_over.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(absl::IsCancelled(end->descriptor.status())) << end->descriptor.status();
  Flush(*gpu_->executor);
  EXPECT_FALSE(memory.expired());
  held.Go();
  held.Finish();
  const absl::Time give_up = absl::Now() + kPatience;
  while (!memory.expired() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(memory.expired());
}

TEST_F(CudaIpcSenderQueryTest, ControlChannelEnds_TheTransferOfAnIncompleteTensorEnds) {
  Open();
  cuda::HeldStream held(gpu_->device);
  const auto end = Expose(2, NotReady(held));
  Flush(*gpu_->executor);
  sender_->Abort(absl::UnavailableError("over"));
  ASSERT_TRUE(end->is_over.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(absl::IsUnavailable(end->descriptor.status())) << end->descriptor.status();
  held.Go();
  held.Finish();
}

// The receiver has released it, and the stream still writes: the memory must not be reused yet.
TEST_F(CudaIpcSenderTest, IncompleteTensorIsReleased_TheMemoryIsKept) {
  Open();
  AwaitIdleStream();
  cuda::HeldStream held(gpu_->device);
  Tensor tensor = NotReady(held);
  const std::weak_ptr<Buffer> memory = cuda::MemoryOf(tensor);
  const auto end = Expose(2, std::exchange(tensor, Tensor()));
  Flush(*gpu_->executor);
  ASSERT_TRUE(end->is_over.HasBeenNotified());
  ASSERT_TRUE(end->descriptor.ok()) << end->descriptor.status();
  sender_->Release(2);
  Flush(*gpu_->executor);
  EXPECT_FALSE(memory.expired());
  held.Go();
  held.Finish();
  const absl::Time give_up = absl::Now() + kPatience;
  while (!memory.expired() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(memory.expired());
}

TEST_F(CudaIpcSenderTest, IncompleteTensorIsRefusedWhileTheExecutorIsFull_TheMemoryIsKept) {
  Open();
  AwaitIdleStream();
  cuda::HeldStream held(gpu_->device);
  Tensor tensor = NotReady(held);
  const std::weak_ptr<Buffer> memory = cuda::MemoryOf(tensor);
  const auto end = Expose(2, std::exchange(tensor, Tensor()));
  Flush(*gpu_->executor);
  ASSERT_TRUE(end->is_over.HasBeenNotified());
  ASSERT_TRUE(end->descriptor.ok()) << end->descriptor.status();
  WhileFull(*gpu_->executor, [&] {
    EXPECT_TRUE(sender_->OnControlMessage(EncodeCudaIpcRefused({2, "cannot"})).ok());
  });
  EXPECT_FALSE(memory.expired());
  // The receiver is told.
  EXPECT_TRUE(Await(CudaIpcMessage::kFailed).has_value());
  sender_->Release(2);
  held.Go();
  held.Finish();
}

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

// Memory of the program, which it registers.
class CudaIpcRemoteMappingsTest : public CudaIpcSenderTest {
 protected:
  static constexpr size_t kBytes = size_t{2} << 20;

  CudaIpcRemoteMappingsTest() {
    const cuda::ScopedCurrent current(*gpu_->device);
    EXPECT_EQ(gpu_->device->table().memory_alloc(&memory_, kBytes), cuda::kSuccess);
    is_dropped_ = std::make_shared<absl::Notification>();
    registration_ = *gpus_->RegisterMemory(
        *Tensor::Create(DataType::kUint8, *Shape::Create({1}),
                        WrapForeignBuffer(cuda::AsHostPointer(memory_), 1,
                                          [is_dropped = is_dropped_] { is_dropped->Notify(); },
                                          {MemorySpace::kCuda, 0})));
  }
  ~CudaIpcRemoteMappingsTest() override {
    const cuda::ScopedCurrent current(*gpu_->device);
    EXPECT_EQ(gpu_->device->table().memory_free(memory_), cuda::kSuccess);
  }
  // A sender to a peer with this descriptor in its HELLO.
  void TalkTo(const std::string& descriptor) {
    sender_->Abort(absl::UnavailableError("another peer"));
    peer_.transports = {{std::string(kCudaIpcName), descriptor}};
    {
      absl::MutexLock lock(&mu_);
      sent_.clear();
    }
    sender_ = std::make_shared<CudaIpcSender>(environment_, peer_,
                                              std::make_shared<DeferredReleaseQueue>(*loop_));
    sender_->SetControlChannel([this](absl::string_view body, absl::Span<const int> descriptors) {
      absl::MutexLock lock(&mu_);
      sent_.emplace_back(body);
      if (*KindOfCudaIpc(body) == CudaIpcMessage::kProbe) {
        lines_.emplace_back(fcntl(descriptors.back(), F_DUPFD_CLOEXEC, 0));
        if (!keeps_lines_) lines_.clear();
      }
      return absl::OkStatus();
    });
    Open();
  }
  Tensor Another() {
    return *Tensor::Create(
        DataType::kUint8, *Shape::Create({static_cast<int64_t>(kBytes)}),
        WrapForeignBuffer(cuda::AsHostPointer(memory_), kBytes, [] {}, {MemorySpace::kCuda, 0}));
  }
  CudaIpcPiece Send(uint64_t id) {
    const auto end = Expose(id, Another());
    EXPECT_TRUE(end->is_over.WaitForNotificationWithTimeout(kPatience));
    EXPECT_TRUE(end->descriptor.ok()) << end->descriptor.status();
    const CudaIpcDescriptor descriptor = *DecodeCudaIpcDescriptor(end->descriptor->body);
    EXPECT_EQ(descriptor.pieces.size(), 1u);
    return descriptor.pieces.at(0);
  }
  int CountOf(CudaIpcMessage kind) {
    absl::MutexLock lock(&mu_);
    int count = 0;
    for (const std::string& each : sent_) count += *KindOfCudaIpc(each) == kind ? 1 : 0;
    return count;
  }

  // Returns true if it is dropped on the loop within that time.
  bool IsDroppedWithin(absl::Duration timeout) {
    return loop_->WaitUntil([this] { return is_dropped_->HasBeenNotified(); },
                            SteadyClock().Now() + timeout);
  }

  cuda::DevicePointer memory_ = 0;
  // The peer's ends of the lifelines, in the order of the probes.
  bool keeps_lines_ = false;
  std::vector<UniqueFd> lines_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<absl::Notification> is_dropped_;
  std::unique_ptr<cuda::ExportRegistration> registration_;
};

TEST_F(CudaIpcRemoteMappingsTest, PeerOfAnEarlierRelease_ClosesItForEachTransfer) {
  TalkTo("");
  EXPECT_FALSE(Send(2).may_stay_open);
  sender_->Release(2);
  registration_.reset();
  EXPECT_TRUE(is_dropped_->HasBeenNotified());
  EXPECT_EQ(CountOf(CudaIpcMessage::kReclaim), 0);
}

TEST_F(CudaIpcRemoteMappingsTest, UnregisteredMemory_IsReclaimedBehindItsLastTransfer) {
  TalkTo(EncodeCudaIpcPeer());
  const CudaIpcPiece piece = Send(2);
  EXPECT_TRUE(piece.may_stay_open);
  EXPECT_TRUE(Send(3).may_stay_open);
  sender_->Release(2);
  // The peer was not asked to close anything.
  const std::string closed = EncodeCudaIpcReclaimed({{0, 0}, piece.memory.allocation_id});
  EXPECT_EQ(sender_->OnControlMessage(closed).code(), absl::StatusCode::kInvalidArgument);
  registration_.reset();
  EXPECT_EQ(CountOf(CudaIpcMessage::kReclaim), 0);
  // Does not stay mapped any more.
  EXPECT_FALSE(Send(4).may_stay_open);
  sender_->Release(3);
  const auto asked = Await(CudaIpcMessage::kReclaim);
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(DecodeCudaIpcReclaim(*asked)->allocation_id, piece.memory.allocation_id);
  sender_->Release(4);
  EXPECT_EQ(CountOf(CudaIpcMessage::kReclaim), 1);
  EXPECT_FALSE(is_dropped_->HasBeenNotified());
  EXPECT_TRUE(sender_->OnControlMessage(closed).ok());
  EXPECT_TRUE(is_dropped_->HasBeenNotified());
  EXPECT_EQ(sender_->OnControlMessage(closed).code(), absl::StatusCode::kInvalidArgument);
}

// The peer may read it for a little longer, and cannot say when it has closed it.
TEST_F(CudaIpcRemoteMappingsTest, ControlChannelEnds_ItIsDroppedAfterAWhile) {
  TalkTo(EncodeCudaIpcPeer());
  Send(2);
  sender_->Release(2);
  sender_->Abort(absl::UnavailableError("over"));
  registration_.reset();
  EXPECT_FALSE(is_dropped_->HasBeenNotified());
  EXPECT_TRUE(loop_->WaitUntil([this] { return is_dropped_->HasBeenNotified(); },
                               SteadyClock().Now() + kPatience));
}

// A peer keeps one of the lines. That of another probe ends at once, which says nothing: it is from
// the death of the peer on that the driver is given time to close what the peer had mapped.
TEST_F(CudaIpcRemoteMappingsTest, PeerThatKeepsTheLineOfALaterProbe_IsGivenItsTimeFromItsDeathOn) {
  keeps_lines_ = true;
  TalkTo(EncodeCudaIpcPeer());
  Send(2);
  sender_->Release(2);
  sender_->Expose(3, Allocate(), {MemorySpace::kCuda, 1},
                  [](absl::StatusOr<TransferDescriptor>) {});
  Flush(*gpu_->executor);
  {
    absl::MutexLock lock(&mu_);
    ASSERT_EQ(lines_.size(), 2u);
    lines_[0].Reset();
  }
  sender_->Abort(absl::UnavailableError("over"));
  registration_.reset();
  EXPECT_FALSE(IsDroppedWithin(DeferredReleaseQueue::kGrace + absl::Milliseconds(500)));
  {
    absl::MutexLock lock(&mu_);
    lines_[1].Reset();
  }
  EXPECT_FALSE(IsDroppedWithin(DeferredReleaseQueue::kGrace / 2));
  EXPECT_TRUE(IsDroppedWithin(kPatience));
}

// It has nothing mapped any more: there is nothing to wait for.
TEST_F(CudaIpcRemoteMappingsTest, PeerThatHasClosedAll_IsGivenNoMoreTime) {
  keeps_lines_ = true;
  TalkTo(EncodeCudaIpcPeer());
  Send(2);
  sender_->Release(2);
  sender_->Expose(3, Allocate(), {MemorySpace::kCuda, 1},
                  [](absl::StatusOr<TransferDescriptor>) {});
  Flush(*gpu_->executor);
  auto received = std::make_unique<ReceivedLifelines>();
  {
    absl::MutexLock lock(&mu_);
    ASSERT_EQ(lines_.size(), 2u);
    for (UniqueFd& each : lines_) received->Add(std::exchange(each, UniqueFd()));
  }
  sender_->Abort(absl::UnavailableError("over"));
  registration_.reset();
  EXPECT_FALSE(IsDroppedWithin(absl::Milliseconds(200)));
  received = nullptr;
  EXPECT_TRUE(IsDroppedWithin(DeferredReleaseQueue::kGrace / 2));
}

// It could not say that it has closed the memory, if its control channel ends before.
TEST_F(CudaIpcRemoteMappingsTest, PeerWithoutLifelines_KeepsNothingMapped) {
  TalkTo(std::string(1, '\x01'));
  EXPECT_FALSE(Send(2).may_stay_open);
  sender_->Release(2);
  registration_.reset();
  EXPECT_TRUE(is_dropped_->HasBeenNotified());
}

// One for each peer that ever came would be kept otherwise.
TEST_F(CudaIpcRemoteMappingsTest, ListenersOfPeersThatHaveGone_AreForgotten) {
  uint64_t id = 2;
  std::shared_ptr<const cuda::RegisteredMemory> memory;
  for (int i = 0; i < 5; ++i) {
    TalkTo(EncodeCudaIpcPeer());
    const CudaIpcPiece piece = Send(id);
    memory = gpus_->exports()->Find(piece.memory.allocation_id);
    ASSERT_NE(memory, nullptr);
    // Not a second time for another transfer, or after it was reclaimed and registered again.
    Send(id + 1);
    sender_->Release(id++);
    sender_->Release(id++);
    Flush(*gpu_->executor);
  }
  // The last one's, and that of the one before if it is still needed.
  EXPECT_LE(memory->listener_count(), 2u);
  EXPECT_GE(memory->listener_count(), 1u);
}

// The program's kernel never ends, the peer refuses the memory, and goes: nothing waits for it.
TEST_F(CudaIpcRemoteMappingsTest, RefusedTensorThatNobodyWants_IsLetGoOf) {
  TalkTo(EncodeCudaIpcPeer());
  AwaitIdleStream();
  cuda::HeldStream held(gpu_->device);
  const auto end =
      Expose(2, cuda::WithReady(Another(), *cuda::ReadyEvent::Record(*gpu_->events, held.get())));
  Flush(*gpu_->executor);
  ASSERT_TRUE(end->is_over.HasBeenNotified());
  ASSERT_TRUE(end->descriptor.ok()) << end->descriptor.status();
  ASSERT_TRUE(sender_->OnControlMessage(EncodeCudaIpcRefused({2, "cannot"})).ok());
  Flush(*gpu_->executor);
  sender_->Abort(absl::UnavailableError("over"));
  const std::weak_ptr<CudaIpcSender> weak = sender_;
  sender_ = std::make_shared<CudaIpcSender>(environment_, peer_,
                                            std::make_shared<DeferredReleaseQueue>(*loop_));
  const absl::Time give_up = absl::Now() + kPatience;
  while (!weak.expired() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(weak.expired());
  held.Go();
  held.Finish();
}

}  // namespace
}  // namespace ferry
