// SPDX-License-Identifier: Apache-2.0
// Tests with the fake driver that also run on this machine's GPUs: in packages, and where
// FERRY_TEST_REAL_GPU is set.
#ifndef FERRY_TESTS_SUPPORT_REAL_GPU_H_
#define FERRY_TESTS_SUPPORT_REAL_GPU_H_

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include <gtest/gtest.h>

#include "gpu/cuda/cuda_api.h"

namespace ferry {

inline bool OnRealGpu() {
#ifdef FERRY_TESTS_ON_REAL_GPU
  return true;
#else
  return std::getenv("FERRY_TEST_REAL_GPU") != nullptr;
#endif
}

// The driver's devices.
struct RealGpus {
  int count = 0;
  // Whether gpu:1 reaches the memory of gpu:0, and the other way round.
  bool are_peers = false;
};

// Determined in a child, since a process that has used CUDA cannot fork children that do. REQUIRES:
// this process has not.
inline const RealGpus& LookAtRealGpus() {
  static const RealGpus gpus = [] {
    const pid_t child = fork();
    if (child == 0) {
      const auto api = cuda::CudaApi::Load();
      int count = 0;
      int peers[2] = {0, 0};
      if (api.ok()) (*api)->table().device_get_count(&count);
      if (count >= 2) {
        (*api)->table().device_can_access_peer(&peers[0], 0, 1);
        (*api)->table().device_can_access_peer(&peers[1], 1, 0);
      }
      std::_Exit((count << 1) + (peers[0] != 0 && peers[1] != 0 ? 1 : 0));
    }
    int status = 0;
    waitpid(child, &status, 0);
    const int said = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    return RealGpus{said >> 1, (said & 1) != 0};
  }();
  return gpus;
}

// Empty: the fake driver, or a machine with two GPUs; else why not.
inline const char* WhyNotTwoGpus() {
  return OnRealGpu() && LookAtRealGpus().count < 2 ? "this machine shows one GPU" : "";
}
// The same for two that reach each other's memory.
inline const char* WhyNotTwoPeers() {
  if (!OnRealGpu() || LookAtRealGpus().are_peers) return "";
  return LookAtRealGpus().count < 2 ? "this machine shows one GPU"
                                    : "gpu:0 and gpu:1 of this machine have no peer access";
}

// At the beginning of a test whose processes use CUDA, and this one does not.
#define NEEDS_TWO_PEERS() \
  if (*::ferry::WhyNotTwoPeers() != '\0') GTEST_SKIP() << ::ferry::WhyNotTwoPeers()

// At the beginning of a test: a feature that a real GPU does not have.
#define NEEDS_FAKE_DRIVER(what) \
  if (::ferry::OnRealGpu()) GTEST_SKIP() << "only the fake driver " << (what)

// Whether all streams of a context share one hardware queue, in this process.
inline bool HasOneHardwareQueue() {
  const auto is_one = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return value != nullptr && std::strcmp(value, "1") == 0;
  };
  return is_one("CUDA_DEVICE_MAX_CONNECTIONS") ||
         (!OnRealGpu() && is_one("STRICT_CUDA_CONNECTIONS"));
}

// At the beginning of a test that needs two streams which do not delay each other.
#define NEEDS_TWO_QUEUES() \
  if (::ferry::HasOneHardwareQueue()) GTEST_SKIP() << "the streams of a GPU share one queue here"

}  // namespace ferry

#endif  // FERRY_TESTS_SUPPORT_REAL_GPU_H_
