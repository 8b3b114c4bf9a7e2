// SPDX-License-Identifier: Apache-2.0
// Barriers: named synchronisation points of some or all tasks, reusable by a use counter.
#ifndef FERRY_COORD_CORE_BARRIERS_H_
#define FERRY_COORD_CORE_BARRIERS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/table_sizes.h"
#include "coord/core/completions.h"
#include "coord/core/membership.h"
#include "coord/core/options.h"
#include "coord/core/types.h"

namespace ferry::coord {

struct BarrierResult {
  absl::Status status;
  // The use of the barrier that the coordinator is at; clients derive their next one from it.
  int64_t counter = 0;
};

struct BarrierArrival {
  std::string id;
  // Which use of the id this is, from 0.
  int64_t counter = 0;
  // The first arrival's timeout applies; the others' are ignored.
  absl::Duration timeout = absl::InfiniteDuration();
  // The participants, in any order, with or without repeats; empty means all tasks, and so does a
  // list of every task.
  std::vector<TaskId> tasks;
  TaskId caller = kNoTask;
  // Single use: late callers get the result of that use.
  bool one_shot = false;
};

// An open barrier.
struct BarrierInfo {
  std::string id;
  int64_t counter = 0;
  std::vector<std::pair<TaskId, absl::Time>> arrived;
  std::vector<TaskId> missing;
  absl::Time first_arrival;
  absl::Time deadline;
};

// Not thread-safe: part of a Coordinator. Every arrival's callback is called once: when all have
// arrived, when the barrier fails, or when the arrival is superseded or cancelled. All arrivals of
// one use get one result. Semantics: docs/protocols.md.
class Barriers final {
 public:
  using DoneCallback = absl::AnyInvocable<void(const BarrierResult&) &&>;

  Barriers(const CoordinatorOptions& options, const Membership& membership,
           Completions& completions, WaitIds& ids)
      : options_(options), membership_(membership), completions_(completions), ids_(ids) {}

  // REQUIRES: the caller is a task of the cluster.
  WaitId Arrive(BarrierArrival arrival, absl::Time now, DoneCallback done);

  // Ends the open use of `id` with CANCELLED for all arrivals.
  //   Errors: FAILED_PRECONDITION when it has passed or `counter` is another use; NOT_FOUND when
  //   the barrier was never used.
  absl::Status CancelBarrier(absl::string_view id, int64_t counter);

  // Ends the open use of `id`, if any, with `why` for all arrivals.
  void Fail(absl::string_view id, const absl::Status& why);

  // Ends `wait` with `why` for its caller. With `withdraw` its arrival is also removed. Returns
  // false when the wait is over.
  bool Cancel(WaitId wait, const absl::Status& why, bool withdraw);

  // `task` has left or failed: ends open barriers that need it with `why`, except `spared`.
  void FailThoseOf(TaskId task, const absl::Status& why, absl::string_view spared);
  // Removes the arrival of `task` at `id`, if any; its caller gets `why`.
  void WithdrawArrivalAt(const std::string& id, TaskId task, const absl::Status& why);
  // `task` is restarting: removes its arrivals with `why`; the barriers stay open.
  void WithdrawArrivalsOf(TaskId task, const absl::Status& why);
  // Ends every open barrier with `why` and removes all.
  void Clear(const absl::Status& why);

  // True if the last use of `id` has completed with OK.
  bool HasPassed(absl::string_view id) const;
  bool IsOpen(absl::string_view id) const;
  // True if the last use of `id` has completed, with OK or an error.
  bool IsOver(absl::string_view id) const;

  absl::Time NextDeadline() const;
  // Fails the barriers whose deadline has passed.
  void Expire(absl::Time now);

  size_t wait_count() const { return waits_.size(); }
  size_t open_count() const { return open_by_deadline_.size(); }
  void ForEachWait(absl::FunctionRef<void(const WaitInfo&)> visit) const;
  std::vector<BarrierInfo> OpenBarriers() const;
  // Adds tables named "barriers....".
  void AddTableSizes(TableSizes& sizes) const;

 private:
  struct Slot {
    absl::Time arrived;
    // kNoWait once the caller has gone; the arrival still counts.
    WaitId wait;
    DoneCallback done;
  };
  struct Barrier {
    int64_t counter = 0;
    bool is_over = false;
    bool one_shot = false;
    // Its key in finished_ (0: not listed), and the bytes it takes there.
    uint64_t finish = 0;
    size_t finished_bytes = 0;
    absl::Status result;
    // As Normalized returns them. The first arrival sets them for all uses of the id.
    std::vector<TaskId> participants;
    absl::btree_map<TaskId, Slot> arrivals;
    TaskId first = kNoTask;
    absl::Time first_arrival;
    absl::Time deadline;
  };

  // Canonical form of a task list: sorted, without repeats, empty if it names every task.
  std::vector<TaskId> Normalized(std::vector<TaskId> tasks) const;
  int ParticipantCount(const Barrier& barrier) const;
  bool IsParticipant(const Barrier& barrier, TaskId task) const;
  std::vector<TaskId> Missing(const Barrier& barrier) const;
  // Returns an error if a use of the barrier cannot be opened: a participant is unknown or in
  // error.
  absl::Status CheckParticipants(const std::string& id, const Barrier& barrier) const;
  // Returns an error if the arrival's list differs from the first caller's, or does not contain
  // its caller.
  //   names_tasks: the caller has sent a list, rather than none.
  absl::Status CheckList(const BarrierArrival& arrival, bool names_tasks,
                         const Barrier& barrier) const;
  void Open(Barrier& barrier, const BarrierArrival& arrival, absl::Time now);
  // A newer call of `task` has arrived: ends its pending call, if any, with CANCELLED.
  void Supersede(const std::string& id, Barrier& barrier, TaskId task);
  // Ends the open use with `result` for all arrivals.
  void Finish(const std::string& id, Barrier& barrier, absl::Status result);
  // Answers an arrival at a use that is over: with its result, or with `refusal`, which then
  // replaces the result.
  void AnswerLate(const std::string& id, Barrier& barrier, absl::Status refusal, DoneCallback done);
  // Removes an arrival whose caller has been answered; closes the barrier if it was the last.
  void RemoveArrival(const std::string& id, TaskId task);
  void Answer(DoneCallback done, absl::Status status, int64_t counter);
  absl::Status TimedOut(const std::string& id, const Barrier& barrier, absl::Time now) const;
  // Adds to, or removes from, the list that ForgetOldResults trims.
  void Remember(const std::string& id, Barrier& barrier);
  void Unremember(Barrier& barrier);
  void ForgetOldResults();

  // Constant after construction.
  const CoordinatorOptions& options_;
  const Membership& membership_;
  Completions& completions_;
  WaitIds& ids_;

  absl::flat_hash_map<std::string, Barrier> barriers_;
  // Pending arrivals: barrier id and task.
  absl::flat_hash_map<WaitId, std::pair<std::string, TaskId>> waits_;
  // Every open barrier, InfiniteFuture included.
  absl::btree_set<std::pair<absl::Time, std::string>> open_by_deadline_;
  // Finished barriers in order of their last use, without single-use ones, whose results are kept
  // permanently.
  absl::btree_map<uint64_t, std::string> finished_;
  uint64_t last_finish_ = 0;
  size_t finished_bytes_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_BARRIERS_H_
