// SPDX-License-Identifier: Apache-2.0
// How long the receiver keeps memory mapped that is not of the sender's arena, and what happens if
// it cannot map it.
#include <atomic>
#include <memory>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/gpu_foreign.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

constexpr int kTransfers = 100;
// Worth mapping.
constexpr size_t kSize = (size_t{1} << 20) + 3;

// Sends the tensor so many times, each after the one before has been released.
void SendAgain(GpuPeer& peer, const Tensor& tensor, int first, int count) {
  const auto stream = peer.NewStream(0);
  for (int i = first; i < first + count; ++i) {
    Step step = peer.Open(i + 1);
    peer.Write(tensor, GpuPeer::Pattern(tensor.bytes(), static_cast<uint32_t>(i)), stream->get());
    ASSERT_TRUE(step.Send(KeyOf(i), tensor, stream->get()).ok());
    const absl::Status closed = step.Close(kTimeout);
    ASSERT_TRUE(closed.ok()) << closed;
  }
}

Tensor ReceiveAs(GpuPeer& peer, int i, const std::string& path) {
  const auto stream = peer.NewStream(0);
  Step step = peer.Open(i + 1);
  const auto received = step.RecvValue(KeyOf(i), kTimeout);
  EXPECT_TRUE(received.ok()) << received.status();
  if (!received.ok()) return Tensor();
  EXPECT_EQ(received->path, path);
  if (const auto ready = cuda::ReadyOf(received->tensor); ready != nullptr) {
    EXPECT_TRUE(ready->EnqueueWait(*peer.gpu(0).device, stream->get()).ok());
  }
  EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()),
                    GpuPeer::Pattern(received->tensor.bytes(), static_cast<uint32_t>(i))))
      << "tensor " << i;
  return received->tensor;
}

int ImplicitSyncs(GpuPeer& peer) { return peer.Control<int (*)()>("strict_cuda_implicit_syncs")(); }

// Receives them. Returns how many calls of this process might have synchronized a device, from the
// second transfer on.
int ReceiveAgain(GpuPeer& peer, int first, int count) {
  ReceiveAs(peer, first, "cuda_ipc, view");
  const int before = ImplicitSyncs(peer);
  for (int i = first + 1; i < first + count; ++i) ReceiveAs(peer, i, "cuda_ipc, view");
  return ImplicitSyncs(peer) - before;
}

// A tensor of the allocation, and a flag that is set when its deleter has run.
Tensor WrapCounted(const Foreign& memory, std::shared_ptr<std::atomic<bool>> is_freed) {
  return Wrap(memory, 0, memory.bytes, [is_freed] { *is_freed = true; });
}

void Free(GpuPeer& peer, const Foreign& memory) {
  const cuda::ScopedCurrent current(*peer.gpu(0).device);
  EXPECT_EQ(peer.gpu(0).device->table().memory_free(memory.pointer), cuda::kSuccess);
}

TEST(GpuMappings, RegisteredMemoryIsMappedOnce) {
  NEEDS_FAKE_DRIVER("counts calls that may synchronize");
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const Foreign memory = MakePlain(peer, kSize);
        auto registration = peer.gpus().RegisterMemory(Wrap(memory, 0, 1));
        ASSERT_TRUE(registration.ok()) << registration.status();
        // Another tensor of the allocation than the registered one.
        SendAgain(peer, Wrap(memory, 0, kSize), 0, kTransfers);
        peer.Meet();  // the calls are counted
        const absl::Status released = (*registration)->Release(kTimeout);
        ASSERT_TRUE(released.ok()) << released;
        // Ends the process if the peer has it mapped.
        Free(peer, memory);
        peer.Meet();
      },
      [](GpuPeer& peer) {
        EXPECT_EQ(ReceiveAgain(peer, 0, kTransfers), 0);
        peer.Meet();
        peer.Meet();
      });
}

// The registration saves this.
TEST(GpuMappings, OtherMemoryIsMappedForEachTransfer) {
  NEEDS_FAKE_DRIVER("counts calls that may synchronize");
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const Foreign memory = MakePlain(peer, kSize);
        SendAgain(peer, Wrap(memory, 0, kSize), 0, 10);
        Free(peer, memory);
        peer.Meet();
      },
      [](GpuPeer& peer) {
        EXPECT_GE(ReceiveAgain(peer, 0, 10), 2 * 9 - 1);
        peer.Meet();
      });
}

// The driver keeps physical memory while it is mapped anywhere, so its owner may free it.
TEST(GpuMappings, MappedMemoryIsMappedOnceWithoutARegistration) {
  NEEDS_FAKE_DRIVER("counts calls that may synchronize");
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const Foreign memory = MakeMapped(peer, 1, cuda::kHandleTypePosixFd);
        SendAgain(peer, Wrap(memory, 0, kSize), 0, kTransfers);
        {
          const cuda::ScopedCurrent current(*peer.gpu(0).device);
          EXPECT_EQ(peer.gpu(0).device->table().memory_unmap(memory.pointer, memory.bytes),
                    cuda::kSuccess);
          EXPECT_EQ(peer.gpu(0).device->table().address_free(memory.pointer, memory.bytes),
                    cuda::kSuccess);
        }
        // At the same address: not taken for the old.
        const Foreign newer = MakeMapped(peer, 1, cuda::kHandleTypePosixFd);
        std::printf("seen: the new memory is at %s address\n",
                    newer.pointer == memory.pointer ? "the same" : "another");
        SendAgain(peer, Wrap(newer, 0, newer.bytes), kTransfers, 2);
        peer.Meet();
      },
      [](GpuPeer& peer) {
        EXPECT_EQ(ReceiveAgain(peer, 0, kTransfers), 0);
        ReceiveAgain(peer, kTransfers, 2);
        peer.Meet();
      });
}

TEST(GpuMappings, MemoryOfAnExportablePoolIsMappedOnceIfRegistered) {
  NEEDS_FAKE_DRIVER("counts calls that may synchronize");
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const Foreign memory = MakeFromPool(peer, true);
        auto registration = peer.gpus().RegisterMemory(Wrap(memory, 0, 1));
        ASSERT_TRUE(registration.ok()) << registration.status();
        SendAgain(peer, Wrap(memory, 0, kSize), 0, kTransfers);
        peer.Meet();  // the calls are counted
        const absl::Status released = (*registration)->Release(kTimeout);
        ASSERT_TRUE(released.ok()) << released;
        Free(peer, memory);
        peer.Meet();
      },
      [](GpuPeer& peer) {
        EXPECT_EQ(ReceiveAgain(peer, 0, kTransfers), 0);
        peer.Meet();
        peer.Meet();
      });
}

// The tensor keeps the memory until the peer has closed it; nobody waits.
TEST(GpuMappings, EndOfARegistration_TheTensorIsDroppedWhenThePeerHasClosedIt) {
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const Foreign memory = MakePlain(peer, kSize);
        const auto is_freed = std::make_shared<std::atomic<bool>>(false);
        auto registration = peer.gpus().RegisterMemory(WrapCounted(memory, is_freed));
        ASSERT_TRUE(registration.ok()) << registration.status();
        const Tensor tensor = Wrap(memory, 0, kSize);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        peer.Write(tensor, GpuPeer::Pattern(kSize, 0), stream->get());
        ASSERT_TRUE(step.Send(KeyOf(0), tensor, stream->get()).ok());
        peer.Meet();  // the receiver holds a view
        const absl::Status early = (*registration)->Release(absl::Milliseconds(50));
        EXPECT_EQ(early.code(), absl::StatusCode::kDeadlineExceeded);
        EXPECT_THAT(std::string(early.message()), HasSubstr("still used by step 1 for"));
        EXPECT_FALSE(*is_freed);
        peer.Meet();  // it releases it
        const absl::Status closed = step.Close(kTimeout);
        EXPECT_TRUE(closed.ok()) << closed;
        const absl::Status released = (*registration)->Release(kTimeout);
        EXPECT_TRUE(released.ok()) << released;
        EXPECT_TRUE(*is_freed);
        Free(peer, memory);
        peer.Meet();
      },
      [](GpuPeer& peer) {
        Tensor view = ReceiveAs(peer, 0, "cuda_ipc, view");
        peer.Meet();
        peer.Meet();
        view = Tensor();
        peer.Meet();
      });
}

// Registered again while the peer still has it mapped from the first time.
TEST(GpuMappings, RegisteredAgain_IsKeptAgain) {
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const Foreign memory = MakePlain(peer, kSize);
        for (int round = 0; round < 5; ++round) {
          auto registration = peer.gpus().RegisterMemory(Wrap(memory, 0, 1));
          ASSERT_TRUE(registration.ok()) << registration.status();
          SendAgain(peer, Wrap(memory, 0, kSize), 4 * round, 3);
          if (round % 2 == 0) {
            EXPECT_TRUE((*registration)->Release(kTimeout).ok());
          }
          registration->reset();
          // Not registered.
          SendAgain(peer, Wrap(memory, 0, kSize), 4 * round + 3, 1);
        }
        auto last = peer.gpus().RegisterMemory(Wrap(memory, 0, 1));
        EXPECT_TRUE((*last)->Release(kTimeout).ok());
        peer.Meet();
      },
      [](GpuPeer& peer) {
        for (int i = 0; i < 20; ++i) ReceiveAs(peer, i, "cuda_ipc, view");
        peer.Meet();
      });
}

TEST(GpuMappings, IdleMemoryIsClosed) {
  NEEDS_FAKE_DRIVER("counts calls that may synchronize");
  GpuPairOptions options;
  options.transfer.gpus.ipc_idle_timeout = absl::Milliseconds(50);
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        const Foreign memory = MakePlain(peer, kSize);
        auto registration = peer.gpus().RegisterMemory(Wrap(memory, 0, 1));
        ASSERT_TRUE(registration.ok()) << registration.status();
        SendAgain(peer, Wrap(memory, 0, kSize), 0, 1);
        peer.Meet();  // closed there
        SendAgain(peer, Wrap(memory, 0, kSize), 1, 1);
        EXPECT_TRUE((*registration)->Release(kTimeout).ok());
        Free(peer, memory);
        peer.Meet();
      },
      [](GpuPeer& peer) {
        ReceiveAs(peer, 0, "cuda_ipc, view");
        const int before = ImplicitSyncs(peer);
        for (int i = 0; i < 10'000 && ImplicitSyncs(peer) == before; ++i) {
          absl::SleepFor(absl::Milliseconds(1));
        }
        EXPECT_EQ(ImplicitSyncs(peer), before + 1);
        peer.Meet();
        ReceiveAs(peer, 1, "cuda_ipc, view");
        peer.Meet();
      });
}

// A peer that ends has nothing mapped any more, and cannot say so.
TEST(GpuMappings, PeerEnds_TheRegistrationDoes) {
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const Foreign memory = MakePlain(peer, kSize);
        auto registration = peer.gpus().RegisterMemory(Wrap(memory, 0, 1));
        ASSERT_TRUE(registration.ok()) << registration.status();
        SendAgain(peer, Wrap(memory, 0, kSize), 0, 1);
        peer.Meet();
        const absl::Status released = (*registration)->Release(kTimeout);
        EXPECT_TRUE(released.ok()) << released;
      },
      [](GpuPeer& peer) {
        ReceiveAs(peer, 0, "cuda_ipc, view");
        peer.Meet();
        peer.Leave();
      });
}

// A driver that imports a pool only once, as far as is known.
TEST(GpuMappings, AllocationsOfOnePoolShareItsImport) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options;
  options.environment = {{"STRICT_CUDA_POOL_IMPORTS", "once"}};
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        Gpu& gpu = peer.gpu(0);
        const cuda::CudaTable& table = gpu.device->table();
        std::vector<Tensor> tensors;
        {
          const cuda::ScopedCurrent current(*gpu.device);
          cuda::PoolProperties properties = {};
          properties.allocation_type = cuda::kAllocationTypePinned;
          properties.handle_types = cuda::kHandleTypePosixFd;
          properties.location = {cuda::kLocationTypeDevice, 0};
          cuda::MemoryPool pool = nullptr;
          ASSERT_EQ(table.pool_create(&pool, &properties), cuda::kSuccess);
          const auto stream = peer.NewStream(0);
          for (int i = 0; i < 3; ++i) {
            Foreign memory = {0, kSize};
            ASSERT_EQ(table.pool_alloc_async(&memory.pointer, memory.bytes, pool, stream->get()),
                      cuda::kSuccess);
            tensors.push_back(Wrap(memory, 0, kSize));
          }
          ASSERT_EQ(table.stream_synchronize(stream->get()), cuda::kSuccess);
        }
        SendAll(peer, tensors);
      },
      [](GpuPeer& peer) {
        // All are held at once.
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        std::vector<Tensor> views;
        for (int i = 0; i < 3; ++i) {
          const auto received = step.RecvValue(KeyOf(i), kTimeout);
          ASSERT_TRUE(received.ok()) << received.status();
          EXPECT_EQ(received->path, "cuda_ipc, view");
          EXPECT_THAT(peer.Explain(0, 0, kSize), HasSubstr("the last one was a view"));
          views.push_back(received->tensor);
        }
        for (int i = 0; i < 3; ++i) {
          const auto at = static_cast<size_t>(i);
          if (const auto ready = cuda::ReadyOf(views[at]); ready != nullptr) {
            ASSERT_TRUE(ready->EnqueueWait(*peer.gpu(0).device, stream->get()).ok());
          }
          EXPECT_TRUE(Holds(peer.Read(views[at], stream->get()),
                            GpuPeer::Pattern(kSize, static_cast<uint32_t>(i))));
        }
        views.clear();
        peer.Meet();
      });
}

// The import fails: the tensor arrives all the same, and the next ones do not try again at once.
TEST(GpuMappings, MemoryThatCannotBeOpenedIsStaged) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  for (const bool is_pool : {true, false}) {
    RunGpuPair(
        {},
        [&](GpuPeer& peer) {
          const Foreign memory = is_pool ? MakeFromPool(peer, true) : MakePlain(peer, kSize);
          SendAgain(peer, Wrap(memory, 0, kSize), 0, 3);
          Free(peer, memory);
          peer.Meet();
        },
        [&](GpuPeer& peer) {
          peer.Control<void (*)(const char*, int, int)>("strict_cuda_fail_next")(
              is_pool ? "cuMemPoolImportPointer" : "cuIpcOpenMemHandle_v2", 999, 0);
          // The path is the one taken, not that of the transfer descriptor.
          ReceiveAs(peer, 0, "cuda_ipc, staged");
          EXPECT_THAT(peer.Explain(0, 0, kSize),
                      HasSubstr("the last one was staged: its memory could not be opened"));
          ReceiveAs(peer, 1, "cuda_ipc, staged");
          EXPECT_THAT(peer.Explain(0, 0, kSize),
                      HasSubstr("staged: the receiver could not open its memory"));
          ReceiveAs(peer, 2, "cuda_ipc, staged");
          peer.Meet();
        });
  }
}

// Nothing is allocated from the driver once the memory is reserved.
TEST(GpuMappings, TransfersOfReservedMemoryNeedNothingFromTheDriver) {
  NEEDS_FAKE_DRIVER("counts calls that may synchronize");
  GpuPairOptions options;
  options.transfer.gpus.arena.reserve_bytes = size_t{64} << 20;
  options.transfer.gpus.pinned.reserve_bytes = size_t{32} << 20;
  options.transfer.gpus.staging.is_reserved = true;
  const auto size_of = [](int i) { return 10'000 + static_cast<size_t>(i % 10) * 300'000; };
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        int before = 0;
        for (int i = 0; i < 30; ++i) {
          Step step = peer.Open(i + 1);
          const Tensor tensor = OnGpu(peer, 0, size_of(i));
          peer.Write(tensor, GpuPeer::Pattern(tensor.bytes(), static_cast<uint32_t>(i)),
                     stream->get());
          ASSERT_TRUE(step.Send(KeyOf(i), tensor, stream->get()).ok());
          ASSERT_TRUE(step.Close(kTimeout).ok());
          // The first one opens what the pair needs.
          if (i == 0) before = ImplicitSyncs(peer);
        }
        EXPECT_EQ(ImplicitSyncs(peer), before);
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        int before = 0;
        for (int i = 0; i < 30; ++i) {
          ReceiveAs(peer, i, "cuda_ipc, view");
          // By then each of the sender's segments is mapped.
          if (i == 9) before = ImplicitSyncs(peer);
        }
        EXPECT_EQ(ImplicitSyncs(peer), before);
        peer.Meet();
      });
}

}  // namespace
}  // namespace ferry
