// SPDX-License-Identifier: Apache-2.0
// A process of a replay: it performs the calls of one record.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_REPLAY_WORKER_H_
#define FERRY_BENCHMARKS_GPU_CALLS_REPLAY_WORKER_H_

#include <string>

#include "absl/time/time.h"

#include "benchmarks/gpu/calls/call_record.h"

namespace ferry::calls {

// Loads the driver `library` and performs the calls that arrive at `socket`, those of each recorded
// thread on a thread of its own, until the other side asks it to leave or is gone. Ends the
// process, without the end of its threads: one may hang in the driver.
[[noreturn]] void RunReplayWorker(const CallRecord& record, int socket, const std::string& library,
                                  absl::Duration patience);

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_REPLAY_WORKER_H_
