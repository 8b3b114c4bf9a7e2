// SPDX-License-Identifier: Apache-2.0
// tensorflow.CoordinationService/ReportErrorToTask, the one call from the service to an agent.
#ifndef FERRY_COORD_WIRE_ERROR_REPORT_H_
#define FERRY_COORD_WIRE_ERROR_REPORT_H_

#include <functional>
#include <memory>
#include <string>

#include <grpcpp/impl/codegen/service_type.h>

#include "absl/status/status.h"

namespace ferry::coord {

// Reports `error` to the agent at `address` (HOST:PORT). Asynchronous; a call that is not answered
// within five seconds is abandoned. That agent's heartbeats report the error as well.
void ReportErrorToTask(const std::string& address, const absl::Status& error);

// The agent's side: a service that calls `on_error` for each reported error, on a gRPC thread.
std::unique_ptr<grpc::Service> MakeErrorReportService(std::function<void(absl::Status)> on_error);

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_ERROR_REPORT_H_
