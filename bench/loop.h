// SPDX-License-Identifier: Apache-2.0
// A closed loop: a fixed number of operations in flight, each followed by the next.
#ifndef FERRY_BENCH_LOOP_H_
#define FERRY_BENCH_LOOP_H_

#include <functional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ferry::cli {

// Durations of a loop: each operation, and the whole.
struct BenchLoad {
  std::vector<absl::Duration> samples;
  absl::Duration whole;
  double cpu_s = 0;
};

// Starts operation `index`; `done` is called once, on any thread; before returning only if
// operations run one at a time.
using BenchOperation =
    std::function<void(int index, absl::AnyInvocable<void(absl::Status) &&> done)>;

// Runs operations 0 to count - 1, `inflight` at a time. If that is 1, the calling thread starts
// each and waits for it, as a program does; otherwise each completion starts the next operation.
//   operation: copied; what it refers to must outlive the operations it started, even after an
//   error.
//   cpu_s: returns the CPU time used so far by all participants.
//   Errors: that of the first operation that failed; DEADLINE_EXCEEDED if not all complete within
//   `timeout`, saying how many did.
absl::StatusOr<BenchLoad> RunBenchLoop(int count, int inflight, const BenchOperation& operation,
                                       const std::function<double()>& cpu_s,
                                       absl::Duration timeout);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_LOOP_H_
