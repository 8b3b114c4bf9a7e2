// SPDX-License-Identifier: Apache-2.0
// A closed loop: so many operations at a time, each of which is followed by the next.
#ifndef FERRY_BENCH_LOOP_H_
#define FERRY_BENCH_LOOP_H_

#include <functional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ferry::cli {

// What a loop took: each operation, and all of them together.
struct BenchLoad {
  std::vector<absl::Duration> samples;
  absl::Duration whole;
  double cpu_s = 0;
};

// Begins operation `index`; `done` is called once, on any thread; from inside only where operations
// run one at a time.
using BenchOperation =
    std::function<void(int index, absl::AnyInvocable<void(absl::Status) &&> done)>;

// Runs operations 0 to count - 1, `inflight` at a time. One at a time is begun by the calling
// thread, which waits for each, as a program does; of more, each begins its successor.
//   operation: copied; what it refers to outlives what it has begun, also after an error.
//   cpu_s: the CPU time that all who take part have used so far.
//   Errors: that of the first operation that failed; DEADLINE_EXCEEDED when not all are done within
//   `timeout`, saying how many.
absl::StatusOr<BenchLoad> RunBenchLoop(int count, int inflight, const BenchOperation& operation,
                                       const std::function<double()>& cpu_s,
                                       absl::Duration timeout);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_LOOP_H_
