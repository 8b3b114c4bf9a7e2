// SPDX-License-Identifier: Apache-2.0
// Tensors between GPUs of two machines, as far as the processes can tell, by NCCL.
#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/gpu_patterns.h"

namespace ferry {
namespace {

TEST(NcclExchange, BetweenMachines) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  RunGpuPair(
      {.environment = {{"STRICT_CUDA_DELAY_US", "2000"}}, .is_apart = true},
      [](GpuPeer& peer) { SendPatterns(peer, "GPU:1", 5); },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        for (int i = 0; i < 5; ++i) {
          EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", i, stream->get()), "nccl");
        }
        peer.Meet();
      });
}

TEST(NcclExchange, IntoTheReceiversBuffer) {
  NEEDS_TWO_GPUS();
  RunGpuPair(
      {.is_apart = true}, [](GpuPeer& peer) { SendPatterns(peer, "GPU:1", 3); },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        for (int i = 0; i < 3; ++i) {
          RecvArgs args;
          args.destination = OnGpu(peer, 1);
          const void* const wanted = args.destination->data();
          const RendezvousKey key = GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1");
          const auto received = step.RecvValue(key, kTimeout, std::move(args));
          ASSERT_TRUE(received.ok()) << received.status();
          EXPECT_EQ(received->path, "nccl");
          EXPECT_EQ(received->tensor.data(), wanted);
          EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()),
                            GpuPeer::Pattern(kBytes, static_cast<uint32_t>(i))));
        }
        peer.Meet();
      });
}

// More at once than a batch holds, of many sizes, received in another order than sent.
TEST(NcclExchange, ManyInAnyOrder) {
  NEEDS_TWO_GPUS();
  constexpr int kCount = 100;
  const auto bytes = [](int i) { return static_cast<size_t>(200'000 + 7919 * i); };
  GpuPairOptions options;
  options.is_apart = true;
  options.transfer.require_transport = "nccl";
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        std::vector<Tensor> patterns;
        for (int i = 0; i < kCount; ++i) {
          patterns.push_back(GpuPeer::Pattern(bytes(i), static_cast<uint32_t>(i)));
          const Tensor tensor = OnGpu(peer, 0, bytes(i));
          peer.Write(tensor, patterns.back(), stream->get());
          ASSERT_TRUE(
              step.Send(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), tensor, stream->get())
                  .ok());
        }
        const absl::Status closed = step.Close(kTimeout);
        EXPECT_TRUE(closed.ok()) << closed;
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        std::vector<Receipt> receipts(kCount);
        for (int n = 0; n < kCount; ++n) {
          const int i = (n * 37) % kCount;
          step.RecvAsync(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), {},
                         receipts[static_cast<size_t>(i)].callback());
        }
        for (int i = 0; i < kCount; ++i) {
          const auto received = receipts[static_cast<size_t>(i)].Wait();
          ASSERT_TRUE(received.ok()) << received.status();
          EXPECT_EQ(received->path, "nccl");
          EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()),
                            GpuPeer::Pattern(bytes(i), static_cast<uint32_t>(i))));
        }
        peer.Meet();
      });
}

// Small tensors take the shorter path, unless there is only one.
TEST(NcclExchange, SmallTensors_AreStagedUnlessNcclIsRequired) {
  NEEDS_TWO_GPUS();
  for (const bool is_required : {false, true}) {
    GpuPairOptions options;
    options.is_apart = true;
    if (is_required) options.transfer.require_transport = "nccl";
    // More than a control channel's latency is found to be, also while others have the cores.
    options.transfer.transports.nccl.assumed_latency = absl::Seconds(10);
    RunGpuPair(
        options, [](GpuPeer& peer) { SendPatterns(peer, "GPU:1", 2, 1000); },
        [&](GpuPeer& peer) {
          const auto stream = peer.NewStream(1);
          Step step = peer.Open();
          for (int i = 0; i < 2; ++i) {
            EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", i, stream->get(), {}, 1000),
                      is_required ? "nccl" : "inline, staged");
          }
          peer.Meet();
        });
  }
}

// Room for one communicator, and two GPUs to exchange with alternately.
TEST(NcclExchange, CommunicatorsAreEvictedForEachOther) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options;
  options.is_apart = true;
  options.transfer.require_transport = "nccl";
  options.transfer.transports.nccl.memory_bytes =
      options.transfer.transports.nccl.communicator_bytes();
  options.environment = {{"STRICT_CUDA_DEVICES", "3"}};
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        Step step = peer.Open();
        for (int i = 0; i < 4; ++i) {
          const auto stream = peer.NewStream(0);
          const Tensor tensor = OnGpu(peer, 0);
          const Tensor pattern = GpuPeer::Pattern(kBytes, static_cast<uint32_t>(i));
          peer.Write(tensor, pattern, stream->get());
          const std::string to = absl::StrCat("GPU:", 1 + i % 2);
          ASSERT_TRUE(
              step.Send(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", to), tensor, stream->get())
                  .ok());
          peer.Meet();
        }
        const absl::Status closed = step.Close(kTimeout);
        EXPECT_TRUE(closed.ok()) << closed;
        peer.Meet();
      },
      [](GpuPeer& peer) {
        Step step = peer.Open();
        for (int i = 0; i < 4; ++i) {
          const auto stream = peer.NewStream(1 + i % 2);
          EXPECT_EQ(ReceivePattern(peer, step, absl::StrCat("GPU:", 1 + i % 2), i, stream->get()),
                    "nccl");
          peer.Meet();
        }
        peer.Meet();
      });
}

// Communicators take three times the estimate: two of them do not fit at the same time.
TEST(NcclExchange, Communicators_CountByTheirActualSize) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options;
  options.is_apart = true;
  options.transfer.require_transport = "nccl";
  const uint64_t estimate = options.transfer.transports.nccl.communicator_bytes();
  options.transfer.transports.nccl.memory_bytes = 5 * estimate;
  options.environment = {{"STRICT_CUDA_DEVICES", "3"},
                         {"STRICT_CUDA_NCCL_MEMORY", absl::StrCat(3 * estimate)}};
  const auto free_bytes = [](GpuPeer& peer) {
    const cuda::ScopedCurrent current(*peer.gpu(0).device);
    size_t free = 0;
    size_t total = 0;
    FERRY_CHECK(peer.gpu(0).device->table().memory_get_info(&free, &total) == cuda::kSuccess);
    return free;
  };
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        // Two for each GPU of the consumer, alternating: with the second one the first is certainly
        // over. The tensors' memory is allocated before.
        std::vector<Tensor> tensors;
        for (int i = 0; i < 6; ++i) tensors.push_back(OnGpu(peer, 0));
        const size_t before = free_bytes(peer);
        Step step = peer.Open();
        const auto stream = peer.NewStream(0);
        for (int i = 0; i < 6; ++i) {
          const Tensor pattern = GpuPeer::Pattern(kBytes, static_cast<uint32_t>(i));
          peer.Write(tensors[static_cast<size_t>(i)], pattern, stream->get());
          const std::string to = absl::StrCat("GPU:", 1 + i / 2 % 2);
          ASSERT_TRUE(step.Send(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", to),
                                tensors[static_cast<size_t>(i)], stream->get())
                          .ok());
          peer.Meet();
          if (i % 2 == 0) continue;
          // Eviction runs on a thread of its own. Ferry has some memory of its own besides.
          for (int look = 0; look < 5000 && before - free_bytes(peer) > 5 * estimate; ++look) {
            absl::SleepFor(absl::Milliseconds(1));
          }
          EXPECT_GE(before - free_bytes(peer), 3 * estimate) << i;
          EXPECT_LT(before - free_bytes(peer), 5 * estimate) << i;
        }
        peer.Meet();
      },
      [](GpuPeer& peer) {
        Step step = peer.Open();
        for (int i = 0; i < 6; ++i) {
          const int gpu = 1 + i / 2 % 2;
          const auto stream = peer.NewStream(gpu);
          EXPECT_EQ(ReceivePattern(peer, step, absl::StrCat("GPU:", gpu), i, stream->get()),
                    "nccl");
          peer.Meet();
        }
        peer.Meet();
      });
}

// A tensor whose bytes are late delays no ready ones.
TEST(NcclExchange, LateTensor_DelaysNoOther) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options;
  // The program's own write behind the pause would hold a single queue.
  options.environment = {{"STRICT_CUDA_CONNECTIONS", "0"}};
  options.is_apart = true;
  options.transfer.require_transport = "nccl";
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        const auto late = peer.NewStream(0);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor gated = OnGpu(peer, 0);
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        const auto release = peer.PauseDetector(late->get());
        peer.Write(gated, pattern, late->get());
        ASSERT_TRUE(step.Send(GpuPeer::Key("t0", "GPU:0", "GPU:1"), gated, late->get()).ok());
        const Tensor tensor = OnGpu(peer, 0);
        const Tensor other = GpuPeer::Pattern(kBytes, 1);
        peer.Write(tensor, other, stream->get());
        ASSERT_TRUE(step.Send(GpuPeer::Key("t1", "GPU:0", "GPU:1"), tensor, stream->get()).ok());
        // It has the second one.
        peer.Meet();
        release();
        const absl::Status closed = step.Close(kTimeout);
        EXPECT_TRUE(closed.ok()) << closed;
        peer.Meet();
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        Receipt first;
        step.RecvAsync(GpuPeer::Key("t0", "GPU:0", "GPU:1"), {}, first.callback());
        EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", 1, stream->get()), "nccl");
        EXPECT_FALSE(first.is_done());
        peer.Meet();
        const auto received = first.Wait();
        ASSERT_TRUE(received.ok()) << received.status();
        EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()), GpuPeer::Pattern(kBytes, 0)));
        peer.Meet();
      });
}

// At any stage of a cancelled receive: its transfer descriptor may be in flight, with a grant for
// which the sender's GPU waits.
TEST(NcclExchange, CancelledReceives_DelayNoOther) {
  NEEDS_TWO_GPUS();
  constexpr int kCount = 60;
  constexpr size_t kSize = 300'000;
  GpuPairOptions options;
  options.is_apart = true;
  options.transfer.require_transport = "nccl";
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        Step step = peer.Open();
        const Tensor tensor = OnGpu(peer, 0, kSize);
        const Tensor pattern = GpuPeer::Pattern(kSize, 3);
        const auto stream = peer.NewStream(0);
        peer.Write(tensor, pattern, stream->get());
        for (int i = 0; i <= kCount; ++i) {
          ASSERT_TRUE(
              step.Send(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), tensor, stream->get())
                  .ok());
        }
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        Step step = peer.Open();
        const auto stream = peer.NewStream(1);
        // The communicator is there before anything is called off.
        const auto first = step.Recv(GpuPeer::Key("t0", "GPU:0", "GPU:1"), kTimeout);
        ASSERT_TRUE(first.ok()) << first.status();
        std::vector<Receipt> receipts(kCount);
        for (int i = 1; i < kCount; ++i) {
          CancellationToken cancellation;
          RecvArgs args;
          args.cancellation = &cancellation;
          Receipt& receipt = receipts[static_cast<size_t>(i)];
          step.RecvAsync(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), std::move(args),
                         receipt.callback());
          absl::SleepFor(absl::Microseconds(37 * i));
          cancellation.Cancel();
          const auto received = receipt.Wait(absl::Seconds(10));
          EXPECT_TRUE(received.ok() || absl::IsCancelled(received.status())) << received.status();
        }
        const auto last = step.Recv(GpuPeer::Key(absl::StrCat("t", kCount), "GPU:0", "GPU:1"),
                                    absl::Seconds(10), stream->get());
        ASSERT_TRUE(last.ok()) << last.status();
        EXPECT_TRUE(Holds(peer.Read(*last, stream->get()), GpuPeer::Pattern(kSize, 3)));
        peer.Meet();
      });
}

// Memory from the driver is to be had although batches follow each other without a gap.
TEST(NcclExchange, MemoryRequest_IsServedBetweenTransfers) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  constexpr int kMost = 5000;
  constexpr size_t kSize = 200'000;
  GpuPairOptions options;
  options.is_apart = true;
  options.transfer.require_transport = "nccl";
  options.transfer.transports.nccl.grants.max_batch_operations = 1;
  options.transfer.transports.nccl.grants.max_batches = 16;
  options.transfer.transports.nccl.grants.max_launched = 8;
  options.environment = {{"STRICT_CUDA_DELAY_US", "2000"}};
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        Step step = peer.Open();
        const Tensor tensor = OnGpu(peer, 0, kSize);
        const Tensor pattern = GpuPeer::Pattern(kSize, 3);
        const auto stream = peer.NewStream(0);
        peer.Write(tensor, pattern, stream->get());
        for (int i = 0; i < kMost; ++i) {
          ASSERT_TRUE(
              step.Send(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), tensor, stream->get())
                  .ok());
        }
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        Step step = peer.Open();
        std::atomic<int> next = 0;
        std::atomic<int> arrived = 0;
        std::atomic<bool> is_enough = false;
        std::vector<std::thread> receivers;
        for (int thread = 0; thread < 16; ++thread) {
          receivers.emplace_back([&] {
            while (!is_enough) {
              const int i = next++;
              if (i >= kMost) return;
              const auto received =
                  step.Recv(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), kTimeout);
              EXPECT_TRUE(received.ok()) << received.status();
              if (!received.ok()) return;
              ++arrived;
            }
          });
        }
        while (arrived < 20) absl::SleepFor(absl::Milliseconds(1));
        std::vector<Tensor> kept;
        for (int i = 0; i < 5; ++i) {
          absl::StatusOr<Tensor> more =
              peer.gpus().Allocate(1, DataType::kUint8, *Shape::Create({int64_t{64} << 20}));
          EXPECT_TRUE(more.ok()) << more.status();
          if (more.ok()) kept.push_back(*std::move(more));
        }
        EXPECT_LT(next, kMost) << "nothing was in the way";
        is_enough = true;
        for (std::thread& receiver : receivers) receiver.join();
        peer.Meet();
      });
}

}  // namespace
}  // namespace ferry
