// SPDX-License-Identifier: Apache-2.0
// What one process does in a round of each pattern.
#ifndef FERRY_BENCH_WORKS_H_
#define FERRY_BENCH_WORKS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "bench/device.h"
#include "bench/flows.h"
#include "bench/plan.h"
#include "bench/rounds.h"

namespace ferry::cli {

// A row, as its processes see it.
struct BenchWorkCase {
  size_t bytes = 0;
  BenchMode mode = BenchMode::kHandoff;
  int inflight = 1;
};

// One process of a pattern: who it is, and the memory it uses.
struct BenchSide {
  const BenchParticipants& party;
  const BenchPlan& plan;
  BenchDevice& device;

  // As Node::Key, of two ranks and their devices.
  absl::StatusOr<RendezvousKey> Key(absl::string_view name, int from, int to) const;
  // Until it is there whole, and has been read if that belongs to the mode. Thread-safe.
  //   from: the rank that sends it. Errors: as AwaitReceive.
  absl::Status Take(BenchMode mode, int from, BenchPosted& posted) const;
};

// Sends `inflight` tensors along each flow that begins here, and waits for as many of each that
// ends here. `side`, `step` and what they refer to outlive it, here and below.
absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakeFlowWork(const BenchSide& side, Step& step,
                                                             const BenchFlowSet& set,
                                                             const BenchWorkCase& at);

// For the one flow of `set`: its sender sends `inflight` tensors, and its receiver, when it has all
// of them, as many of the same size back, for which the sender waits.
absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakePingWork(const BenchSide& side, Step& step,
                                                             const BenchFlow& flow,
                                                             const BenchWorkCase& at);

// Node 0 sends as many tensors as the plan has keys, each under a key of its own, from as many
// threads as it says; node 1 receives them on as many. Each thread takes its share in an order of
// its own, another one each round.
absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakeKeyedWork(const BenchSide& side, Step& step,
                                                              const BenchWorkCase& at);

// A whole step each round: both nodes open it, send each other `inflight` tensors, receive those,
// and close it.
//   first_step: of as many ids that nobody else uses as there are rounds.
absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakeStepsWork(const BenchSide& side,
                                                              int64_t first_step,
                                                              const BenchWorkCase& at);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_WORKS_H_
