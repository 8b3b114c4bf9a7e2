// SPDX-License-Identifier: Apache-2.0
// ReplayRun: the calls of several records in their recorded order, each record in a process.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_REPLAY_RUN_H_
#define FERRY_BENCHMARKS_GPU_CALLS_REPLAY_RUN_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "benchmarks/gpu/calls/call_record.h"
#include "benchmarks/gpu/calls/replay_channel.h"
#include "benchmarks/gpu/calls/replay_exports.h"
#include "benchmarks/gpu/calls/replay_machine.h"
#include "benchmarks/gpu/calls/replay_report.h"

namespace ferry::calls {

// A call begins when all calls that had returned before it began, in any process, have returned; so
// calls that ran side by side do so again. A record's process is started at its first call and ends
// where the record ends. Used once, by a process with one thread that has not loaded the driver.
class ReplayRun final {
 public:
  struct Options {
    std::string library;
    absl::Duration patience;  // of a call, beyond its recorded duration
  };

  // All outlive the run.
  ReplayRun(const std::vector<CallRecord>& records, const ReplayMachine& machine, Options options,
            ReplayReport& report);
  ~ReplayRun();
  ReplayRun(const ReplayRun&) = delete;
  ReplayRun& operator=(const ReplayRun&) = delete;

  // Returns an error if no process can be started or the library cannot be loaded. What the replay
  // finds is in the report.
  absl::Status Run();

 private:
  enum class State { kNew, kRuns, kLeft, kDied };
  struct Process {
    State state = State::kNew;
    pid_t pid = -1;
    int socket = -1;
  };
  struct Event {
    int64_t time_ns;
    size_t process;
    int64_t call;  // kEnd: the record's end
  };
  struct Pending {
    absl::Time deadline;
    int64_t ended_ns;  // in the record
  };
  static constexpr int64_t kEnd = -1;

  std::vector<Event> Events() const;
  absl::Status Start(size_t process);
  absl::Status Begin(const Event& event);
  // Waits until all calls that ended at `time_ns` at the latest have returned. False: one has not,
  // and the replay cannot go on.
  absl::StatusOr<bool> Await(int64_t time_ns);
  absl::Status Receive(size_t process);
  void NoteDeath(size_t process);
  void Leave(size_t process);

  const std::vector<CallRecord>& records_;
  const ReplayMachine& machine_;
  const Options options_;
  ReplayReport& report_;
  std::vector<Process> processes_;
  std::map<std::pair<size_t, int64_t>, Pending> pending_;
  ReplayExports exports_;
};

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_REPLAY_RUN_H_
