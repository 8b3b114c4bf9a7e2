// SPDX-License-Identifier: Apache-2.0
// Composition of the parts: calls, cancellation, deadlines, stop, and the next job.
#include "coord/core/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "coord/core/errors.h"

namespace ferry::coord {

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(CoordinatorOptions options,
                                                                 const Clock& clock,
                                                                 uint64_t incarnation) {
  absl::StatusOr<Jobs> jobs = Jobs::Create(options.jobs);
  if (!jobs.ok()) return jobs.status();
  return std::unique_ptr<Coordinator>(
      new Coordinator(std::move(options), clock, *std::move(jobs), incarnation));
}

Coordinator::Coordinator(CoordinatorOptions options, const Clock& clock, Jobs jobs,
                         uint64_t incarnation)
    : options_(std::move(options)),
      clock_(clock),
      started_(clock.Now()),
      jobs_(std::move(jobs)),
      job_{.epoch = 1, .incarnation = Incarnation(incarnation)},
      membership_(jobs_, options_),
      former_incarnations_(static_cast<size_t>(jobs_.size())),
      store_(options_, completions_, ids_),
      barriers_(options_, membership_, completions_, ids_),
      alive_(membership_, completions_, ids_),
      topology_(jobs_, completions_, ids_),
      register_barrier_(options_, jobs_, barriers_),
      join_failures_(options_, clock_, membership_, register_barrier_, completions_, ids_),
      failure_(options_, clock_, job_,
               {.membership = membership_,
                .barriers = barriers_,
                .register_barrier = register_barrier_,
                .topology = topology_},
               completions_, ids_),
      failure_detector_(options_, clock_, membership_, failure_),
      admission_(options_, clock_, job_,
                 {.membership = membership_,
                  .former_incarnations = former_incarnations_,
                  .barriers = barriers_,
                  .register_barrier = register_barrier_,
                  .topology = topology_,
                  .join_failures = join_failures_,
                  .failure = failure_}),
      shutdown_(options_, clock_, job_, membership_, barriers_, failure_),
      device_infos_(std::make_shared<std::vector<std::string>>(jobs_.size())) {}

absl::Status Coordinator::CheckRunning() const {
  if (!is_stopped_) return absl::OkStatus();
  return CoordinationError(absl::InternalError("the coordinator has stopped"));
}

absl::Status Coordinator::CheckTask(TaskId task) const {
  if (is_stopped_) return CheckRunning();
  if (jobs_.Contains(task)) return absl::OkStatus();
  return CoordinationError(absl::InvalidArgumentError(
      absl::StrCat("Unexpected task ", task.value(), " is not in the cluster: it has tasks 0 to ",
                   jobs_.size() - 1)));
}

bool Coordinator::IsOwnBarrier(absl::string_view id) const {
  return id == RegisterBarrierId() || id == shutdown_.BarrierId() ||
         absl::StartsWith(id, "WaitForAllTasks::");
}

WaitId Coordinator::RegisterTask(Registration registration, StatusCallback done) {
  const TaskId id = registration.task;
  if (absl::Status status = CheckTask(id); !status.ok()) return Answer(std::move(done), status);
  if (absl::Status status = CheckIncarnation(id, registration.incarnation); !status.ok()) {
    return Answer(std::move(done), std::move(status));
  }
  BeginNewJobIfOver(registration);
  if (std::optional<absl::Status> answer = admission_.Admit(registration); answer.has_value()) {
    Settle();
    return Answer(std::move(done), *std::move(answer));
  }
  const WaitId wait = admission_.Wait(std::move(registration), std::move(done));
  Settle();
  return wait;
}

absl::Status Coordinator::Heartbeat(TaskId id, Incarnation incarnation,
                                    std::optional<uint64_t> progress) {
  if (absl::Status status = CheckTask(id); !status.ok()) return status;
  if (absl::Status status = CheckIncarnation(id, incarnation); !status.ok()) return status;
  const absl::Status status = failure_detector_.Heartbeat(id, incarnation, progress);
  // Most heartbeats change no state, and need not pay for this.
  if (membership_.version() != settled_version_) Settle();
  return status;
}

void Coordinator::NoteAlive(TaskId id, Incarnation incarnation) {
  if (is_stopped_ || !jobs_.Contains(id)) return;
  const Task& task = membership_.task(id);
  if (task.state == TaskState::kConnected && task.incarnation == incarnation) {
    membership_.Touch(id, Now());
  }
}

void Coordinator::NoteConnectionEnd(TaskId id) {
  if (is_stopped_ || !jobs_.Contains(id)) return;
  FERRY_LOG_INFO(kCoord, "connection of a task ended: task={}", id.value());
  membership_.NoteConnectionEnd(id, Now());
}

absl::Status Coordinator::CheckIncarnation(TaskId id, Incarnation life) const {
  const int64_t epoch = former_incarnations_.EpochOf(id, life);
  if (epoch == 0 || epoch == job_.epoch) return absl::OkStatus();
  return CoordinationError(absl::AbortedError(
      absl::StrCat(jobs_.Name(id), " with incarnation ", life.value(), " was part of job ", epoch,
                   " of this coordinator, which has ended; this is job ", job_.epoch,
                   ", which continues without that process; the process should exit")));
}

void Coordinator::ExtendHeartbeatDeadlines(absl::Duration stalled) {
  membership_.ExtendHeartbeatDeadlines(stalled, Now());
}

WaitId Coordinator::ShutdownTask(TaskId id, StatusCallback done) {
  if (absl::Status status = CheckTask(id); !status.ok()) return Answer(std::move(done), status);
  if (!shutdown_.MustWait(id)) {
    absl::Status status = shutdown_.Disconnect(id, absl::CancelledError("the task has shut down"));
    Settle();
    return Answer(std::move(done), std::move(status));
  }
  const WaitId wait = shutdown_.Wait(id, std::move(done));
  Settle();
  return wait;
}

absl::Status Coordinator::ResetTask(TaskId id) {
  if (absl::Status status = CheckTask(id); !status.ok()) return status;
  const absl::Status status = shutdown_.Disconnect(id, absl::CancelledError("the task was reset"));
  Settle();
  return status;
}

absl::Status Coordinator::LeaveTask(TaskId id, Incarnation incarnation) {
  if (!register_barrier_.Leave(id, incarnation)) {
    if (absl::Status status = CheckTask(id); !status.ok()) return status;
    // Barriers need not wait for it.
    const absl::Status error = membership_.task(id).status;
    const absl::Status status =
        shutdown_.Disconnect(id, absl::CancelledError("the task was reset"));
    if (status.ok()) membership_.NoteLeftWith(id, error);
    Settle();
    return status;
  }
  Settle();
  return absl::OkStatus();
}

absl::Status Coordinator::ReportError(TaskId id, absl::Status error) {
  if (absl::Status status = CheckTask(id); !status.ok()) return status;
  if (membership_.task(id).state != TaskState::kConnected) {
    return CoordinationError(absl::FailedPreconditionError(
        absl::StrCat(jobs_.Name(id), " reports an error but is not connected")));
  }
  if (error.ok()) error = absl::UnknownError("an error without a code");
  // A poll that ends CANCELLED means no error: the other tasks would not learn of it.
  const absl::StatusCode code =
      absl::IsCancelled(error) ? absl::StatusCode::kAborted : error.code();
  error = CoordinationError(
      absl::Status(code, absl::StrCat(jobs_.Name(id), " reported: ", FirstOf(error.message()))),
      {.is_reported = true, .source = id});
  failure_.FailTask(id, error);
  failure_.Propagate(error, {id});
  Settle();
  return absl::OkStatus();
}

WaitId Coordinator::PollForError(TaskId id, StatusCallback done, bool is_watched) {
  if (absl::Status status = CheckTask(id); !status.ok()) return Answer(std::move(done), status);
  return failure_.Poll(id, is_watched, std::move(done));
}

WaitId Coordinator::FailJoining(const absl::Status& why, absl::Duration timeout,
                                StatusCallback done) {
  if (absl::Status status = CheckRunning(); !status.ok()) {
    return Answer(std::move(done), std::move(status));
  }
  const WaitId wait = join_failures_.Report(why, timeout, std::move(done));
  Settle();
  return wait;
}

void Coordinator::RefuseJoining(const absl::Status& why) {
  if (is_stopped_) return;
  join_failures_.Refuse(why);
  Settle();
}

WaitId Coordinator::WatchJoining(TaskId caller, StatusCallback done) {
  if (absl::Status status = CheckRunning(); !status.ok()) {
    return Answer(std::move(done), std::move(status));
  }
  return join_failures_.Watch(caller, std::move(done));
}

WaitId Coordinator::WaitForAllTasks(TaskId id, std::string device_info, DeviceInfosCallback done) {
  if (absl::Status status = CheckTask(id); !status.ok()) {
    completions_.Post(std::move(done), std::move(status));
    return kNoWait;
  }
  const std::string barrier = absl::StrCat("WaitForAllTasks::", job_.incarnation.value());
  std::string& kept = (*device_infos_)[id.value()];
  if (kept.empty() && !barriers_.HasPassed(barrier)) kept = std::move(device_info);
  return barriers_.Arrive(
      {.id = barrier, .timeout = absl::Hours(1), .caller = id, .one_shot = true}, Now(),
      [done = std::move(done),
       infos = DeviceInfos(device_infos_)](const BarrierResult& result) mutable {
        if (result.status.ok()) {
          std::move(done)(std::move(infos));
        } else {
          std::move(done)(result.status);
        }
      });
}

Coordinator::TablePtr Coordinator::Table() const {
  return std::make_shared<TaskTable>(TaskTable{membership_.Snapshot(), membership_.version()});
}

WaitId Coordinator::WatchTasks(int64_t version, TaskId caller, TableCallback done) {
  absl::StatusOr<TablePtr> answer;
  if (is_stopped_) {
    answer = CheckRunning();
  } else if (version > membership_.version()) {
    answer = CoordinationError(absl::InvalidArgumentError(
        absl::StrCat("version ", version, " of the task table has not been yet; it is at ",
                     membership_.version())));
  } else if (version == membership_.version()) {
    const WaitId wait = ids_.Next(WaitKind::kWatchTasks);
    watches_.emplace(wait, Watch{caller, Now(), std::move(done)});
    return wait;
  } else {
    answer = Table();
  }
  completions_.Post(std::move(done), std::move(answer));
  return kNoWait;
}

WaitId Coordinator::GetAliveTasks(TaskId caller, std::vector<TaskId> tasks,
                                  AliveRounds::DoneCallback done) {
  if (absl::Status status = CheckTask(caller); !status.ok()) {
    completions_.Post(std::move(done), std::move(status));
    return kNoWait;
  }
  return alive_.Ask(caller, std::move(tasks), Now(), std::move(done));
}

WaitId Coordinator::GetKeys(std::vector<std::string> keys, TaskId task, absl::Duration timeout,
                            Store::GetCallback done) {
  if (absl::Status status = CheckRunning(); !status.ok()) {
    completions_.Post(std::move(done), std::move(status));
    return kNoWait;
  }
  const absl::Time now = Now();
  return store_.Get(std::move(keys), task, now, now + timeout, std::move(done));
}

WaitId Coordinator::Barrier(BarrierArrival arrival, Barriers::DoneCallback done) {
  if (absl::Status status = CheckTask(arrival.caller); !status.ok()) {
    completions_.Post(std::move(done), BarrierResult{status, arrival.counter});
    return kNoWait;
  }
  const WaitId wait = barriers_.Arrive(std::move(arrival), Now(), std::move(done));
  // The barrier may be one of the coordinator's own.
  Settle();
  return wait;
}

absl::Status Coordinator::CancelBarrier(absl::string_view id, int64_t counter) {
  if (absl::Status status = CheckRunning(); !status.ok()) return status;
  absl::Status status = barriers_.CancelBarrier(id, counter);
  Settle();
  return status;
}

WaitId Coordinator::EnumerateDevices(TaskId task, LocalTopology local, absl::Duration timeout,
                                     TopologyExchange::DoneCallback done, std::string as_told) {
  if (absl::Status status = CheckTask(task); !status.ok()) {
    completions_.Post(std::move(done), std::move(status));
    return kNoWait;
  }
  const absl::Time now = Now();
  const WaitId wait = topology_.Enumerate(task, std::move(local), now, now + timeout,
                                          std::move(done), std::move(as_told));
  if (wait == kNoWait || job_error().ok()) return wait;
  // In a failed job, the missing tasks will not report.
  topology_.Cancel(wait, job_error());
  return kNoWait;
}

bool Coordinator::Cancel(WaitId wait) {
  const absl::Status why = CoordinationError(absl::CancelledError("the caller cancelled the wait"));
  switch (WaitIds::Kind(wait)) {
    case WaitKind::kGet:
      return store_.Cancel(wait, why);
    case WaitKind::kBarrier:
      return barriers_.Cancel(wait, why, /*withdraw=*/register_barrier_.Remove(wait));
    case WaitKind::kPoll:
      return failure_.CancelPoll(wait, why);
    case WaitKind::kWatchTasks: {
      const auto watch = watches_.find(wait);
      if (watch == watches_.end()) return false;
      completions_.Post(std::move(watch->second.done), why);
      watches_.erase(watch);
      return true;
    }
    case WaitKind::kAlive:
      return alive_.Cancel(wait, why);
    case WaitKind::kEnumerate:
      return topology_.Cancel(wait, why);
    case WaitKind::kFailJoining:
    case WaitKind::kWatchJoining:
      return join_failures_.Cancel(wait, why);
    case WaitKind::kQuorum:
      break;
  }
  return false;
}

void Coordinator::Stop() {
  is_stopped_ = true;
  const absl::Status cancelled =
      CoordinationError(absl::CancelledError("the coordinator is stopping"));
  register_barrier_.Take();
  join_failures_.Stop(cancelled);
  failure_.EndPolls(cancelled);
  barriers_.Clear(absl::AbortedError("the coordinator is stopping"));
  store_.Clear(cancelled);
  alive_.Clear(cancelled);
  topology_.Clear(cancelled);
  const TablePtr nothing = std::make_shared<TaskTable>(TaskTable{{}, -1});
  for (auto& [wait, watch] : watches_) {
    completions_.Post(std::move(watch.done), nothing);
  }
  watches_.clear();
}

absl::Time Coordinator::NextDeadline() const {
  if (is_stopped_) return absl::InfiniteFuture();
  return std::min({membership_.NextDeadline(), store_.NextDeadline(), barriers_.NextDeadline(),
                   topology_.NextDeadline(), register_barrier_.NextDeadline(),
                   join_failures_.NextDeadline()});
}

void Coordinator::Advance() {
  if (is_stopped_) return;
  const absl::Time now = Now();
  store_.Expire(now);
  topology_.Expire(now);
  register_barrier_.Expire(now);
  join_failures_.Expire(now);
  barriers_.Expire(now);
  failure_detector_.ExpireSilentTasks(now);
  Settle();
}

void Coordinator::Settle() {
  admission_.Settle();
  shutdown_.Settle();
  join_failures_.AnswerWatches();
  if (settled_version_ == membership_.version()) return;
  settled_version_ = membership_.version();
  alive_.Reevaluate();
  if (watches_.empty()) return;
  const TablePtr table = Table();
  for (auto& [wait, watch] : watches_) {
    completions_.Post(std::move(watch.done), table);
  }
  watches_.clear();
}

void Coordinator::BeginNewJobIfOver(const Registration& newcomer) {
  if (!options_.reuse || !options_.register_barrier || !register_barrier_.empty()) return;
  // A repeated call of a process of the old job does not start a new one.
  if (membership_.task(newcomer.task).incarnation == newcomer.incarnation) return;
  if (former_incarnations_.EpochOf(newcomer.task, newcomer.incarnation) != 0) return;
  if (!join_failures_.IsJobOver()) return;
  BeginNewJob(absl::CancelledError("the job is over; a new one begins"));
}

void Coordinator::BeginNewJob(const absl::Status& why) {
  failure_.EndPolls(CoordinationError(why));
  register_barrier_.Take();
  barriers_.Clear(why);
  alive_.Clear(why);
  topology_.Clear(why);
  store_.Clear(CoordinationError(why));
  for (int i = 0; i < jobs_.size(); ++i) {
    former_incarnations_.Add(TaskId(i), membership_.task(TaskId(i)).incarnation, job_.epoch);
  }
  membership_.Reset();
  device_infos_ = std::make_shared<std::vector<std::string>>(jobs_.size());
  failure_.BeginNewJob();
  join_failures_.BeginNewJob();
  shutdown_.BeginNewJob();
  ++job_.epoch;
  FERRY_LOG_INFO(kCoord, "next job: job={}: {}", job_.epoch, why);
  job_.incarnation =
      Incarnation(job_.incarnation.value() * 6364136223846793005u + 1442695040888963407u);
  Settle();
}

absl::Status Coordinator::EndJob(absl::string_view why, bool force) {
  if (absl::Status status = CheckRunning(); !status.ok()) return status;
  const bool has_failed = !job_error().ok() || membership_.error_count() > 0;
  const int connected = membership_.connected_count();
  if (!has_failed && connected > 0 && !force) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job is healthy: ", connected, " of ", jobs_.size(),
                     " tasks are connected and none has failed; --force ends it anyway"));
  }
  const absl::Status ended =
      CoordinationError(absl::AbortedError(absl::StrCat("the job was ended: ", FirstOf(why))));
  // Notifies clients with a listening address; polls and all other calls end below.
  if (connected > 0) failure_.Propagate(ended, {});
  join_failures_.EndReports(ended);
  BeginNewJob(ended);
  return absl::OkStatus();
}

const TaskFacts& Coordinator::FactsOf(TaskId task) const {
  const Registration* joining = register_barrier_.Find(task);
  return joining != nullptr ? joining->facts : membership_.task(task).facts;
}

std::vector<WaitInfo> Coordinator::Waits() const {
  std::vector<WaitInfo> waits;
  const auto add = [&waits](const WaitInfo& wait) { waits.push_back(wait); };
  store_.ForEachWait(add);
  barriers_.ForEachWait(add);
  alive_.ForEachWait(add);
  topology_.ForEachWait(add);
  failure_.ForEachWait(add);
  join_failures_.ForEachWait(add);
  for (const auto& [wait, watch] : watches_) {
    if (watch.caller == kCoordinatorItself) continue;
    waits.push_back({watch.caller, "a change of the task table", watch.since});
  }
  return waits;
}

size_t Coordinator::wait_count() const {
  return store_.wait_count() + barriers_.wait_count() + alive_.wait_count() +
         topology_.wait_count() + failure_.wait_count() + join_failures_.wait_count() +
         watches_.size();
}

TableSizes Coordinator::InnerTableSizes() const {
  TableSizes sizes;
  membership_.AddTableSizes(sizes);
  former_incarnations_.AddTableSizes(sizes);
  store_.AddTableSizes(sizes);
  barriers_.AddTableSizes(sizes);
  alive_.AddTableSizes(sizes);
  topology_.AddTableSizes(sizes);
  register_barrier_.AddTableSizes(sizes);
  join_failures_.AddTableSizes(sizes);
  failure_.AddTableSizes(sizes);
  sizes["watches"] = watches_.size();
  return sizes;
}

}  // namespace ferry::coord
