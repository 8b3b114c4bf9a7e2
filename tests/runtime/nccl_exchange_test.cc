// SPDX-License-Identifier: Apache-2.0
// Tensors between GPUs of two machines, as far as the processes can tell, by NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/gpu_pair.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr size_t kBytes = 3 * 1000 * 1000 + 7;

Tensor OnGpu(GpuPeer& peer, int ordinal, size_t bytes = kBytes) {
  return *peer.gpus().Allocate(ordinal, DataType::kUint8,
                               *Shape::Create({static_cast<int64_t>(bytes)}));
}

// Sends a pattern of each seed from gpu:0, whose copy into the memory is late.
void SendPatterns(GpuPeer& peer, const std::string& to, int count, size_t bytes = kBytes) {
  const auto stream = peer.NewStream(0);
  Step step = peer.Open();
  std::vector<Tensor> patterns;
  for (int i = 0; i < count; ++i) {
    patterns.push_back(GpuPeer::Pattern(bytes, static_cast<uint32_t>(i)));
    const Tensor tensor = OnGpu(peer, 0, bytes);
    peer.Write(tensor, patterns.back(), stream->get());
    ASSERT_TRUE(
        step.Send(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", to), tensor, stream->get()).ok());
  }
  const absl::Status closed = step.Close(kPatience);
  EXPECT_TRUE(closed.ok()) << closed;
  peer.Meet();
}

std::string ReceivePattern(GpuPeer& peer, Step& step, const std::string& to, int index,
                           cuda::Stream stream, RecvArgs args = {}, size_t bytes = kBytes) {
  const RendezvousKey key = GpuPeer::Key(absl::StrCat("t", index), "GPU:0", to);
  absl::StatusOr<Received> received = step.RecvValue(key, kPatience, std::move(args));
  EXPECT_TRUE(received.ok()) << received.status();
  if (!received.ok()) return "";
  const Tensor& tensor = received->tensor;
  if (const auto ready = cuda::ReadyOf(tensor); ready != nullptr) {
    EXPECT_TRUE(ready->MakeWait(*peer.gpu(tensor.place().ordinal).device, stream).ok());
  }
  EXPECT_TRUE(
      Holds(peer.Read(tensor, stream), GpuPeer::Pattern(bytes, static_cast<uint32_t>(index))))
      << "not what was sent";
  return std::string(received->path);
}

TEST(NcclExchange, BetweenMachines) {
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

}  // namespace
}  // namespace ferry
