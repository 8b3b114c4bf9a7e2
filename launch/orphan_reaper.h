// SPDX-License-Identifier: Apache-2.0
// OrphanReaper: finds and reaps orphaned descendants of launched processes.
#ifndef FERRY_LAUNCH_ORPHAN_REAPER_H_
#define FERRY_LAUNCH_ORPHAN_REAPER_H_

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

namespace ferry {

// While it exists, this process adopts the orphans among its descendants (PR_SET_CHILD_SUBREAPER),
// also if it is the init of its container, where no other process would reap them. Its descendants
// are thus found whatever group or session they have moved to. Children that existed before are
// ignored. Used on one thread.
class OrphanReaper final {
 public:
  OrphanReaper();
  ~OrphanReaper();

  OrphanReaper(const OrphanReaper&) = delete;
  OrphanReaper& operator=(const OrphanReaper&) = delete;

  // Reaps adopted orphans that have exited.
  //   is_ours: returns true for a child that other code waits for.
  void Reap(absl::FunctionRef<bool(pid_t)> is_ours) const;

  // Returns the running descendants, in ascending order; reaps those that have exited. Scans /proc,
  // unless there are no children at all. REQUIRES: no launched process runs any more, since it
  // would be among them.
  std::vector<pid_t> Find() const;

 private:
  std::vector<pid_t> FindOnce() const;

  int subreaper_before_ = 0;
  std::set<pid_t> children_before_;
};

// Returns a value that changes when the process runs another program (execve) and is constant
// otherwise; a fork has its parent's. Empty if access is denied.
std::string ProgramOf(pid_t pid);

// "pid 17", "pids 17,19 and 3 more".
std::string FormatPids(const std::vector<pid_t>& pids);

}  // namespace ferry

#endif  // FERRY_LAUNCH_ORPHAN_REAPER_H_
