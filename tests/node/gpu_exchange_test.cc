// SPDX-License-Identifier: Apache-2.0
// Tensors in GPU memory between two processes of one machine, by every path.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "tests/node/gpu_patterns.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

// The consumer looks at the producer's memory, after the stream that writes it.
TEST(GpuExchange, OnTheSameGpu_IsAView) {
  RunGpuPair(
      {.environment = {{"STRICT_CUDA_DELAY_US", "3000"}}},
      [](GpuPeer& peer) { SendPatterns(peer, "GPU:0", 5); },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const int64_t made = peer.gpu(0).arena->stats().made_blocks;
        for (int i = 0; i < 5; ++i) {
          EXPECT_EQ(ReceivePattern(peer, step, "GPU:0", i, stream->get()), "cuda_ipc, view");
        }
        // Nothing was copied.
        EXPECT_EQ(peer.gpu(0).arena->stats().made_blocks, made);
        peer.Meet();
      });
}

TEST(GpuExchange, OnAnotherGpu_IsACopy) {
  NEEDS_TWO_PEERS();
  RunGpuPair(
      {.environment = {{"STRICT_CUDA_DELAY_US", "2000"}}},
      [](GpuPeer& peer) { SendPatterns(peer, "GPU:1", 5); },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        for (int i = 0; i < 5; ++i) {
          EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", i, stream->get()), "cuda_ipc, copy");
        }
        EXPECT_GE(peer.gpu(1).arena->stats().made_blocks, 5);
        peer.Meet();
      });
}

// The producer decides when a tensor that is not complete is announced, and the consumer how it
// waits.
void ExpectThatEachSideMayWaitOnTheDevice(const std::string& to, const std::string& way) {
  for (const bool producer_waits : {false, true}) {
    for (const bool consumer_waits : {false, true}) {
      SCOPED_TRACE(absl::StrCat("producer ", producer_waits, ", consumer ", consumer_waits));
      GpuPairOptions options;
      options.transfer.gpus.waits_on_device = producer_waits;
      options.consumer_waits_on_device = consumer_waits;
      options.environment = {{"STRICT_CUDA_DELAY_US", "3000"}};
      RunGpuPair(
          options, [&](GpuPeer& peer) { SendPatterns(peer, to, 5); },
          [&](GpuPeer& peer) {
            const auto stream = peer.NewStream(to == "GPU:1" ? 1 : 0);
            Step step = peer.Open();
            for (int i = 0; i < 5; ++i) {
              EXPECT_EQ(ReceivePattern(peer, step, to, i, stream->get()), way);
            }
            peer.Meet();
          });
    }
  }
}
TEST(GpuExchange, OnTheSameGpu_EachSideMayWaitOnTheDevice) {
  ExpectThatEachSideMayWaitOnTheDevice("GPU:0", "cuda_ipc, view");
}
TEST(GpuExchange, OnAnotherGpu_EachSideMayWaitOnTheDevice) {
  NEEDS_TWO_PEERS();
  ExpectThatEachSideMayWaitOnTheDevice("GPU:1", "cuda_ipc, copy");
}

TEST(GpuExchange, IntoTheReceiversBuffer) {
  RunGpuPair(
      {}, [](GpuPeer& peer) { SendPatterns(peer, "GPU:0", 3); },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        for (int i = 0; i < 3; ++i) {
          RecvArgs args;
          args.destination = OnGpu(peer, 0);
          const void* const wanted = args.destination->data();
          const RendezvousKey key = GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:0");
          const auto received = step.RecvValue(key, kTimeout, std::move(args));
          ASSERT_TRUE(received.ok()) << received.status();
          EXPECT_EQ(received->tensor.data(), wanted);
          const auto ready = cuda::ReadyOf(received->tensor);
          ASSERT_NE(ready, nullptr);
          ASSERT_TRUE(ready->EnqueueWait(*peer.gpu(0).device, stream->get()).ok());
          EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()),
                            GpuPeer::Pattern(kBytes, static_cast<uint32_t>(i))));
        }
        peer.Meet();
      });
}

// A segment whose descriptor one GPU of the consumer has is new to the other one.
TEST(GpuExchange, ToBothGpusOfTheConsumer) {
  NEEDS_TWO_GPUS();
  constexpr size_t kLarge = 20 << 20;
  const auto key = [](int gpu) {
    return GpuPeer::Key(absl::StrCat("g", gpu), "GPU:0", absl::StrCat("GPU:", gpu));
  };
  RunGpuPair(
      {},
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor tensor = OnGpu(peer, 0, kLarge);
        const Tensor pattern = GpuPeer::Pattern(kLarge, 9);
        peer.Write(tensor, pattern, stream->get());
        for (const int gpu : {0, 1}) {
          ASSERT_TRUE(step.Send(key(gpu), tensor, stream->get()).ok());
        }
        const absl::Status closed = step.Close(kTimeout);
        EXPECT_TRUE(closed.ok()) << closed;
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        Step step = peer.Open();
        for (const int gpu : {0, 1}) {
          const auto stream = peer.NewStream(gpu);
          const auto tensor = step.Recv(key(gpu), kTimeout, stream->get());
          ASSERT_TRUE(tensor.ok()) << tensor.status();
          EXPECT_TRUE(Holds(peer.Read(*tensor, stream->get()), GpuPeer::Pattern(kLarge, 9)));
        }
        peer.Meet();
      });
}

// The bytes are there when RecvInto returns: in the other GPU's memory, and in the host's.
TEST(GpuExchange, RecvIntoWaitsForTheDevice) {
  NEEDS_TWO_GPUS();
  RunGpuPair(
      {.environment = {{"STRICT_CUDA_DELAY_US", "20000"}}},
      [](GpuPeer& peer) { SendPatterns(peer, "GPU:0", 3); },
      [](GpuPeer& peer) {
        Step step = peer.Open();
        const auto key = [](int i) { return GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:0"); };
        for (const int gpu : {0, 1}) {
          const Tensor into = OnGpu(peer, gpu);
          const absl::Status status = step.RecvInto(key(gpu), into, kTimeout);
          ASSERT_TRUE(status.ok()) << status;
          // On an idle stream.
          const auto stream = peer.NewStream(gpu);
          EXPECT_TRUE(Holds(peer.Read(into, stream->get()),
                            GpuPeer::Pattern(kBytes, static_cast<uint32_t>(gpu))));
        }
        const Tensor host = *Tensor::Allocate(DataType::kUint8, *Shape::Create({kBytes}));
        const absl::Status status = step.RecvInto(key(2), host, kTimeout);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(IsEqual(host, GpuPeer::Pattern(kBytes, 2)));
        peer.Meet();
      });
}

// More than there are events between the two.
TEST(GpuExchange, ManyViewsMayBeHeldAtOnce) {
  constexpr int kCount = 150;
  constexpr size_t kSmall = 5000;
  RunGpuPair(
      {}, [](GpuPeer& peer) { SendPatterns(peer, "GPU:0", kCount, kSmall); },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        std::vector<Tensor> held;
        for (int i = 0; i < kCount; ++i) {
          const auto tensor = step.Recv(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:0"),
                                        kTimeout, stream->get());
          ASSERT_TRUE(tensor.ok()) << tensor.status();
          held.push_back(*tensor);
        }
        for (int i = 0; i < kCount; ++i) {
          EXPECT_TRUE(Holds(peer.Read(held[static_cast<size_t>(i)], stream->get()),
                            GpuPeer::Pattern(kSmall, static_cast<uint32_t>(i))));
        }
        held.clear();
        peer.Meet();
      });
}

TEST(GpuExchange, FromTheHostToAGpuAndBack) {
  NEEDS_TWO_GPUS();
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        Step step = peer.Open();
        ASSERT_TRUE(
            step.Send(GpuPeer::Key("up", "CPU:0", "GPU:1"), GpuPeer::Pattern(kBytes, 1)).ok());
        const auto stream = peer.NewStream(0);
        const Tensor tensor = OnGpu(peer, 0);
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        peer.Write(tensor, pattern, stream->get());
        ASSERT_TRUE(step.Send(GpuPeer::Key("t0", "GPU:0", "CPU:0"), tensor, stream->get()).ok());
        EXPECT_TRUE(step.Close(kTimeout).ok());
        peer.Meet();
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        const auto up = step.Recv(GpuPeer::Key("up", "CPU:0", "GPU:1"), kTimeout, stream->get());
        ASSERT_TRUE(up.ok()) << up.status();
        EXPECT_EQ(up->location(), (TensorLocation{MemorySpace::kCuda, 1}));
        EXPECT_TRUE(Holds(peer.Read(*up, stream->get()), GpuPeer::Pattern(kBytes, 1)));
        EXPECT_EQ(ReceivePattern(peer, step, "CPU:0", 0, stream->get()), "shm, staged");
        peer.Meet();
      });
}

// A sender may leave as soon as its step is closed, even if the tensor was still being copied out
// of the GPU when it called Close.
TEST(GpuExchange, CloseWaitsForStagedTensors) {
  GpuPairOptions options;
  options.environment = {{"STRICT_CUDA_DELAY_US", "200000"}};
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        const Tensor tensor = OnGpu(peer, 0);
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        peer.Write(tensor, pattern, stream->get());
        {
          Step step = peer.Open();
          ASSERT_TRUE(step.Send(GpuPeer::Key("t0", "GPU:0", "CPU:0"), tensor, stream->get()).ok());
          peer.Meet();
          const absl::Status closed = step.Close(kTimeout);
          EXPECT_TRUE(closed.ok()) << closed;
        }
      },
      [](GpuPeer& peer) {
        Step step = peer.Open();
        Receipt receipt;
        step.RecvAsync(GpuPeer::Key("t0", "GPU:0", "CPU:0"), {}, receipt.callback());
        peer.Meet();
        const auto received = receipt.Wait();
        ASSERT_TRUE(received.ok()) << received.status();
        EXPECT_TRUE(IsEqual(received->tensor, GpuPeer::Pattern(kBytes, 0)));
      });
}

// A driver's refusal is remembered after the first attempt, and another path is used.
TEST(GpuExchange, UnmappableMemoryIsStaged) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  RunGpuPair(
      {}, [](GpuPeer& peer) { SendPatterns(peer, "GPU:0", 3); },
      [](GpuPeer& peer) {
        peer.Control<void (*)(const char*, int, int, int)>("strict_cuda_fail")(
            "cuMemImportFromShareableHandle", 801, 0, 1000);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        for (int i = 0; i < 3; ++i) {
          EXPECT_EQ(ReceivePattern(peer, step, "GPU:0", i, stream->get()), "shm, staged");
        }
        peer.Meet();
      });
}

TEST(GpuExchange, RequiredTransportThatIsUnavailable_ReportsWhy) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  GpuPairOptions options;
  options.transfer.require_transport = "cuda_ipc";
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor tensor = OnGpu(peer, 0);
        EXPECT_TRUE(step.Send(GpuPeer::Key("t", "GPU:0", "GPU:0"), tensor, stream->get()).ok());
        peer.Meet();
      },
      [](GpuPeer& peer) {
        peer.Control<void (*)(const char*, int, int, int)>("strict_cuda_fail")(
            "cuMemImportFromShareableHandle", 801, 0, 1000);
        Step step = peer.Open();
        const auto tensor = step.Recv(GpuPeer::Key("t", "GPU:0", "GPU:0"), kTimeout);
        EXPECT_TRUE(absl::IsFailedPrecondition(tensor.status())) << tensor.status();
        EXPECT_THAT(std::string(tensor.status().message()),
                    HasSubstr("cuMemImportFromShareableHandle"));
        peer.Meet();
      });
}

// Memory not allocated by Ferry: exported as it is, or copied into memory that can be.
TEST(GpuExchange, ForeignMemoryOfEveryKind) {
  const auto send = [](GpuPeer& peer) {
    Gpu& gpu = peer.gpu(0);
    const cuda::CudaTable& table = gpu.device->table();
    const auto stream = peer.NewStream(0);
    Step step = peer.Open();
    const cuda::ScopedCurrent current(*gpu.device);
    cuda::DevicePointer plain = 0;
    ASSERT_EQ(table.memory_alloc(&plain, kBytes + 512), cuda::kSuccess);
    cuda::MemoryPool pool = nullptr;
    ASSERT_EQ(table.device_get_default_pool(&pool, gpu.device->handle()), cuda::kSuccess);
    cuda::DevicePointer pooled = 0;
    ASSERT_EQ(table.pool_alloc_async(&pooled, kBytes, pool, stream->get()), cuda::kSuccess);
    ASSERT_EQ(table.stream_synchronize(stream->get()), cuda::kSuccess);
    std::vector<Tensor> patterns;
    int index = 0;
    for (const cuda::DevicePointer pointer : {plain + 512, pooled}) {
      const Tensor tensor = *Tensor::Create(
          DataType::kUint8, *Shape::Create({static_cast<int64_t>(kBytes)}),
          WrapForeignBuffer(cuda::AsHostPointer(pointer), kBytes, [] {}, {MemorySpace::kCuda, 0}));
      patterns.push_back(GpuPeer::Pattern(kBytes, static_cast<uint32_t>(index)));
      peer.Write(tensor, patterns.back(), stream->get());
      ASSERT_TRUE(step.Send(GpuPeer::Key(absl::StrCat("t", index++), "GPU:0", "GPU:0"), tensor,
                            stream->get())
                      .ok());
    }
    const absl::Status closed = step.Close(kTimeout);
    EXPECT_TRUE(closed.ok()) << closed;
    peer.Meet();
  };
  RunGpuPair({}, send, [](GpuPeer& peer) {
    const auto stream = peer.NewStream(0);
    Step step = peer.Open();
    EXPECT_EQ(ReceivePattern(peer, step, "GPU:0", 0, stream->get()), "cuda_ipc, view");
    EXPECT_EQ(ReceivePattern(peer, step, "GPU:0", 1, stream->get()), "cuda_ipc, staged");
    peer.Meet();
  });
}

// The consumer is killed with a view in its hands.
TEST(GpuExchange, ProducerOutlivesItsConsumer) {
  GpuPairOptions options;
  options.consumer_dies = true;
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        Tensor tensor = OnGpu(peer, 0);
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        peer.Write(tensor, pattern, stream->get());
        ASSERT_TRUE(step.Send(GpuPeer::Key("t0", "GPU:0", "GPU:0"), tensor, stream->get()).ok());
        peer.Meet();
        const std::weak_ptr<Buffer> memory = cuda::MemoryOf(tensor);
        tensor = Tensor();
        const absl::Time give_up = absl::Now() + kTimeout;
        while (!memory.expired() && absl::Now() < give_up) {
          absl::SleepFor(absl::Milliseconds(10));
        }
        EXPECT_TRUE(memory.expired()) << "kept for a consumer that is dead";
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const auto tensor =
            step.Recv(GpuPeer::Key("t0", "GPU:0", "GPU:0"), kTimeout, stream->get());
        EXPECT_TRUE(tensor.ok()) << tensor.status();
        peer.Meet();
        kill(getpid(), SIGKILL);
      });
}

}  // namespace
}  // namespace ferry
