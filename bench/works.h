// SPDX-License-Identifier: Apache-2.0
// The work of one process in a round of each pattern.
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

// The case of one row, for its processes.
struct BenchWorkCase {
  size_t bytes = 0;
  BenchMode mode = BenchMode::kHandoff;
  int inflight = 1;
  // Tensors in a call of SendMany and of RecvMany; 1: Send and RecvAsync.
  int batch = 1;
};

// One process of a pattern: its identity and memory.
struct BenchSide {
  const BenchParticipants& party;
  const BenchPlan& plan;
  BenchDevice& device;

  // Like Node::Key, with two ranks and their devices.
  absl::StatusOr<RendezvousKey> Key(absl::string_view name, int from, int to) const;
  // Waits for the whole tensor, and reads it if the mode requires that. Thread-safe.
  //   from: the sender's rank. Errors: as AwaitReceive.
  absl::Status Take(BenchMode mode, int from, BenchPosted& posted) const;
};

// Sends `inflight` tensors along each flow that begins here, and waits for as many of each that
// ends here. `side`, `step` and what they refer to must outlive it, here and below.
absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakeFlowWork(const BenchSide& side, Step& step,
                                                             const BenchFlowSet& set,
                                                             const BenchWorkCase& at);

// For the one flow of `set`: the sender sends `inflight` tensors, and the receiver, once it has
// all, returns as many of the same size, for which the sender waits.
absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakePingWork(const BenchSide& side, Step& step,
                                                             const BenchFlow& flow,
                                                             const BenchWorkCase& at);

// Node 0 sends as many tensors as the plan has keys, each under its own key, from the plan's number
// of threads, `batch` at a time; node 1 receives them on as many. Each thread processes its share
// in an independent order, different in each round.
absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakeKeyedWork(const BenchSide& side, Step& step,
                                                              const BenchWorkCase& at);

// A whole step per round: both nodes open it, send each other `inflight` tensors, `batch` at a
// time, receive those, and close it.
//   first_step: first of as many reserved step ids as there are rounds.
absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakeStepsWork(const BenchSide& side,
                                                              int64_t first_step,
                                                              const BenchWorkCase& at);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_WORKS_H_
