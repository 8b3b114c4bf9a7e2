// SPDX-License-Identifier: Apache-2.0
// HostMemory: host memory of a recorded program, which a replay has to make itself.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_HOST_MEMORY_H_
#define FERRY_BENCHMARKS_GPU_CALLS_HOST_MEMORY_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"

namespace ferry::calls {

// Not thread-safe. Nothing is unmapped before the end: copies may still be in flight. Its bytes are
// not zero, so that kernels that wait for a flag of the recorded program end.
class HostMemory final {
 public:
  HostMemory() = default;
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Returns memory for the recorded range, at the same place in its page; the same for the same
  // range. Errors: RESOURCE_EXHAUSTED beyond 8 GiB in all.
  absl::StatusOr<uint64_t> At(uint64_t recorded, uint64_t bytes);

 private:
  struct Range {
    void* begin;
    uint64_t bytes;
  };

  std::vector<Range> ranges_;
  std::map<uint64_t, Range> places_;  // by the recorded address, whole pages
  uint64_t total_ = 0;
};

// Fills the beginning of pinned memory likewise.
void FillWithFlags(void* memory, uint64_t bytes);

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_HOST_MEMORY_H_
