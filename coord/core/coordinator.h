// SPDX-License-Identifier: Apache-2.0
// Coordinator: the whole state of one job; membership, store, barriers and what ties them together.
#ifndef FERRY_COORD_CORE_COORDINATOR_H_
#define FERRY_COORD_CORE_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "coord/core/alive_rounds.h"
#include "coord/core/barriers.h"
#include "coord/core/completions.h"
#include "coord/core/former_incarnations.h"
#include "coord/core/jobs.h"
#include "coord/core/membership.h"
#include "coord/core/options.h"
#include "coord/core/store.h"
#include "coord/core/topology_exchange.h"
#include "coord/core/types.h"

namespace ferry::coord {

// A part of the coordinator itself: its waits are nobody's business, and not listed.
inline constexpr TaskId kCoordinatorItself{-2};

struct Registration {
  TaskId task = kNoTask;
  Incarnation incarnation;
  // May die and come back without failing the job.
  bool recoverable = false;
  // Waits for the others even if the job has no register barrier.
  bool waits_for_all = false;
  // Gives up waiting after this, without failing the others.
  absl::Duration own_timeout = absl::InfiniteDuration();
  // The number of heartbeats that its client sends per heartbeat timeout, from which the
  // coordinator learns that timeout. 0: the client is told the coordinator's timeout.
  int beats_per_timeout = 0;
  TaskFacts facts;
};

// Tells a task's own error service (TaskFacts::error_address) that the job has failed.
using ErrorReport = std::function<void(const std::string& address, const absl::Status& error)>;

// What Watch tells of every task, at one version of the table.
struct TaskTable {
  std::vector<TaskInfo> tasks;
  int64_t version = 0;
};

// Pure: no threads, no I/O, time from `clock`. Not thread-safe; a CoordinatorExecutor makes it so.
// Use: call a method, then run what TakeCompletions() returns, without a lock. A callback is called
// exactly once. Methods that can wait return the wait's id, for Cancel; kNoWait if it is over.
// Error codes and texts are those that JAX and TensorFlow clients check: docs/protocols.md.
class Coordinator final {
 public:
  using StatusCallback = absl::AnyInvocable<void(absl::Status) &&>;
  // One table for all who wait for it.
  using TablePtr = std::shared_ptr<const TaskTable>;
  using TableCallback = absl::AnyInvocable<void(absl::StatusOr<TablePtr>) &&>;
  // What each task gave to WaitForAllTasks, by task id.
  using DeviceInfos = std::shared_ptr<const std::vector<std::string>>;
  using DeviceInfosCallback = absl::AnyInvocable<void(absl::StatusOr<DeviceInfos>) &&>;

  // `incarnation`: random, tells this life of the coordinator from others.
  //   Errors: INVALID_ARGUMENT as Jobs::Create.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(CoordinatorOptions options,
                                                             const Clock& clock,
                                                             uint64_t incarnation);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  const CoordinatorOptions& options() const { return options_; }
  const Jobs& jobs() const { return jobs_; }
  const Membership& membership() const { return membership_; }
  // Changes when a new job begins on the same coordinator.
  Incarnation incarnation() const { return incarnation_; }
  // Jobs that this coordinator has served, from 1.
  int64_t epoch() const { return epoch_; }

  // --- Tasks ---

  // Joins. With the register barrier, answered when every task has; otherwise at once.
  //   Errors: INVALID_ARGUMENT unknown task; ALREADY_EXISTS superseded by a newer call of this
  //   task; ABORTED connected in another incarnation, in error, or a process of an earlier job;
  //   DEADLINE_EXCEEDED naming who did not come; INTERNAL stopped.
  WaitId RegisterTask(Registration registration, StatusCallback done);
  // A sign of life.
  //   Errors: INVALID_ARGUMENT unknown or not registered; ABORTED in error, another incarnation, or
  //   a process of an earlier job, which changes nothing; INTERNAL stopped.
  absl::Status Heartbeat(TaskId task, Incarnation incarnation,
                         std::optional<uint64_t> progress = std::nullopt);
  // A sign of life that is no heartbeat; nothing for a task that is not connected in this life.
  void NoteAlive(TaskId task, Incarnation incarnation);
  // The connection on which `task` polled for errors has ended. A task that does not call again
  // within seconds is considered dead, unless it waits for the others to shut down.
  void NoteConnectionEnd(TaskId task);
  // ABORTED for a process that belonged to an earlier job of this coordinator, whose calls must not
  // count for the present one. For calls that name the incarnation of their task; Register and
  // Heartbeat check by themselves.
  absl::Status CheckIncarnation(TaskId task, Incarnation life) const;
  // Nothing could be heard for so long, through no fault of the tasks: their silence counts less.
  void ExtendHeartbeatDeadlines(absl::Duration held_up);
  // Leaves: together with everyone (shutdown_timeout), or at once if that is zero or it is
  // recoverable.
  //   Errors: FAILED_PRECONDITION not connected; INTERNAL the others did not come.
  WaitId ShutdownTask(TaskId task, StatusCallback done);
  // Leaves at once; also clears an error.
  absl::Status ResetTask(TaskId task);
  // As ResetTask; in this life's registration it ends that, and the others go on waiting for it.
  absl::Status LeaveTask(TaskId task, Incarnation incarnation);
  // The task has failed: everyone hears of it.
  absl::Status ReportError(TaskId task, absl::Status error);
  // Waits for the job's first error. Never ends well: CANCELLED when it is over in peace.
  //   is_watched: the caller probes the connection of the call, cancels the wait when that breaks,
  //   and then also calls NoteConnectionEnd. While it waits, it is a sign of life of a task whose
  //   heartbeats are not known to come more often.
  WaitId PollForError(TaskId task, StatusCallback done, bool is_watched = false);
  // Ends the job, failed or not, so that the next registration begins another: parked calls end
  // ABORTED with `why`, and so do later calls of its processes.
  //   force: even if the job is healthy.
  //   Errors: FAILED_PRECONDITION it is healthy, and not `force`; INTERNAL stopped.
  absl::Status EndJob(absl::string_view why, bool force);
  // A process that was to be one of the job's tasks cannot be, for the reason `why`: tasks that
  // wait for all to register fail with it, as do those that register while this call waits, and the
  // job has failed. Without a register barrier only their registration has. Answered when a task
  // has failed with it.
  //   Errors: FAILED_PRECONDITION all have registered, and the job continues; DEADLINE_EXCEEDED no
  //   task registered; INTERNAL stopped.
  WaitId FailJoining(const absl::Status& why, absl::Duration timeout, StatusCallback done);
  // No job begins here any more: all that register from now on, or wait to, fail with `why`. For a
  // coordinator that runs only to say so.
  void RefuseJoining(const absl::Status& why);
  // Waits, for a process that is to start tasks of the job, until FailJoining or RefuseJoining says
  // that the job cannot begin. Answered with that error, at once if a task that registered now
  // would fail with it; never OK. A job that has begun and failed is no reason, and neither ends
  // the wait nor does the next job.
  //   Errors: RESOURCE_EXHAUSTED too many wait; CANCELLED; INTERNAL stopped.
  WaitId WatchJoining(TaskId caller, StatusCallback done);
  // Processes that know that the present job cannot begin: tasks and callers of WatchJoining that
  // were told, and callers of FailJoining.
  size_t told_of_joining_failure() const { return told_tasks_.size() + told_others_; }
  // Barrier over everyone that also collects what each says of its devices (opaque here).
  WaitId WaitForAllTasks(TaskId task, std::string device_info, DeviceInfosCallback done);

  // Answers when the table has moved past `version`; at once for -1. `caller` may be kNoTask, or
  // kCoordinatorItself.
  //   Errors: INVALID_ARGUMENT for a version that has not been yet.
  WaitId WatchTasks(int64_t version, TaskId caller, TableCallback done);
  WaitId GetAliveTasks(TaskId caller, std::vector<TaskId> tasks, AliveRounds::DoneCallback done);

  // --- Store, barriers, devices ---

  Store& store() { return store_; }
  const Store& store() const { return store_; }
  // As Store::Get, at the present time; INTERNAL once stopped.
  WaitId GetKeys(std::vector<std::string> keys, TaskId task, absl::Duration timeout,
                 Store::GetCallback done);

  // As Barriers::Arrive, at the present time; INTERNAL once stopped.
  WaitId Barrier(BarrierArrival arrival, Barriers::DoneCallback done);
  absl::Status CancelBarrier(absl::string_view id, int64_t counter);
  const Barriers& barriers() const { return barriers_; }

  // As TopologyExchange::Enumerate, at the present time; the job's error, instead of a wait, once
  // it has failed; INTERNAL once stopped.
  WaitId EnumerateDevices(TaskId task, LocalTopology local, absl::Duration timeout,
                          TopologyExchange::DoneCallback done, std::string as_told = "");
  TopologyExchange::Result topology() const { return topology_.result(); }

  // --- Everything else ---

  // The caller of a parked call went away or gave up: its callback gets CANCELLED. False when the
  // wait is over already. A barrier arrival still counts, except for the one of registration.
  bool Cancel(WaitId wait);
  // Polls and gets end CANCELLED, barriers ABORTED, watches with version -1; later calls INTERNAL.
  void Stop();
  bool is_stopped() const { return is_stopped_; }

  // Called, as a completion, for each task that has registered an error address.
  void SetErrorReport(ErrorReport report) { error_report_ = std::move(report); }

  // The first error that was told to everyone; sticky until a new job begins.
  const absl::Status& job_error() const { return job_error_; }
  // Why the job cannot begin, if FailJoining has ended its registration; until a new job begins.
  const absl::Status& joining_error() const { return joining_error_; }
  bool everyone_has_registered() const { return barriers_.HasPassed(RegisterBarrierId()); }
  static absl::string_view RegisterBarrierId();
  // Of the barriers that are this object's own, by which tasks join and leave.
  bool IsOwnBarrier(absl::string_view id) const;

  // Something is due then (InfiniteFuture: nothing); Advance does it.
  absl::Time NextDeadline() const;
  void Advance();
  std::vector<Completion> TakeCompletions() { return completions_.Take(); }
  // Answers a call that is not for this object, in order with those that are.
  void Refuse(Completion answer) { completions_.Add(std::move(answer)); }

  // When it was made.
  absl::Time started() const { return started_; }
  // Tasks that wait at the register barrier.
  std::vector<TaskId> JoiningTasks() const;
  // What a task told of itself when it registered; of one that waits there, what it tells now.
  const TaskFacts& FactsOf(TaskId task) const;
  // Everything that waits now, for status reports.
  std::vector<WaitInfo> Waits() const;
  size_t wait_count() const;
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const;

 private:
  struct Poll {
    WaitId wait;
    absl::Time since;
    StatusCallback done;
  };
  struct Watch {
    TaskId caller = kNoTask;
    absl::Time since;
    TableCallback done;
  };
  // A task that waits at the register barrier, in the life it will have.
  struct Joining {
    Registration registration;
    WaitId wait;
    absl::Time since;
    absl::Time deadline;
  };

  // A call of FailJoining that waits for a task to register.
  struct JoiningFailure {
    absl::Status why;
    absl::Time since;
    absl::Time deadline;
    StatusCallback done;
  };

  // A call of WatchJoining.
  struct JoiningWatch {
    TaskId caller = kNoTask;
    absl::Time since;
    StatusCallback done;
  };

  Coordinator(CoordinatorOptions options, const Clock& clock, Jobs jobs, uint64_t incarnation);

  absl::Time Now() const { return clock_.Now(); }
  bool IsRecoverable(TaskId task) const;
  absl::Status CheckRunning() const;
  // Not stopped, and a task of the cluster.
  absl::Status CheckTask(TaskId task) const;
  WaitId Answer(StatusCallback done, absl::Status status);

  // Becomes a connected member in this life.
  void Connect(const Registration& registration);
  WaitId JoinRegisterBarrier(Registration registration, StatusCallback done);
  BarrierArrival RegisterArrival(TaskId task) const;
  // For tasks that wait for all while this one does not.
  void ArriveWithoutWaiting(TaskId task);
  // A newer registration takes the place of one that waits.
  void SupersedeJoining(TaskId task);
  // Takes the task out of joining_; its wait at the barrier is the caller's concern.
  void StopJoining(TaskId task);
  // Tells the tasks in joining_ and the watches of the refusal_ or else of the first of
  // joining_failures_, and answers all of these.
  //   REQUIRES: there are such tasks, and a reason.
  void FailPendingRegistrations();
  void AnswerJoiningFailures(const absl::Status& status);
  void ExpireJoiningFailures(absl::Time now);
  // Why a task that registers now would fail at once, because of a process that cannot join; OK if
  // it would not.
  absl::Status PresentJoiningFailure() const;
  // joining_error_, for a task that comes late.
  absl::Status LateJoiningError() const;
  void TellJoiningWatches(const absl::Status& error);
  absl::Status Disconnect(TaskId task, const absl::Status& why);
  // `task` has failed: it goes into error and its barriers fail; tells nobody else.
  void SetTaskError(TaskId task, absl::Status error);
  // `task` can be at no barrier any more: those that need it fail, or wait for its return.
  void LeaveBarriers(TaskId task, const absl::Status& why);
  void SetAllTasksError(const absl::Status& error);
  // Tells the others of an error of `sources`, in the way their generation of clients listens.
  void Propagate(const absl::Status& error, absl::Span<const TaskId> sources);
  void ExpireSilentTasks(absl::Time now);
  void ExpireJoining(absl::Time now);
  std::string ShutdownBarrierId() const;

  // Draws the consequences of what has just changed; the last step of every public change.
  TablePtr Table() const;
  void Settle();
  void SettleRegisterBarrier();
  void SettleShutdownBarrier();
  // See CoordinatorOptions::reuse.
  // The silence of the tasks in error after which a failed job is over.
  absl::Duration EndOfFailedJob() const;
  // Nobody is connected, and nothing more is to be expected of the tasks in error.
  bool IsOver() const;
  void BeginNewJobIfOver(const Registration& newcomer);
  void BeginNewJob(const absl::Status& why);
  // A human-readable reason why a silent task is considered dead.
  std::string WhyDead(TaskId task, absl::Time now) const;
  // Describes the learned heartbeat interval of the task. Begins with "; " unless it is empty.
  std::string PaceText(const Task& task) const;
  // States that the task's heartbeats are too infrequent for this coordinator's heartbeat timeout,
  // and what to do about it.
  std::string TooSeldomText(const Task& task, absl::Duration interval) const;

  // Constant after construction.
  const CoordinatorOptions options_;
  const Clock& clock_;
  const absl::Time started_;
  const Jobs jobs_;

  Completions completions_;
  WaitIds ids_;
  Membership membership_;
  FormerIncarnations former_incarnations_;
  Store store_;
  Barriers barriers_;
  AliveRounds alive_;
  TopologyExchange topology_;

  Incarnation incarnation_;
  int64_t epoch_ = 1;
  bool is_stopped_ = false;
  // Some client has polled: errors reach the tasks by their polls, else by their heartbeats.
  bool has_poller_ = false;
  absl::Status job_error_;
  absl::btree_map<TaskId, Joining> joining_;
  // Of those in joining_ that do not wait for ever.
  absl::btree_set<std::pair<absl::Time, TaskId>> joining_deadlines_;
  absl::btree_map<WaitId, JoiningFailure> joining_failures_;
  absl::btree_map<WaitId, JoiningWatch> joining_watches_;
  // See RefuseJoining.
  absl::Status refusal_;
  // See told_of_joining_failure.
  absl::btree_set<TaskId> told_tasks_;
  size_t told_others_ = 0;
  // See joining_error().
  absl::Status joining_error_;
  absl::btree_map<TaskId, Poll> polls_;
  absl::btree_map<WaitId, Watch> watches_;
  // Not changed any more once its barrier has passed, so that answers can share it.
  std::shared_ptr<std::vector<std::string>> device_infos_;
  // Somebody waits at the shutdown barrier.
  bool is_shutting_down_ = false;
  // The table's version that watches and rounds have seen.
  int64_t settled_version_ = 0;
  ErrorReport error_report_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_COORDINATOR_H_
