// SPDX-License-Identifier: Apache-2.0
// RankSupervisor: events, output, exits, signals, and the deadlines of stopping.
#include "launch/rank_supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/file_limit.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launch/child_process.h"
#include "launch/exit_text.h"
#include "launch/orphan_reaper.h"
#include "launch/printable.h"

namespace ferry {
namespace {

// The end of a group's last process is not signalled if it is not our child: poll at this interval.
constexpr absl::Duration kGroupPollInterval = absl::Milliseconds(20);

// Limit on buffered output: above it no more is read until our reader has consumed some, so that
// processes block on their pipes. While they are being stopped, kMaxWaitingAtEnd applies.
constexpr size_t kMaxWaiting = size_t{256} << 10;
constexpr size_t kMaxWaitingAtEnd = size_t{16} << 20;
// Maximum time without progress of our output's reader, once a signal has told us to stop.
constexpr absl::Duration kReaderTimeout = absl::Seconds(1);

// Time for which a process may survive SIGKILL, stuck in the kernel, before it is abandoned.
constexpr absl::Duration kKillTimeout = absl::Seconds(5);

// Same status as other tools whose output's reader has gone; any other error is a failure.
int OutputStatus(int error) { return error == EPIPE ? 128 + SIGPIPE : 1; }

// Returns true for the relayed signals that stop the foreground job.
bool IsJobControl(int signal_number) {
  return signal_number == SIGTSTP || signal_number == SIGTTIN || signal_number == SIGTTOU;
}

bool StopsTheJob(int signal_number) {
  return signal_number == SIGINT || signal_number == SIGTERM || signal_number == SIGHUP ||
         signal_number == SIGQUIT;
}

std::string Processes(int count) {
  return absl::StrCat(count, count == 1 ? " process" : " processes");
}

std::string KillingIn(absl::Duration grace) {
  if (grace == absl::ZeroDuration()) return "killing what still runs at once";
  return absl::StrCat("killing what still runs in ", ShortDuration(grace));
}

}  // namespace

absl::Status RankSupervisor::Start(const std::string& file,
                                   const std::vector<std::string>& inherited) {
  for (int local_rank = 0; local_rank < options_.local_count; ++local_rank) {
    FERRY_ASSIGN_OR_RETURN(const std::vector<std::string> environment,
                           ComposeEnvironment(options_, local_rank, inherited));
    const int rank = GlobalRank(options_, local_rank);
    UniqueFd input;
    if (rank == options_.stdin_rank) {
      FERRY_ASSIGN_OR_RETURN(input, OpenInput());
    }
    FERRY_ASSIGN_OR_RETURN(ChildProcess child,
                           SpawnChild(file, options_.command, environment, input.get()));
    FERRY_LOG_INFO(kLaunch, "process started: rank={} child={} program={}", rank, child.pid,
                   Quoted(file));
    processes_.Add(
        std::make_unique<Rank>(options_, rank, std::move(child), output_.out(), output_.err()));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> RankSupervisor::OpenInput() {
  // stdin is closed, or replaced by the tool's placeholder: the rank reads /dev/null, as without
  // --stdin.
  const int flags = fcntl(STDIN_FILENO, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY) return UniqueFd();
  if (isatty(STDIN_FILENO) != 1) {
    // Numbered above the standard streams, which the child replaces one after the other.
    UniqueFd input(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    if (!input.valid()) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", *options_.stdin_rank,
                       " cannot have standard input: ", ErrorWithFileLimit(errno)));
    }
    return input;
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("pipe2: ", ErrorWithFileLimit(errno)));
  }
  UniqueFd read_end(ends[0]);
  input_ = std::make_unique<TerminalInput>(STDIN_FILENO, UniqueFd(ends[1]));
  return read_end;
}

int RankSupervisor::Run() {
  // Reaps a child that exited before its handler was installed.
  ReapExited();
  while (processes_.AreLeft()) {
    WaitForEvents();
    TakeSignals();
    ReapExited();
    CheckTime();
  }
  for (const std::unique_ptr<Rank>& rank : processes_.ranks()) NoteOutput(rank->output.Drain());
  FinishOutput();
  if (output_error_ != 0 && !stopping_) {
    Say(absl::StrCat("cannot write the output: ", std::strerror(output_error_)));
  }
  // A job that was interrupted must not be reported as successful, whatever its processes returned.
  if (exit_status_ == 0 && stop_signal_ != 0) exit_status_ = 128 + stop_signal_;
  if (exit_status_ == 0 && output_error_ != 0) exit_status_ = OutputStatus(output_error_);
  return exit_status_;
}

void RankSupervisor::WaitForEvents() {
  std::vector<pollfd> polled = {{relay_.fd(), POLLIN, 0}};
  output_.AddPolled(polled);
  if (input_ != nullptr) input_->AddPolled(polled);
  const size_t first = polled.size();
  const size_t max_waiting = stopping_ ? kMaxWaitingAtEnd : kMaxWaiting;
  std::vector<std::pair<Rank*, int>> owners;
  for (const std::unique_ptr<Rank>& rank : processes_.ranks()) {
    for (int stream = 0; stream < RankOutput::kStreamCount; ++stream) {
      const int fd = rank->output.fd(stream, max_waiting);
      if (fd < 0) continue;
      polled.push_back({fd, POLLIN, 0});
      owners.emplace_back(rank.get(), stream);
    }
  }
  absl::Duration timeout = deadline_ ? *deadline_ - SteadyClock().Now() : absl::InfiniteDuration();
  if (processes_.CountRunning() == 0) timeout = std::min(timeout, kGroupPollInterval);
  if (input_ != nullptr) timeout = std::min(timeout, input_->NextPoll());
  int timeout_ms = -1;
  if (timeout != absl::InfiniteDuration()) {
    timeout = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(1));
    timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(timeout)) + 1;
  }
  if (poll(polled.data(), polled.size(), timeout_ms) <= 0) return;
  if (input_ != nullptr) input_->Move();
  for (size_t i = 0; i < owners.size(); ++i) {
    if (polled[first + i].revents == 0) continue;
    NoteOutput(owners[i].first->output.Read(owners[i].second));
  }
  NoteOutput(output_.Flush());
}

void RankSupervisor::FinishOutput() {
  NoteOutput(output_.Flush());
  absl::Time until = SteadyClock().Now() + kReaderTimeout;
  for (size_t before = output_.waiting(); before > 0;) {
    // A job that ended by itself waits for its reader indefinitely, as any other tool does.
    int timeout_ms = -1;
    if (stop_signal_ != 0) {
      const absl::Duration left = until - SteadyClock().Now();
      if (left <= absl::ZeroDuration()) return;
      timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
    }
    std::vector<pollfd> polled = {{relay_.fd(), POLLIN, 0}};
    output_.AddPolled(polled);
    poll(polled.data(), polled.size(), timeout_ms);
    for (const int signal_number : relay_.Take()) {
      if (IsJobControl(signal_number)) Suspend();
      if (!StopsTheJob(signal_number)) continue;
      if (stop_signal_ != 0) return;
      stop_signal_ = signal_number;
      until = SteadyClock().Now() + kReaderTimeout;
    }
    NoteOutput(output_.Flush());
    const size_t after = output_.waiting();
    if (after < before) until = SteadyClock().Now() + kReaderTimeout;
    before = after;
  }
}

void RankSupervisor::NoteOutput(int error) {
  if (output_error_ == 0) output_error_ = error;
}

void RankSupervisor::Say(absl::string_view text) {
  // Follows what the processes wrote before. A write error cannot be reported here either.
  (void)output_.Flush();
  (void)output_.err().Write(absl::StrCat("ferry run: ", text, "\n"));
  (void)output_.Flush();
}

void RankSupervisor::TakeSignals() {
  for (const int signal_number : relay_.Take()) {
    if (signal_number == SIGCHLD) continue;
    if (IsJobControl(signal_number)) {
      Suspend();
    } else if (!StopsTheJob(signal_number)) {
      processes_.Signal(signal_number);
    } else if (stopping_) {
      Say(absl::StrCat(SignalName(signal_number), " while stopping: killing what is left"));
      KillRest();
    } else {
      stop_signal_ = signal_number;
      Say(absl::StrCat("passing ", SignalName(signal_number), " on to ",
                       Processes(processes_.CountRunning()), "; ", KillingIn(options_.grace)));
      Stop(signal_number);
    }
  }
}

void RankSupervisor::Suspend() {
  const absl::Time stopped = SteadyClock().Now();
  processes_.Signal(SIGTSTP);
  // Not SIGTSTP, which the kernel drops where no shell controls the process group: the ranks would
  // stay stopped. raise() directs it to this thread, which thus does not get past this line first.
  raise(SIGSTOP);
  processes_.Signal(SIGCONT);
  if (deadline_) *deadline_ += SteadyClock().Now() - stopped;
}

void RankSupervisor::ReapExited() {
  for (const RankExit& exit : processes_.ReapRanks()) HandleExit(exit);
  processes_.ReapDescendants();
  if (processes_.CountRunning() == 0 && processes_.AreLeft()) StopLeftovers();
}

void RankSupervisor::StopLeftovers() {
  if (killed_) {
    // Repeated: processes found only now did not get the earlier SIGKILL.
    processes_.Signal(SIGKILL);
    return;
  }
  if (leftovers_stopped_) return processes_.TerminateNewcomers();
  leftovers_stopped_ = true;
  processes_.RecordLeftBehind();
  if (stopping_) {
    // Processes in ranks' groups got the signal with their parents, and may be about to exit. But
    // they may have ignored a signal that their parents obeyed: a shell's background jobs ignore
    // SIGINT.
    const std::vector<pid_t> elsewhere = processes_.LeftBehindElsewhere();
    if (!elsewhere.empty()) {
      Say(absl::StrCat("rank processes left behind: ", FormatPids(elsewhere), "; stopping them"));
    }
    processes_.Signal(SIGTERM);
  } else {
    Say(absl::StrCat("rank processes left behind: ", FormatPids(processes_.left_behind()),
                     "; stopping them"));
    Stop(SIGTERM);
  }
}

void RankSupervisor::HandleExit(const RankExit& exit) {
  NoteOutput(exit.rank->output.Drain());
  if (input_ != nullptr && exit.rank->rank == options_.stdin_rank) input_->Close();
  FERRY_LOG_INFO(kLaunch, "process ended: rank={} child={} {}", exit.rank->rank, exit.rank->pid,
                 DescribeExit(exit.wait_status));
  const int status = ExitStatus(exit.wait_status);
  if (status == 0) return;
  // The exit status of a process that was told to stop is not a failure of the job.
  if (exit_status_ == 0 && stop_signal_ == 0) exit_status_ = status;
  if (!stopping_) {
    ReportFailure(exit);
    const int others = processes_.CountRunning();
    if (others > 0) {
      Say(absl::StrCat("stopping the other ", Processes(others), "; ", KillingIn(options_.grace)));
    }
    Stop(SIGTERM);
    return;
  }
  // While stopping, only exits that the launcher did not cause are reported.
  const int sent = stop_signal_ != 0 ? stop_signal_ : SIGTERM;
  if (exit.rank->was_killed) {
    Say(absl::StrCat("rank ", exit.rank->rank, " did not stop and was killed"));
  } else if (!WIFSIGNALED(exit.wait_status) || WTERMSIG(exit.wait_status) != sent) {
    Say(absl::StrCat("rank ", exit.rank->rank, " ", DescribeExit(exit.wait_status),
                     " while stopping"));
  }
}

void RankSupervisor::ReportFailure(const RankExit& exit) {
  std::string where;
  if (options_.machine_count > 1) {
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    where = absl::StrCat(" on ", host);
  }
  const std::deque<std::string>& tail = exit.rank->output.tail();
  std::string text = absl::StrCat("rank ", exit.rank->rank, " (pid ", exit.rank->pid, where, ") ",
                                  DescribeExit(exit.wait_status), " after ",
                                  ShortDuration(SteadyClock().Now() - start_));
  if (tail.empty()) {
    absl::StrAppend(&text, options_.tail_line_count > 0 ? "; it wrote nothing" : "");
  } else {
    absl::StrAppend(&text, "; its last ",
                    tail.size() == 1 ? "line:" : absl::StrCat(tail.size(), " lines:"));
    for (const std::string& line : tail) absl::StrAppend(&text, "\n    ", PrintableText(line));
  }
  Say(text);
}

void RankSupervisor::Stop(int signal_number) {
  stopping_ = true;
  processes_.Signal(signal_number);
  // A stopped process would not handle the signal.
  processes_.Signal(SIGCONT);
  deadline_ = SteadyClock().Now() + options_.grace;
}

void RankSupervisor::KillRest() {
  processes_.Kill();
  stopping_ = true;
  if (killed_) return;
  killed_ = true;
  deadline_ = SteadyClock().Now() + kKillTimeout;
}

void RankSupervisor::CheckTime() {
  if (output_error_ != 0 && !stopping_) {
    if (exit_status_ == 0) exit_status_ = OutputStatus(output_error_);
    Say(absl::StrCat("cannot write the output any more: ", std::strerror(output_error_),
                     "; stopping"));
    Stop(SIGTERM);
  }
  if (!deadline_ || SteadyClock().Now() < *deadline_) return;
  if (!killed_) {
    KillRest();
    return;
  }
  for (const std::unique_ptr<Rank>& rank : processes_.ranks()) {
    if (!rank->group_alive) continue;
    Say(absl::StrCat("rank ", rank->rank, " (process group ", rank->pid, ") is still there ",
                     ShortDuration(kKillTimeout), " after SIGKILL; leaving it behind"));
    if (exit_status_ == 0 && stop_signal_ == 0) exit_status_ = 128 + SIGKILL;
  }
  if (!processes_.left_behind().empty()) {
    Say(absl::StrCat("still there ", ShortDuration(kKillTimeout),
                     " after SIGKILL: ", FormatPids(processes_.left_behind())));
  }
  processes_.Abandon();
}

}  // namespace ferry
