// SPDX-License-Identifier: Apache-2.0
// Bodies of the coordination methods; included only where a generation is compiled.
#ifndef FERRY_COORD_SERVER_COORDINATION_METHODS_IMPL_H_
#define FERRY_COORD_SERVER_COORDINATION_METHODS_IMPL_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "coord/core/errors.h"
#include "coord/server/coordination_call.h"
#include "coord/server/coordination_methods.h"
#include "coord/server/coordination_store_impl.h"

namespace ferry::coord {

template <typename Gen>
class CoordinationMethods final : private CoordinationCall<Gen> {
 public:
  CoordinationMethods(Frontend& frontend, DeviceInfoMerger& devices, UnaryCall& call,
                      const std::optional<uint64_t>& meant_for)
      : CoordinationCall<Gen>(frontend, call, meant_for), devices_(devices) {}

  void RegisterTask(const typename Gen::RegisterTaskRequest& request) {
    const absl::StatusOr<TaskId> task = Resolve(request.source_task());
    if (!task.ok()) return Fail(task.status());
    Registration registration;
    registration.task = *task;
    registration.incarnation = Incarnation(request.incarnation());
    registration.recoverable = SaysRecoverable(request.source_task());
    registration.facts.service = "coordination";
    registration.facts.observed_address = call_.peer();
    registration.beats_per_timeout = kBeatsPerTimeout;
    frontend_.NoteCaller(registration.facts.observed_address, *task, registration.incarnation);
    frontend_.ForgetPoll(*task);
    return Park([&](Coordinator& coordinator, DeferredCall* call) {
      // The service's incarnation in the job that is joined here, even if another job has begun
      // when the response is built.
      const auto leader = std::make_shared<uint64_t>(0);
      const WaitId wait = coordinator.RegisterTask(
          std::move(registration), [call, leader, &frontend = frontend_](absl::Status status) {
            if (!status.ok()) return call->Finish(ToWire(frontend, status));
            typename Gen::RegisterTaskResponse response;
            response.set_leader_incarnation(*leader);
            call->Reply(response);
          });
      *leader = coordinator.incarnation().value();
      frontend_.NoteEpoch(coordinator.epoch());
      return wait;
    });
  }

  void Heartbeat(const typename Gen::HeartbeatRequest& request) {
    const absl::StatusOr<TaskId> task = Resolve(request.source_task());
    if (!task.ok()) return Fail(task.status());
    typename Gen::HeartbeatResponse response;
    frontend_.NoteCaller(call_.peer(), *task, Incarnation(request.incarnation()));
    const auto status = Run([&](Coordinator& coordinator) {
      response.set_leader_incarnation(coordinator.incarnation().value());
      return coordinator.Heartbeat(*task, Incarnation(request.incarnation()));
    });
    if (!status.has_value()) return;
    return status->ok() ? call_.Reply(response) : Fail(*status);
  }

  void ShutdownTask(const typename Gen::ShutdownTaskRequest& request) {
    const absl::StatusOr<TaskId> task = Resolve(request.source_task());
    if (!task.ok()) return Fail(task.status());
    return ParkOf(*task, [&](Coordinator& coordinator, DeferredCall* call) {
      return coordinator.ShutdownTask(
          *task, this->template Replies<typename Gen::ShutdownTaskResponse>(call));
    });
  }

  void PollForError(const typename Gen::PollForErrorRequest& request) {
    const absl::StatusOr<TaskId> task = Resolve(request.source_task());
    if (!task.ok()) return Fail(task.status());
    return ParkOf(*task, [&](Coordinator& coordinator, DeferredCall* call) {
      const WaitId wait = coordinator.PollForError(
          *task, this->template Replies<typename Gen::PollForErrorResponse>(call),
          /*is_watched=*/true);
      if (wait != kNoWait) frontend_.NotePoll(call_.peer(), *task);
      return wait;
    });
  }

  void Barrier(const typename Gen::BarrierRequest& request) {
    const absl::StatusOr<TaskId> caller = Resolve(request.source_task());
    const BarrierErrorInfo info{request.barrier_id(), request.counter()};
    if (!caller.ok()) return Fail(caller.status(), info);
    BarrierArrival arrival;
    arrival.id = request.barrier_id();
    arrival.counter = request.counter();
    arrival.timeout = absl::Milliseconds(request.barrier_timeout_in_ms());
    arrival.caller = *caller;
    for (const auto& task : request.tasks()) {
      const absl::StatusOr<TaskId> resolved = Resolve(task);
      // Unknown tasks are rejected by the barrier, which fails for all.
      arrival.tasks.push_back(resolved.ok() ? *resolved
                                            : UnknownTask(Base::JobsOf(frontend_), task));
    }
    const auto body = [&](Coordinator& coordinator, DeferredCall* call) {
      return coordinator.Barrier(
          std::move(arrival),
          [call, &frontend = frontend_, id = request.barrier_id()](const BarrierResult& result) {
            if (!result.status.ok()) {
              return call->Finish(
                  ToWire(frontend, result.status, BarrierErrorInfo{id, result.counter}));
            }
            typename Gen::BarrierResponse response;
            response.set_counter(result.counter);
            call->Reply(response);
          });
    };
    return ParkOf(*caller, body, info);
  }

  void CancelBarrier(const typename Gen::CancelBarrierRequest& request) {
    if (absl::Status former = frontend_.CheckCallers(call_); !former.ok()) return Fail(former);
    const auto status = Run([&](Coordinator& coordinator) {
      return coordinator.CancelBarrier(request.barrier_id(), request.counter());
    });
    if (!status.has_value()) return;
    return status->ok() ? call_.Reply(typename Gen::CancelBarrierResponse()) : Fail(*status);
  }

  void GetAliveTasks(const typename Gen::GetAliveTasksRequest& request) {
    const absl::StatusOr<TaskId> caller = Resolve(request.requesting_task());
    if (!caller.ok()) return Fail(caller.status());
    std::vector<TaskId> tasks;
    for (const auto& task : request.tasks()) {
      const absl::StatusOr<TaskId> resolved = Resolve(task);
      if (!resolved.ok()) return Fail(resolved.status());
      tasks.push_back(*resolved);
    }
    return ParkOf(*caller, [&](Coordinator& coordinator, DeferredCall* call) {
      const Jobs& jobs = coordinator.jobs();
      return coordinator.GetAliveTasks(
          *caller, std::move(tasks),
          [call, &frontend = frontend_, &jobs](absl::StatusOr<std::vector<TaskInfo>> alive) {
            if (!alive.ok()) return call->Finish(ToWire(frontend, alive.status()));
            typename Gen::GetAliveTasksResponse response;
            for (const TaskInfo& info : *alive) {
              Gen::AddTask(jobs, info.task, response);
              response.add_incarnations(info.incarnation.value());
            }
            call->Reply(response);
          });
    });
  }

  void Watch(const typename Gen::WatchRequest& request) {
    std::string job;
    if constexpr (Gen::kIsOlderLayout) job = request.job_name();
    const TaskId caller = frontend_.CallerAt(call_.peer());
    return Park([&](Coordinator& coordinator, DeferredCall* call) {
      const Jobs& jobs = coordinator.jobs();
      return coordinator.WatchTasks(
          request.version_number(), caller,
          [call, &frontend = frontend_, &jobs, job](absl::StatusOr<Coordinator::TablePtr> table) {
            if (!table.ok()) return call->Finish(ToWire(frontend, table.status()));
            typename Gen::WatchResponse response;
            for (const TaskInfo& info : (*table)->tasks) {
              if (!job.empty() && jobs.Locate(info.task).first != job) continue;
              FillInfo(jobs, info, *response.add_task_state());
            }
            response.set_version_number((*table)->version);
            call->Reply(response);
          });
    });
  }

  // Formats an error detected outside of these methods for this generation.
  grpc::Status Refusal(const absl::Status& status) { return ToWire(frontend_, status); }

  // --- Only in the older layouts ---

  template <typename Request>
  void WaitForAllTasks(const Request& request) {
    const absl::StatusOr<TaskId> task = Resolve(request.source_task());
    if (!task.ok()) return Fail(task.status());
    return ParkOf(*task, [&](Coordinator& coordinator, DeferredCall* call) {
      return coordinator.WaitForAllTasks(
          *task, DeviceInfoMerger::Pack(request),
          [call, &frontend = frontend_, &devices = devices_,
           leader =
               coordinator.incarnation().value()](absl::StatusOr<Coordinator::DeviceInfos> infos) {
            if (!infos.ok()) return call->Finish(ToWire(frontend, infos.status()));
            typename Gen::WaitForAllTasksResponse response;
            response.set_leader_incarnation(leader);
            const absl::Status merged = devices.Merge(**infos, response);
            if (!merged.ok()) return call->Finish(ToWire(frontend, CoordinationError(merged)));
            call->Reply(response);
          });
    });
  }

  template <typename Request>
  void ResetTask(const Request& request) {
    const absl::StatusOr<TaskId> task = Resolve(request.source_task());
    if (!task.ok()) return Fail(task.status());
    const auto status = Run([&](Coordinator& coordinator) -> absl::Status {
      if (absl::Status former = frontend_.CheckCaller(coordinator, call_, *task); !former.ok()) {
        return former;
      }
      return coordinator.ResetTask(*task);
    });
    if (!status.has_value()) return;
    return status->ok() ? call_.Reply(typename Gen::ResetTaskResponse()) : Fail(*status);
  }

  template <typename Request>
  void ReportErrorToService(const Request& request) {
    const absl::StatusOr<TaskId> task = Resolve(request.error_origin());
    if (!task.ok()) return Fail(task.status());
    const bool is_code = request.error_code() > 0 && request.error_code() <= 16;
    const absl::Status error(
        is_code ? static_cast<absl::StatusCode>(request.error_code()) : absl::StatusCode::kUnknown,
        request.error_message());
    const auto status = Run([&](Coordinator& coordinator) -> absl::Status {
      if (absl::Status former = frontend_.CheckCaller(coordinator, call_, *task); !former.ok()) {
        return former;
      }
      return coordinator.ReportError(*task, error);
    });
    if (!status.has_value()) return;
    return status->ok() ? call_.Reply(typename Gen::ReportErrorToServiceResponse()) : Fail(*status);
  }

  template <typename Request>
  void GetTaskState(const Request& request) {
    std::vector<TaskId> tasks;
    for (const auto& task : request.source_task()) {
      const absl::StatusOr<TaskId> resolved = Resolve(task);
      if (!resolved.ok()) return Fail(resolved.status());
      tasks.push_back(*resolved);
    }
    typename Gen::GetTaskStateResponse response;
    const auto filled = Run([&](Coordinator& coordinator) {
      const std::vector<TaskInfo> infos = coordinator.membership().Snapshot();
      for (const TaskId task : tasks) {
        FillInfo(coordinator.jobs(), infos[task.value()], *response.add_task_state());
      }
      return true;
    });
    if (!filled.has_value()) return;
    return call_.Reply(response);
  }

  template <typename Request>
  void GetJobState(const Request& request) {
    tensorflow::GetJobStateResponse response;
    const auto is_known = Run([&](Coordinator& coordinator) {
      const Jobs& jobs = coordinator.jobs();
      for (const TaskInfo& info : coordinator.membership().Snapshot()) {
        if (jobs.Locate(info.task).first != request.job_name()) continue;
        FillInfo(jobs, info, *response.add_task_state());
      }
      return jobs.HasJob(request.job_name());
    });
    if (!is_known.has_value()) return;
    if (*is_known) return call_.Reply(response);
    return Fail(CoordinationError(absl::InvalidArgumentError(
        absl::StrCat("job \"", request.job_name(), "\" is not in the cluster"))));
  }

 private:
  // Source: heartbeat_interval in every version of XLA's coordination_service_agent.cc.
  static constexpr int kBeatsPerTimeout = 2;

  using Base = CoordinationCall<Gen>;
  using Base::call_;
  using Base::Fail;
  using Base::frontend_;
  using Base::Park;
  using Base::ParkOf;
  using Base::Resolve;
  using Base::Run;
  using Base::ToWire;

  template <typename Info>
  static void FillInfo(const Jobs& jobs, const TaskInfo& info, Info& out) {
    Gen::SetTaskOf(jobs, info.task, out);
    // The enums of all generations have the values of TaskState.
    out.set_state(static_cast<decltype(out.state())>(info.state));
    out.set_incarnation(info.incarnation.value());
    if (info.status.ok()) return;
    out.set_error_code(static_cast<int>(info.status.code()));
    out.set_error_message(std::string(info.status.message()));
    const ErrorOrigin origin = GetErrorOrigin(info.status).value_or(ErrorOrigin{});
    out.mutable_error_payload()->set_is_reported_error(origin.is_reported);
    if (jobs.Contains(origin.source)) {
      Gen::SetSource(jobs, origin.source, *out.mutable_error_payload());
    }
  }

  DeviceInfoMerger& devices_;
};

template <typename Gen>
void ServeCoordination(CoordinationMethod method, Frontend& frontend, DeviceInfoMerger& devices,
                       UnaryCall& call, grpc::ByteBuffer& bytes) {
  std::optional<uint64_t> meant_for;
  CoordinationMethods<Gen> methods(frontend, devices, call, meant_for);
  const auto unimplemented = [&] {
    return call.Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                                    "this generation of the protocol has no such method"));
  };
  // Parses the request and passes it to `body`, which rejects it if it is meant for another
  // incarnation of the service.
  const auto parsed = [&]<typename Request>(Request request, auto body) {
    if (!ParseMessage(bytes, request)) {
      return call.Finish(
          grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the request cannot be parsed"));
    }
    if constexpr (requires { request.incarnations(); }) {
      if (request.has_incarnations()) meant_for = request.incarnations().service_incarnation();
    }
    return body(request);
  };
  // Store requests name no task, so the caller's incarnation is checked by its connection.
  [[maybe_unused]] const auto anonymous = [&](const auto& request) {
    // Requests with an `incarnations` field have already been checked by that.
    if constexpr (!requires { request.incarnations(); }) {
      if (absl::Status former = frontend.CheckCallers(call); !former.ok()) {
        call.Finish(methods.Refusal(former));
        return false;
      }
    }
    return true;
  };
#define FERRY_SERVE_STORE(Name, Request)                      \
  return parsed(typename Gen::Request(), [&](auto& request) { \
    if (anonymous(request)) store.Name(request);              \
  })
#define FERRY_SERVE(table, Name, Request) \
  return parsed(typename Gen::Request(), [&](auto& request) { return table.Name(request); })
  switch (method) {
    case CoordinationMethod::kRegisterTask:
      FERRY_SERVE(methods, RegisterTask, RegisterTaskRequest);
    case CoordinationMethod::kHeartbeat:
      FERRY_SERVE(methods, Heartbeat, HeartbeatRequest);
    case CoordinationMethod::kShutdownTask:
      FERRY_SERVE(methods, ShutdownTask, ShutdownTaskRequest);
    case CoordinationMethod::kPollForError:
      FERRY_SERVE(methods, PollForError, PollForErrorRequest);
    case CoordinationMethod::kBarrier:
      FERRY_SERVE(methods, Barrier, BarrierRequest);
    case CoordinationMethod::kCancelBarrier:
      FERRY_SERVE(methods, CancelBarrier, CancelBarrierRequest);
    case CoordinationMethod::kGetAliveTasks:
      FERRY_SERVE(methods, GetAliveTasks, GetAliveTasksRequest);
    case CoordinationMethod::kWatch:
      FERRY_SERVE(methods, Watch, WatchRequest);
    default:
      break;
  }
  if constexpr (Gen::kIsOlderLayout) {
    switch (method) {
      case CoordinationMethod::kWaitForAllTasks:
        FERRY_SERVE(methods, WaitForAllTasks, WaitForAllTasksRequest);
      case CoordinationMethod::kResetTask:
        FERRY_SERVE(methods, ResetTask, ResetTaskRequest);
      case CoordinationMethod::kReportErrorToService:
        FERRY_SERVE(methods, ReportErrorToService, ReportErrorToServiceRequest);
      case CoordinationMethod::kGetTaskState:
        FERRY_SERVE(methods, GetTaskState, GetTaskStateRequest);
      default:
        break;
    }
  }
  if constexpr (Gen::kHasStore) {
    StoreMethods<Gen> store(frontend, call, meant_for);
    switch (method) {
      case CoordinationMethod::kInsertKeyValue:
        FERRY_SERVE_STORE(InsertKeyValue, InsertKeyValueRequest);
      case CoordinationMethod::kGetKeyValue:
        FERRY_SERVE_STORE(GetKeyValue, GetKeyValueRequest);
      case CoordinationMethod::kTryGetKeyValue:
        FERRY_SERVE_STORE(TryGetKeyValue, TryGetKeyValueRequest);
      case CoordinationMethod::kIncrementKeyValue:
        FERRY_SERVE_STORE(IncrementKeyValue, IncrementKeyValueRequest);
      case CoordinationMethod::kGetKeyValueDir:
        FERRY_SERVE_STORE(GetKeyValueDir, GetKeyValueDirRequest);
      case CoordinationMethod::kDeleteKeyValue:
        FERRY_SERVE_STORE(DeleteKeyValue, DeleteKeyValueRequest);
      default:
        break;
    }
  }
  if constexpr (Gen::kGeneration == WireGeneration::kNamedTasks) {
    if (method == CoordinationMethod::kGetJobState) {
      return parsed(tensorflow::GetJobStateRequest(),
                    [&](auto& request) { return methods.GetJobState(request); });
    }
  }
#undef FERRY_SERVE
#undef FERRY_SERVE_STORE
  return unimplemented();
}

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_COORDINATION_METHODS_IMPL_H_
