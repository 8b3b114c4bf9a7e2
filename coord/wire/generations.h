// SPDX-License-Identifier: Apache-2.0
// The three generations of the coordination service's messages, which share their names.
#ifndef FERRY_COORD_WIRE_GENERATIONS_H_
#define FERRY_COORD_WIRE_GENERATIONS_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

#include "coord/core/jobs.h"
#include "coord/core/wire_generation.h"
#include "proto/tsl_coordination.pb.h"
#include "proto/xla_coordination.pb.h"
#include "proto/xla_coordination_numbered.pb.h"

namespace ferry::coord {

// Converts a task in a request to an id, and back.
inline absl::StatusOr<TaskId> ToTask(const Jobs& jobs, const tensorflow::CoordinatedTask& task) {
  return jobs.Resolve(task.job_name(), task.task_id());
}
inline absl::StatusOr<TaskId> ToTask(const Jobs& jobs, int32_t number) {
  return jobs.Resolve(number);
}
// The id to report when a task cannot be resolved: its number, unless that is another task's.
inline TaskId UnknownTask(const Jobs& jobs, const tensorflow::CoordinatedTask& task) {
  return jobs.Contains(TaskId(task.task_id())) ? kNoTask : TaskId(task.task_id());
}
inline TaskId UnknownTask(const Jobs&, int32_t number) { return TaskId(number); }
inline bool SaysRecoverable(const tensorflow::CoordinatedTask& task) { return task.recoverable(); }
inline bool SaysRecoverable(int32_t) { return false; }

#define FERRY_GENERATION_MESSAGES(ns)                      \
  using RegisterTaskRequest = ns::RegisterTaskRequest;     \
  using RegisterTaskResponse = ns::RegisterTaskResponse;   \
  using HeartbeatRequest = ns::HeartbeatRequest;           \
  using HeartbeatResponse = ns::HeartbeatResponse;         \
  using ShutdownTaskRequest = ns::ShutdownTaskRequest;     \
  using ShutdownTaskResponse = ns::ShutdownTaskResponse;   \
  using PollForErrorRequest = ns::PollForErrorRequest;     \
  using PollForErrorResponse = ns::PollForErrorResponse;   \
  using BarrierRequest = ns::BarrierRequest;               \
  using BarrierResponse = ns::BarrierResponse;             \
  using CancelBarrierRequest = ns::CancelBarrierRequest;   \
  using CancelBarrierResponse = ns::CancelBarrierResponse; \
  using GetAliveTasksRequest = ns::GetAliveTasksRequest;   \
  using GetAliveTasksResponse = ns::GetAliveTasksResponse

// Messages of the older layouts only.
#define FERRY_OLDER_MESSAGES(ns)                                         \
  using ResetTaskRequest = ns::ResetTaskRequest;                         \
  using ResetTaskResponse = ns::ResetTaskResponse;                       \
  using ReportErrorToServiceRequest = ns::ReportErrorToServiceRequest;   \
  using ReportErrorToServiceResponse = ns::ReportErrorToServiceResponse; \
  using GetTaskStateRequest = ns::GetTaskStateRequest;                   \
  using GetTaskStateResponse = ns::GetTaskStateResponse;                 \
  using WatchRequest = ns::WatchJobStateRequest;                         \
  using WatchResponse = ns::WatchJobStateResponse;                       \
  using WaitForAllTasksRequest = ns::WaitForAllTasksRequest;             \
  using WaitForAllTasksResponse = ns::WaitForAllTasksResponse

#define FERRY_STORE_MESSAGES(ns)                                   \
  using InsertKeyValueRequest = ns::InsertKeyValueRequest;         \
  using InsertKeyValueResponse = ns::InsertKeyValueResponse;       \
  using GetKeyValueRequest = ns::GetKeyValueRequest;               \
  using GetKeyValueResponse = ns::GetKeyValueResponse;             \
  using TryGetKeyValueRequest = ns::TryGetKeyValueRequest;         \
  using TryGetKeyValueResponse = ns::TryGetKeyValueResponse;       \
  using IncrementKeyValueRequest = ns::IncrementKeyValueRequest;   \
  using IncrementKeyValueResponse = ns::IncrementKeyValueResponse; \
  using GetKeyValueDirRequest = ns::GetKeyValueDirRequest;         \
  using GetKeyValueDirResponse = ns::GetKeyValueDirResponse;       \
  using DeleteKeyValueRequest = ns::DeleteKeyValueRequest;         \
  using DeleteKeyValueResponse = ns::DeleteKeyValueResponse

struct NamedTasks {
  static constexpr WireGeneration kGeneration = WireGeneration::kNamedTasks;
  static constexpr bool kIsOlderLayout = true;
  static constexpr bool kHasStore = true;
  using Task = tensorflow::CoordinatedTask;
  FERRY_GENERATION_MESSAGES(tensorflow);
  FERRY_OLDER_MESSAGES(tensorflow);
  FERRY_STORE_MESSAGES(tensorflow);

  static void AddTask(const Jobs& jobs, TaskId task, tensorflow::GetAliveTasksResponse& response) {
    SetTask(jobs, task, *response.add_alive_tasks());
  }
  static void SetTask(const Jobs& jobs, TaskId task, tensorflow::CoordinatedTask& out) {
    const auto [job, number] = jobs.Locate(task);
    out.set_job_name(std::string(job));
    out.set_task_id(number);
  }
  template <typename Info>
  static void SetTaskOf(const Jobs& jobs, TaskId task, Info& info) {
    SetTask(jobs, task, *info.mutable_task());
  }
  template <typename Error>
  static void SetSource(const Jobs& jobs, TaskId task, Error& error) {
    SetTask(jobs, task, *error.mutable_source_task());
  }
};

struct NumberedTasks {
  static constexpr WireGeneration kGeneration = WireGeneration::kNumberedTasks;
  static constexpr bool kIsOlderLayout = true;
  static constexpr bool kHasStore = false;
  using Task = int32_t;
  FERRY_GENERATION_MESSAGES(ferry::numbered);
  FERRY_OLDER_MESSAGES(ferry::numbered);

  template <typename Response>
  static void AddTask(const Jobs&, TaskId task, Response& response) {
    response.add_alive_tasks(task.value());
  }
  template <typename Info>
  static void SetTaskOf(const Jobs&, TaskId task, Info& info) {
    info.set_task(task.value());
  }
  template <typename Error>
  static void SetSource(const Jobs&, TaskId task, Error& error) {
    error.set_source_task(task.value());
  }
};

struct WithIncarnations {
  static constexpr WireGeneration kGeneration = WireGeneration::kIncarnations;
  static constexpr bool kIsOlderLayout = false;
  static constexpr bool kHasStore = true;
  using Task = int32_t;
  FERRY_GENERATION_MESSAGES(xla::coordination);
  FERRY_STORE_MESSAGES(xla::coordination);
  using WatchRequest = xla::coordination::WatchTasksRequest;
  using WatchResponse = xla::coordination::WatchTasksResponse;

  template <typename Response>
  static void AddTask(const Jobs& jobs, TaskId task, Response& response) {
    NumberedTasks::AddTask(jobs, task, response);
  }
  template <typename Info>
  static void SetTaskOf(const Jobs& jobs, TaskId task, Info& info) {
    NumberedTasks::SetTaskOf(jobs, task, info);
  }
  template <typename Error>
  static void SetSource(const Jobs& jobs, TaskId task, Error& error) {
    NumberedTasks::SetSource(jobs, task, error);
  }
};

#undef FERRY_GENERATION_MESSAGES
#undef FERRY_OLDER_MESSAGES
#undef FERRY_STORE_MESSAGES

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_GENERATIONS_H_
