// SPDX-License-Identifier: Apache-2.0
// Rounds of the alive-tasks query.
#include "coord/core/alive_rounds.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "coord/core/errors.h"

namespace ferry::coord {

void AliveRounds::Fail(DoneCallback done, absl::Status why) {
  completions_.Post(std::move(done), CoordinationError(std::move(why)));
}

WaitId AliveRounds::Ask(TaskId caller, std::vector<TaskId> tasks, absl::Time now,
                        DoneCallback done) {
  std::sort(tasks.begin(), tasks.end());
  tasks.erase(std::unique(tasks.begin(), tasks.end()), tasks.end());
  for (const TaskId task : tasks) {
    if (!membership_.jobs().Contains(task)) {
      Fail(std::move(done), absl::InvalidArgumentError(absl::StrCat(
                                "Unexpected task ", task.value(), " is not in the cluster")));
      return kNoWait;
    }
  }
  if (!std::binary_search(tasks.begin(), tasks.end(), caller)) {
    Fail(std::move(done), absl::InvalidArgumentError(absl::StrCat(
                              "task ", caller.value(), " is not in the list it asks about, [",
                              membership_.jobs().Ranges(tasks), "]")));
    return kNoWait;
  }
  const auto [round, is_new] = rounds_.try_emplace(std::move(tasks));
  const WaitId wait = ids_.Next(WaitKind::kAlive);
  round->second.asked.insert(caller);
  round->second.calls.push_back({wait, caller, now, std::move(done)});
  if (!IsComplete(round->first, round->second)) return wait;
  Finish(round->first, round->second);
  rounds_.erase(round);
  return kNoWait;
}

bool AliveRounds::IsComplete(const std::vector<TaskId>& tasks, const Round& round) const {
  return std::all_of(tasks.begin(), tasks.end(), [&](TaskId task) {
    return membership_.task(task).state != TaskState::kConnected || round.asked.contains(task);
  });
}

void AliveRounds::Finish(const std::vector<TaskId>& tasks, Round& round) {
  std::vector<TaskInfo> alive;
  for (const TaskId id : tasks) {
    const Task& task = membership_.task(id);
    if (task.state == TaskState::kConnected) {
      alive.push_back({id, task.state, task.incarnation, task.status});
    }
  }
  for (Call& call : round.calls) {
    completions_.Post(std::move(call.done), alive);
  }
}

void AliveRounds::Reevaluate() {
  for (auto it = rounds_.begin(); it != rounds_.end();) {
    if (IsComplete(it->first, it->second)) {
      Finish(it->first, it->second);
      it = rounds_.erase(it);
    } else {
      ++it;
    }
  }
}

bool AliveRounds::Cancel(WaitId wait, const absl::Status& why) {
  for (auto it = rounds_.begin(); it != rounds_.end(); ++it) {
    std::vector<Call>& calls = it->second.calls;
    const auto call =
        std::find_if(calls.begin(), calls.end(), [wait](const Call& c) { return c.wait == wait; });
    if (call == calls.end()) continue;
    const TaskId caller = call->caller;
    Fail(std::move(call->done), why);
    calls.erase(call);
    // A task counts as having called only while one of its calls is still pending.
    if (std::none_of(calls.begin(), calls.end(),
                     [caller](const Call& c) { return c.caller == caller; })) {
      it->second.asked.erase(caller);
    }
    if (calls.empty()) rounds_.erase(it);
    return true;
  }
  return false;
}

void AliveRounds::Clear(const absl::Status& why) {
  for (auto& [tasks, round] : rounds_) {
    for (Call& call : round.calls) Fail(std::move(call.done), why);
  }
  rounds_.clear();
}

size_t AliveRounds::wait_count() const {
  size_t count = 0;
  for (const auto& [tasks, round] : rounds_) count += round.calls.size();
  return count;
}

void AliveRounds::ForEachWait(absl::FunctionRef<void(const WaitInfo&)> visit) const {
  for (const auto& [tasks, round] : rounds_) {
    for (const Call& call : round.calls) {
      visit({call.caller, absl::StrCat("who is alive of [", membership_.jobs().Ranges(tasks), "]"),
             call.since});
    }
  }
}

void AliveRounds::AddTableSizes(TableSizes& sizes) const {
  size_t asked = 0;
  size_t empty = 0;
  for (const auto& [tasks, round] : rounds_) {
    asked += round.asked.size();
    empty += round.calls.empty() ? 1 : 0;
  }
  sizes["alive.rounds"] = rounds_.size();
  sizes["alive.rounds_without_calls"] = empty;
  sizes["alive.calls"] = wait_count();
  sizes["alive.askers"] = asked;
}

}  // namespace ferry::coord
