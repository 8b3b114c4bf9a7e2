// SPDX-License-Identifier: Apache-2.0
// Errors on the wire: code, message, and payloads in the trailer grpc-status-details-bin.
#ifndef FERRY_COORD_WIRE_ERRORS_H_
#define FERRY_COORD_WIRE_ERRORS_H_

#include <cstdint>
#include <optional>
#include <string>

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

#include "coord/core/jobs.h"
#include "coord/core/wire_generation.h"

namespace ferry::coord {

inline constexpr char kCoordinationErrorUrl[] =
    "type.googleapis.com/tensorflow.CoordinationServiceError";
inline constexpr char kBarrierErrorUrl[] = "type.googleapis.com/tensorflow.BarrierError";
inline constexpr char kServiceMismatchUrl[] = "type.googleapis.com/tensorflow.ServiceMismatchError";

// Specific to Ferry; other clients show or ignore it.
inline constexpr char kMissingTasksUrl[] = "type.googleapis.com/ferry.v1.MissingTasks";

// The content of a BarrierError payload.
struct BarrierErrorInfo {
  std::string id;
  int64_t counter = 0;
};

// Limits on the encoded message, and on the barrier id beside it: trailers have room for 8 KiB in
// all.
inline constexpr size_t kMaxErrorMessageBytes = 3072;
inline constexpr size_t kMaxBarrierIdBytes = 1024;

// A plain error without payloads, for services that do not use any.
grpc::Status ToGrpcStatus(const absl::Status& status);

// With the payloads of the coordination service, tasks encoded as in `generation`.
grpc::Status ToGrpcStatus(const absl::Status& status, const Jobs& jobs, WireGeneration generation,
                          const std::optional<BarrierErrorInfo>& barrier = std::nullopt);

// The error for a request that is meant for another incarnation of the service.
grpc::Status ServiceMismatch(uint64_t requested, uint64_t current);

// Code and message; payloads are dropped.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_ERRORS_H_
