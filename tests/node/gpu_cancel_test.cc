// SPDX-License-Identifier: Apache-2.0
// Tensors that are not ready, receives that are cancelled, and operations that fail once and work
// later.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

#include "tests/node/gpu_pair.h"
#include "tests/node/gpu_spin.h"
#include "transport/cuda_ipc/cuda_ipc_sender.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

// In a pool that other processes cannot open.
Tensor InDefaultPool(GpuPeer& peer, size_t bytes = kBytes) {
  Gpu& gpu = peer.gpu(0);
  const cuda::CudaTable& table = gpu.device->table();
  const cuda::ScopedCurrent current(*gpu.device);
  const auto stream = peer.NewStream(0);
  cuda::MemoryPool pool = nullptr;
  cuda::DevicePointer pointer = 0;
  FERRY_CHECK(table.device_get_default_pool(&pool, gpu.device->handle()) == cuda::kSuccess);
  FERRY_CHECK(table.pool_alloc_async(&pointer, bytes, pool, stream->get()) == cuda::kSuccess);
  FERRY_CHECK(table.stream_synchronize(stream->get()) == cuda::kSuccess);
  return *Tensor::Create(
      DataType::kUint8, *Shape::Create({static_cast<int64_t>(bytes)}),
      WrapForeignBuffer(cuda::AsHostPointer(pointer), bytes, [] {}, {MemorySpace::kCuda, 0}));
}

void ExpectHolds(GpuPeer& peer, const Received& received, uint32_t seed, size_t bytes = kBytes) {
  const Tensor pattern = GpuPeer::Pattern(bytes, seed);
  if (received.tensor.is_on_host()) {
    EXPECT_TRUE(IsEqual(received.tensor, pattern));
    return;
  }
  const int ordinal = received.tensor.location().ordinal;
  const auto stream = peer.NewStream(ordinal);
  if (const auto ready = cuda::ReadyOf(received.tensor); ready != nullptr) {
    EXPECT_TRUE(ready->EnqueueWait(*peer.gpu(ordinal).device, stream->get()).ok());
  }
  EXPECT_TRUE(Holds(peer.Read(received.tensor, stream->get()), pattern)) << "tensor " << seed;
}

GpuPairOptions WaitingOnDevice(bool is_on) {
  GpuPairOptions options;
  options.transfer.gpus.waits_on_device = is_on;
  return options;
}

// A dozen tensors behind kernels that do not end, more than there are streams to wait on, and a
// ready one that comes last.
void ExpectNobodyIsHeldUp(const std::string& to, bool is_foreign, bool waits_on_device) {
  SCOPED_TRACE(waits_on_device ? "streams wait" : "the host queries events");
  constexpr int kLate = 12;
  GpuPairOptions options = WaitingOnDevice(waits_on_device);
  // The kernels of the producer itself occupy more queues than a GPU has.
  options.environment = {{"STRICT_CUDA_CONNECTIONS", "0"}};
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        GpuSpin spin(peer, 0);
        Step step = peer.Open();
        std::vector<std::unique_ptr<cuda::CudaStream>> streams;
        std::vector<Tensor> patterns;
        for (int i = 0; i <= kLate; ++i) {
          streams.push_back(peer.NewStream(0));
          patterns.push_back(GpuPeer::Pattern(kBytes, static_cast<uint32_t>(i)));
          const Tensor tensor = is_foreign ? InDefaultPool(peer) : OnGpu(peer, 0);
          if (i < kLate) spin.Start(streams.back()->get());
          peer.Write(tensor, patterns.back(), streams.back()->get());
          ASSERT_TRUE(step.Send(KeyOf(i, to), tensor, streams.back()->get()).ok());
        }
        peer.Meet();
        spin.Stop();
        const absl::Status closed = step.Close(kTimeout);
        EXPECT_TRUE(closed.ok()) << closed;
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        Step step = peer.Open();
        std::vector<Receipt> receipts(kLate + 1);
        for (int i = 0; i <= kLate; ++i) {
          step.RecvAsync(KeyOf(i, to), {}, receipts[static_cast<size_t>(i)].callback());
        }
        for (int i = kLate; i >= 0; --i) {
          const auto received = receipts[static_cast<size_t>(i)].Wait(kTimeout);
          ASSERT_TRUE(received.ok()) << received.status();
          ExpectHolds(peer, *received, static_cast<uint32_t>(i));
          if (i == kLate) peer.Meet();
        }
        receipts.clear();
        peer.Meet();
      });
}

// A GPU has fewer queues than the producer has streams here: what is ready may be behind what is
// not, whatever Ferry does. gpu-check's part "running" has one of them.
TEST(GpuCancel, UnreadyTensors_DelayNoView) {
  NEEDS_FAKE_DRIVER("can have a queue for each stream");
  for (const bool waits : {false, true}) ExpectNobodyIsHeldUp("GPU:0", false, waits);
}
TEST(GpuCancel, UnreadyTensors_DelayNoCopy) {
  NEEDS_FAKE_DRIVER("can have a queue for each stream");
  for (const bool waits : {false, true}) ExpectNobodyIsHeldUp("GPU:1", false, waits);
}
TEST(GpuCancel, UnreadyTensors_DelayNoSlice) {
  NEEDS_FAKE_DRIVER("can have a queue for each stream");
  for (const bool waits : {false, true}) ExpectNobodyIsHeldUp("GPU:0", true, waits);
}
TEST(GpuCancel, UnreadyTensors_DelayNothingForTheHost) {
  NEEDS_FAKE_DRIVER("can have a queue for each stream");
  for (const bool waits : {false, true}) ExpectNobodyIsHeldUp("CPU:0", false, waits);
}

// The receive ends in time. Its buffer is kept as long as the device may write to it: with streams
// that wait, until the producer's kernel has ended.
void ExpectReceiveEndsInTime(bool waits_on_device) {
  GpuPairOptions options = WaitingOnDevice(waits_on_device);
  // The write behind the kernel would hold a single queue, and with it the marks of the producer.
  if (waits_on_device) options.environment = {{"STRICT_CUDA_CONNECTIONS", "0"}};
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        GpuSpin spin(peer, 0);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor tensor = OnGpu(peer, 0);
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        spin.Start(stream->get());
        peer.Write(tensor, pattern, stream->get());
        ASSERT_TRUE(step.Send(KeyOf(0, "GPU:1"), tensor, stream->get()).ok());
        peer.Meet();
        spin.Stop();
        peer.Meet();
      },
      [waits_on_device](GpuPeer& peer) {
        Step step = peer.Open();
        Tensor into = OnGpu(peer, 1);
        const std::weak_ptr<Buffer> memory = cuda::MemoryOf(into);
        // The producer's kernel ends when this side has reached Meet: a receive that waited for it
        // would not return.
        const absl::Status status = step.RecvInto(KeyOf(0, "GPU:1"), into, absl::Milliseconds(700));
        EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
        into = Tensor();
        const auto is_released = [&memory] {
          const absl::Time give_up = absl::Now() + kTimeout;
          while (!memory.expired() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
          return memory.expired();
        };
        if (waits_on_device) {
          absl::SleepFor(absl::Milliseconds(300));
          EXPECT_FALSE(memory.expired()) << "given to others while a copy to it is enqueued";
        } else {
          EXPECT_TRUE(is_released()) << "kept for a copy that was never enqueued";
        }
        peer.Meet();
        EXPECT_TRUE(is_released());
        peer.Meet();
      });
}

TEST(GpuCancel, ReceiverDoesNotWaitForTheProducersKernel) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  ExpectReceiveEndsInTime(/*waits_on_device=*/false);
}
TEST(GpuCancel, ReceiverDoesNotWaitForTheProducersKernel_StreamsWait) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  ExpectReceiveEndsInTime(/*waits_on_device=*/true);
}

// Cancelled while slices are in flight: the ring is complete again, and other transfers proceed.
TEST(GpuCancel, TransferInSlicesIsCancelled) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options;
  options.environment = {{"STRICT_CUDA_DELAY_US", "5000"}};
  options.transfer.gpus.staging = {.budget_bytes = size_t{4} << 20, .slot_bytes = size_t{2} << 20};
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        Step step = peer.Open();
        const auto stream = peer.NewStream(0);
        const Tensor large = InDefaultPool(peer, 200 << 20);
        const Tensor small = InDefaultPool(peer);
        const Tensor pattern = GpuPeer::Pattern(kBytes, 1);
        peer.Write(small, pattern, stream->get());
        ASSERT_TRUE(step.Send(KeyOf(0), large, stream->get()).ok());
        ASSERT_TRUE(step.Send(KeyOf(1), small, stream->get()).ok());
        while (peer.gpu(0).ring->stats().taken == 0) absl::SleepFor(absl::Milliseconds(1));
        peer.Meet();
        peer.Meet();
        const absl::Status closed = step.Close(kTimeout);
        EXPECT_TRUE(closed.ok()) << closed;
        const absl::Time give_up = absl::Now() + kTimeout;
        const auto is_whole = [&] {
          const cuda::StagingRingStats stats = peer.gpu(0).ring->stats();
          return stats.slot_count == 2 && stats.free_count == 2 && stats.waiting_count == 0;
        };
        while (!is_whole() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
        EXPECT_TRUE(is_whole());
        peer.Meet();
      },
      [](GpuPeer& peer) {
        Step step = peer.Open();
        CancellationToken cancellation;
        Receipt receipt;
        step.RecvAsync(KeyOf(0), {.cancellation = &cancellation}, receipt.callback());
        peer.Meet();
        cancellation.Cancel();
        const auto none = receipt.Wait(kTimeout);
        EXPECT_TRUE(absl::IsCancelled(none.status())) << none.status();
        const auto received = step.RecvValue(KeyOf(1), kTimeout);
        ASSERT_TRUE(received.ok()) << received.status();
        ExpectHolds(peer, *received, 1);
        peer.Meet();
        peer.Meet();
      });
}

// Nobody receives it, and the program has let go of it: its stream still writes there.
TEST(GpuCancel, StepIsAbortedWhileTheStreamWrites_TheMemoryIsNotUsedAgain) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const auto go_on = peer.PauseDetector(stream->get());
        Tensor tensor = OnGpu(peer, 0);
        const void* const memory = tensor.data();
        ASSERT_TRUE(step.Send(KeyOf(0), tensor, stream->get()).ok());
        tensor = Tensor();
        step.Abort(absl::CancelledError("the test"));
        std::vector<Tensor> others;
        for (int i = 0; i < 4; ++i) {
          others.push_back(OnGpu(peer, 0));
          EXPECT_NE(others.back().data(), memory);
        }
        others.clear();
        go_on();
        // And then it is.
        const absl::Time give_up = absl::Now() + kTimeout;
        bool is_used_again = false;
        while (!is_used_again && absl::Now() < give_up) {
          others.push_back(OnGpu(peer, 0));
          is_used_again = others.back().data() == memory;
          if (others.size() == 4) others.clear();
          absl::SleepFor(absl::Milliseconds(1));
        }
        EXPECT_TRUE(is_used_again);
        peer.Meet();
      },
      [](GpuPeer& peer) { peer.Meet(); });
}

// The descriptor of a segment comes once; if it cannot be opened then, that tensor fails, and the
// next one requests it again.
TEST(GpuCancel, SegmentThatCouldNotBeOpened_IsRequestedAgain) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        for (int i = 0; i < 4; ++i) {
          Step step = peer.Open(i + 1);
          const size_t bytes = i == 0 ? 5000 : kBytes;
          const Tensor tensor = OnGpu(peer, 0, bytes);
          const Tensor pattern = GpuPeer::Pattern(bytes, static_cast<uint32_t>(i));
          peer.Write(tensor, pattern, stream->get());
          ASSERT_TRUE(step.Send(KeyOf(i), tensor, stream->get()).ok());
          peer.Meet();
          step.Close(kTimeout).IgnoreError();
        }
      },
      [](GpuPeer& peer) {
        for (int i = 0; i < 4; ++i) {
          Step step = peer.Open(i + 1);
          if (i == 1) {
            peer.Control<void (*)(const char*, int, int)>("strict_cuda_fail_next")(
                "cuMemImportFromShareableHandle", 999, 0);
          }
          const auto received = step.RecvValue(KeyOf(i), kTimeout);
          if (i == 1) {
            EXPECT_THAT(std::string(received.status().message()),
                        HasSubstr("cuMemImportFromShareableHandle"));
          } else {
            ASSERT_TRUE(received.ok()) << received.status();
            EXPECT_EQ(received->path, "cuda_ipc, view");
            ExpectHolds(peer, *received, static_cast<uint32_t>(i), i == 0 ? 5000 : kBytes);
          }
          // Before the producer may leave.
          EXPECT_EQ(peer.transfer_engine().fetcher().connection_count(), 1);
          peer.Meet();
        }
      });
}

// A refused pair is tried again after a while; until then the reason stands.
TEST(GpuCancel, RefusedPair_IsProbedAgain) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  constexpr int kTries = 200;
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        const Tensor tensor = OnGpu(peer, 0);
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        peer.Write(tensor, pattern, stream->get());
        Step step = peer.Open();
        for (int i = 0; i < kTries; ++i) {
          ASSERT_TRUE(step.Send(KeyOf(i), tensor, stream->get()).ok());
        }
        peer.Meet();
      },
      [](GpuPeer& peer) {
        peer.Control<void (*)(const char*, int, int)>("strict_cuda_fail_next")(
            "cuMemImportFromShareableHandle", 999, 0);
        Step step = peer.Open();
        std::string path;
        // It is refused after that, and for that long.
        const absl::Time start = SteadyClock().Now();
        constexpr absl::Duration kRefused = absl::Seconds(1);
        int tries = 0;
        for (; tries < kTries; ++tries) {
          const auto received = step.RecvValue(KeyOf(tries), kTimeout);
          ASSERT_TRUE(received.ok()) << received.status();
          ExpectHolds(peer, *received, 0);
          path = std::string(received->path);
          if (tries == 0 || SteadyClock().Now() - start < kRefused) {
            EXPECT_EQ(path, "shm, staged");
          }
          if (path == "cuda_ipc, view") break;
          absl::SleepFor(absl::Milliseconds(50));
        }
        EXPECT_EQ(path, "cuda_ipc, view");
        peer.Meet();
      });
}

// A receiver that releases a slice that was not sent yet gets nothing, and nothing is kept.
TEST(GpuCancel, SliceReleasedBeforeItWasSent_IsNotKept) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        TransportEnvironment environment;
        environment.loop = &peer.transfer_engine().loop();
        environment.gpus = &peer.gpus();
        Endpoint receiver;
        receiver.peer = {7, 7};
        auto sender = std::make_shared<CudaIpcSender>(
            environment, receiver,
            std::make_shared<DeferredReleaseQueue>(peer.transfer_engine().loop()));
        absl::Notification has_probe;
        std::string probe;
        sender->SetControlChannel([&](absl::string_view body, absl::Span<const int>) {
          probe = std::string(body);
          has_probe.Notify();
          return absl::OkStatus();
        });
        Tensor tensor = OnGpu(peer, 0);
        const std::weak_ptr<Buffer> memory = cuda::MemoryOf(tensor);
        absl::Notification is_over;
        absl::Status status;
        sender->Expose(1, tensor, {MemorySpace::kCuda, 0},
                       [&](absl::StatusOr<TransferDescriptor> descriptor) {
                         status = descriptor.status();
                         is_over.Notify();
                       });
        tensor = Tensor();
        has_probe.WaitForNotification();
        sender->Release(1);
        const CudaIpcProbe sent = *DecodeCudaIpcProbe(probe);
        ASSERT_TRUE(sender->OnControlMessage(EncodeCudaIpcProbed({sent.pair, sent.seed, ""})).ok());
        is_over.WaitForNotification();
        EXPECT_TRUE(absl::IsCancelled(status)) << status;
        const absl::Time give_up = absl::Now() + kTimeout;
        while (!memory.expired() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
        EXPECT_TRUE(memory.expired());
        // A peer that releases an unsent slice, or requests a segment, violates the protocol.
        EXPECT_TRUE(absl::IsInvalidArgument(sender->OnControlMessage(EncodeCudaIpcTaken({1, 0}))));
        EXPECT_TRUE(absl::IsInvalidArgument(
            sender->OnControlMessage(EncodeCudaIpcWanted({sent.pair, 99}))));
        EXPECT_TRUE(absl::IsInvalidArgument(sender->OnControlMessage("")));
        sender->Abort(absl::UnavailableError("over"));
        peer.Meet();
      },
      [](GpuPeer& peer) { peer.Meet(); });
}

}  // namespace
}  // namespace ferry
