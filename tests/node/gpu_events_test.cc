// SPDX-License-Identifier: Apache-2.0
// Where memory of the other process can be opened, but not its events: as between two containers
// that do not share /dev/shm.
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/gpu_patterns.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

// From cudaMalloc, as other programs allocate.
Tensor PlainForeign(GpuPeer& peer, cuda::DevicePointer* pointer) {
  Gpu& gpu = peer.gpu(0);
  const cuda::ScopedCurrent current(*gpu.device);
  FERRY_CHECK(gpu.device->table().memory_alloc(pointer, kBytes) == cuda::kSuccess);
  return *Tensor::Create(
      DataType::kUint8, *Shape::Create({kBytes}),
      WrapForeignBuffer(cuda::AsHostPointer(*pointer), kBytes, [] {}, {MemorySpace::kCuda, 0}));
}

GpuPairOptions WithoutEvents() {
  GpuPairOptions options;
  options.transfer.require_transport = "cuda_ipc";
  options.environment = {{"STRICT_CUDA_DELAY_US", "20000"}};
  options.consumer_environment = {{"STRICT_CUDA_FAIL", "cuIpcOpenEventHandle:999:0:1000000"}};
  return options;
}

void Receive(GpuPeer& peer, const std::string& to, int ordinal, const std::string& way) {
  const auto stream = peer.NewStream(ordinal);
  Step step = peer.Open();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ReceivePattern(peer, step, to, i, stream->get()), way);
  EXPECT_THAT(peer.Explain(0, ordinal, kBytes),
              HasSubstr("the sender waits for what is not ready, since there are no events"));
  peer.Meet();
}

// The copies that fill the tensor are delayed.
TEST(GpuWithoutEvents, ViewIsReadWhenTheTensorIsReady) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  RunGpuPair(
      WithoutEvents(), [](GpuPeer& peer) { SendPatterns(peer, "GPU:0", 3); },
      [](GpuPeer& peer) { Receive(peer, "GPU:0", 0, "cuda_ipc, view"); });
}

TEST(GpuWithoutEvents, CopyIsMadeWhenTheTensorIsReady) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  RunGpuPair(
      WithoutEvents(), [](GpuPeer& peer) { SendPatterns(peer, "GPU:1", 3); },
      [](GpuPeer& peer) { Receive(peer, "GPU:1", 1, "cuda_ipc, copy"); });
}

TEST(GpuWithoutEvents, SlicesAreSentWhenTheyAreReady) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options = WithoutEvents();
  options.transfer.gpus.ipc_min_bytes = SIZE_MAX;
  options.transfer.gpus.staging = {.budget_bytes = size_t{2} << 20, .slot_bytes = size_t{1} << 20};
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        cuda::DevicePointer pointer = 0;
        const Tensor tensor = PlainForeign(peer, &pointer);
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        peer.Write(tensor, pattern, stream->get());
        ASSERT_TRUE(step.Send(GpuPeer::Key("t0", "GPU:0", "GPU:0"), tensor, stream->get()).ok());
        const absl::Status closed = step.Close(kTimeout);
        EXPECT_TRUE(closed.ok()) << closed;
        peer.Meet();
        const cuda::ScopedCurrent current(*peer.gpu(0).device);
        EXPECT_EQ(peer.gpu(0).device->table().memory_free(pointer), cuda::kSuccess);
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        EXPECT_EQ(ReceivePattern(peer, step, "GPU:0", 0, stream->get()), "cuda_ipc, staged");
        peer.Meet();
      });
}

// The consumer has no event of its own for what it enqueues: it must not wait for the stream, which
// may wait for the other process.
//   pause: of what that stream waits for, at the consumer or at the producer; the result ends it.
using Pause = std::function<std::function<void()>(GpuPeer& peer, cuda::Stream stream)>;
void FailWithoutWaiting(const GpuPairOptions& options, bool is_in_arena, bool has_destination,
                        const Pause& at_producer, const Pause& at_consumer) {
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        cuda::DevicePointer pointer = 0;
        const Tensor tensor = is_in_arena ? OnGpu(peer, 0) : PlainForeign(peer, &pointer);
        const auto go_on = at_producer(peer, stream->get());
        ASSERT_TRUE(step.Send(KeyOf(0), tensor, stream->get()).ok());
        peer.Meet();
        go_on();
        step.Close(kTimeout).IgnoreError();
        peer.Meet();
        const cuda::ScopedCurrent current(*peer.gpu(0).device);
        if (pointer != 0) {
          EXPECT_EQ(peer.gpu(0).device->table().memory_free(pointer), cuda::kSuccess);
        }
      },
      [&](GpuPeer& peer) {
        RecvArgs args;
        if (has_destination) args.destination = OnGpu(peer, 0);
        const auto go_on = at_consumer(peer, peer.gpu(0).copies->get());
        peer.Control<void (*)(const char*, int, int, int)>("strict_cuda_fail")(
            "cuEventCreate", cuda::kErrorOutOfMemory, 0, 1000);
        Step step = peer.Open();
        Receipt receipt;
        step.RecvAsync(KeyOf(0), args, receipt.callback());
        const absl::Status failed = receipt.Wait(kTimeout).status();
        EXPECT_THAT(std::string(failed.message()), HasSubstr("cuEventCreate")) << failed;
        peer.Control<void (*)()>("strict_cuda_clear_faults")();
        peer.Meet();
        go_on();
        peer.Meet();
      });
}

GpuPairOptions OnDevice() {
  GpuPairOptions options;
  options.transfer.require_transport = "cuda_ipc";
  options.transfer.gpus.waits_on_device = true;
  return options;
}
std::function<void()> NoPause(GpuPeer&, cuda::Stream) {
  return [] {};
}
std::function<void()> PauseStream(GpuPeer& peer, cuda::Stream stream) {
  return peer.PauseDetector(stream);
}

TEST(GpuWithoutOwnEvents, ViewOfAnIncompleteTensor_FailsAtOnce) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  FailWithoutWaiting(OnDevice(), /*is_in_arena=*/true, /*has_destination=*/false, PauseStream,
                     NoPause);
}

TEST(GpuWithoutOwnEvents, Copy_FailsAtOnce) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  FailWithoutWaiting(OnDevice(), /*is_in_arena=*/true, /*has_destination=*/true, NoPause,
                     PauseStream);
}

TEST(GpuWithoutOwnEvents, Slices_FailAtOnce) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options = OnDevice();
  options.transfer.gpus.ipc_min_bytes = SIZE_MAX;
  FailWithoutWaiting(options, /*is_in_arena=*/false, /*has_destination=*/false, NoPause,
                     PauseStream);
}

}  // namespace
}  // namespace ferry
