// SPDX-License-Identifier: Apache-2.0
// UsableResources: the memory and the processors that this process may use.
#ifndef FERRY_BASE_USABLE_RESOURCES_H_
#define FERRY_BASE_USABLE_RESOURCES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"

namespace ferry {

// The machine's resources, or less where a control group, a limit of the process (ulimit), a cpuset
// or taskset allows less.
struct UsableResources {
  // 0: not known.
  uint64_t memory_bytes = 0;
  uint64_t machine_memory_bytes = 0;
  // The file of the control group whose limit that is, or "ulimit -v" or "ulimit -d"; empty: it is
  // all that the machine has.
  std::string memory_limit;
  // At least 1.
  int processors = 1;
  // Processors that the process may run on; 0: not known.
  int allowed_processors = 0;
  // The CPU quota of a control group in processors, and the file that sets it; 0: no limit.
  double processor_quota = 0;
  std::string processor_limit;
  // The processors of `allowed` that the time quota pays for, rounded up.
  int WithinQuota(int allowed) const;

  // Processes and threads that a control group allows, and the file that sets it; 0: no limit.
  int64_t threads = 0;
  std::string thread_limit;
};

// From files of /proc/ and /sys/fs/cgroup/, or where else that is mounted: control groups of
// version 2 (memory.max, memory.high, cpu.max, pids.max), of version 1 (memory.limit_in_bytes,
// cpu.cfs_quota_us, pids.max), or of both, from the process's own group up to the mount point.
// And the process's own limits of its address space and its data, from /proc/self/limits. Files
// that are missing or malformed set no limit.
//   read: the contents of a file; empty if there is none.
UsableResources ReadUsableResources(absl::FunctionRef<std::string(const std::string& path)> read);

// The resources of this process, read once on first use. Thread-safe.
const UsableResources& Usable();

// A default: `most`, or one part of `parts` of the usable memory if that is less.
size_t ShareOfMemory(size_t most, int parts);

}  // namespace ferry

#endif  // FERRY_BASE_USABLE_RESOURCES_H_
