// SPDX-License-Identifier: Apache-2.0
// The staging ring: bounded, so that senders wait without failing, and released early.
#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/gpu_foreign.h"

namespace ferry {
namespace {

// A ring of two slots: larger tensors are sent in slices, further ones wait, and a full arena does
// not matter.
TEST(GpuRing, BoundedRing_FailsNoTransfer) {
  GpuPairOptions options;
  options.transfer.gpus.staging = {.budget_bytes = 2 * kGranule, .slot_bytes = kGranule};
  options.transfer.gpus.arena = {.budget_bytes = size_t{256} << 20,
                                 .segment_bytes = size_t{32} << 20};
  const std::vector<size_t> sizes = {11 * kGranule + 5, 100, kLarge, 3 * kGranule, 1, kLarge};
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        std::vector<Tensor> hogs;
        while (true) {
          auto hog = peer.gpus().Allocate(0, DataType::kUint8, *Shape::Create({1 << 20}));
          if (!hog.ok()) break;
          hogs.push_back(*hog);
        }
        ASSERT_GT(hogs.size(), 200u);
        std::vector<Tensor> tensors;
        for (const size_t bytes : sizes) {
          tensors.push_back(Wrap(MakeMapped(peer, bytes / kGranule + 1, 0), 0, bytes));
        }
        SendAll(peer, tensors);
        const cuda::StagingRingStats stats = peer.gpu(0).ring->stats();
        EXPECT_EQ(stats.slot_count, 2);
        EXPECT_EQ(stats.waiting_count, 0);
        EXPECT_GT(stats.waited, 0);
      },
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        // All at once.
        Step step = peer.Open();
        std::vector<Receipt> receipts(sizes.size());
        for (size_t i = 0; i < sizes.size(); ++i) {
          step.RecvAsync(KeyOf(static_cast<int>(i)), {}, receipts[i].callback());
        }
        for (size_t i = 0; i < sizes.size(); ++i) {
          const auto received = receipts[i].Wait();
          ASSERT_TRUE(received.ok()) << received.status();
          EXPECT_EQ(received->path, "cuda_ipc, staged");
          if (const auto ready = cuda::ReadyOf(received->tensor); ready != nullptr) {
            EXPECT_TRUE(ready->EnqueueWait(*peer.gpu(0).device, stream->get()).ok());
          }
          EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()),
                            GpuPeer::Pattern(sizes[i], static_cast<uint32_t>(i))));
        }
        peer.Meet();
      });
}

// The sender's memory is free once it is copied, whatever the receiver does.
TEST(GpuRing, SendersMemoryIsReleasedEarly) {
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        std::atomic<bool> is_unused = false;
        const Tensor pattern = GpuPeer::Pattern(kLarge, 0);
        {
          const Tensor tensor =
              Wrap(MakeFromPool(peer, false), 0, kLarge, [&] { is_unused = true; });
          peer.Write(tensor, pattern, stream->get());
          ASSERT_TRUE(step.Send(KeyOf(0), tensor, stream->get()).ok());
        }
        peer.Meet();
        const absl::Time give_up = absl::Now() + kTimeout;
        while (!is_unused && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
        EXPECT_TRUE(is_unused);
        peer.Meet();
        EXPECT_TRUE(step.Close(kTimeout).ok());
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const auto tensor = step.Recv(KeyOf(0), kTimeout, stream->get());
        ASSERT_TRUE(tensor.ok()) << tensor.status();
        // It is held until the sender reports that its memory is free.
        peer.Meet();
        peer.Meet();
        EXPECT_TRUE(Holds(peer.Read(*tensor, stream->get()), GpuPeer::Pattern(kLarge, 0)));
      });
}

// A device without memory for the ring: through the host.
TEST(GpuRing, WithoutRoomForTheRing_GoesThroughTheHost) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        const Foreign memory = MakeFromPool(peer, false);
        Step step = peer.Open();
        const auto stream = peer.NewStream(0);
        // The probe's.
        const Tensor first = *peer.gpus().Allocate(0, DataType::kUint8, *Shape::Create({5000}));
        const Tensor small = GpuPeer::Pattern(5000, 7);
        peer.Write(first, small, stream->get());
        ASSERT_TRUE(step.Send(KeyOf(7), first, stream->get()).ok());
        peer.Meet();
        for (const char* each : {"cuMemCreate", "cuMemAlloc_v2"}) {
          peer.Control<void (*)(const char*, int, int, int)>("strict_cuda_fail")(each, 2, 0, 1000);
        }
        const Tensor tensor = Wrap(memory, 0, kLarge);
        const Tensor pattern = GpuPeer::Pattern(kLarge, 0);
        peer.Write(tensor, pattern, stream->get());
        ASSERT_TRUE(step.Send(KeyOf(0), tensor, stream->get()).ok());
        EXPECT_TRUE(step.Close(kTimeout).ok());
        peer.Meet();
      },
      [](GpuPeer& peer) {
        Step step = peer.Open();
        ASSERT_TRUE(step.RecvValue(KeyOf(7), kTimeout).ok());
        peer.Meet();
        EXPECT_THAT(ReceiveAll(peer, {kLarge}), ::testing::ElementsAre("shm, staged"));
        peer.Meet();
      });
}

// The receiver has no room for a copy, until it releases another.
TEST(GpuRing, ReceiverWithoutRoom_WaitsForSome) {
  NEEDS_TWO_PEERS();
  GpuPairOptions options;
  options.transfer.gpus.arena = {.budget_bytes = size_t{64} << 20,
                                 .segment_bytes = size_t{32} << 20};
  RunGpuPair(
      options,
      [](GpuPeer& peer) { SendAll(peer, {Wrap(MakeFromPool(peer, false), 0, kLarge)}, "GPU:1"); },
      [](GpuPeer& peer) {
        std::vector<Tensor> hogs;
        while (true) {
          auto hog = peer.gpus().Allocate(1, DataType::kUint8,
                                          *Shape::Create({static_cast<int64_t>(kLarge)}));
          if (!hog.ok()) break;
          hogs.push_back(*hog);
        }
        Step step = peer.Open();
        Receipt receipt;
        step.RecvAsync(KeyOf(0, "GPU:1"), {}, receipt.callback());
        absl::SleepFor(absl::Milliseconds(300));
        EXPECT_FALSE(receipt.is_done());
        hogs.clear();
        const auto received = receipt.Wait();
        ASSERT_TRUE(received.ok()) << received.status();
        const auto stream = peer.NewStream(1);
        if (const auto ready = cuda::ReadyOf(received->tensor); ready != nullptr) {
          EXPECT_TRUE(ready->EnqueueWait(*peer.gpu(1).device, stream->get()).ok());
        }
        EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()), GpuPeer::Pattern(kLarge, 0)));
        peer.Meet();
      });
}

}  // namespace
}  // namespace ferry
