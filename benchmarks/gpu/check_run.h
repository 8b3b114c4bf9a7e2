// SPDX-License-Identifier: Apache-2.0
// Running parts: each in a process group of its own, killed at its deadline, the others go on.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_RUN_H_
#define FERRY_BENCHMARKS_GPU_CHECK_RUN_H_

#include <string>

#include "absl/time/time.h"

#include "benchmarks/gpu/check_part.h"

namespace ferry::check {

// Forks, waits, and assembles the part's report:
//
//   {"name", "title", "status", "reason", "seconds", "checks", "figures", "notes", "facts",
//    "last_words"}
//
// Its status is "passed", "failed", "skipped", "killed" (by the deadline) or "crashed".
//   deadline: by the steady clock; the part's own limit, if that is earlier.
// REQUIRES: this process has not used CUDA, and has one thread.
Json RunPart(const Part& part, const Options& options, const Machine& machine, absl::Time deadline,
             bool is_verbose);

// The result of a part that is not run.
Json SkippedPart(const Part& part, absl::string_view reason);

// Free bytes of the GPUs that parts use, gpu:0 and gpu:1, queried by a short-lived process: shows
// leftovers of all processes. Empty if that fails, or lasts longer than `deadline`, by the steady
// clock.
std::vector<size_t> FreeBytesOfGpus(absl::Time deadline);

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_RUN_H_
