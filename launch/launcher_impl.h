// SPDX-License-Identifier: Apache-2.0
// The state of one Launch; for launcher.cc and launcher_stop.cc.
#ifndef FERRY_LAUNCH_LAUNCHER_IMPL_H_
#define FERRY_LAUNCH_LAUNCHER_IMPL_H_

#include <errno.h>
#include <signal.h>
#include <sys/types.h>

#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/non_blocking_writer.h"
#include "base/unique_fd.h"
#include "launch/child_process.h"
#include "launch/launch_environment.h"
#include "launch/orphan_reaper.h"
#include "launch/rank_output.h"
#include "launch/signal_relay.h"
#include "launch/terminal_input.h"

namespace ferry::launcher_internal {

// Same status as other tools whose output's reader has gone; any other error is a failure.
inline int OutputStatus(int error) { return error == EPIPE ? 128 + SIGPIPE : 1; }

// Returns true for the relayed signals that stop the foreground job.
inline bool IsJobControl(int signal_number) {
  return signal_number == SIGTSTP || signal_number == SIGTTIN || signal_number == SIGTTOU;
}

inline bool StopsTheJob(int signal_number) {
  return signal_number == SIGINT || signal_number == SIGTERM || signal_number == SIGHUP ||
         signal_number == SIGQUIT;
}

// A started process, and the process group that it leads.
struct Rank {
  Rank(const LaunchOptions& options, int rank, ChildProcess child, NonBlockingWriter& out,
       NonBlockingWriter& err)
      : rank(rank),
        pid(child.pid),
        output(options, rank, std::move(child.stdout_fd), std::move(child.stderr_fd), out, err) {}

  const int rank;
  const pid_t pid;
  RankOutput output;
  bool running = true;      // the process itself
  bool group_alive = true;  // the process or others in its group run
  bool was_killed = false;  // by SIGKILL from this launcher
};

struct Exit {
  Rank* rank;
  int wait_status;
};

// The state of one Launch. Used on one thread.
class Launcher final {
 public:
  Launcher(const LaunchOptions& options, std::FILE* out, std::FILE* err, SignalRelay& relay)
      : options_(options), output_(out, err), relay_(relay) {}
  ~Launcher();

  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

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
  void ReapGroup(Rank& rank, std::vector<Exit>& exits);
  // Stops the ranks' descendants once no rank is running.
  void StopLeftovers();
  // Sends SIGTERM to descendants that were forked while their parents were signalled and were not
  // seen then, or that may not have handled it.
  void StopNewcomers();
  void HandleExit(const Exit& exit);
  void ReportFailure(const Exit& exit);

  void SignalAll(int signal_number);
  // Sends `signal_number` to all remaining processes, and sets the deadline for SIGKILL.
  void Stop(int signal_number);
  void KillRest();
  void CheckTime();

  int CountRunning() const;
  bool IsRunningRank(pid_t pid) const;
  bool IsInLivingGroup(pid_t pid) const;
  bool AnyGroupAlive() const;

  // Constant after construction.
  const LaunchOptions& options_;
  NonBlockingWriters output_;
  SignalRelay& relay_;
  const absl::Time start_ = SteadyClock().Now();

  const OrphanReaper orphan_reaper_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  int exit_status_ = 0;   // of the first failure
  int output_error_ = 0;  // errno of the first failure to write
  int stop_signal_ = 0;   // the relayed signal that caused the stop, if any
  bool stopping_ = false;
  // Null unless a process reads our terminal.
  std::unique_ptr<TerminalInput> input_;
  std::vector<pid_t> left_behind_;  // descendants of ranks once no rank runs
  bool leftovers_stopped_ = false;
  std::map<pid_t, std::string> told_;  // those signalled, with their programs (ProgramOf)
  bool killed_ = false;
  bool gave_up_ = false;                // processes survived SIGKILL
  std::optional<absl::Time> deadline_;  // of the grace period, then of kKillTimeout after SIGKILL
};

}  // namespace ferry::launcher_internal

#endif  // FERRY_LAUNCH_LAUNCHER_IMPL_H_
