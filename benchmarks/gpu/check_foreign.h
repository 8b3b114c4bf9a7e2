// SPDX-License-Identifier: Apache-2.0
// Memory as other libraries make it: every kind that a tensor may lie in.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_FOREIGN_H_
#define FERRY_BENCHMARKS_GPU_CHECK_FOREIGN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "benchmarks/gpu/check_gpu.h"
#include "gpu/cuda/memory_kind.h"

namespace ferry::check {

struct ForeignMemory {
  void* data = nullptr;
  // State that its kind needs for freeing it.
  size_t bytes = 0;
  cuda::MemoryPool pool = nullptr;
  std::vector<cuda::AllocationHandle> handles;
};

struct ForeignKind {
  const char* name;
  // The expected result of Classify.
  cuda::MemoryKind kind;
  // A tensor in it is one of the host's.
  bool is_host;
  // How it is to arrive in another process, on the same GPU.
  const char* path;
  //   Errors: why this driver or device cannot.
  absl::StatusOr<ForeignMemory> (*make)(CheckGpu& gpu, size_t bytes);
  absl::Status (*free)(CheckGpu& gpu, ForeignMemory& memory);
};

const std::vector<ForeignKind>& ForeignKinds();

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_FOREIGN_H_
