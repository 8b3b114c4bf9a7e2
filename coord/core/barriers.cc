// SPDX-License-Identifier: Apache-2.0
// The barrier state machine.
#include "coord/core/barriers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/text.h"
#include "coord/core/errors.h"

namespace ferry::coord {
namespace {

std::string Describe(absl::string_view id, int64_t counter) {
  return absl::StrCat("barrier ", Quoted(id, 80),
                      counter == 0 ? "" : absl::StrCat(" use ", counter));
}

// The upstream service's format for a use of a barrier in messages.
std::string UseName(absl::string_view id, int64_t counter) {
  return absl::StrCat(absl::CEscape(id.substr(0, 200)), "::", counter);
}

}  // namespace

std::vector<TaskId> Barriers::Normalized(std::vector<TaskId> tasks) const {
  std::sort(tasks.begin(), tasks.end());
  tasks.erase(std::unique(tasks.begin(), tasks.end()), tasks.end());
  const int size = membership_.size();
  const bool names_everyone = static_cast<int>(tasks.size()) == size &&
                              tasks.front() == TaskId(0) && tasks.back() == TaskId(size - 1);
  if (names_everyone) tasks.clear();
  return tasks;
}

int Barriers::ParticipantCount(const Barrier& barrier) const {
  return barrier.participants.empty() ? membership_.size()
                                      : static_cast<int>(barrier.participants.size());
}

bool Barriers::IsParticipant(const Barrier& barrier, TaskId task) const {
  if (barrier.participants.empty()) return membership_.jobs().Contains(task);
  return std::binary_search(barrier.participants.begin(), barrier.participants.end(), task);
}

std::vector<TaskId> Barriers::Missing(const Barrier& barrier) const {
  std::vector<TaskId> missing;
  const auto consider = [&](TaskId task) {
    if (!barrier.arrivals.contains(task)) missing.push_back(task);
  };
  if (barrier.participants.empty()) {
    for (int i = 0; i < membership_.size(); ++i) consider(TaskId(i));
  } else {
    for (const TaskId task : barrier.participants) consider(task);
  }
  return missing;
}

absl::Status Barriers::CheckParticipants(const std::string& id, const Barrier& barrier) const {
  const Jobs& jobs = membership_.jobs();
  const std::string intro = absl::StrCat("Barrier failed. ", Describe(id, barrier.counter), ": ");
  for (const TaskId task : barrier.participants) {
    if (!jobs.Contains(task)) {
      return absl::InvalidArgumentError(
          absl::StrCat(intro, "Unexpected task ", task.value(),
                       " in the barrier's list: the cluster has tasks 0 to ", jobs.size() - 1));
    }
  }
  if (options_.recoverable || membership_.error_count() + membership_.failed_leaver_count() == 0) {
    return absl::OkStatus();
  }
  std::vector<TaskId> failed;
  for (int i = 0; i < membership_.size(); ++i) {
    const TaskId task(i);
    const Task& state = membership_.task(task);
    const bool has_failed = state.state == TaskState::kError || !state.left_with.ok();
    if (has_failed && !state.recoverable && IsParticipant(barrier, task)) {
      failed.push_back(task);
    }
  }
  if (failed.empty()) return absl::OkStatus();
  const Task& first = membership_.task(failed[0]);
  return absl::InternalError(
      absl::StrCat(intro, "task ", jobs.Ranges(failed), " of it already in error: ",
                   (first.left_with.ok() ? first.status : first.left_with).message()));
}

absl::Status Barriers::CheckList(const BarrierArrival& arrival, bool names_tasks,
                                 const Barrier& barrier) const {
  const Jobs& jobs = membership_.jobs();
  const std::string use = UseName(arrival.id, barrier.counter);
  // The texts begin as those of the upstream service, because users search for them.
  if (arrival.tasks != barrier.participants) {
    const std::string first =
        barrier.participants.empty() ? "all" : jobs.Ranges(barrier.participants);
    if (!names_tasks) {
      return absl::InvalidArgumentError(absl::StrCat(
          use,
          ": No tasks were specified by the client, which implies that the entire cluster is "
          "participating in the barrier. However, the first caller said [",
          first, "]. Check that the callers are invoking the barrier with the same arguments."));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "Conflicting tasks specified by different processes for the same barrier: ", use, ". ",
        jobs.Name(arrival.caller), " says [",
        arrival.tasks.empty() ? "all" : jobs.Ranges(arrival.tasks), "], the first caller said [",
        first, "]. Check that the callers are invoking the barrier with the same arguments."));
  }
  if (!IsParticipant(barrier, arrival.caller)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "A non-participating task (", jobs.Name(arrival.caller), ") called the barrier: ", use,
        ", which is for [", jobs.Ranges(barrier.participants), "]"));
  }
  return absl::OkStatus();
}

void Barriers::Answer(DoneCallback done, absl::Status status, int64_t counter) {
  completions_.Add([done = std::move(done),
                    result = BarrierResult{CoordinationError(std::move(status)),
                                           counter}]() mutable { std::move(done)(result); });
}

void Barriers::Open(Barrier& barrier, const BarrierArrival& arrival, absl::Time now) {
  barrier.is_over = false;
  barrier.first = arrival.caller;
  barrier.first_arrival = now;
  barrier.deadline = now + std::max(arrival.timeout, absl::ZeroDuration());
  open_by_deadline_.emplace(barrier.deadline, arrival.id);
}

void Barriers::Supersede(const std::string& id, Barrier& barrier, TaskId task) {
  const auto found = barrier.arrivals.find(task);
  if (found == barrier.arrivals.end() || found->second.wait == kNoWait) return;
  Slot& slot = found->second;
  waits_.erase(slot.wait);
  slot.wait = kNoWait;
  Answer(
      std::move(slot.done),
      absl::CancelledError(absl::StrCat("a newer call of ", membership_.jobs().Name(task), " to ",
                                        Describe(id, barrier.counter), " takes its place")),
      barrier.counter);
}

// Checks in the upstream service's order: what is wrong with a new use, the counter, the lists,
// the caller; only then whether the use is over.
WaitId Barriers::Arrive(BarrierArrival arrival, absl::Time now, DoneCallback done) {
  const bool names_tasks = !arrival.tasks.empty();
  arrival.tasks = Normalized(std::move(arrival.tasks));

  auto found = barriers_.find(arrival.id);
  // A restarted task has lost its count; it takes part in the next use.
  const bool restarted = options_.recoverable && arrival.counter == 0 && !arrival.one_shot;
  absl::Status refusal;
  if (found == barriers_.end()) {
    if (arrival.counter != 0) {
      Answer(std::move(done),
             absl::InternalError(absl::StrCat(
                 Describe(arrival.id, arrival.counter),
                 ": the coordinator knows no earlier use of it; one side has restarted")),
             /*counter=*/-1);
      return kNoWait;
    }
    found = barriers_.emplace(arrival.id, Barrier{}).first;
    found->second.participants = arrival.tasks;
    found->second.one_shot = arrival.one_shot;
    Open(found->second, arrival, now);
    refusal = CheckParticipants(found->first, found->second);
  } else if (Barrier& barrier = found->second; barrier.is_over) {
    if (restarted) arrival.counter = barrier.counter + 1;
    if (arrival.counter == barrier.counter) {
      AnswerLate(found->first, barrier, CheckList(arrival, names_tasks, barrier), std::move(done));
      return kNoWait;
    }
    if (arrival.counter != barrier.counter + 1) {
      Answer(std::move(done),
             absl::InternalError(absl::StrCat(Describe(arrival.id, arrival.counter),
                                              ": the coordinator is at use ", barrier.counter,
                                              "; this task was too quick / slow or restarted")),
             barrier.counter);
      return kNoWait;
    }
    barrier.counter = arrival.counter;
    Open(barrier, arrival, now);
    refusal = CheckParticipants(found->first, barrier);
  } else {
    Supersede(found->first, barrier, arrival.caller);
    if (arrival.counter != barrier.counter && !restarted) {
      refusal = absl::InternalError(
          absl::StrCat(Describe(arrival.id, arrival.counter), " called by ",
                       membership_.jobs().Name(arrival.caller), " while the others are at use ",
                       barrier.counter, ": it was too quick / slow or restarted"));
    }
  }

  Barrier& barrier = found->second;
  const std::string& id = found->first;
  if (refusal.ok()) refusal = CheckList(arrival, names_tasks, barrier);
  if (!refusal.ok()) {
    const int64_t counter = barrier.counter;
    Finish(id, barrier, refusal);
    Answer(std::move(done), refusal, counter);
    return kNoWait;
  }

  const auto [place, is_new] = barrier.arrivals.try_emplace(arrival.caller);
  Slot& slot = place->second;
  if (is_new) slot.arrived = now;
  slot.wait = ids_.Next(WaitKind::kBarrier);
  slot.done = std::move(done);
  const WaitId wait = slot.wait;
  waits_.emplace(wait, std::make_pair(id, arrival.caller));
  FERRY_LOG_DEBUG(kCoord, "barrier reached: task={} {}; {} of {}", arrival.caller.value(),
                  Describe(id, barrier.counter), barrier.arrivals.size(),
                  ParticipantCount(barrier));
  if (static_cast<int>(barrier.arrivals.size()) == ParticipantCount(barrier)) {
    Finish(id, barrier, absl::OkStatus());
    return kNoWait;
  }
  return wait;
}

void Barriers::AnswerLate(const std::string& id, Barrier& barrier, absl::Status refusal,
                          DoneCallback done) {
  if (refusal.ok()) return Answer(std::move(done), barrier.result, barrier.counter);
  Answer(std::move(done), refusal, barrier.counter);
  // Tasks cannot fail the coordinator's own barriers after joining through them.
  if (barrier.one_shot) return;
  // As upstream, the error is stored: later callers learn that the callers disagree.
  barrier.result = std::move(refusal);
  Remember(id, barrier);
  ForgetOldResults();
}

void Barriers::Finish(const std::string& id, Barrier& barrier, absl::Status result) {
  barrier.is_over = true;
  barrier.result = std::move(result);
  FERRY_LOG_INFO(kCoord, "barrier over: {}; tasks waiting {} of {}: {}",
                 Describe(id, barrier.counter), barrier.arrivals.size(), ParticipantCount(barrier),
                 barrier.result);
  open_by_deadline_.erase({barrier.deadline, id});
  for (auto& [task, slot] : barrier.arrivals) {
    if (slot.wait == kNoWait) continue;
    waits_.erase(slot.wait);
    Answer(std::move(slot.done), barrier.result, barrier.counter);
  }
  barrier.arrivals.clear();
  if (barrier.one_shot) return;
  Remember(id, barrier);
  ForgetOldResults();
}

void Barriers::Remember(const std::string& id, Barrier& barrier) {
  Unremember(barrier);
  barrier.finish = ++last_finish_;
  // The id is stored here and in at most two tables.
  barrier.finished_bytes = 3 * id.size() + barrier.participants.size() * sizeof(TaskId) +
                           barrier.result.message().size();
  finished_bytes_ += barrier.finished_bytes;
  finished_.emplace(barrier.finish, id);
}

void Barriers::Unremember(Barrier& barrier) {
  if (barrier.finish == 0) return;
  finished_.erase(barrier.finish);
  finished_bytes_ -= barrier.finished_bytes;
  barrier.finish = 0;
}

// Bounds the table. Never removes the barrier just finished, so that callers may keep using their
// reference to it.
void Barriers::ForgetOldResults() {
  while (finished_.size() > 1 && (finished_.size() > options_.max_finished_barriers ||
                                  finished_bytes_ > options_.max_finished_barrier_bytes)) {
    const auto found = barriers_.find(finished_.begin()->second);
    Unremember(found->second);
    // A barrier that is open again is kept for its current use.
    if (found->second.is_over) barriers_.erase(found);
  }
}

absl::Status Barriers::CancelBarrier(absl::string_view id, int64_t counter) {
  const auto found = barriers_.find(id);
  if (found == barriers_.end()) {
    return CoordinationError(
        absl::NotFoundError(absl::StrCat("no task has waited at ", Describe(id, counter))));
  }
  Barrier& barrier = found->second;
  if (counter != barrier.counter) {
    return CoordinationError(absl::FailedPreconditionError(
        absl::StrCat("cannot cancel ", Describe(id, counter), ": it is at use ", barrier.counter,
                     ", likely due to a restart")));
  }
  if (barrier.is_over) {
    return CoordinationError(absl::FailedPreconditionError(
        absl::StrCat(Describe(id, counter), " has already been passed")));
  }
  Finish(found->first, barrier,
         absl::CancelledError(absl::StrCat(Describe(id, counter), " was cancelled")));
  return absl::OkStatus();
}

bool Barriers::Cancel(WaitId wait, const absl::Status& why, bool withdraw) {
  const auto it = waits_.find(wait);
  if (it == waits_.end()) return false;
  const auto [id, task] = std::move(it->second);
  waits_.erase(it);
  Barrier& barrier = barriers_.find(id)->second;
  Slot& slot = barrier.arrivals.find(task)->second;
  slot.wait = kNoWait;
  Answer(std::move(slot.done), why, barrier.counter);
  if (withdraw) RemoveArrival(id, task);
  return true;
}

void Barriers::RemoveArrival(const std::string& id, TaskId task) {
  const auto found = barriers_.find(id);
  Barrier& barrier = found->second;
  barrier.arrivals.erase(task);
  if (!barrier.arrivals.empty()) return;
  // No arrival is left: restore the state before this use.
  open_by_deadline_.erase({barrier.deadline, id});
  if (barrier.counter == 0) {
    barriers_.erase(found);
    return;
  }
  --barrier.counter;
  barrier.is_over = true;
  if (barrier.one_shot) return;
  // Its result may have been forgotten meanwhile.
  Remember(id, barrier);
  ForgetOldResults();
}

void Barriers::Fail(absl::string_view id, const absl::Status& why) {
  const auto found = barriers_.find(id);
  if (found == barriers_.end() || found->second.is_over) return;
  Finish(found->first, found->second, why);
}

void Barriers::FailThoseOf(TaskId task, const absl::Status& why, absl::string_view spared) {
  std::vector<std::string> open;
  for (const auto& [deadline, id] : open_by_deadline_) {
    if (id != spared) open.push_back(id);
  }
  for (const std::string& id : open) {
    // Ending one barrier ends no other, and forgets only those that are over.
    const auto found = barriers_.find(id);
    if (!IsParticipant(found->second, task)) continue;
    Finish(found->first, found->second,
           absl::InternalError(absl::StrCat("Barrier failed. ", Describe(id, found->second.counter),
                                            ": ", membership_.jobs().Name(task), ": ",
                                            why.message())));
  }
}

void Barriers::WithdrawArrivalsOf(TaskId task, const absl::Status& why) {
  std::vector<std::string> open;
  for (const auto& [deadline, id] : open_by_deadline_) open.push_back(id);
  for (const std::string& id : open) WithdrawArrivalAt(id, task, why);
}

void Barriers::WithdrawArrivalAt(const std::string& id, TaskId task, const absl::Status& why) {
  const auto found = barriers_.find(id);
  if (found == barriers_.end() || found->second.is_over) return;
  const auto slot = found->second.arrivals.find(task);
  if (slot == found->second.arrivals.end()) return;
  if (!Cancel(slot->second.wait, why, /*withdraw=*/true)) RemoveArrival(id, task);
}

void Barriers::Clear(const absl::Status& why) {
  while (!open_by_deadline_.empty()) {
    const auto found = barriers_.find(open_by_deadline_.begin()->second);
    Finish(found->first, found->second, why);
  }
  barriers_.clear();
  finished_.clear();
  finished_bytes_ = 0;
}

bool Barriers::HasPassed(absl::string_view id) const {
  const auto found = barriers_.find(id);
  return found != barriers_.end() && found->second.is_over && found->second.result.ok();
}

bool Barriers::IsOpen(absl::string_view id) const {
  const auto found = barriers_.find(id);
  return found != barriers_.end() && !found->second.is_over;
}

bool Barriers::IsOver(absl::string_view id) const {
  const auto found = barriers_.find(id);
  return found != barriers_.end() && found->second.is_over;
}

absl::Time Barriers::NextDeadline() const {
  return open_by_deadline_.empty() ? absl::InfiniteFuture() : open_by_deadline_.begin()->first;
}

void Barriers::Expire(absl::Time now) {
  while (!open_by_deadline_.empty() && open_by_deadline_.begin()->first <= now) {
    const auto found = barriers_.find(open_by_deadline_.begin()->second);
    Finish(found->first, found->second, TimedOut(found->first, found->second, now));
  }
}

absl::Status Barriers::TimedOut(const std::string& id, const Barrier& barrier,
                                absl::Time now) const {
  const std::vector<TaskId> missing = Missing(barrier);
  const Jobs& jobs = membership_.jobs();
  return WithMissingTasks(
      absl::DeadlineExceededError(
          absl::StrCat("Barrier timed out. Id: ", UseName(id, barrier.counter), ". After ",
                       ShortDuration(now - barrier.first_arrival), " ", barrier.arrivals.size(),
                       "/", ParticipantCount(barrier), " tasks had reached it, the first ",
                       jobs.Name(barrier.first), ". Missing tasks: ", jobs.Ranges(missing))),
      jobs.Ranges(missing));
}

void Barriers::ForEachWait(absl::FunctionRef<void(const WaitInfo&)> visit) const {
  for (const auto& [wait, where] : waits_) {
    const Barrier& barrier = barriers_.find(where.first)->second;
    visit({where.second, Describe(where.first, barrier.counter),
           barrier.arrivals.find(where.second)->second.arrived});
  }
}

std::vector<BarrierInfo> Barriers::OpenBarriers() const {
  std::vector<BarrierInfo> infos;
  for (const auto& [deadline, id] : open_by_deadline_) {
    const Barrier& barrier = barriers_.find(id)->second;
    BarrierInfo info{id, barrier.counter, {}, Missing(barrier), barrier.first_arrival, deadline};
    for (const auto& [task, slot] : barrier.arrivals) info.arrived.emplace_back(task, slot.arrived);
    infos.push_back(std::move(info));
  }
  return infos;
}

void Barriers::AddTableSizes(TableSizes& sizes) const {
  size_t parked = 0;
  size_t open = 0;
  size_t forgettable = 0;
  size_t finished_bytes = 0;
  for (const auto& [id, barrier] : barriers_) {
    for (const auto& [task, slot] : barrier.arrivals) parked += slot.wait != kNoWait ? 1 : 0;
    open += barrier.is_over ? 0 : 1;
    // An open barrier may be listed for its previous use.
    const bool is_listed = barrier.finish != 0;
    forgettable += is_listed || (barrier.is_over && !barrier.one_shot) ? 1 : 0;
    finished_bytes += is_listed ? barrier.finished_bytes : 0;
  }
  sizes["barriers.known"] = barriers_.size();
  sizes["barriers.known_open"] = open;
  sizes["barriers.open"] = open_by_deadline_.size();
  sizes["barriers.parked"] = parked;
  sizes["barriers.waits"] = waits_.size();
  sizes["barriers.forgettable"] = forgettable;
  sizes["barriers.finished"] = finished_.size();
  sizes["barriers.bytes_of_finished"] = finished_bytes;
  sizes["barriers.finished_bytes"] = finished_bytes_;
}

}  // namespace ferry::coord
