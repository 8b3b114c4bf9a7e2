// SPDX-License-Identifier: Apache-2.0
// Running parts: each in a process group of its own, killed at its deadline, the others go on.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_RUN_H_
#define FERRY_BENCHMARKS_GPU_CHECK_RUN_H_

#include <string>

#include "absl/time/time.h"

#include "benchmarks/gpu/check_part.h"

namespace ferry::check {

// How long a killed process is waited for: one that hangs in the driver is then left behind.
inline constexpr absl::Duration kKillTimeout = absl::Seconds(3);

// Forks, waits, and assembles the part's report (part_report.h). Its status is "passed", "failed",
// "skipped", "killed" (by the deadline) or "crashed".
//   deadline: by the steady clock. Returns kKillTimeout later at most.
// REQUIRES: this process has not used CUDA, and has one thread.
Json RunPart(const Part& part, const Options& options, const Machine& machine, absl::Time deadline,
             bool is_verbose);

// Free bytes of the GPUs that parts use, gpu:0 and gpu:1, queried by a short-lived process: shows
// leftovers of all processes. Empty if that fails, lasts longer than `deadline`, by the steady
// clock, or has less than a second for it. Returns kKillTimeout later at most.
std::vector<size_t> FreeBytesOfGpus(absl::Time deadline);

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_RUN_H_
