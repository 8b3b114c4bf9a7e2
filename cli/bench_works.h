// SPDX-License-Identifier: Apache-2.0
// What one process does in a round of each pattern.
#ifndef FERRY_CLI_BENCH_WORKS_H_
#define FERRY_CLI_BENCH_WORKS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "cli/bench_flows.h"
#include "cli/bench_plan.h"
#include "cli/bench_rounds.h"

namespace ferry::cli {

// A row, as its processes see it.
struct BenchWorkCase {
  size_t bytes = 0;
  BenchMode mode = BenchMode::kHandoff;
  int inflight = 1;
};

// Sends `inflight` tensors along each flow that begins here, and waits for as many of each that
// ends here. `party` and `step` outlive it.
absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakeFlowWork(const BenchParty& party, Step& step,
                                                             const BenchFlowSet& set,
                                                             const BenchWorkCase& at);

// For the one flow of `set`: its sender sends `inflight` tensors, and its receiver, when it has all
// of them, as many of the same size back, for which the sender waits.
absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakePingWork(const BenchParty& party, Step& step,
                                                             const BenchFlow& flow,
                                                             const BenchWorkCase& at);

// Node 0 sends `keys` tensors, each under a key of its own, from `threads` threads; node 1 receives
// them on as many. Each thread takes its share in an order of its own, another one each round.
absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakeKeyedWork(const BenchParty& party, Step& step,
                                                              int keys, int threads,
                                                              const BenchWorkCase& at);

// A whole step each round: both nodes open it, send each other `inflight` tensors, receive those,
// and close it.
//   first_step: of as many ids that nobody else uses as there are rounds.
absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakeStepsWork(const BenchParty& party,
                                                              int64_t first_step,
                                                              const BenchWorkCase& at);

}  // namespace ferry::cli

#endif  // FERRY_CLI_BENCH_WORKS_H_
