// SPDX-License-Identifier: Apache-2.0
// Coordinator: one job at a time, with its tasks, store and barriers, as one object.
#ifndef FERRY_COORD_CORE_COORDINATOR_H_
#define FERRY_COORD_CORE_COORDINATOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "coord/core/alive_rounds.h"
#include "coord/core/barriers.h"
#include "coord/core/completions.h"
#include "coord/core/failure_detector.h"
#include "coord/core/former_incarnations.h"
#include "coord/core/job_failure.h"
#include "coord/core/job_shutdown.h"
#include "coord/core/jobs.h"
#include "coord/core/join_failures.h"
#include "coord/core/membership.h"
#include "coord/core/options.h"
#include "coord/core/register_barrier.h"
#include "coord/core/store.h"
#include "coord/core/task_admission.h"
#include "coord/core/topology_exchange.h"
#include "coord/core/types.h"

namespace ferry::coord {

// The coordinator itself as a caller: its waits are internal, and not listed.
inline constexpr TaskId kCoordinatorItself{-2};

// All tasks at one version of the table, as reported to watches.
struct TaskTable {
  std::vector<TaskInfo> tasks;
  int64_t version = 0;
};

// Pure: no threads, no I/O, time from `clock`. Not thread-safe; wrap it in a CoordinatorExecutor.
// Usage: call a method, then run what TakeCompletions() returns, without a lock. A callback is
// called exactly once. Methods that can wait return the wait's id, for Cancel; kNoWait if already
// answered. Error codes and texts are those that JAX and TensorFlow clients check:
// docs/protocols.md. Made of parts, one for each phase of a task or a job: TaskAdmission,
// FailureDetector, JobFailure and JobShutdown.
class Coordinator final {
 public:
  using StatusCallback = coord::StatusCallback;
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
  Incarnation incarnation() const { return job_.incarnation; }
  // The number of jobs that this coordinator has served, from 1.
  int64_t epoch() const { return job_.epoch; }

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
  // Heartbeats could not be received for `stalled`, for reasons outside the tasks: extends their
  // deadlines.
  void ExtendHeartbeatDeadlines(absl::Duration stalled);
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
  size_t notified_of_joining_failure() const { return join_failures_.told_count(); }
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
  void SetErrorReport(ErrorReport report) { failure_.SetErrorReport(std::move(report)); }

  // The first error that was propagated to all tasks; sticky until a new job starts.
  const absl::Status& job_error() const { return failure_.error(); }
  // Why the job cannot start, if FailJoining has ended its registration; until a new job starts.
  const absl::Status& joining_error() const { return join_failures_.error(); }
  bool everyone_has_registered() const { return register_barrier_.HasPassed(); }
  static absl::string_view RegisterBarrierId() { return RegisterBarrier::Id(); }
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
  std::vector<TaskId> JoiningTasks() const { return register_barrier_.Tasks(); }
  // The facts that a task reported when it registered; for one waiting at the register barrier,
  // in that call.
  const TaskFacts& FactsOf(TaskId task) const;
  // All pending waits, for status reports.
  std::vector<WaitInfo> Waits() const;
  size_t wait_count() const;
  // The sizes of all internal tables; for tests and debugging.
  TableSizes InnerTableSizes() const;

 private:
  struct Watch {
    TaskId caller = kNoTask;
    absl::Time since;
    TableCallback done;
  };

  Coordinator(CoordinatorOptions options, const Clock& clock, Jobs jobs, uint64_t incarnation);

  absl::Time Now() const { return clock_.Now(); }
  absl::Status CheckRunning() const;
  // Returns an error if stopped, or if the task is not in the cluster.
  absl::Status CheckTask(TaskId task) const;
  WaitId Answer(StatusCallback done, absl::Status status) {
    return completions_.Answer(std::move(done), std::move(status));
  }
  TablePtr Table() const;
  // Handles the consequences of a change; the last step of every public change.
  void Settle();
  void BeginNewJobIfOver(const Registration& newcomer);
  void BeginNewJob(const absl::Status& why);

  // Constant after construction.
  const CoordinatorOptions options_;
  const Clock& clock_;
  const absl::Time started_;
  const Jobs jobs_;

  JobIdentity job_;
  bool is_stopped_ = false;
  Completions completions_;
  WaitIds ids_;

  // The parts, each of which uses only those above it.
  Membership membership_;
  FormerIncarnations former_incarnations_;
  Store store_;
  Barriers barriers_;
  AliveRounds alive_;
  TopologyExchange topology_;
  RegisterBarrier register_barrier_;
  JoinFailures join_failures_;
  JobFailure failure_;
  FailureDetector failure_detector_;
  TaskAdmission admission_;
  JobShutdown shutdown_;

  absl::btree_map<WaitId, Watch> watches_;
  // Constant once its barrier has passed, so that answers can share it.
  std::shared_ptr<std::vector<std::string>> device_infos_;
  // The table version that watches and rounds have processed.
  int64_t settled_version_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_COORDINATOR_H_
