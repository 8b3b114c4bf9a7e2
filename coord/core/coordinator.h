// SPDX-License-Identifier: Apache-2.0
// Coordinator: the whole state of one job: membership, store, barriers, and their interaction.
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

// The coordinator itself as a caller: its waits are internal, and not listed.
inline constexpr TaskId kCoordinatorItself{-2};

struct Registration {
  TaskId task = kNoTask;
  Incarnation incarnation;
  // May die and come back without failing the job.
  bool recoverable = false;
  // Waits for all tasks even if the job has no register barrier.
  bool waits_for_all = false;
  // Stops waiting after this, without failing the others.
  absl::Duration own_timeout = absl::InfiniteDuration();
  // The number of heartbeats that the client sends per heartbeat timeout, from which the
  // coordinator learns that timeout. 0: the client uses the coordinator's timeout.
  int beats_per_timeout = 0;
  TaskFacts facts;
};

// Notifies a task's own error service (TaskFacts::error_address) that the job has failed.
using ErrorReport = std::function<void(const std::string& address, const absl::Status& error)>;

// All tasks at one version of the table, as reported to watches.
struct TaskTable {
  std::vector<TaskInfo> tasks;
  int64_t version = 0;
};

// Pure: no threads, no I/O, time from `clock`. Not thread-safe; wrap it in a CoordinatorExecutor.
// Usage: call a method, then run what TakeCompletions() returns, without a lock. A callback is
// called exactly once. Methods that can wait return the wait's id, for Cancel; kNoWait if already
// answered. Error codes and texts are those that JAX and TensorFlow clients check:
// docs/protocols.md.
class Coordinator final {
 public:
  using StatusCallback = absl::AnyInvocable<void(absl::Status) &&>;
  // One table shared by all waiters.
  using TablePtr = std::shared_ptr<const TaskTable>;
  using TableCallback = absl::AnyInvocable<void(absl::StatusOr<TablePtr>) &&>;
  // The device infos that each task passed to WaitForAllTasks, by task id.
  using DeviceInfos = std::shared_ptr<const std::vector<std::string>>;
  using DeviceInfosCallback = absl::AnyInvocable<void(absl::StatusOr<DeviceInfos>) &&>;

  // `incarnation`: random, identifies this incarnation of the coordinator.
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
  // The number of jobs that this coordinator has served, from 1.
  int64_t epoch() const { return epoch_; }

  // --- Tasks ---

  // Joins. With the register barrier, answered when every task has registered; otherwise at once.
  //   Errors: INVALID_ARGUMENT unknown task; ALREADY_EXISTS superseded by a newer call of this
  //   task; ABORTED connected in another incarnation, in error, or a process of an earlier job;
  //   DEADLINE_EXCEEDED naming the missing tasks; INTERNAL stopped.
  WaitId RegisterTask(Registration registration, StatusCallback done);
  // Records a heartbeat.
  //   Errors: INVALID_ARGUMENT unknown or not registered; ABORTED in error, another incarnation,
  //   or a process of an earlier job (no state changes); INTERNAL stopped.
  absl::Status Heartbeat(TaskId task, Incarnation incarnation,
                         std::optional<uint64_t> progress = std::nullopt);
  // Records activity other than a heartbeat; ignored unless the task is connected in this
  // incarnation.
  void NoteAlive(TaskId task, Incarnation incarnation);
  // The connection on which `task` polled for errors has ended. Unless it calls again within
  // seconds, the task counts as dead, except while it waits for the others to shut down.
  void NoteConnectionEnd(TaskId task);
  // Returns ABORTED for a process of an earlier job of this coordinator, whose calls must not
  // affect the current one. For calls that carry their task's incarnation; Register and Heartbeat
  // check by themselves.
  absl::Status CheckIncarnation(TaskId task, Incarnation life) const;
  // Heartbeats could not be received for `held_up`, for reasons outside the tasks: extends their
  // deadlines.
  void ExtendHeartbeatDeadlines(absl::Duration held_up);
  // Leaves: together with all tasks (shutdown_timeout), or at once if that is zero or it is
  // recoverable.
  //   Errors: FAILED_PRECONDITION not connected; INTERNAL the others did not shut down.
  WaitId ShutdownTask(TaskId task, StatusCallback done);
  // Leaves at once; also clears an error.
  absl::Status ResetTask(TaskId task);
  // As ResetTask; if this incarnation is still registering, ends that, and the others keep waiting
  // for the task.
  absl::Status LeaveTask(TaskId task, Incarnation incarnation);
  // The task has failed: propagates the error to all tasks.
  absl::Status ReportError(TaskId task, absl::Status error);
  // Waits for the job's first error. Never OK: CANCELLED when the job ends without an error.
  //   is_watched: the caller monitors the connection of the call, cancels the wait when that
  //   breaks, and then also calls NoteConnectionEnd. While pending, the call keeps a task alive
  //   whose heartbeats are not known to come more often.
  WaitId PollForError(TaskId task, StatusCallback done, bool is_watched = false);
  // Ends the job, failed or not, so that the next registration starts another: pending calls end
  // ABORTED with `why`, and so do later calls of its processes.
  //   force: even if the job is healthy.
  //   Errors: FAILED_PRECONDITION it is healthy, and not `force`; INTERNAL stopped.
  absl::Status EndJob(absl::string_view why, bool force);
  // A process that should become one of the job's tasks cannot, for the reason `why`: tasks that
  // wait for all to register fail with it, as do those that register while this call waits, and
  // the job has failed. Without a register barrier only their registration fails. Answered when a
  // task has failed with it.
  //   Errors: FAILED_PRECONDITION all have registered, and the job continues; DEADLINE_EXCEEDED no
  //   task registered; INTERNAL stopped.
  WaitId FailJoining(const absl::Status& why, absl::Duration timeout, StatusCallback done);
  // No job starts here any more: pending and later registrations fail with `why`. For a
  // coordinator that runs only to report that.
  void RefuseJoining(const absl::Status& why);
  // For a process that starts tasks of the job: waits until FailJoining or RefuseJoining makes it
  // impossible for the job to start. Answered with that error, at once if a task that registered
  // now would fail with it; never OK. Neither the failure of a started job nor the next job ends
  // the wait.
  //   Errors: RESOURCE_EXHAUSTED too many waits; CANCELLED; INTERNAL stopped.
  WaitId WatchJoining(TaskId caller, StatusCallback done);
  // The number of processes notified that the current job cannot start: tasks, and callers of
  // WatchJoining and FailJoining.
  size_t told_of_joining_failure() const { return told_tasks_.size() + told_others_; }
  // A barrier over all tasks that also collects each one's device info (opaque here).
  WaitId WaitForAllTasks(TaskId task, std::string device_info, DeviceInfosCallback done);

  // Answers when the table has moved past `version`; at once for -1. `caller` may be kNoTask or
  // kCoordinatorItself.
  //   Errors: INVALID_ARGUMENT for a future version.
  WaitId WatchTasks(int64_t version, TaskId caller, TableCallback done);
  WaitId GetAliveTasks(TaskId caller, std::vector<TaskId> tasks, AliveRounds::DoneCallback done);

  // --- Store, barriers, devices ---

  Store& store() { return store_; }
  const Store& store() const { return store_; }
  // As Store::Get, at the current time; INTERNAL once stopped.
  WaitId GetKeys(std::vector<std::string> keys, TaskId task, absl::Duration timeout,
                 Store::GetCallback done);

  // As Barriers::Arrive, at the current time; INTERNAL once stopped.
  WaitId Barrier(BarrierArrival arrival, Barriers::DoneCallback done);
  absl::Status CancelBarrier(absl::string_view id, int64_t counter);
  const Barriers& barriers() const { return barriers_; }

  // As TopologyExchange::Enumerate, at the current time; the job's error, instead of a wait, once
  // it has failed; INTERNAL once stopped.
  WaitId EnumerateDevices(TaskId task, LocalTopology local, absl::Duration timeout,
                          TopologyExchange::DoneCallback done, std::string as_told = "");
  TopologyExchange::Result topology() const { return topology_.result(); }

  // --- Everything else ---

  // The caller of a pending call has disconnected or timed out: its callback gets CANCELLED.
  // Returns false when the wait is over already. A barrier arrival still counts, except at the
  // register barrier.
  bool Cancel(WaitId wait);
  // Polls and gets end CANCELLED, barriers ABORTED, watches with version -1; later calls INTERNAL.
  void Stop();
  bool is_stopped() const { return is_stopped_; }

  // Called, as a completion, for each task that has registered an error address.
  void SetErrorReport(ErrorReport report) { error_report_ = std::move(report); }

  // The first error that was propagated to all tasks; sticky until a new job starts.
  const absl::Status& job_error() const { return job_error_; }
  // Why the job cannot start, if FailJoining has ended its registration; until a new job starts.
  const absl::Status& joining_error() const { return joining_error_; }
  bool everyone_has_registered() const { return barriers_.HasPassed(RegisterBarrierId()); }
  static absl::string_view RegisterBarrierId();
  // True for the coordinator's own barriers, through which tasks join and leave.
  bool IsOwnBarrier(absl::string_view id) const;

  // When Advance must be called next; InfiniteFuture if nothing is pending.
  absl::Time NextDeadline() const;
  void Advance();
  std::vector<Completion> TakeCompletions() { return completions_.Take(); }
  // Queues an answer to a call that is not for this object, in order with those that are.
  void Refuse(Completion answer) { completions_.Add(std::move(answer)); }

  // When it was created.
  absl::Time started() const { return started_; }
  // The tasks waiting at the register barrier.
  std::vector<TaskId> JoiningTasks() const;
  // The facts that a task reported when it registered; for one waiting at the register barrier,
  // in that call.
  const TaskFacts& FactsOf(TaskId task) const;
  // All pending waits, for status reports.
  std::vector<WaitInfo> Waits() const;
  size_t wait_count() const;
  // The sizes of all internal tables; for tests and debugging.
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
  // A task waiting at the register barrier, with its new incarnation.
  struct Joining {
    Registration registration;
    WaitId wait;
    absl::Time since;
    absl::Time deadline;
  };

  // A FailJoining call that waits for a task to register.
  struct JoiningFailure {
    absl::Status why;
    absl::Time since;
    absl::Time deadline;
    StatusCallback done;
  };

  // A pending WatchJoining call.
  struct JoiningWatch {
    TaskId caller = kNoTask;
    absl::Time since;
    StatusCallback done;
  };

  Coordinator(CoordinatorOptions options, const Clock& clock, Jobs jobs, uint64_t incarnation);

  absl::Time Now() const { return clock_.Now(); }
  bool IsRecoverable(TaskId task) const;
  absl::Status CheckRunning() const;
  // Returns an error if stopped, or if the task is not in the cluster.
  absl::Status CheckTask(TaskId task) const;
  WaitId Answer(StatusCallback done, absl::Status status);

  // Makes the task a connected member in this incarnation.
  void Connect(const Registration& registration);
  WaitId JoinRegisterBarrier(Registration registration, StatusCallback done);
  BarrierArrival RegisterArrival(TaskId task) const;
  // Arrives at the register barrier for a task that does not wait itself, since others may.
  void ArriveWithoutWaiting(TaskId task);
  // Replaces a pending registration by a newer one.
  void SupersedeJoining(TaskId task);
  // Removes the task from joining_; the caller handles its wait at the barrier.
  void StopJoining(TaskId task);
  // Fails the tasks in joining_ and the watches with refusal_, or else with the first of
  // joining_failures_, and answers all of the latter.
  //   REQUIRES: there are such tasks, and a reason.
  void FailPendingRegistrations();
  void AnswerJoiningFailures(const absl::Status& status);
  void ExpireJoiningFailures(absl::Time now);
  // The error with which a task that registers now would fail at once because of a process that
  // cannot join; else OK.
  absl::Status PresentJoiningFailure() const;
  // joining_error_, for a task that registers late.
  absl::Status LateJoiningError() const;
  void TellJoiningWatches(const absl::Status& error);
  absl::Status Disconnect(TaskId task, const absl::Status& why);
  // Puts `task` into the error state and fails its barriers, without propagating the error.
  void SetTaskError(TaskId task, absl::Status error);
  // `task` cannot be at barriers any more: those that need it fail, or wait for its return.
  void LeaveBarriers(TaskId task, const absl::Status& why);
  void SetAllTasksError(const absl::Status& error);
  // Propagates an error of `sources` to the other tasks, by the method their client generation
  // supports.
  void Propagate(const absl::Status& error, absl::Span<const TaskId> sources);
  void ExpireSilentTasks(absl::Time now);
  void ExpireJoining(absl::Time now);
  std::string ShutdownBarrierId() const;

  TablePtr Table() const;
  // Handles the consequences of a change; the last step of every public change.
  void Settle();
  void SettleRegisterBarrier();
  void SettleShutdownBarrier();
  // The time without activity of the tasks in error after which a failed job is over; see
  // CoordinatorOptions::reuse.
  absl::Duration EndOfFailedJob() const;
  // True if no task is connected, and none in error is expected to call again.
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
  // Some client has polled: errors are delivered by polls, else by heartbeats.
  bool has_poller_ = false;
  absl::Status job_error_;
  absl::btree_map<TaskId, Joining> joining_;
  // The finite deadlines of tasks in joining_.
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
  // Constant once its barrier has passed, so that answers can share it.
  std::shared_ptr<std::vector<std::string>> device_infos_;
  // A task waits at the shutdown barrier.
  bool is_shutting_down_ = false;
  // The table version that watches and rounds have processed.
  int64_t settled_version_ = 0;
  ErrorReport error_report_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_COORDINATOR_H_
