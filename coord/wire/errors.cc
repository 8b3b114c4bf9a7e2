// SPDX-License-Identifier: Apache-2.0
// Encodes the payload container and its entries.
#include "coord/wire/errors.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "coord/core/errors.h"
#include "proto/ferry_control.pb.h"
#include "proto/tsl_coordination.pb.h"
#include "proto/tsl_payloads.pb.h"
#include "proto/xla_coordination.pb.h"

namespace ferry::coord {
namespace {

// The bytes of a character in the trailer: gRPC writes non-ASCII ones, and '%', as %XX.
size_t EncodedBytes(char c) {
  const bool is_plain = c >= 0x20 && c <= 0x7e && c != '%';
  return is_plain ? 1 : 3;
}

// Returns `text` if it takes at most `max_encoded` bytes, else its longest prefix that does
// together with the appended "..." and that does not cut a UTF-8 character.
std::string Shortened(absl::string_view text, size_t max_encoded) {
  constexpr absl::string_view kMore = "...";
  size_t encoded = 0;
  // The longest prefix that leaves room for the dots.
  size_t cut = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    encoded += EncodedBytes(text[i]);
    if (encoded + kMore.size() <= max_encoded) cut = i + 1;
    if (encoded > max_encoded) {
      while (cut > 0 && (static_cast<uint8_t>(text[cut]) & 0xc0) == 0x80) --cut;
      return absl::StrCat(text.substr(0, cut), kMore);
    }
  }
  return std::string(text);
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
  // Both numbered layouts encode this message identically.
  xla::coordination::CoordinationServiceError error;
  error.set_is_reported_error(origin.is_reported);
  if (jobs.Contains(origin.source)) error.set_source_task(origin.source.value());
  return error.SerializeAsString();
}

grpc::Status WithPayloads(const absl::Status& status,
                          const tensorflow::distributed_runtime::GrpcPayloadContainer& payloads) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      Shortened(status.message(), kMaxErrorMessageBytes),
                      payloads.payloads().empty() ? std::string() : payloads.SerializeAsString());
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      Shortened(status.message(), kMaxErrorMessageBytes));
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
    // Clients read only the counter; a long id must not displace it.
    error.set_barrier_id(Shortened(barrier->id, kMaxBarrierIdBytes));
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
