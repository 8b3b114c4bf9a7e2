// SPDX-License-Identifier: Apache-2.0
// RankProcesses: the processes of a launch and their descendants, as the kernel sees them.
#ifndef FERRY_LAUNCH_RANK_PROCESSES_H_
#define FERRY_LAUNCH_RANK_PROCESSES_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/non_blocking_writer.h"
#include "launch/child_process.h"
#include "launch/launch_environment.h"
#include "launch/orphan_reaper.h"
#include "launch/rank_output.h"

namespace ferry {

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

struct RankExit {
  Rank* rank;
  int wait_status;
};

// Reaps what has exited, and delivers signals to what still runs: the ranks, the other members of
// their process groups, and, once no rank runs, the descendants that have left these groups (this
// process is their subreaper). When to stop them is decided by the owner. Not thread-safe.
class RankProcesses final {
 public:
  RankProcesses() = default;
  // Kills the ranks that still run, which are left here only if one of them could not be started.
  ~RankProcesses();

  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void Add(std::unique_ptr<Rank> rank) { ranks_.push_back(std::move(rank)); }
  const std::vector<std::unique_ptr<Rank>>& ranks() const { return ranks_; }

  // Returns the ranks that have exited since the last call, crashed ones first.
  std::vector<RankExit> ReapRanks();
  // Reaps adopted descendants. Once no rank runs, also looks for those that are left behind.
  void ReapDescendants();

  int CountRunning() const;
  // Returns true while a rank's group has members, or descendants are left behind.
  bool AreLeft() const { return IsAnyGroupAlive() || !left_behind_.empty(); }
  // Descendants of the ranks that run while no rank does.
  const std::vector<pid_t>& left_behind() const { return left_behind_; }
  // Those of left_behind that are in no rank's group.
  std::vector<pid_t> LeftBehindElsewhere() const;

  void Signal(int signal_number) const;
  // Sends SIGKILL.
  void Kill();
  // To be called before those of left_behind are sent SIGTERM.
  void RecordLeftBehind();
  // Sends SIGTERM to descendants that were forked while their parents were signalled and were not
  // seen by RecordLeftBehind, or that may not have handled it.
  void TerminateNewcomers();
  // Gives up on whatever still runs: there is nothing left from now on.
  void Abandon();

 private:
  void ReapGroup(Rank& rank, std::vector<RankExit>& exits);
  bool IsRunningRank(pid_t pid) const;
  bool IsInLivingGroup(pid_t pid) const;
  bool IsAnyGroupAlive() const;

  const OrphanReaper orphan_reaper_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<pid_t> left_behind_;
  std::map<pid_t, std::string> signalled_;  // those sent SIGTERM, with their programs (ProgramOf)
  bool is_abandoned_ = false;
};

}  // namespace ferry

#endif  // FERRY_LAUNCH_RANK_PROCESSES_H_
