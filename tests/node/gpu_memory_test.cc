// SPDX-License-Identifier: Apache-2.0
// Memory of every kind sent between two processes: which is mapped, and which goes through the
// staging ring.
#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/gpu_foreign.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

// One tensor of kLarge bytes in the memory that `make` gets; how it arrives.
void ExpectPath(const std::function<Foreign(GpuPeer&)>& make, const std::string& path,
                const std::string& why, int gpu = 0) {
  RunGpuPair(
      {},
      [&](GpuPeer& peer) {
        const Foreign memory = make(peer);
        SendAll(peer, {Wrap(memory, memory.bytes - kLarge, kLarge)}, absl::StrCat("GPU:", gpu));
      },
      [&](GpuPeer& peer) {
        EXPECT_THAT(ReceiveAll(peer, {kLarge}, gpu), ::testing::ElementsAre(path));
        EXPECT_THAT(peer.Explain(0, gpu, kLarge), HasSubstr(why));
        peer.Meet();
      });
}

TEST(GpuMemory, PlainMemoryIsMapped) {
  ExpectPath([](GpuPeer& peer) { return MakePlain(peer, kLarge + 999); }, "cuda_ipc, view",
             "the last one was a view, since it is on the same GPU");
}

TEST(GpuMemory, PlainMemoryIsCopiedToAnotherGpu) {
  NEEDS_TWO_PEERS();
  ExpectPath([](GpuPeer& peer) { return MakePlain(peer, kLarge + 999); }, "cuda_ipc, copy",
             "the last one was a copy", /*gpu=*/1);
}

TEST(GpuMemory, MemoryOfTheDefaultPoolIsStaged) {
  ExpectPath([](GpuPeer& peer) { return MakeFromPool(peer, false); }, "cuda_ipc, staged",
             "the last one was staged: no other process can open this pool memory");
}

TEST(GpuMemory, MemoryOfTheDefaultPoolIsStagedToAnotherGpu) {
  NEEDS_TWO_PEERS();
  ExpectPath([](GpuPeer& peer) { return MakeFromPool(peer, false); }, "cuda_ipc, staged",
             "the last one was staged: no other process can open this pool memory", /*gpu=*/1);
}

TEST(GpuMemory, MemoryOfAnExportablePoolIsMapped) {
  ExpectPath([](GpuPeer& peer) { return MakeFromPool(peer, true); }, "cuda_ipc, view", "a view");
}

TEST(GpuMemory, MappedMemoryOfSeveralChunksIsJoined) {
  ExpectPath([](GpuPeer& peer) { return MakeMapped(peer, 4, cuda::kHandleTypePosixFd); },
             "cuda_ipc, copy", "the last one was a copy");
}

TEST(GpuMemory, MappedMemoryOfVeryManyChunksIsStaged) {
  constexpr size_t kHuge = 12 * kGranule;
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        SendAll(peer, {Wrap(MakeMapped(peer, 12, cuda::kHandleTypePosixFd), 0, kHuge)});
      },
      [](GpuPeer& peer) {
        EXPECT_THAT(ReceiveAll(peer, {kHuge}), ::testing::ElementsAre("cuda_ipc, staged"));
        EXPECT_THAT(peer.Explain(0, 0, kHuge), HasSubstr("in 12 pieces of physical memory"));
        peer.Meet();
      });
}

TEST(GpuMemory, MappedMemoryWithoutAHandleTypeIsStaged) {
  ExpectPath([](GpuPeer& peer) { return MakeMapped(peer, 4, 0); }, "cuda_ipc, staged",
             "without a handle type");
}

TEST(GpuMemory, ManagedMemoryIsStaged) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  ExpectPath(
      [](GpuPeer& peer) {
        const cuda::ScopedCurrent current(*peer.gpu(0).device);
        Foreign memory = {0, kLarge};
        const auto alloc =
            peer.Control<cuda::Result (*)(cuda::DevicePointer*, size_t, unsigned int)>(
                "cuMemAllocManaged");
        FERRY_CHECK(alloc(&memory.pointer, memory.bytes, 1) == cuda::kSuccess);
        return memory;
      },
      "cuda_ipc, staged", "managed memory has no IPC handle");
}

// Pinned memory is host memory: it is sent as such, though a GPU could read it.
TEST(GpuMemory, PinnedHostMemoryIsHostMemory) {
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        Gpu& gpu = peer.gpu(0);
        const cuda::ScopedCurrent current(*gpu.device);
        void* memory = nullptr;
        ASSERT_EQ(gpu.device->table().host_alloc(&memory, kLarge, cuda::kHostAllocPortable),
                  cuda::kSuccess);
        Tensor tensor =
            *Tensor::Create(DataType::kUint8, *Shape::Create({static_cast<int64_t>(kLarge)}),
                            WrapForeignBuffer(memory, kLarge, [] {}, {}));
        FillPattern(tensor, 0);
        Step step = peer.Open();
        ASSERT_TRUE(step.Send(GpuPeer::Key("t0", "CPU:0", "GPU:0"), tensor).ok());
        EXPECT_TRUE(step.Close(kTimeout).ok());
        peer.Meet();
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const auto tensor =
            step.Recv(GpuPeer::Key("t0", "CPU:0", "GPU:0"), kTimeout, stream->get());
        ASSERT_TRUE(tensor.ok()) << tensor.status();
        EXPECT_TRUE(Holds(peer.Read(*tensor, stream->get()), GpuPeer::Pattern(kLarge, 0)));
        peer.Meet();
      });
}

// The first, a middle and the last byte of an allocation with neighbours in the same block: as
// views, and below the size from which mapping is worth it, through the ring.
TEST(GpuMemory, PartOfAnAllocationIsThatPart) {
  for (const bool is_small : {false, true}) {
    GpuPairOptions options;
    if (!is_small) options.transfer.gpus.ipc_min_bytes = 0;
    RunGpuPair(
        options,
        [](GpuPeer& peer) {
          MakePlain(peer, 300);
          const Foreign memory = MakePlain(peer, 1000);
          MakePlain(peer, 300);
          SendAll(peer, {Wrap(memory, 0, 1), Wrap(memory, 499, 1), Wrap(memory, 999, 1),
                         Wrap(memory, 1, 400)});
        },
        [&](GpuPeer& peer) {
          EXPECT_THAT(ReceiveAll(peer, {1, 1, 1, 400}),
                      ::testing::Each(is_small ? "cuda_ipc, staged" : "cuda_ipc, view"));
          if (is_small) {
            EXPECT_THAT(peer.Explain(0, 0, 1), HasSubstr("--gpu-ipc-min-bytes"));
          }
          peer.Meet();
        });
  }
}

// The address is reused, the memory is not.
TEST(GpuMemory, MemoryAtARecycledAddress_IsNotTakenForTheOldOne) {
  constexpr int kRounds = 4;
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        cuda::DevicePointer first = 0;
        int recycled = 0;
        for (int round = 0; round < kRounds; ++round) {
          Step step = peer.Open(round + 1);
          const Foreign memory = MakePlain(peer, kLarge);
          if (round == 0) first = memory.pointer;
          // A driver need not give it again.
          if (!OnRealGpu()) {
            EXPECT_EQ(memory.pointer, first);
          }
          if (memory.pointer == first) ++recycled;
          std::atomic<bool> is_unused = false;
          const Tensor pattern = GpuPeer::Pattern(kLarge, static_cast<uint32_t>(round));
          {
            const Tensor tensor = Wrap(memory, 0, kLarge, [&] { is_unused = true; });
            peer.Write(tensor, pattern, stream->get());
            ASSERT_TRUE(step.Send(KeyOf(round), tensor, stream->get()).ok());
          }
          EXPECT_TRUE(step.Close(kTimeout).ok());
          const absl::Time give_up = absl::Now() + kTimeout;
          while (!is_unused && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
          ASSERT_TRUE(is_unused) << "the receiver has let go of it, and nobody has said so";
          // The fake driver kills the process if the receiver still has it open.
          const cuda::ScopedCurrent current(*peer.gpu(0).device);
          ASSERT_EQ(peer.gpu(0).device->table().memory_free(memory.pointer), cuda::kSuccess);
        }
        std::printf("seen: %d of %d allocations had the address of the first\n", recycled, kRounds);
        peer.Meet();
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        for (int round = 0; round < kRounds; ++round) {
          Step step = peer.Open(round + 1);
          const auto tensor = step.Recv(KeyOf(round), kTimeout, stream->get());
          ASSERT_TRUE(tensor.ok()) << tensor.status();
          EXPECT_TRUE(Holds(peer.Read(*tensor, stream->get()),
                            GpuPeer::Pattern(kLarge, static_cast<uint32_t>(round))));
        }
        peer.Meet();
      });
}

}  // namespace
}  // namespace ferry
