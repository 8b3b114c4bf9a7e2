// SPDX-License-Identifier: Apache-2.0
// The payload container and its entries.
#include "coord/grpc_errors.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "coord/errors.h"
#include "proto/ferry_control.pb.h"
#include "proto/tsl_coordination.pb.h"
#include "proto/tsl_payloads.pb.h"
#include "proto/xla_coordination.pb.h"

namespace ferry::coord {
namespace {

std::string Shortened(absl::string_view message) {
  if (message.size() <= kMaxErrorMessageBytes) return std::string(message);
  size_t end = kMaxErrorMessageBytes - 3;
  // Not in the middle of a UTF-8 character.
  while (end > 0 && (static_cast<uint8_t>(message[end]) & 0xc0) == 0x80) --end;
  return absl::StrCat(message.substr(0, end), "...");
}

std::string OriginPayload(const ErrorOrigin& origin, const Jobs& jobs, WireGeneration generation) {
  if (generation == WireGeneration::kNamedTasks) {
    tensorflow::CoordinationServiceError error;
    error.set_is_reported_error(origin.is_reported);
    if (jobs.Contains(origin.source)) {
      const auto [job, number] = jobs.Locate(origin.source);
      error.mutable_source_task()->set_job_name(std::string(job));
      error.mutable_source_task()->set_task_id(number);
    }
    return error.SerializeAsString();
  }
  // Both numbered layouts write this message alike.
  xla::coordination::CoordinationServiceError error;
  error.set_is_reported_error(origin.is_reported);
  if (jobs.Contains(origin.source)) error.set_source_task(origin.source.value());
  return error.SerializeAsString();
}

grpc::Status WithPayloads(const absl::Status& status,
                          const tensorflow::distributed_runtime::GrpcPayloadContainer& payloads) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Shortened(status.message()),
                      payloads.payloads().empty() ? std::string() : payloads.SerializeAsString());
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Shortened(status.message()));
}

grpc::Status ToGrpcStatus(const absl::Status& status, const Jobs& jobs, WireGeneration generation,
                          const std::optional<BarrierErrorInfo>& barrier) {
  if (status.ok()) return grpc::Status::OK;
  tensorflow::distributed_runtime::GrpcPayloadContainer container;
  auto& payloads = *container.mutable_payloads();
  if (const std::optional<ErrorOrigin> origin = GetErrorOrigin(status); origin.has_value()) {
    payloads[kCoordinationErrorUrl] = OriginPayload(*origin, jobs, generation);
  }
  if (barrier.has_value()) {
    tensorflow::BarrierError error;
    error.set_barrier_id(barrier->id);
    error.set_counter(barrier->counter);
    payloads[kBarrierErrorUrl] = error.SerializeAsString();
  }
  if (const std::string missing = GetMissingTasks(status); !missing.empty()) {
    v1::MissingTasks message;
    message.set_tasks(missing);
    payloads[kMissingTasksUrl] = message.SerializeAsString();
  }
  return WithPayloads(status, container);
}

grpc::Status ServiceMismatch(uint64_t requested, uint64_t current) {
  tensorflow::distributed_runtime::GrpcPayloadContainer container;
  xla::coordination::ServiceMismatchError error;
  error.set_service_incarnation(current);
  (*container.mutable_payloads())[kServiceMismatchUrl] = error.SerializeAsString();
  return WithPayloads(absl::InternalError(absl::StrCat("wrong service incarnation: requested ",
                                                       requested, ", currently ", current)),
                      container);
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace ferry::coord
