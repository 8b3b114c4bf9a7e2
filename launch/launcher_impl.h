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

// As other tools exit if the reader of their output has gone; any other error is a failure.
inline int OutputStatus(int error) { return error == EPIPE ? 128 + SIGPIPE : 1; }

// True for those signals of the relay that stop the foreground job.
inline bool IsJobControl(int signal_number) {
  return signal_number == SIGTSTP || signal_number == SIGTTIN || signal_number == SIGTTOU;
}

inline bool StopsTheJob(int signal_number) {
  return signal_number == SIGINT || signal_number == SIGTERM || signal_number == SIGHUP ||
         signal_number == SIGQUIT;
}

// A started process, and the group it leads.
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
  bool group_alive = true;  // it, or others in its group
  bool was_killed = false;  // by us
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

  // Runs until every process is gone; the exit status.
  int Run();

 private:
  void WaitForEvents();
  void NoteOutput(int error);
  // Waits until everything has been taken; no longer than kReaderTimeout without any progress when
  // a signal has come.
  void FinishOutput();
  void Say(absl::string_view text);

  void TakeSignals();
  // Stops the processes, then this one; when this one continues, they do too.
  void Suspend();
  // The standard input of the process that is to have ours; fills in input_ for a terminal.
  absl::StatusOr<UniqueFd> OpenInput();
  void ReapExited();
  void ReapGroup(Rank& rank, std::vector<Exit>& exits);
  // For when only processes are left that the ranks started.
  void StopLeftovers();
  // Tells those to stop that were made while their parents were told, too late for them to be seen,
  // or that may not have heard it.
  void StopNewcomers();
  void HandleExit(const Exit& exit);
  void ReportFailure(const Exit& exit);

  void SignalAll(int signal_number);
  // Sends `signal_number` to what is left, and sets the time when SIGKILL follows.
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
  int stop_signal_ = 0;   // the one that was passed on, when that is why we stop
  bool stopping_ = false;
  // Null unless a process reads our terminal.
  std::unique_ptr<TerminalInput> input_;
  std::vector<pid_t> left_behind_;  // what descends from ranks once none of these runs
  bool leftovers_stopped_ = false;
  std::map<pid_t, std::string> told_;  // of those, and which program each was (ProgramOf)
  bool killed_ = false;
  bool gave_up_ = false;                // on what even SIGKILL does not end
  std::optional<absl::Time> deadline_;  // of the grace period, then of the timeout after SIGKILL
};

}  // namespace ferry::launcher_internal

#endif  // FERRY_LAUNCH_LAUNCHER_IMPL_H_
