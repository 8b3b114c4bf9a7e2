// SPDX-License-Identifier: Apache-2.0
// Where memory of the other process can be opened, but not its events: as between two containers
// that do not share /dev/shm.
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
  NEEDS_THE_DOUBLE("can play what this needs");
  RunGpuPair(
      WithoutEvents(), [](GpuPeer& peer) { SendPatterns(peer, "GPU:0", 3); },
      [](GpuPeer& peer) { Receive(peer, "GPU:0", 0, "cuda_ipc, view"); });
}

TEST(GpuWithoutEvents, CopyIsMadeWhenTheTensorIsReady) {
  NEEDS_THE_DOUBLE("can play what this needs");
  RunGpuPair(
      WithoutEvents(), [](GpuPeer& peer) { SendPatterns(peer, "GPU:1", 3); },
      [](GpuPeer& peer) { Receive(peer, "GPU:1", 1, "cuda_ipc, copy"); });
}

TEST(GpuWithoutEvents, SlicesAreSentWhenTheyAreReady) {
  NEEDS_THE_DOUBLE("can play what this needs");
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

}  // namespace
}  // namespace ferry
