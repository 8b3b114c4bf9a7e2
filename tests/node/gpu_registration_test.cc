// SPDX-License-Identifier: Apache-2.0
// The end of a registration: memory that is freed as soon as Release has returned OK is used by
// nothing, whichever path its transfers take. The fake driver ends the process if it is.
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/cuda/memory_kind.h"
#include "tests/node/gpu_foreign.h"
#include "tests/node/gpu_spin.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Worth mapping.
constexpr size_t kSize = (size_t{1} << 20) + 3;
// Takes several slots of the staging ring.
constexpr size_t kManySlices = size_t{24} << 20;
constexpr absl::Duration kShort = absl::Milliseconds(100);

using RegistrationPtr = std::unique_ptr<cuda::ExportRegistration>;

// Registers the first byte: transfers are of other tensors in the allocation.
RegistrationPtr Register(GpuPeer& peer, const Foreign& memory) {
  auto registration = peer.gpus().RegisterMemory(Wrap(memory, 0, 1));
  FERRY_CHECK(registration.ok());
  return *std::move(registration);
}

void Free(const cuda::CudaDevice& device, const Foreign& memory) {
  const cuda::ScopedCurrent current(device);
  EXPECT_EQ(device.table().memory_free(memory.pointer), cuda::kSuccess);
}

void ExpectInUse(cuda::ExportRegistration& registration, const std::string& by) {
  const absl::Status early = registration.Release(kShort);
  EXPECT_EQ(early.code(), absl::StatusCode::kDeadlineExceeded) << early;
  EXPECT_THAT(std::string(early.message()), AllOf(HasSubstr("waited 100ms"), HasSubstr(by)));
}

void ReleaseAndFree(GpuPeer& peer, cuda::ExportRegistration& registration, const Foreign& memory) {
  const absl::Status released = registration.Release(kTimeout);
  ASSERT_TRUE(released.ok()) << released;
  Free(*peer.gpu(0).device, memory);
}

// As the options have it, of memory that a kernel is still to write: the transfer is under way when
// the registration ends, and goes on behind that.
void ExpectFreedBehindTheTransfer(GpuPairOptions options, size_t bytes, const std::string& path,
                                  const std::string& to = "GPU:0") {
  SCOPED_TRACE(path);
  // The kernel keeps a queue.
  options.environment["STRICT_CUDA_CONNECTIONS"] = "0";
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        const Foreign memory = MakePlain(peer, bytes);
        const RegistrationPtr registration = Register(peer, memory);
        GpuSpin spin(peer, 0);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        spin.Start(stream->get());
        peer.Write(Wrap(memory, 0, bytes), GpuPeer::Pattern(bytes, 0), stream->get());
        ASSERT_TRUE(step.Send(KeyOf(0, to), Wrap(memory, 0, bytes), stream->get()).ok());
        peer.Meet();
        ExpectInUse(*registration, "which is still used by step 1 for /job:worker");
        spin.Stop();
        ReleaseAndFree(peer, *registration, memory);
        const absl::Status closed = step.Close(kTimeout);
        EXPECT_TRUE(closed.ok()) << closed;
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        if (to != "CPU:0") peer.gpu(0);
        Step step = peer.Open();
        Receipt receipt;
        step.RecvAsync(KeyOf(0, to), {}, receipt.callback());
        peer.Meet();
        auto received = receipt.Wait(kTimeout);
        ASSERT_TRUE(received.ok()) << received.status();
        EXPECT_EQ(received->path, path);
        const Tensor pattern = GpuPeer::Pattern(bytes, 0);
        if (received->tensor.is_on_host()) {
          EXPECT_TRUE(IsEqual(received->tensor, pattern));
        } else {
          const auto stream = peer.NewStream(received->tensor.location().ordinal);
          if (const auto ready = cuda::ReadyOf(received->tensor); ready != nullptr) {
            EXPECT_TRUE(ready->EnqueueWait(*peer.gpu(0).device, stream->get()).ok());
          }
          EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()), pattern));
        }
        received = absl::CancelledError("released");
        receipt = Receipt();
        peer.Meet();
      });
}

TEST(GpuRegistration, FreedBehindAViewOfThePeers) {
  NEEDS_FAKE_DRIVER("can have a queue for each stream");
  ExpectFreedBehindTheTransfer({}, kSize, "cuda_ipc, view");
}

// Less than is worth mapping.
TEST(GpuRegistration, FreedBehindASmallStagedSend) {
  NEEDS_FAKE_DRIVER("can have a queue for each stream");
  ExpectFreedBehindTheTransfer({}, 100'000, "cuda_ipc, staged");
}

TEST(GpuRegistration, FreedBehindASendOfManySlices) {
  NEEDS_FAKE_DRIVER("can have a queue for each stream");
  GpuPairOptions options;
  options.transfer.gpus.ipc_min_bytes = SIZE_MAX;
  options.environment = {{"STRICT_CUDA_DELAY_US", "3000"}};
  ExpectFreedBehindTheTransfer(options, kManySlices, "cuda_ipc, staged");
}

TEST(GpuRegistration, FreedBehindASendThroughTheHost) {
  NEEDS_FAKE_DRIVER("can have a queue for each stream");
  ExpectFreedBehindTheTransfer({}, kSize, "shm, staged", "CPU:0");
}

TEST(GpuRegistration, FreedBehindASendByNccl) {
  NEEDS_FAKE_DRIVER("can have a queue for each stream");
  GpuPairOptions options;
  options.is_apart = true;
  options.transfer.require_transport = "nccl";
  ExpectFreedBehindTheTransfer(options, kManySlices, "nccl", "GPU:1");
}

// The receiver's driver refuses to open it: it is staged, and its kernel still runs.
TEST(GpuRegistration, FreedBehindASendThatWasRefusedAndThenStaged) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  for (const bool waits_on_device : {false, true}) {
    SCOPED_TRACE(waits_on_device ? "streams wait" : "the host queries events");
    GpuPairOptions options;
    options.transfer.gpus.waits_on_device = waits_on_device;
    options.consumer_environment = {{"STRICT_CUDA_FAIL", "cuIpcOpenMemHandle_v2:999"}};
    ExpectFreedBehindTheTransfer(options, kManySlices, "cuda_ipc, staged");
  }
}

// Sent before the registration ends, and asked for by its receiver while it does.
TEST(GpuRegistration, FreedBehindASendThatIsReceivedLate) {
  for (const bool is_mapped : {true, false}) {
    RunGpuPair(
        {},
        [&](GpuPeer& peer) {
          const Foreign memory = MakePlain(peer, is_mapped ? kSize : 1000);
          const RegistrationPtr registration = Register(peer, memory);
          const auto stream = peer.NewStream(0);
          Step step = peer.Open();
          const Tensor tensor = Wrap(memory, 0, memory.bytes);
          peer.Write(tensor, GpuPeer::Pattern(memory.bytes, 0), stream->get());
          ASSERT_TRUE(step.Send(KeyOf(0), tensor, stream->get()).ok());
          ExpectInUse(*registration, "t0");
          // Sent while it is asked for.
          ASSERT_TRUE(step.Send(KeyOf(1), tensor, stream->get()).ok());
          ExpectInUse(*registration, "t1");
          peer.Meet();
          ReleaseAndFree(peer, *registration, memory);
          const absl::Status closed = step.Close(kTimeout);
          EXPECT_TRUE(closed.ok()) << closed;
          peer.Meet();
        },
        [&](GpuPeer& peer) {
          peer.Meet();
          Step step = peer.Open();
          for (int i = 0; i < 2; ++i) EXPECT_TRUE(step.Recv(KeyOf(i), kTimeout).ok());
          peer.Meet();
        });
  }
}

// The mapping of a receiver that keeps its view for long.
TEST(GpuRegistration, FreedBehindASlowReceiversView) {
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const Foreign memory = MakePlain(peer, kSize);
        const RegistrationPtr registration = Register(peer, memory);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor tensor = Wrap(memory, 0, kSize);
        peer.Write(tensor, GpuPeer::Pattern(kSize, 0), stream->get());
        ASSERT_TRUE(step.Send(KeyOf(0), tensor, stream->get()).ok());
        peer.Meet();
        ExpectInUse(*registration, "node 1, which has it mapped");
        peer.Meet();
        ReleaseAndFree(peer, *registration, memory);
        peer.Meet();
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        auto view = step.Recv(KeyOf(0), kTimeout, stream->get());
        ASSERT_TRUE(view.ok()) << view.status();
        peer.Meet();
        peer.Meet();
        absl::SleepFor(absl::Milliseconds(300));
        EXPECT_TRUE(Holds(peer.Read(*view, stream->get()), GpuPeer::Pattern(kSize, 0)));
        view = absl::CancelledError("released");
        peer.Meet();
      });
}

TEST(GpuRegistration, FreedBehindAReceiverThatDies) {
  GpuPairOptions options;
  options.consumer_dies = true;
  const int killed = RunGpuPair(
      options,
      [](GpuPeer& peer) {
        const Foreign memory = MakePlain(peer, kSize);
        const RegistrationPtr registration = Register(peer, memory);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor tensor = Wrap(memory, 0, kSize);
        peer.Write(tensor, GpuPeer::Pattern(kSize, 0), stream->get());
        ASSERT_TRUE(step.Send(KeyOf(0), tensor, stream->get()).ok());
        peer.Meet();
        ReleaseAndFree(peer, *registration, memory);
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const auto view = step.Recv(KeyOf(0), kTimeout, stream->get());
        ASSERT_TRUE(view.ok()) << view.status();
        peer.Meet();
        kill(getpid(), SIGKILL);
      });
  EXPECT_EQ(killed, 1);
}

// The receiver's node ends, and its process goes on with a view: for longer than the driver would
// need to close what a dead process has.
TEST(GpuRegistration, ReceiverThatLosesItsConnection_IsWaitedFor) {
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const Foreign memory = MakePlain(peer, kSize);
        const RegistrationPtr registration = Register(peer, memory);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor tensor = Wrap(memory, 0, kSize);
        peer.Write(tensor, GpuPeer::Pattern(kSize, 0), stream->get());
        ASSERT_TRUE(step.Send(KeyOf(0), tensor, stream->get()).ok());
        peer.Meet();
        peer.Meet();  // it has left
        const absl::Status early = registration->Release(absl::Seconds(4));
        EXPECT_EQ(early.code(), absl::StatusCode::kDeadlineExceeded) << early;
        EXPECT_THAT(std::string(early.message()),
                    HasSubstr("node 1, which may still have it mapped: its control channel"));
        peer.Meet();
        ReleaseAndFree(peer, *registration, memory);
        peer.Meet();
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        const std::shared_ptr<cuda::CudaDevice> device = peer.gpu(0).device;
        Tensor view;
        {
          Step step = peer.Open();
          auto received = step.Recv(KeyOf(0), kTimeout, stream->get());
          ASSERT_TRUE(received.ok()) << received.status();
          view = *std::move(received);
        }
        peer.Meet();
        peer.Leave();
        peer.Meet();
        peer.Meet();  // it is still in use
        {
          const cuda::ScopedCurrent current(*device);
          std::vector<unsigned char> bytes(kSize);
          EXPECT_EQ(device->table().copy_to_host_async(
                        bytes.data(), cuda::AsDevicePointer(view.data()), kSize, stream->get()),
                    cuda::kSuccess);
          EXPECT_EQ(device->table().stream_synchronize(stream->get()), cuda::kSuccess);
          EXPECT_TRUE(Holds(bytes, GpuPeer::Pattern(kSize, 0)));
        }
        view = Tensor();
        peer.Meet();
      });
}

// A receive in the same process gets the sender's memory itself.
TEST(GpuRegistration, FreedBehindAHandOff) {
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const Foreign memory = MakePlain(peer, kSize);
        const RegistrationPtr registration = Register(peer, memory);
        const auto stream = peer.NewStream(0);
        const RendezvousKey key = *RendezvousKey::Parse(
            RendezvousKey::Text("/job:worker/replica:0/task:0/device:GPU:0", 1000,
                                "/job:worker/replica:0/task:0/device:GPU:0", "to itself"));
        Step step = peer.Open();
        ASSERT_TRUE(step.Send(key, Wrap(memory, 0, kSize), stream->get()).ok());
        ExpectInUse(*registration, "to itself");
        auto received = step.Recv(key, kTimeout, stream->get());
        ASSERT_TRUE(received.ok()) << received.status();
        EXPECT_EQ(cuda::AsDevicePointer(received->data()), memory.pointer);
        ExpectInUse(*registration, "to itself");
        received = absl::CancelledError("released");
        ReleaseAndFree(peer, *registration, memory);
        peer.Meet();
      },
      [](GpuPeer& peer) { peer.Meet(); });
}

// A receive writes into it.
TEST(GpuRegistration, FreedBehindAReceive) {
  NEEDS_FAKE_DRIVER("can have a queue for each stream");
  GpuPairOptions options;
  options.environment = {{"STRICT_CUDA_CONNECTIONS", "0"}};
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        GpuSpin spin(peer, 0);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor tensor = OnGpu(peer, 0, kSize);
        spin.Start(stream->get());
        peer.Write(tensor, GpuPeer::Pattern(kSize, 0), stream->get());
        ASSERT_TRUE(step.Send(KeyOf(0), tensor, stream->get()).ok());
        peer.Meet();
        spin.Stop();
        const absl::Status closed = step.Close(kTimeout);
        EXPECT_TRUE(closed.ok()) << closed;
        peer.Meet();
      },
      [](GpuPeer& peer) {
        const Foreign memory = MakePlain(peer, kSize);
        const RegistrationPtr registration = Register(peer, memory);
        Step step = peer.Open();
        Receipt receipt;
        {
          RecvArgs args;
          args.destination = Wrap(memory, 0, kSize);
          step.RecvAsync(KeyOf(0), std::move(args), receipt.callback());
        }
        ExpectInUse(*registration, "t0");
        peer.Meet();
        EXPECT_TRUE(receipt.Wait(kTimeout).ok());
        receipt = Receipt();
        ReleaseAndFree(peer, *registration, memory);
        peer.Meet();
      });
}

// Memory of cuMemCreate: its owner could free it while it is mapped, but the GPU would not have it
// back.
TEST(GpuRegistration, PhysicalMemoryIsClosedByThePeer) {
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const Foreign memory = MakeMapped(peer, 1, cuda::kHandleTypePosixFd);
        const RegistrationPtr registration = Register(peer, memory);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        ASSERT_TRUE(step.Send(KeyOf(0), Wrap(memory, 0, kSize), stream->get()).ok());
        const absl::Status closed = step.Close(kTimeout);
        EXPECT_TRUE(closed.ok()) << closed;
        peer.Meet();
        peer.Meet();  // it has looked
        const absl::Status released = registration->Release(kTimeout);
        EXPECT_TRUE(released.ok()) << released;
        peer.Meet();
      },
      [](GpuPeer& peer) {
        const void* address = nullptr;
        {
          Step step = peer.Open();
          const auto view = step.Recv(KeyOf(0), kTimeout);
          ASSERT_TRUE(view.ok()) << view.status();
          address = view->data();
        }
        const auto is_mapped = [&] {
          const auto info = cuda::Classify(*peer.gpu(0).device, address, 1);
          return info.ok() && info->kind == cuda::MemoryKind::kVirtual;
        };
        peer.Meet();  // it has been released
        EXPECT_TRUE(is_mapped());
        peer.Meet();
        peer.Meet();
        EXPECT_FALSE(is_mapped());
      });
}

// Registered twice: the end of the last waits for transfers of both.
TEST(GpuRegistration, EndOfTheLastOfTwo_WaitsForTheFirst) {
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const Foreign memory = MakePlain(peer, kSize);
        RegistrationPtr first = Register(peer, memory);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        ASSERT_TRUE(step.Send(KeyOf(0), Wrap(memory, 0, kSize), stream->get()).ok());
        const RegistrationPtr second = Register(peer, memory);
        first.reset();
        ExpectInUse(*second, "t0");
        peer.Meet();
        ReleaseAndFree(peer, *second, memory);
        peer.Meet();
      },
      [](GpuPeer& peer) {
        peer.Meet();
        Step step = peer.Open();
        EXPECT_TRUE(step.Recv(KeyOf(0), kTimeout).ok());
        peer.Meet();
      });
}

RendezvousKey ToItself(const std::string& name) {
  return *RendezvousKey::Parse(
      RendezvousKey::Text("/job:worker/replica:0/task:0/device:GPU:0", 1000,
                          "/job:worker/replica:0/task:0/device:GPU:0", name));
}

// Transfers that begin while it ends belong to the other one, however long they overlap.
TEST(GpuRegistration, EndOfOneOfTwo_IsNotHeldUpByLaterTransfers) {
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const Foreign memory = MakePlain(peer, kSize);
        const RegistrationPtr stays = Register(peer, memory);
        const RegistrationPtr ends = Register(peer, memory);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const auto send = [&](const std::string& name) {
          return step.Send(ToItself(name), Wrap(memory, 0, kSize), stream->get());
        };
        ASSERT_TRUE(send("earlier").ok());
        ExpectInUse(*ends, "earlier");
        ASSERT_TRUE(send("later").ok());
        ASSERT_TRUE(step.Recv(ToItself("earlier"), kTimeout, stream->get()).ok());
        const absl::Status ended = ends->Release(kTimeout);
        EXPECT_TRUE(ended.ok()) << ended;
        ExpectInUse(*stays, "later");
        ASSERT_TRUE(step.Recv(ToItself("later"), kTimeout, stream->get()).ok());
        ReleaseAndFree(peer, *stays, memory);
        peer.Meet();
      },
      [](GpuPeer& peer) { peer.Meet(); });
}

// Each receive within a process returns the sender's tensor, which may be sent again.
TEST(GpuRegistration, TensorThatIsPassedOnForEver_IsNoChain) {
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        // Their destructors would be nested so deep.
        constexpr int kTimes = 200'000;
        const Foreign memory = MakePlain(peer, kSize);
        const RegistrationPtr registration = Register(peer, memory);
        Tensor tensor = Wrap(memory, 0, kSize);
        for (int i = 0; i < kTimes; ++i) {
          tensor = peer.gpus().exports()->Hold(
              std::move(tensor), [i, kTimes] { return i + 1 < kTimes ? "earlier" : "the last"; });
        }
        const absl::Status early = registration->Release(kShort);
        EXPECT_THAT(std::string(early.message()), HasSubstr("used by the last:"));
        tensor = Tensor();
        ReleaseAndFree(peer, *registration, memory);
        peer.Meet();
      },
      [](GpuPeer& peer) { peer.Meet(); });
}

}  // namespace
}  // namespace ferry
