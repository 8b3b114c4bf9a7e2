// SPDX-License-Identifier: Apache-2.0
// UsableResources: the memory and the processors that this process may use.
#ifndef FERRY_BASE_USABLE_RESOURCES_H_
#define FERRY_BASE_USABLE_RESOURCES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"

namespace ferry {

// The machine's resources, or less where a control group, a process limit (ulimit), a cpuset or
// taskset restricts them.
struct UsableResources {
  // 0 if unknown.
  uint64_t memory_bytes = 0;
  uint64_t machine_memory_bytes = 0;
  // The cgroup file that sets the limit, or "ulimit -v" or "ulimit -d"; empty if the machine's
  // memory is the limit.
  std::string memory_limit;
  // At least 1.
  int processors = 1;
  // Processors that the process may run on; 0 if unknown.
  int allowed_processors = 0;
  // The CPU quota of a control group in processors, and the file that sets it; 0 if unlimited.
  double processor_quota = 0;
  std::string processor_limit;
  // The number of `allowed` processors that the quota covers, rounded up.
  int WithinQuota(int allowed) const;

  // Processes and threads that a control group allows, and the file that sets it; 0 if unlimited.
  int64_t threads = 0;
  std::string thread_limit;
};

// Reads /proc/ and /sys/fs/cgroup/, or wherever the latter is mounted: control groups of version 2
// (memory.max, memory.high, cpu.max, pids.max), of version 1 (memory.limit_in_bytes,
// cpu.cfs_quota_us, pids.max), or of both, from the process's own group up to the mount point.
// Also the process's limits of address space and data, from /proc/self/limits. Missing or
// malformed files set no limit.
//   read: returns the contents of a file; empty if there is none.
UsableResources ReadUsableResources(absl::FunctionRef<std::string(const std::string& path)> read);

// The resources of this process, read once on first use. Thread-safe.
const UsableResources& Usable();

// Returns a default limit: `most` bytes, or 1/`parts` of the usable memory if that is less.
size_t ShareOfMemory(size_t most, int parts);

}  // namespace ferry

#endif  // FERRY_BASE_USABLE_RESOURCES_H_
