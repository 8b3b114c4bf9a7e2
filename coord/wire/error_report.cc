// SPDX-License-Identifier: Apache-2.0
// Both sides of ReportErrorToTask.
#include "coord/wire/error_report.h"

#include <chrono>
#include <utility>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include "coord/core/errors.h"
#include "coord/wire/bytes.h"
#include "coord/wire/raw_service.h"
#include "proto/tsl_coordination.grpc.pb.h"

namespace ferry::coord {
namespace {

constexpr std::chrono::seconds kTimeout{5};

// The state of one outgoing call until it is over.
struct Report {
  std::unique_ptr<tensorflow::CoordinationService::Stub> stub;
  grpc::ClientContext context;
  tensorflow::ReportErrorToTaskRequest request;
  tensorflow::ReportErrorToTaskResponse response;
};

class ErrorReportService final : public RawService {
 public:
  explicit ErrorReportService(std::function<void(absl::Status)> on_error)
      : on_error_(std::move(on_error)) {
    AddUnary("/tensorflow.CoordinationService/ReportErrorToTask",
             [this](grpc::CallbackServerContext* server, const grpc::ByteBuffer* bytes,
                    grpc::ByteBuffer* response) {
               *response = SerializeMessage(tensorflow::ReportErrorToTaskResponse());
               grpc::ServerUnaryReactor* reactor = server->DefaultReactor();
               reactor->Finish(Take(*bytes));
               return reactor;
             });
  }

 private:
  grpc::Status Take(grpc::ByteBuffer bytes) {
    tensorflow::ReportErrorToTaskRequest request;
    if (!ParseMessage(bytes, request)) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the request cannot be parsed");
    }
    const bool is_code = request.error_code() > 0 && request.error_code() <= 16;
    on_error_(absl::Status(
        is_code ? static_cast<absl::StatusCode>(request.error_code()) : absl::StatusCode::kUnknown,
        request.error_message()));
    return grpc::Status::OK;
  }

  const std::function<void(absl::Status)> on_error_;
};

}  // namespace

void ReportErrorToTask(const std::string& address, const absl::Status& error) {
  auto report = std::make_shared<Report>();
  report->stub = tensorflow::CoordinationService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  report->context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  report->request.set_error_code(static_cast<int>(error.code()));
  report->request.set_error_message(std::string(error.message()));
  const ErrorOrigin origin = GetErrorOrigin(error).value_or(ErrorOrigin{});
  report->request.mutable_error_payload()->set_is_reported_error(origin.is_reported);
  if (origin.source != kNoTask) {
    report->request.mutable_error_payload()->mutable_source_task()->set_task_id(
        origin.source.value());
  }
  auto* async = report->stub->async();
  async->ReportErrorToTask(&report->context, &report->request, &report->response,
                           [report](grpc::Status) {});
}

std::unique_ptr<grpc::Service> MakeErrorReportService(std::function<void(absl::Status)> on_error) {
  return std::make_unique<ErrorReportService>(std::move(on_error));
}

}  // namespace ferry::coord
