// SPDX-License-Identifier: Apache-2.0
// A program's own collectives on the GPUs whose tensors go by NCCL.
#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/external_nccl_scope.h"
#include "tests/node/gpu_patterns.h"

namespace ferry {
namespace {

// GPU 0 of the producer and GPU 1 of the consumer, and a stream of each for the program's work.
class Collective final {
 public:
  explicit Collective(GpuPeer& peer)
      : rank_(static_cast<int>(peer.transfer_engine().self().peer.node_id)),
        stream_(peer.NewStream(rank_)),
        memory_(OnGpu(peer, rank_, 2 * sizeof(float))) {
    const NcclJob& nccl = peer.transfer_engine().nccl();
    const auto member = [&nccl](int32_t node, uint64_t incarnation) {
      return CommunicatorMember{nccl.device_of(node, static_cast<int>(node))->value(), incarnation};
    };
    const CommunicatorKey key =
        *CommunicatorKey::Create({member(0, 1000), member(1, 1001)}, "the program's");
    auto made = NcclCommunicator::Make(nccl.library, peer.gpus(), rank_, key, rank_, nccl.store,
                                       {.timeout = kTimeout});
    EXPECT_TRUE(made.ok()) << made.status();
    communicator_ = *std::move(made);
    Gpu& gpu = peer.gpu(rank_);
    const cuda::ScopedCurrent current(*gpu.device);
    FERRY_CHECK(gpu.device->table().set_bytes_async(cuda::AsDevicePointer(memory_.data()), 0,
                                                    memory_.bytes(), stream_->get()) == 0);
  }

  // Enqueues a sum over both.
  absl::Status Begin(absl::Duration timeout = kTimeout) {
    return communicator_->Run(
        stream_->get(),
        [&](const nccl::NcclTable& nccl, nccl::Communicator comm) {
          return nccl.all_reduce(memory_.data(), memory_.mutable_data(), 2, nccl::kFloat32,
                                 nccl::kReduceSum, comm, stream_->get());
        },
        timeout);
  }
  // Enqueues nothing behind the sum while it runs: on a GPU with one queue a copy that waits for it
  // would delay the copies of Ferry.
  void Finish(GpuPeer& peer) {
    {
      const Gpu& gpu = peer.gpu(rank_);
      const cuda::ScopedCurrent current(*gpu.device);
      const absl::Time give_up = absl::Now() + kTimeout;
      while (gpu.device->table().stream_query(stream_->get()) == cuda::kErrorNotReady) {
        ASSERT_LT(absl::Now(), give_up) << "the sum has not completed";
        absl::SleepFor(absl::Microseconds(100));
      }
    }
    peer.Read(memory_, stream_->get());
  }

 private:
  const int rank_;
  const std::unique_ptr<cuda::CudaStream> stream_;
  Tensor memory_;
  std::shared_ptr<NcclCommunicator> communicator_;
};

GpuPairOptions Apart() {
  GpuPairOptions options;
  options.is_apart = true;
  return options;
}

// Sums and transfers between the same two GPUs, each begun as its threads are scheduled.
void AddUpNextToTransfers(GpuPairOptions options) {
  constexpr int kTransfers = 120;
  constexpr int kSums = 40;
  constexpr size_t kSize = 200'000;
  options.transfer.require_transport = "nccl";
  options.transfer.transports.nccl.grants.max_batch_operations = 2;
  const auto add_up = [](GpuPeer& peer, Collective& sum) {
    for (int i = 0; i < kSums; ++i) {
      const absl::Status begun = sum.Begin();
      ASSERT_TRUE(begun.ok()) << begun;
      if (i % 4 == 0) sum.Finish(peer);
      absl::SleepFor(absl::Microseconds(137 * (i % 7)));
    }
    sum.Finish(peer);
  };
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        Collective sum(peer);
        Step step = peer.Open();
        const Tensor tensor = OnGpu(peer, 0, kSize);
        const Tensor pattern = GpuPeer::Pattern(kSize, 3);
        const auto stream = peer.NewStream(0);
        peer.Write(tensor, pattern, stream->get());
        std::thread program([&] { add_up(peer, sum); });
        for (int i = 0; i < kTransfers; ++i) {
          ASSERT_TRUE(
              step.Send(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), tensor, stream->get())
                  .ok());
        }
        program.join();
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        Collective sum(peer);
        Step step = peer.Open();
        std::atomic<int> next = 0;
        std::vector<std::thread> receivers;
        for (int thread = 0; thread < 8; ++thread) {
          receivers.emplace_back([&] {
            while (true) {
              const int i = next++;
              if (i >= kTransfers) return;
              const auto received =
                  step.Recv(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), kTimeout);
              ASSERT_TRUE(received.ok()) << received.status();
            }
          });
        }
        add_up(peer, sum);
        for (std::thread& receiver : receivers) receiver.join();
        peer.Meet();
      });
}

// Without arbitration one GPU would have the sum first and the other one the transfer.
TEST(NcclArbiter, CollectivesNextToTransfers_DoNotDeadlock) {
  NEEDS_TWO_GPUS();
  AddUpNextToTransfers(Apart());
}

TEST(NcclArbiter, CollectivesNextToPuts_DoNotDeadlock) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options = Apart();
  options.transfer.transports.nccl.put_bytes = uint64_t{4} << 20;
  options.environment = {{"STRICT_CUDA_NCCL_VERSION", "23007"},
                         {"STRICT_CUDA_NCCL_EARLY_WAIT", "violation"}};
  AddUpNextToTransfers(options);
}

// The producer is in the sum already, which waits for the consumer, which waits for a tensor of the
// producer's.
TEST(NcclArbiter, TransferThatACollectiveWaitsFor_TakesAnotherPath) {
  NEEDS_TWO_GPUS();
  RunGpuPair(
      Apart(),
      [](GpuPeer& peer) {
        Collective sum(peer);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor first = OnGpu(peer, 0);
        const Tensor first_pattern = GpuPeer::Pattern(kBytes, 0);
        peer.Write(first, first_pattern, stream->get());
        ASSERT_TRUE(step.Send(GpuPeer::Key("t0", "GPU:0", "GPU:1"), first, stream->get()).ok());
        peer.Meet();
        const Tensor tensor = OnGpu(peer, 0);
        const Tensor pattern = GpuPeer::Pattern(kBytes, 1);
        peer.Write(tensor, pattern, stream->get());
        ASSERT_TRUE(step.Send(GpuPeer::Key("t1", "GPU:0", "GPU:1"), tensor, stream->get()).ok());
        ASSERT_TRUE(sum.Begin().ok());
        peer.Meet();
        sum.Finish(peer);
        // Its use of the GPU is over.
        const Tensor last = OnGpu(peer, 0);
        const Tensor last_pattern = GpuPeer::Pattern(kBytes, 2);
        peer.Write(last, last_pattern, stream->get());
        ASSERT_TRUE(step.Send(GpuPeer::Key("t2", "GPU:0", "GPU:1"), last, stream->get()).ok());
        peer.Meet();
      },
      [](GpuPeer& peer) {
        Collective sum(peer);
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", 0, stream->get()), "nccl");
        peer.Meet();
        peer.Meet();
        EXPECT_NE(ReceivePattern(peer, step, "GPU:1", 1, stream->get()), "nccl");
        ASSERT_TRUE(sum.Begin().ok());
        sum.Finish(peer);
        EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", 2, stream->get()), "nccl");
        peer.Meet();
      });
}

// In place of a sum by Ferry's communicator: external NCCL work, in its scope.
TEST(NcclArbiter, TransferDuringExternalNccl_TakesAnotherPath) {
  NEEDS_TWO_GPUS();
  GpuPairOptions options = Apart();
  // The other path is by the host, and pinning memory would synchronize the device.
  options.transfer.gpus.pinned.reserve_bytes = size_t{32} << 20;
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const auto send = [&](int i) {
          const Tensor tensor = OnGpu(peer, 0);
          const Tensor pattern = GpuPeer::Pattern(kBytes, static_cast<uint32_t>(i));
          peer.Write(tensor, pattern, stream->get());
          ASSERT_TRUE(
              step.Send(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), tensor, stream->get())
                  .ok());
          // The pattern is pageable memory, and read at the call.
        };
        send(0);
        peer.Meet();
        auto scope = ExternalNcclScope::Begin(peer.gpus(), 0, kTimeout);
        ASSERT_TRUE(scope.ok()) << scope.status();
        const auto own = peer.NewStream(0);
        const auto end = peer.PauseDetector(own->get());
        ASSERT_TRUE((*scope)->End(own->get()).ok());
        send(1);
        peer.Meet();
        end();
        while (peer.gpus().gate()->work_count() > 0) absl::SleepFor(absl::Milliseconds(1));
        send(2);
        peer.Meet();
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", 0, stream->get()), "nccl");
        peer.Meet();
        EXPECT_NE(ReceivePattern(peer, step, "GPU:1", 1, stream->get()), "nccl");
        peer.Meet();
        EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", 2, stream->get()), "nccl");
        peer.Meet();
      });
}

// The process leaves GPU memory to its exit, and does not wait for the scope.
TEST(NcclArbiter, ExternalNcclScopeThatNeverEnds_TheProcessDoes) {
  GpuPairOptions options;
  options.transfer.gpus.arena.timeout = absl::Milliseconds(200);
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        auto scope = ExternalNcclScope::Begin(peer.gpus(), 0, kTimeout);
        ASSERT_TRUE(scope.ok()) << scope.status();
        scope->release();
        EXPECT_EQ(peer.gpus()
                      .Allocate(0, DataType::kUint8, *Shape::Create({int64_t{256} << 20}))
                      .status()
                      .code(),
                  absl::StatusCode::kDeadlineExceeded);
      },
      [](GpuPeer&) {});
}

// A sum that waits for another rank would never end if the driver waited for the device.
TEST(NcclArbiter, NoDriverMemoryIsAllocatedDuringACollective) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  RunGpuPair(
      Apart(),
      [](GpuPeer& peer) {
        Collective sum(peer);
        ASSERT_TRUE(sum.Begin().ok());
        std::atomic<bool> is_there = false;
        std::thread other([&] {
          // More than there is of Ferry's own.
          const auto more =
              peer.gpus().Allocate(0, DataType::kUint8, *Shape::Create({int64_t{256} << 20}));
          EXPECT_TRUE(more.ok()) << more.status();
          is_there = true;
        });
        absl::SleepFor(absl::Milliseconds(200));
        EXPECT_FALSE(is_there);
        peer.Meet();
        sum.Finish(peer);
        other.join();
        peer.Meet();
      },
      [](GpuPeer& peer) {
        Collective sum(peer);
        peer.Meet();
        ASSERT_TRUE(sum.Begin().ok());
        sum.Finish(peer);
        peer.Meet();
      });
}

// A rank that does not join the sum: its caller is notified, and transfers that Ferry holds back
// for it continue when the communicator ends.
TEST(NcclArbiter, EndOfTheCommunicator_EndsItsUse) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options = Apart();
  options.transfer.require_transport = "nccl";
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        auto sum = std::make_unique<Collective>(peer);
        ASSERT_TRUE(sum->Begin().ok());
        peer.Meet();
        sum = nullptr;
        SendPatterns(peer, "GPU:1", 1);
      },
      [](GpuPeer& peer) {
        auto sum = std::make_unique<Collective>(peer);
        peer.Meet();
        sum = nullptr;
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", 0, stream->get()), "nccl");
        peer.Meet();
      });
}

}  // namespace
}  // namespace ferry
