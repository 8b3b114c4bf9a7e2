// SPDX-License-Identifier: Apache-2.0
// RankProcesses: waiting for process groups, and signalling them.
#include "launch/rank_processes.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/logging.h"

namespace ferry {

RankProcesses::~RankProcesses() {
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (!rank->running) continue;
    kill(-rank->pid, SIGKILL);
    while (waitpid(rank->pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

std::vector<RankExit> RankProcesses::ReapRanks() {
  std::vector<RankExit> exits;
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (rank->group_alive) ReapGroup(*rank, exits);
  }
  // If several exited at once, a crash is a better explanation than the errors it caused in others.
  std::stable_sort(exits.begin(), exits.end(), [](const RankExit& a, const RankExit& b) {
    return WIFSIGNALED(a.wait_status) > WIFSIGNALED(b.wait_status);
  });
  return exits;
}

void RankProcesses::ReapGroup(Rank& rank, std::vector<RankExit>& exits) {
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

void RankProcesses::ReapDescendants() {
  orphan_reaper_.Reap([this](pid_t pid) { return IsRunningRank(pid); });
  if (CountRunning() > 0) return;
  left_behind_ = is_abandoned_ ? std::vector<pid_t>() : orphan_reaper_.Find();
}

std::vector<pid_t> RankProcesses::LeftBehindElsewhere() const {
  std::vector<pid_t> elsewhere;
  for (const pid_t pid : left_behind_) {
    if (!IsInLivingGroup(pid)) elsewhere.push_back(pid);
  }
  return elsewhere;
}

void RankProcesses::Signal(int signal_number) const {
  FERRY_LOG_INFO(kLaunch, "signal {} sent to all processes", signal_number);
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (!rank->group_alive) continue;
    if (kill(-rank->pid, signal_number) != 0 && rank->running) kill(rank->pid, signal_number);
  }
  for (const pid_t pid : left_behind_) {
    if (!IsInLivingGroup(pid)) kill(pid, signal_number);
  }
}

void RankProcesses::Kill() {
  for (const std::unique_ptr<Rank>& rank : ranks_) rank->was_killed |= rank->running;
  Signal(SIGKILL);
}

void RankProcesses::RecordLeftBehind() {
  for (const pid_t pid : left_behind_) signalled_.emplace(pid, ProgramOf(pid));
}

void RankProcesses::TerminateNewcomers() {
  for (const pid_t pid : left_behind_) {
    if (IsInLivingGroup(pid)) continue;
    std::string program = ProgramOf(pid);
    const auto [told, is_new] = signalled_.try_emplace(pid, program);
    // A fork that was signalled before its exec may have lost the signal: until then it has its
    // parent's handlers, and a shell's handlers defer it.
    if (!is_new && (program.empty() || told->second == program)) continue;
    told->second = std::move(program);
    kill(pid, SIGTERM);
    kill(pid, SIGCONT);
  }
}

void RankProcesses::Abandon() {
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (!rank->group_alive) continue;
    rank->running = false;
    rank->group_alive = false;
  }
  left_behind_.clear();
  is_abandoned_ = true;
}

bool RankProcesses::IsRunningRank(pid_t pid) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [pid](const std::unique_ptr<Rank>& rank) {
    return rank->running && rank->pid == pid;
  });
}

bool RankProcesses::IsInLivingGroup(pid_t pid) const {
  const pid_t group = getpgid(pid);
  return std::any_of(ranks_.begin(), ranks_.end(), [group](const std::unique_ptr<Rank>& rank) {
    return rank->group_alive && rank->pid == group;
  });
}

int RankProcesses::CountRunning() const {
  return static_cast<int>(
      std::count_if(ranks_.begin(), ranks_.end(),
                    [](const std::unique_ptr<Rank>& rank) { return rank->running; }));
}

bool RankProcesses::IsAnyGroupAlive() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const std::unique_ptr<Rank>& rank) { return rank->group_alive; });
}

}  // namespace ferry
