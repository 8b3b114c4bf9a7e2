// SPDX-License-Identifier: Apache-2.0
// NCCL between two processes on one GPU, which NCCL supports from 2.30.3 on.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/nccl/nccl_api.h"
#include "tests/node/gpu_patterns.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

// The version of the fake library; a real one has its own.
GpuPairOptions SharedGpuOptions(const std::string& version, bool is_enabled) {
  GpuPairOptions options;
  options.is_apart = true;
  options.transfer.require_transport = "nccl";
  options.environment = {{"STRICT_CUDA_NCCL_VERSION", version}};
  if (is_enabled) options.environment["NCCL_MULTI_RANK_GPU_ENABLE"] = "1";
  return options;
}

// Empty: the fake library, or one that supports it; else why not.
std::string WhyNotSupported() {
  if (!OnRealGpu()) return "";
  const auto library = nccl::NcclApi::Load();
  if (!library.ok()) return std::string(library.status().message());
  if ((*library)->version() >= nccl::kMultiRankGpuVersion) return "";
  return "NCCL " + nccl::VersionText((*library)->version()) + " takes one rank per GPU";
}

TEST(NcclSharedGpu, TensorsArriveComplete) {
  if (const std::string why = WhyNotSupported(); !why.empty()) GTEST_SKIP() << why;
  for (const size_t bytes : {size_t{1}, size_t{1000}, kBytes}) {
    RunGpuPair(
        SharedGpuOptions("23003", true),
        [bytes](GpuPeer& peer) { SendPatterns(peer, "GPU:0", 4, bytes); },
        [bytes](GpuPeer& peer) {
          const auto stream = peer.NewStream(0);
          Step step = peer.Open();
          for (int i = 0; i < 4; ++i) {
            EXPECT_EQ(ReceivePattern(peer, step, "GPU:0", i, stream->get(), {}, bytes), "nccl");
          }
          peer.Meet();
        });
  }
}

TEST(NcclSharedGpu, IntoTheReceiversBuffer) {
  if (const std::string why = WhyNotSupported(); !why.empty()) GTEST_SKIP() << why;
  RunGpuPair(
      SharedGpuOptions("23003", true), [](GpuPeer& peer) { SendPatterns(peer, "GPU:0", 3); },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        for (int i = 0; i < 3; ++i) {
          RecvArgs args;
          args.destination = OnGpu(peer, 0);
          const void* const wanted = args.destination->data();
          const auto received = step.RecvValue(KeyOf(i), kTimeout, std::move(args));
          ASSERT_TRUE(received.ok()) << received.status();
          EXPECT_EQ(received->path, "nccl");
          EXPECT_EQ(received->tensor.data(), wanted);
          EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()),
                            GpuPeer::Pattern(kBytes, static_cast<uint32_t>(i))));
        }
        peer.Meet();
      });
}

// More than one batch, received in another order than they are sent in.
TEST(NcclSharedGpu, ManyInAnyOrder) {
  if (const std::string why = WhyNotSupported(); !why.empty()) GTEST_SKIP() << why;
  constexpr int kCount = 80;
  RunGpuPair(
      SharedGpuOptions("23003", true),
      [](GpuPeer& peer) { SendPatterns(peer, "GPU:0", kCount, 200'000); },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        for (int n = 0; n < kCount; ++n) {
          EXPECT_EQ(
              ReceivePattern(peer, step, "GPU:0", (n * 37) % kCount, stream->get(), {}, 200'000),
              "nccl");
        }
        peer.Meet();
      });
}

// Neither a newer library alone nor the variable alone will do.
TEST(NcclSharedGpu, IsRefusedWithoutVersionOrVariable) {
  NEEDS_FAKE_DRIVER("has NCCL of any version");
  for (const auto& [version, is_enabled] :
       std::map<std::string, bool>{{"23003", false}, {"23002", true}}) {
    RunGpuPair(
        SharedGpuOptions(version, is_enabled),
        [](GpuPeer& peer) {
          const auto stream = peer.NewStream(0);
          Step step = peer.Open();
          EXPECT_TRUE(step.Send(KeyOf(0), OnGpu(peer, 0), stream->get()).ok());
          peer.Meet();
        },
        [](GpuPeer& peer) {
          Step step = peer.Open();
          const auto received = step.RecvValue(KeyOf(0), kTimeout);
          EXPECT_EQ(received.status().code(), absl::StatusCode::kFailedPrecondition);
          EXPECT_THAT(received.status().message(),
                      HasSubstr("2.30.3 or newer and NCCL_MULTI_RANK_GPU_ENABLE is 1"));
          peer.Meet();
        });
  }
}

}  // namespace
}  // namespace ferry
