// SPDX-License-Identifier: Apache-2.0
// OrphanReaper: finds the processes that launched ones have left to this one.
#ifndef FERRY_LAUNCH_ORPHAN_REAPER_H_
#define FERRY_LAUNCH_ORPHAN_REAPER_H_

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

namespace ferry {

// While it lives, this process adopts the orphans among its descendants (PR_SET_CHILD_SUBREAPER),
// also where it is the init of its container and nobody else would wait for them. Whoever descends
// from it is thus found, whatever group or session it has moved to. Children that were there before
// are not looked at. Used on one thread.
class OrphanReaper final {
 public:
  OrphanReaper();
  ~OrphanReaper();

  OrphanReaper(const OrphanReaper&) = delete;
  OrphanReaper& operator=(const OrphanReaper&) = delete;

  // Waits for adopted orphans that have ended.
  //   is_ours: whether somebody else waits for this child.
  void Reap(absl::FunctionRef<bool(pid_t)> is_ours) const;

  // What runs now, ascending; those that have ended are waited for. Looks through /proc, unless
  // there are no children at all. REQUIRES: no launched process runs any more: they would be among
  // them.
  std::vector<pid_t> Find() const;

 private:
  std::vector<pid_t> FindOnce() const;

  int subreaper_before_ = 0;
  std::set<pid_t> children_before_;
};

// Something that changes when that process becomes another program (execve), and stays while it is
// that; of a fork it is the parent's. Empty if it may not be seen.
std::string ProgramOf(pid_t pid);

// "pid 17", "pids 17,19 and 3 more".
std::string FormatPids(const std::vector<pid_t>& pids);

}  // namespace ferry

#endif  // FERRY_LAUNCH_ORPHAN_REAPER_H_
