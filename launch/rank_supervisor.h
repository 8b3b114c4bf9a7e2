// SPDX-License-Identifier: Apache-2.0
// RankSupervisor: one launch, from its first process to its exit status.
#ifndef FERRY_LAUNCH_RANK_SUPERVISOR_H_
#define FERRY_LAUNCH_RANK_SUPERVISOR_H_

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/non_blocking_writer.h"
#include "base/unique_fd.h"
#include "launch/launch_environment.h"
#include "launch/rank_processes.h"
#include "launch/signal_relay.h"
#include "launch/terminal_input.h"

namespace ferry {

// Starts the ranks, copies their output, passes signals on to them, and decides when they are to be
// stopped and what the launch's exit status is, as the comment of Launch says. A loop around poll()
// on one thread; RankProcesses does the waiting and the signalling.
class RankSupervisor final {
 public:
  // All arguments outlive it.
  RankSupervisor(const LaunchOptions& options, std::FILE* out, std::FILE* err, SignalRelay& relay)
      : options_(options), output_(out, err), relay_(relay) {}

  RankSupervisor(const RankSupervisor&) = delete;
  RankSupervisor& operator=(const RankSupervisor&) = delete;

  // Starts all ranks. After an error, those that were started end with this object.
  absl::Status Start(const std::string& file, const std::vector<std::string>& inherited);

  // Runs until every process has exited; returns the exit status.
  int Run();

 private:
  void WaitForEvents();
  void NoteOutput(int error);
  // Blocks until all output has been written; once a signal has arrived, for kReaderTimeout at most
  // without any progress.
  void FinishOutput();
  void Say(absl::string_view text);

  void TakeSignals();
  // Stops the processes, then this one; when this one continues, they do too.
  void Suspend();
  // Returns the standard input for the process that is to read ours; fills in input_ for a
  // terminal.
  absl::StatusOr<UniqueFd> OpenInput();
  void ReapExited();
  // Stops the ranks' descendants once no rank is running.
  void StopLeftovers();
  void HandleExit(const RankExit& exit);
  void ReportFailure(const RankExit& exit);

  // Sends `signal_number` to all remaining processes, and sets the deadline for SIGKILL.
  void Stop(int signal_number);
  void KillRest();
  void CheckTime();

  // Constant after construction.
  const LaunchOptions& options_;
  NonBlockingWriters output_;
  SignalRelay& relay_;
  const absl::Time start_ = SteadyClock().Now();

  // Destroyed before output_, to which the ranks write.
  RankProcesses processes_;
  int exit_status_ = 0;   // of the first failure
  int output_error_ = 0;  // errno of the first failure to write
  int stop_signal_ = 0;   // the relayed signal that caused the stop, if any
  bool stopping_ = false;
  // Null unless a process reads our terminal.
  std::unique_ptr<TerminalInput> input_;
  bool leftovers_stopped_ = false;
  bool killed_ = false;
  std::optional<absl::Time> deadline_;  // of the grace period, then of kKillTimeout after SIGKILL
};

}  // namespace ferry

#endif  // FERRY_LAUNCH_RANK_SUPERVISOR_H_
