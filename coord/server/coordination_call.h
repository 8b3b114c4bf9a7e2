// SPDX-License-Identifier: Apache-2.0
// Shared by one generation's coordination methods: its error format, deferring, task lookup.
#ifndef FERRY_COORD_SERVER_COORDINATION_CALL_H_
#define FERRY_COORD_SERVER_COORDINATION_CALL_H_

#include <optional>
#include <string>
#include <utility>

#include "coord/core/errors.h"
#include "coord/server/call.h"
#include "coord/wire/errors.h"
#include "coord/wire/generations.h"

namespace ferry::coord {

// One pending call; the base of CoordinationMethods and StoreMethods. A request may name the
// incarnation of the service that it is meant for. Whether that is still the current one is
// checked in the critical section that acts: between two of them the job may end and the next one
// begin. So bodies access the coordinator through Run and Park only.
template <typename Gen>
class CoordinationCall {
 protected:
  // `meant_for`: the incarnation of the service that the request names, if any; known when a
  // method is called.
  CoordinationCall(Frontend& frontend, UnaryCall& call, const std::optional<uint64_t>& meant_for)
      : frontend_(frontend), call_(call), meant_for_(meant_for) {}

  void Fail(const absl::Status& status,
            const std::optional<BarrierErrorInfo>& barrier = std::nullopt) {
    call_.Finish(ToWire(frontend_, status, barrier));
  }

  static absl::Status Stopped() {
    return CoordinationError(absl::InternalError("the coordinator has stopped"));
  }

  static const Jobs& JobsOf(Frontend& frontend) {
    // The jobs never change; only reaching them needs the lock.
    return *frontend.executor().Run([](Coordinator& coordinator) { return &coordinator.jobs(); });
  }

  static grpc::Status ToWire(Frontend& frontend, const absl::Status& status,
                             const std::optional<BarrierErrorInfo>& barrier = std::nullopt) {
    return ToGrpcStatus(status, JobsOf(frontend), Gen::kGeneration, barrier);
  }

  template <typename Task>
  absl::StatusOr<TaskId> Resolve(const Task& task) {
    absl::StatusOr<TaskId> id = ToTask(JobsOf(frontend_), task);
    if (id.ok()) return id;
    return CoordinationError(id.status());
  }

  // Returns a callback that answers with an empty `Response`, or the error.
  template <typename Response>
  Coordinator::StatusCallback Replies(DeferredCall* call) {
    return [call, &frontend = frontend_](absl::Status status) {
      if (!status.ok()) return call->Finish(ToWire(frontend, status));
      call->Reply(Response());
    };
  }

  // Returns the result of `body(coordinator)`, called on the executor. Returns nullopt, having
  // answered the call with an error, if the request is meant for another incarnation of the
  // service.
  template <typename Body>
  auto Run(Body&& body) {
    using Result = decltype(body(std::declval<Coordinator&>()));
    uint64_t current = 0;
    std::optional<Result> result =
        frontend_.executor().Run([&](Coordinator& coordinator) -> std::optional<Result> {
          current = coordinator.incarnation().value();
          if (meant_for_.value_or(current) != current) return std::nullopt;
          return body(coordinator);
        });
    if (!result.has_value()) call_.Finish(ServiceMismatch(*meant_for_, current));
    return result;
  }

  // As UnaryCall::Park, with the same check.
  template <typename Body>
  void Park(Body&& body) {
    uint64_t current = 0;
    DeferredCall* refused = nullptr;
    call_.Park(frontend_.executor(),
               [&](Coordinator& coordinator, DeferredCall* parked) -> absl::StatusOr<WaitId> {
                 current = coordinator.incarnation().value();
                 if (meant_for_.value_or(current) == current) return body(coordinator, parked);
                 refused = parked;
                 return kNoWait;
               });
    if (refused != nullptr) refused->Finish(ServiceMismatch(*meant_for_, current));
  }

  // As above, for a call that names `task`: rejected if it comes from a process of an earlier job.
  template <typename Body>
  void ParkOf(TaskId task, Body&& body,
              const std::optional<BarrierErrorInfo>& barrier = std::nullopt) {
    Park([&](Coordinator& coordinator, DeferredCall* call) -> absl::StatusOr<WaitId> {
      const absl::Status former = frontend_.CheckCaller(coordinator, call_, task);
      if (former.ok()) return body(coordinator, call);
      coordinator.Refuse([call, refusal = ToGrpcStatus(former, coordinator.jobs(), Gen::kGeneration,
                                                       barrier)] { call->Finish(refusal); });
      return kNoWait;
    });
  }

  Frontend& frontend_;
  UnaryCall& call_;

 private:
  const std::optional<uint64_t>& meant_for_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_COORDINATION_CALL_H_
