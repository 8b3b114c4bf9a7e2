// SPDX-License-Identifier: Apache-2.0
// AliveRounds: gives tasks that call together one consistent list of the tasks that are alive.
#ifndef FERRY_COORD_CORE_ALIVE_ROUNDS_H_
#define FERRY_COORD_CORE_ALIVE_ROUNDS_H_

#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/table_sizes.h"
#include "coord/core/completions.h"
#include "coord/core/membership.h"
#include "coord/core/types.h"

namespace ferry::coord {

// Not thread-safe: part of a Coordinator. Calls that name the same set of tasks form one round; it
// ends when every connected task of the set has called, and all get the same list. Different sets
// are independent. A round has no deadline of its own: tasks that do not call end it once they
// count as dead.
class AliveRounds final {
 public:
  // Tasks in ascending order, with their state and incarnation.
  using DoneCallback = absl::AnyInvocable<void(absl::StatusOr<std::vector<TaskInfo>>) &&>;

  AliveRounds(const Membership& membership, Completions& completions, WaitIds& ids)
      : membership_(membership), completions_(completions), ids_(ids) {}

  //   Errors: INVALID_ARGUMENT when the caller is not in `tasks` or one of them is not in the
  //   cluster.
  WaitId Ask(TaskId caller, std::vector<TaskId> tasks, absl::Time now, DoneCallback done);
  // Ends the wait: the caller has disconnected or cancelled.
  bool Cancel(WaitId wait, const absl::Status& why);
  // A task's state has changed: completes rounds that waited only for it.
  void Reevaluate();
  void Clear(const absl::Status& why);

  size_t wait_count() const;
  void ForEachWait(absl::FunctionRef<void(const WaitInfo&)> visit) const;
  // Adds tables named "alive....".
  void AddTableSizes(TableSizes& sizes) const;

 private:
  struct Call {
    WaitId wait;
    TaskId caller = kNoTask;
    absl::Time since;
    DoneCallback done;
  };
  struct Round {
    absl::btree_set<TaskId> asked;
    std::vector<Call> calls;
  };
  using Rounds = absl::btree_map<std::vector<TaskId>, Round>;

  bool IsComplete(const std::vector<TaskId>& tasks, const Round& round) const;
  void Finish(const std::vector<TaskId>& tasks, Round& round);
  void Fail(DoneCallback done, absl::Status why);

  // Constant after construction.
  const Membership& membership_;
  Completions& completions_;
  WaitIds& ids_;

  Rounds rounds_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_ALIVE_ROUNDS_H_
