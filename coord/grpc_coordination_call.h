// SPDX-License-Identifier: Apache-2.0
// What the coordination methods of one generation share: errors in its form, parking, tasks.
#ifndef FERRY_COORD_GRPC_COORDINATION_CALL_H_
#define FERRY_COORD_GRPC_COORDINATION_CALL_H_

#include <optional>
#include <string>

#include "coord/errors.h"
#include "coord/grpc_call.h"
#include "coord/grpc_errors.h"
#include "coord/grpc_generations.h"

namespace ferry::coord {

// One call on its way; the base of CoordinationMethods and StoreMethods.
template <typename Gen>
class CoordinationCall {
 protected:
  CoordinationCall(Edge& edge, UnaryCall& call) : edge_(edge), call_(call) {}

  void Fail(const absl::Status& status,
            const std::optional<BarrierErrorInfo>& barrier = std::nullopt) {
    call_.Finish(ToWire(edge_, status, barrier));
  }

  static absl::Status Stopped() {
    return CoordinationError(absl::InternalError("the coordinator has stopped"));
  }

  static const Jobs& JobsOf(Edge& edge) {
    // The jobs never change; only reaching them needs the lock.
    return *edge.strand().Run([](Coordinator& coordinator) { return &coordinator.jobs(); });
  }

  static uint64_t ServiceIncarnation(Edge& edge) {
    return edge.strand().Run(
        [](Coordinator& coordinator) { return coordinator.incarnation().value(); });
  }

  static grpc::Status ToWire(Edge& edge, const absl::Status& status,
                             const std::optional<BarrierErrorInfo>& barrier = std::nullopt) {
    return ToGrpcStatus(status, JobsOf(edge), Gen::kGeneration, barrier);
  }

  template <typename Task>
  absl::StatusOr<TaskId> Resolve(const Task& task) {
    absl::StatusOr<TaskId> id = ToTask(JobsOf(edge_), task);
    if (id.ok()) return id;
    return CoordinationError(id.status());
  }

  // A callback that answers with an empty `Response`, or the error.
  template <typename Response>
  Coordinator::StatusCallback Replies(ParkedCall* call) {
    return [call, &edge = edge_](absl::Status status) {
      if (!status.ok()) return call->Finish(ToWire(edge, status));
      call->Reply(Response());
    };
  }

  template <typename Body>
  void Park(Body&& body) {
    call_.Park(edge_.strand(), std::forward<Body>(body));
  }

  Edge& edge_;
  UnaryCall& call_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_GRPC_COORDINATION_CALL_H_
