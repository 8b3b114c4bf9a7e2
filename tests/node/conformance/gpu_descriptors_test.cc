// SPDX-License-Identifier: Apache-2.0
// Transfer descriptors for GPU memory from a malicious peer that knows the job's token.
#include <random>

#include <gtest/gtest.h>

#include "tests/node/gpu_patterns.h"
#include "tests/node/rogue_peer.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/nccl/nccl_descriptor.h"

namespace ferry {
namespace {

// In the form that honest peers use.
std::string GoodDescriptor(absl::string_view transport) {
  if (transport == "nccl") {
    NcclDescriptor descriptor;
    descriptor.key = {DeviceId(16), DeviceId(32), 1};
    return EncodeNcclDescriptor(descriptor);
  }
  CudaIpcDescriptor descriptor;
  descriptor.why_staged = "it is the default pool's";
  return EncodeCudaIpcDescriptor(descriptor);
}

class GpuDescriptors : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuDescriptors, GarbageOrTruncatedOnesEndTheirChannelOnly) {
  if (OnRealGpu()) GTEST_SKIP() << "what is refused here never comes to a driver";
  const auto attack = [](GpuPeer&) {
    Directory directory;
    EngineEnd end(directory, 2);
    ASSERT_NE(end.engine->gpus(), nullptr);
    std::string body;
    RoguePeer* self = nullptr;
    RoguePeer rogue(directory, 1, [&](RoguePeer::End& channel, uint64_t id) {
      const Tensor tensor = *Tensor::Allocate(DataType::kUint8, *Shape::Create({100'000}));
      channel.SendRtsOfNothing(id, self->NumberOf(GetParam()), tensor, body);
    });
    self = &rogue;
    const std::string good = GoodDescriptor(GetParam());
    std::vector<std::string> bodies;
    for (size_t size = 0; size < good.size(); ++size) bodies.push_back(good.substr(0, size));
    bodies.push_back(good + '\0');
    std::mt19937 random(23);
    for (int i = 0; i < 40; ++i) {
      bodies.emplace_back(1 + random() % 200, '\0');
      for (char& each : bodies.back()) each = static_cast<char>(random());
    }
    const size_t refused = bodies.size();
    // Well-formed descriptors of memory that does not exist.
    for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
      bodies.push_back(good);
      bodies.back()[bit / 8] = static_cast<char>(good[bit / 8] ^ (1 << (bit % 8)));
    }
    const auto key = [](size_t i) {
      return *RendezvousKey::Parse(
          RendezvousKey::Text("/job:worker/replica:0/task:1/device:GPU:0", 1001,
                              "/job:worker/replica:0/task:2/device:GPU:1", absl::StrCat("t", i)));
    };
    for (size_t i = 0; i < bodies.size(); ++i) {
      rogue.Do([&] { body = bodies[i]; });
      CancellationToken cancellation;
      RecvArgs args;
      args.cancellation = &cancellation;
      Receipt receipt;
      end.Step(1)->RecvAsync(key(i), args, receipt.callback());
      if (i < refused) {
        const absl::Status status = receipt.Wait().status();
        EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsUnavailable(status))
            << i << ": " << status;
        EXPECT_TRUE(absl::StrContains(status.message(), "node 1")) << i << ": " << status;
        continue;
      }
      // It may wait for more messages until the receive is cancelled.
      for (int look = 0; look < 10 && !receipt.is_done(); ++look) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      cancellation.Cancel();
      EXPECT_FALSE(receipt.Wait().ok());
    }
    // Tensors of other peers arrive, and no memory of these is left.
    EngineEnd honest(directory, 3);
    const Tensor sent = GpuPeer::Pattern(100'000, 4);
    ASSERT_TRUE(honest.Step(1)->Send(KeyBetween(honest, end, "h"), sent).ok());
    Receipt of_honest;
    end.Step(1)->RecvAsync(KeyBetween(honest, end, "h"), {}, of_honest.callback());
    const auto received = of_honest.Wait();
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_TRUE(IsEqual(received->tensor, sent));
  };
  RunGpuPair(
      {}, [](GpuPeer&) {}, attack);
}

INSTANTIATE_TEST_SUITE_P(Of, GpuDescriptors, ::testing::Values("cuda_ipc", "nccl"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ferry
