// SPDX-License-Identifier: Apache-2.0
// Launch: process exits, signals, failures, leftover processes, and the deadlines of stopping.
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/text.h"
#include "launch/exit_text.h"
#include "launch/launcher_impl.h"
#include "launch/printable.h"

namespace ferry::launcher_internal {
namespace {

// Time for which a process may survive SIGKILL, stuck in the kernel, before it is abandoned.
constexpr absl::Duration kKillTimeout = absl::Seconds(5);

std::string Processes(int count) {
  return absl::StrCat(count, count == 1 ? " process" : " processes");
}

std::string KillingIn(absl::Duration grace) {
  if (grace == absl::ZeroDuration()) return "killing what still runs at once";
  return absl::StrCat("killing what still runs in ", ShortDuration(grace));
}

}  // namespace

void Launcher::TakeSignals() {
  for (const int signal_number : relay_.Take()) {
    if (signal_number == SIGCHLD) continue;
    if (IsJobControl(signal_number)) {
      Suspend();
    } else if (!StopsTheJob(signal_number)) {
      SignalAll(signal_number);
    } else if (stopping_) {
      Say(absl::StrCat(SignalName(signal_number), " while stopping: killing what is left"));
      KillRest();
    } else {
      stop_signal_ = signal_number;
      Say(absl::StrCat("passing ", SignalName(signal_number), " on to ", Processes(CountRunning()),
                       "; ", KillingIn(options_.grace)));
      Stop(signal_number);
    }
  }
}

void Launcher::Suspend() {
  const absl::Time stopped = SteadyClock().Now();
  SignalAll(SIGTSTP);
  // Not SIGTSTP, which the kernel drops where no shell controls the process group: the ranks would
  // stay stopped. raise() directs it to this thread, which thus does not get past this line first.
  raise(SIGSTOP);
  SignalAll(SIGCONT);
  if (deadline_) *deadline_ += SteadyClock().Now() - stopped;
}

void Launcher::ReapExited() {
  std::vector<Exit> exits;
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (rank->group_alive) ReapGroup(*rank, exits);
  }
  // If several exited at once, a crash is a better explanation than the errors it caused in others.
  std::stable_sort(exits.begin(), exits.end(), [](const Exit& a, const Exit& b) {
    return WIFSIGNALED(a.wait_status) > WIFSIGNALED(b.wait_status);
  });
  for (const Exit& exit : exits) HandleExit(exit);
  orphan_reaper_.Reap([this](pid_t pid) { return IsRunningRank(pid); });
  if (CountRunning() > 0) return;
  left_behind_ = gave_up_ ? std::vector<pid_t>() : orphan_reaper_.Find();
  if (AnyGroupAlive() || !left_behind_.empty()) StopLeftovers();
}

void Launcher::StopLeftovers() {
  if (killed_) {
    // Repeated: processes found only now did not get the earlier SIGKILL.
    SignalAll(SIGKILL);
    return;
  }
  if (leftovers_stopped_) return StopNewcomers();
  leftovers_stopped_ = true;
  // Recorded before they are sent the signal.
  for (const pid_t pid : left_behind_) told_.emplace(pid, ProgramOf(pid));
  if (stopping_) {
    std::vector<pid_t> elsewhere;
    for (const pid_t pid : left_behind_) {
      if (!IsInLivingGroup(pid)) elsewhere.push_back(pid);
    }
    // Processes in ranks' groups got the signal with their parents, and may be about to exit. But
    // they may have ignored a signal that their parents obeyed: a shell's background jobs ignore
    // SIGINT.
    if (!elsewhere.empty()) {
      Say(absl::StrCat("rank processes left behind: ", FormatPids(elsewhere), "; stopping them"));
    }
    SignalAll(SIGTERM);
  } else {
    Say(absl::StrCat("rank processes left behind: ", FormatPids(left_behind_), "; stopping them"));
    Stop(SIGTERM);
  }
}

void Launcher::StopNewcomers() {
  for (const pid_t pid : left_behind_) {
    if (IsInLivingGroup(pid)) continue;
    std::string program = ProgramOf(pid);
    const auto [told, is_new] = told_.try_emplace(pid, program);
    // A fork that was signalled before its exec may have lost the signal: until then it has its
    // parent's handlers, and a shell's handlers defer it.
    if (!is_new && (program.empty() || told->second == program)) continue;
    told->second = std::move(program);
    kill(pid, SIGTERM);
    kill(pid, SIGCONT);
  }
}

void Launcher::ReapGroup(Rank& rank, std::vector<Exit>& exits) {
  int wait_status = 0;
  pid_t pid = 0;
  // The group's other members are our children only if they are adopted orphans.
  while ((pid = waitpid(-rank.pid, &wait_status, WNOHANG)) > 0) {
    if (pid != rank.pid) continue;
    rank.running = false;
    exits.push_back({&rank, wait_status});
  }
  // Also by its own pid, because a process may leave its group.
  if (rank.running && waitpid(rank.pid, &wait_status, WNOHANG) == rank.pid) {
    rank.running = false;
    exits.push_back({&rank, wait_status});
  }
  if (rank.running) return;
  // A group id is not reused while the group has members; once empty it is never used again here.
  rank.group_alive = kill(-rank.pid, 0) == 0 || errno == EPERM;
}

void Launcher::HandleExit(const Exit& exit) {
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
    const int others = CountRunning();
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

void Launcher::ReportFailure(const Exit& exit) {
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

void Launcher::SignalAll(int signal_number) {
  FERRY_LOG_INFO(kLaunch, "signal {} sent to all processes", signal_number);
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (!rank->group_alive) continue;
    if (kill(-rank->pid, signal_number) != 0 && rank->running) kill(rank->pid, signal_number);
  }
  for (const pid_t pid : left_behind_) {
    if (!IsInLivingGroup(pid)) kill(pid, signal_number);
  }
}

void Launcher::Stop(int signal_number) {
  stopping_ = true;
  SignalAll(signal_number);
  // A stopped process would not handle the signal.
  SignalAll(SIGCONT);
  deadline_ = SteadyClock().Now() + options_.grace;
}

void Launcher::KillRest() {
  for (const std::unique_ptr<Rank>& rank : ranks_) rank->was_killed |= rank->running;
  SignalAll(SIGKILL);
  stopping_ = true;
  if (killed_) return;
  killed_ = true;
  deadline_ = SteadyClock().Now() + kKillTimeout;
}

void Launcher::CheckTime() {
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
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (!rank->group_alive) continue;
    Say(absl::StrCat("rank ", rank->rank, " (process group ", rank->pid, ") is still there ",
                     ShortDuration(kKillTimeout), " after SIGKILL; leaving it behind"));
    if (exit_status_ == 0 && stop_signal_ == 0) exit_status_ = 128 + SIGKILL;
    rank->running = false;
    rank->group_alive = false;
  }
  if (!left_behind_.empty()) {
    Say(absl::StrCat("still there ", ShortDuration(kKillTimeout),
                     " after SIGKILL: ", FormatPids(left_behind_)));
    left_behind_.clear();
  }
  gave_up_ = true;
}

bool Launcher::IsRunningRank(pid_t pid) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [pid](const std::unique_ptr<Rank>& rank) {
    return rank->running && rank->pid == pid;
  });
}

bool Launcher::IsInLivingGroup(pid_t pid) const {
  const pid_t group = getpgid(pid);
  return std::any_of(ranks_.begin(), ranks_.end(), [group](const std::unique_ptr<Rank>& rank) {
    return rank->group_alive && rank->pid == group;
  });
}

int Launcher::CountRunning() const {
  return static_cast<int>(
      std::count_if(ranks_.begin(), ranks_.end(),
                    [](const std::unique_ptr<Rank>& rank) { return rank->running; }));
}

bool Launcher::AnyGroupAlive() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const std::unique_ptr<Rank>& rank) { return rank->group_alive; });
}

}  // namespace ferry::launcher_internal
