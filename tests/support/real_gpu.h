// SPDX-License-Identifier: Apache-2.0
// Tests of the strict double that also run on this machine's GPUs: in packages, and where
// FERRY_TEST_REAL_GPU is set.
#ifndef FERRY_TESTS_SUPPORT_REAL_GPU_H_
#define FERRY_TESTS_SUPPORT_REAL_GPU_H_

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
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

// How many GPUs the driver shows; asked in a child, since a process that has used CUDA forks none
// that do. REQUIRES: this process has not.
inline int CountRealGpus() {
  static const int count = [] {
    const pid_t child = fork();
    if (child == 0) {
      const auto api = cuda::CudaApi::Load();
      int gpus = 0;
      if (api.ok()) (*api)->table().device_get_count(&gpus);
      std::_Exit(gpus);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  }();
  return count;
}

// At the beginning of a test: what a real GPU cannot be told to do.
#define NEEDS_THE_DOUBLE(what) \
  if (::ferry::OnRealGpu()) GTEST_SKIP() << "only the strict double " << (what)

}  // namespace ferry

#endif  // FERRY_TESTS_SUPPORT_REAL_GPU_H_
