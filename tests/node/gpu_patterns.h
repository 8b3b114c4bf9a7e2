// SPDX-License-Identifier: Apache-2.0
// Patterns that one process of a pair sends from a GPU and the other one looks for.
#ifndef FERRY_TESTS_NODE_GPU_PATTERNS_H_
#define FERRY_TESTS_NODE_GPU_PATTERNS_H_

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/node/gpu_pair.h"

namespace ferry {

// Sends a pattern of each seed from gpu:0, whose copy into the memory is late.
inline void SendPatterns(GpuPeer& peer, const std::string& to, int count, size_t bytes = kBytes) {
  const auto stream = peer.NewStream(0);
  const Step step = peer.Open();
  std::vector<Tensor> patterns;
  for (int i = 0; i < count; ++i) {
    patterns.push_back(GpuPeer::Pattern(bytes, static_cast<uint32_t>(i)));
    const Tensor tensor = OnGpu(peer, 0, bytes);
    peer.Write(tensor, patterns.back(), stream->get());
    Step copy = step;
    ASSERT_TRUE(
        copy.Send(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", to), tensor, stream->get()).ok());
  }
  Step last = step;
  const absl::Status closed = last.Close(kTimeout);
  EXPECT_TRUE(closed.ok()) << closed;
  peer.Meet();
}

inline std::string ReceivePattern(GpuPeer& peer, Step& step, const std::string& to, int index,
                                  cuda::Stream stream, RecvArgs args = {}, size_t bytes = kBytes) {
  const RendezvousKey key = GpuPeer::Key(absl::StrCat("t", index), "GPU:0", to);
  absl::StatusOr<Received> received = step.RecvValue(key, kTimeout, std::move(args));
  EXPECT_TRUE(received.ok()) << received.status();
  if (!received.ok()) return "";
  const Tensor& tensor = received->tensor;
  const Tensor pattern = GpuPeer::Pattern(bytes, static_cast<uint32_t>(index));
  if (tensor.is_on_host()) {
    EXPECT_TRUE(IsEqual(tensor, pattern));
    return std::string(received->path);
  }
  if (const auto ready = cuda::ReadyOf(tensor); ready != nullptr) {
    EXPECT_TRUE(ready->EnqueueWait(*peer.gpu(tensor.location().ordinal).device, stream).ok());
  }
  EXPECT_TRUE(Holds(peer.Read(tensor, stream), pattern)) << "not what was sent";
  return std::string(received->path);
}

}  // namespace ferry

#endif  // FERRY_TESTS_NODE_GPU_PATTERNS_H_
