// SPDX-License-Identifier: Apache-2.0
// Processes that leave, or are killed, with GPU memory shared between them; and memory that its
// owner needs back.
#include <atomic>
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/gpu_pair.h"
#include "tests/node/gpu_spin.h"

namespace ferry {
namespace {

// From cudaMalloc; `freed` is called when it is no longer in use.
Tensor PlainMemory(GpuPeer& peer, cuda::DevicePointer* pointer, std::function<void()> freed) {
  Gpu& gpu = peer.gpu(0);
  const cuda::ScopedCurrent current(*gpu.device);
  FERRY_CHECK(gpu.device->table().memory_alloc(pointer, kBytes) == cuda::kSuccess);
  return *Tensor::Create(DataType::kUint8, *Shape::Create({kBytes}),
                         WrapForeignBuffer(cuda::AsHostPointer(*pointer), kBytes, std::move(freed),
                                           {MemorySpace::kCuda, 0}));
}

template <typename Condition>
bool Eventually(Condition condition) {
  const absl::Time give_up = absl::Now() + kTimeout;
  while (!condition() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
  return condition();
}

// The sender drops its tensors at once, and writes to the memory that it allocates next.
TEST(GpuDeath, ExportedMemoryIsNotReused) {
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        {
          const Tensor tensor = OnGpu(peer, 0);
          peer.Write(tensor, pattern, stream->get());
          ASSERT_TRUE(step.Send(KeyOf(0), tensor, stream->get()).ok());
        }
        peer.Meet();
        const Tensor other = GpuPeer::Pattern(kBytes, 99);
        std::vector<Tensor> next;
        for (int i = 0; i < 12; ++i) {
          next.push_back(OnGpu(peer, 0));
          peer.Write(next.back(), other, stream->get());
        }
        peer.Read(next.back(), stream->get());
        peer.Meet();
        const absl::Status closed = step.Close(kTimeout);
        EXPECT_TRUE(closed.ok()) << closed;
        peer.Meet();
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        auto tensor = step.Recv(KeyOf(0), kTimeout, stream->get());
        ASSERT_TRUE(tensor.ok()) << tensor.status();
        peer.Meet();
        peer.Meet();
        EXPECT_TRUE(Holds(peer.Read(*tensor, stream->get()), GpuPeer::Pattern(kBytes, 0)));
        // A process that leaves with an imported tensor has not received it.
        tensor = absl::CancelledError("let go");
        peer.Meet();
      });
}

// The producer leaves, but its process goes on: its user frees the memory as soon as it is reported
// unused, for which the fake driver kills the process if the consumer still has it open.
TEST(GpuDeath, ProducerThatLeaves_KeepsExportsForAWhile) {
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        std::atomic<bool> is_unused = false;
        cuda::DevicePointer pointer = 0;
        const std::shared_ptr<cuda::CudaDevice> device = peer.gpu(0).device;
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        {
          Step step = peer.Open();
          const Tensor tensor = PlainMemory(peer, &pointer, [&] {
            const cuda::ScopedCurrent current(*device);
            EXPECT_EQ(device->table().memory_free(pointer), cuda::kSuccess);
            is_unused = true;
          });
          peer.Write(tensor, pattern, stream->get());
          ASSERT_TRUE(step.Send(KeyOf(0), tensor, stream->get()).ok());
        }
        peer.Meet();
        const absl::Time start = absl::Now();
        // Nothing waits for it: the consumer reads and releases it after this side has left.
        peer.Leave();
        EXPECT_FALSE(is_unused);
        peer.Meet();
        EXPECT_TRUE(Eventually([&] { return is_unused.load(); }));
        EXPECT_GT(absl::Now() - start, absl::Milliseconds(1500));
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        {
          Step step = peer.Open();
          const auto tensor = step.Recv(KeyOf(0), kTimeout, stream->get());
          ASSERT_TRUE(tensor.ok()) << tensor.status();
          peer.Meet();
          peer.Meet();
          EXPECT_TRUE(Holds(peer.Read(*tensor, stream->get()), GpuPeer::Pattern(kBytes, 0)));
        }
      });
}

// kill -9 with a copy of the consumer's behind a kernel of the producer's.
// Streams wait on the device, for an event that the driver completes when its process dies.
TEST(GpuDeath, ProducerIsKilledInTheMiddleOfACopy) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options;
  options.producer_dies = true;
  // The write behind the kernel would hold a single queue, and with it the marks of the producer.
  options.environment = {{"STRICT_CUDA_DEAD_EVENT", "release"}, {"STRICT_CUDA_CONNECTIONS", "0"}};
  options.transfer.gpus.waits_on_device = true;
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
        kill(getpid(), SIGKILL);
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        const auto tensor = step.Recv(KeyOf(0, "GPU:1"), kTimeout, stream->get());
        ASSERT_TRUE(tensor.ok()) << tensor.status();
        peer.Meet();
        // It can be read with any content, and everything ends.
        peer.Read(*tensor, stream->get());
        EXPECT_TRUE(
            Eventually([&] { return peer.transfer_engine().fetcher().connection_count() == 0; }));
        const auto next = step.Recv(KeyOf(1, "GPU:1"), absl::Seconds(1), stream->get());
        EXPECT_FALSE(next.ok());
      });
}

// The producer is killed while its kernel runs, and the events of the dead never complete: the
// receive fails, the streams of the consumer's GPUs are free, and its process ends.
//   is_announced: the producer waits on the device, so the consumer knows the event and queries it.
void ExpectReceiveFailsAndStreamsAreFree(const std::string& to, bool is_announced = false) {
  GpuPairOptions options;
  options.transfer.gpus.waits_on_device = is_announced;
  options.consumer_waits_on_device = false;
  options.producer_dies = true;
  options.environment = {{"STRICT_CUDA_DEAD_EVENT", "hang"}};
  RunGpuPair(
      options,
      [&to](GpuPeer& peer) {
        GpuSpin spin(peer, 0);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor tensor = OnGpu(peer, 0);
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        spin.Start(stream->get());
        peer.Write(tensor, pattern, stream->get());
        ASSERT_TRUE(step.Send(KeyOf(0, to), tensor, stream->get()).ok());
        peer.Meet();
        absl::SleepFor(absl::Milliseconds(100));
        kill(getpid(), SIGKILL);
      },
      [&to](GpuPeer& peer) {
        Step step = peer.Open();
        Receipt receipt;
        step.RecvAsync(KeyOf(0, to), {}, receipt.callback());
        peer.Meet();
        const auto received = receipt.Wait(kTimeout);
        EXPECT_TRUE(absl::IsUnavailable(received.status())) << received.status();
        EXPECT_THAT(std::string(received.status().message()), testing::HasSubstr("node 0"));
        for (const int ordinal : {0, 1}) {
          Gpu& gpu = peer.gpu(ordinal);
          const cuda::ScopedCurrent current(*gpu.device);
          EXPECT_TRUE(Eventually([&] {
            return gpu.device->table().stream_query(gpu.copies->get()) == cuda::kSuccess;
          }));
          EXPECT_NE(gpu.waits->TakeIdle(), nullptr);
          const auto stream = peer.NewStream(ordinal);
          const Tensor mine = OnGpu(peer, ordinal);
          const Tensor pattern = GpuPeer::Pattern(kBytes, 7);
          peer.Write(mine, pattern, stream->get());
          EXPECT_TRUE(Holds(peer.Read(mine, stream->get()), pattern));
        }
      });
}
TEST(GpuDeath, ProducerOfAViewIsKilledBeforeItsEvent) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  ExpectReceiveFailsAndStreamsAreFree("GPU:0");
}
TEST(GpuDeath, ProducerOfACopyIsKilledBeforeItsEvent) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  ExpectReceiveFailsAndStreamsAreFree("GPU:1");
}

TEST(GpuDeath, ProducerOfAViewIsKilledBeforeAnEventThatItAnnounced) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  ExpectReceiveFailsAndStreamsAreFree("GPU:0", /*is_announced=*/true);
}
TEST(GpuDeath, ProducerOfACopyIsKilledBeforeAnEventThatItAnnounced) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  ExpectReceiveFailsAndStreamsAreFree("GPU:1", /*is_announced=*/true);
}

TEST(GpuDeath, ProducerIsKilledBetweenSlices) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options;
  options.producer_dies = true;
  options.environment = {{"STRICT_CUDA_DELAY_US", "20000"}, {"STRICT_CUDA_DEAD_EVENT", "hang"}};
  options.transfer.gpus.staging = {.budget_bytes = size_t{2} << 20, .slot_bytes = size_t{1} << 20};
  options.transfer.gpus.ipc_min_bytes = SIZE_MAX;
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        Gpu& gpu = peer.gpu(0);
        const cuda::ScopedCurrent current(*gpu.device);
        cuda::DevicePointer pointer = 0;
        constexpr size_t kHuge = size_t{200} << 20;
        ASSERT_EQ(gpu.device->table().memory_alloc(&pointer, kHuge), cuda::kSuccess);
        const Tensor tensor = *Tensor::Create(
            DataType::kUint8, *Shape::Create({kHuge}),
            WrapForeignBuffer(cuda::AsHostPointer(pointer), kHuge, [] {}, {MemorySpace::kCuda, 0}));
        ASSERT_TRUE(step.Send(KeyOf(0), tensor, stream->get()).ok());
        EXPECT_TRUE(Eventually([&] { return gpu.ring->stats().taken > 6; }));
        kill(getpid(), SIGKILL);
      },
      [](GpuPeer& peer) {
        Step step = peer.Open();
        const auto tensor = step.Recv(KeyOf(0), kTimeout);
        EXPECT_TRUE(absl::IsUnavailable(tensor.status())) << tensor.status();
      });
}

// The consumer is killed while it waits for quiet to open the memory.
TEST(GpuDeath, ConsumerIsKilledWhileItMaps) {
  GpuPairOptions options;
  options.consumer_dies = true;
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        std::atomic<bool> is_unused = false;
        cuda::DevicePointer pointer = 0;
        Step step = peer.Open();
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        for (int i = 0; i < 2; ++i) {
          const Tensor tensor =
              i == 0 ? OnGpu(peer, 0) : PlainMemory(peer, &pointer, [&] { is_unused = true; });
          peer.Write(tensor, pattern, stream->get());
          ASSERT_TRUE(step.Send(KeyOf(i), tensor, stream->get()).ok());
        }
        EXPECT_TRUE(Eventually([&] { return is_unused.load(); })) << "kept for one that is dead";
        const cuda::ScopedCurrent current(*peer.gpu(0).device);
        EXPECT_EQ(peer.gpu(0).device->table().memory_free(pointer), cuda::kSuccess);
      },
      [](GpuPeer& peer) {
        Step step = peer.Open();
        // The pair is probed.
        ASSERT_TRUE(step.Recv(KeyOf(0), kTimeout).ok());
        peer.gpus().gate()->BeginWork();
        Receipt receipt;
        step.RecvAsync(KeyOf(1), {}, receipt.callback());
        absl::SleepFor(absl::Milliseconds(300));
        EXPECT_FALSE(receipt.is_done());
        kill(getpid(), SIGKILL);
      });
}

TEST(GpuDeath, ConsumerIsKilledBetweenSlices) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options;
  options.consumer_dies = true;
  options.environment = {{"STRICT_CUDA_DELAY_US", "20000"}};
  options.transfer.gpus.staging = {.budget_bytes = size_t{4} << 20, .slot_bytes = size_t{1} << 20};
  options.transfer.gpus.ipc_min_bytes = SIZE_MAX;
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        std::atomic<bool> is_unused = false;
        cuda::DevicePointer pointer = 0;
        Step step = peer.Open();
        ASSERT_TRUE(step.Send(KeyOf(0), PlainMemory(peer, &pointer, [&] { is_unused = true; }),
                              stream->get())
                        .ok());
        EXPECT_TRUE(Eventually([&] { return peer.gpu(0).ring->stats().taken > 0; }));
        peer.Meet();
        EXPECT_TRUE(Eventually([&] { return is_unused.load(); }));
        // Its slots come back when it is sure that it is dead.
        EXPECT_TRUE(Eventually([&] {
          const cuda::StagingRingStats stats = peer.gpu(0).ring->stats();
          return stats.slot_count > 0 && stats.free_count == stats.slot_count;
        }));
      },
      [](GpuPeer& peer) {
        Step step = peer.Open();
        Receipt receipt;
        step.RecvAsync(KeyOf(0), {}, receipt.callback());
        // The first slice is in flight.
        peer.Meet();
        kill(getpid(), SIGKILL);
      });
}

// A stream of the consumer's still copies out of a view when the last reference is dropped: the
// view stays open, and is not returned to its owner, until that is done.
TEST(GpuDeath, ViewIsNotUnmappedWhileAStreamCopiesFromIt) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        std::atomic<bool> is_unused = false;
        cuda::DevicePointer pointer = 0;
        Step step = peer.Open();
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        {
          const Tensor tensor = PlainMemory(peer, &pointer, [&] { is_unused = true; });
          peer.Write(tensor, pattern, stream->get());
          ASSERT_TRUE(step.Send(KeyOf(0), tensor, stream->get()).ok());
        }
        peer.Meet();
        absl::SleepFor(absl::Milliseconds(300));
        EXPECT_FALSE(is_unused);
        peer.Meet();
        EXPECT_TRUE(Eventually([&] { return is_unused.load(); }));
        const cuda::ScopedCurrent current(*peer.gpu(0).device);
        EXPECT_EQ(peer.gpu(0).device->table().memory_free(pointer), cuda::kSuccess);
        peer.Meet();
      },
      [](GpuPeer& peer) {
        GpuSpin spin(peer, 0);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor copy = OnGpu(peer, 0);
        {
          const auto tensor = step.Recv(KeyOf(0), kTimeout, stream->get());
          ASSERT_TRUE(tensor.ok()) << tensor.status();
          Gpu& gpu = peer.gpu(0);
          spin.Start(stream->get());
          const cuda::ScopedCurrent current(*gpu.device);
          ASSERT_EQ(gpu.device->table().copy_async(cuda::AsDevicePointer(copy.data()),
                                                   cuda::AsDevicePointer(tensor->data()), kBytes,
                                                   stream->get()),
                    cuda::kSuccess);
          auto use = cuda::ReadyEvent::Record(*gpu.events, stream->get());
          ASSERT_TRUE(use.ok());
          ASSERT_TRUE(cuda::AddUse(*tensor, *std::move(use)));
        }
        peer.Meet();
        peer.Meet();
        spin.Stop();
        EXPECT_TRUE(Holds(peer.Read(copy, stream->get()), GpuPeer::Pattern(kBytes, 0)));
        peer.Meet();
      });
}

}  // namespace
}  // namespace ferry
