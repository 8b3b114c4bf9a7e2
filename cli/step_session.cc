// SPDX-License-Identifier: Apache-2.0
// A tensorflow.MasterService client for one step.
#include "cli/step_session.h"

#include <optional>
#include <utility>

#include <grpcpp/impl/client_unary_call.h>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "coord/wire/bytes.h"
#include "coord/wire/errors.h"
#include "proto/tf_master.pb.h"
#include "rendezvous/recv_tensor/tensor_channel.h"
#include "tensor/tensor_proto.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
constexpr absl::Duration kPingTimeout = absl::Seconds(10);
constexpr absl::Duration kCloseTimeout = absl::Seconds(1);
// Longer than the master's own timeout, so that the master reports why.
constexpr absl::Duration kMargin = absl::Seconds(5);

// Parses the label of a communication node: "[8B] edge from A to B by shm".
std::optional<Crossing> ReadCrossing(const tensorflow::NodeExecStats& row) {
  const std::string& label = row.timeline_label();
  const size_t bracket = label.find("] ");
  const size_t from = label.rfind(" from ");
  const size_t to = label.rfind(" to ");
  const size_t by = label.rfind(" by ");
  // Only the receiver knows the path.
  if (bracket == std::string::npos || from == std::string::npos || to == std::string::npos ||
      by == std::string::npos || !(from < to && to < by)) {
    return std::nullopt;
  }
  Crossing crossing;
  crossing.edge = label.substr(bracket + 2, from - bracket - 2);
  crossing.from = label.substr(from + 6, to - from - 6);
  crossing.to = label.substr(to + 4, by - to - 4);
  crossing.transport = label.substr(by + 4);
  // A feed or a fetch, not a transfer between devices.
  if (crossing.from == crossing.to) return std::nullopt;
  if (row.output_size() > 0) {
    crossing.bytes = static_cast<size_t>(
        row.output(0).tensor_description().allocation_description().requested_bytes());
  }
  crossing.wait = absl::Nanoseconds(row.all_end_rel_nanos());
  return crossing;
}

void ReadStats(const tensorflow::StepStats& stats, TracedStep& step) {
  for (const tensorflow::DeviceStepStats& device : stats.dev_stats()) {
    step.node_counts[device.device()] += device.node_stats_size();
    for (const tensorflow::NodeExecStats& row : device.node_stats()) {
      if (auto crossing = ReadCrossing(row)) step.crossings.push_back(*std::move(crossing));
    }
  }
}

}  // namespace

StepSession::StepSession(std::string coordinator)
    : coordinator_(std::move(coordinator)),
      channel_(MakeTensorChannel(coordinator_)),
      run_step_("/tensorflow.MasterService/RunStep", Method::NORMAL_RPC, channel_),
      ping_("/grpc.health.v1.Health/Check", Method::NORMAL_RPC, channel_) {
  // An empty message: the health of the whole server.
  const grpc::Slice nothing(size_t{0});
  empty_ = grpc::ByteBuffer(&nothing, 1);
}

absl::Status StepSession::Call(const Method& method, absl::Duration timeout,
                               const grpc::ByteBuffer& request, grpc::ByteBuffer& response) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  {
    absl::MutexLock lock(&mu_);
    if (is_cancelled_) return absl::CancelledError("stopped");
    calls_.insert(&context);
  }
  const grpc::Status status = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer,
                                                                grpc::ByteBuffer, grpc::ByteBuffer>(
      channel_.get(), method, &context, request, &response);
  absl::MutexLock lock(&mu_);
  calls_.erase(&context);
  return coord::FromGrpcStatus(status);
}

template <typename Request, typename Response>
absl::Status StepSession::Ask(const char* method, absl::Duration timeout, const Request& request,
                              Response& response) {
  grpc::ByteBuffer bytes;
  FERRY_RETURN_IF_ERROR(Call(Method(method, Method::NORMAL_RPC, channel_), timeout,
                             coord::SerializeMessage(request), bytes));
  if (coord::ParseMessage(bytes, response)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the answer to ", method, " is none"));
}

absl::StatusOr<std::unique_ptr<StepSession>> StepSession::Open(const std::string& coordinator,
                                                               const StepGraph& graph,
                                                               StepRequest request,
                                                               bool soft_placement,
                                                               absl::Duration wait) {
  std::unique_ptr<StepSession> session(new StepSession(coordinator));
  const auto deadline = absl::ToChronoTime(absl::Now() + kConnectTimeout);
  if (!session->channel_->WaitForConnected(deadline)) {
    return absl::UnavailableError(absl::StrCat("no response from ", coordinator, " within ",
                                               absl::FormatDuration(kConnectTimeout),
                                               "; is that where ferry coordinator listens?"));
  }
  tensorflow::CreateSessionRequest create;
  *create.mutable_graph_def() = graph.def();
  create.set_target(absl::StrCat("grpc://", coordinator));
  create.mutable_config()->set_allow_soft_placement(soft_placement);
  create.mutable_config()->set_operation_timeout_in_ms(absl::ToInt64Milliseconds(wait));
  tensorflow::CreateSessionResponse created;
  if (absl::Status status =
          session->Ask("/tensorflow.MasterService/CreateSession", wait + kMargin, create, created);
      !status.ok()) {
    // A worker's port names the coordinator; other servers report an unknown method.
    const bool has_no_method =
        status.message().empty() || absl::StrContains(status.message(), "which has no method");
    if (!absl::IsUnimplemented(status) || !has_no_method) return status;
    return absl::UnimplementedError(
        absl::StrCat("the server at ", coordinator,
                     " serves no graphs: a ferry run with --no-graphs, or no coordinator"));
  }
  session->handle_ = created.session_handle();
  FERRY_RETURN_IF_ERROR(session->Serialize(request));
  return session;
}

absl::Status StepSession::Serialize(const StepRequest& request) {
  timeout_ = request.timeout;
  fetches_ = request.fetches;
  tensorflow::RunStepRequest message;
  message.set_session_handle(handle_);
  for (const auto& [name, tensor] : request.feeds) {
    tensorflow::NamedTensorProto& feed = *message.add_feed();
    feed.set_name(name);
    FERRY_ASSIGN_OR_RETURN(*feed.mutable_tensor(), TensorToProto(tensor));
  }
  for (const std::string& name : request.fetches) message.add_fetch(name);
  for (const std::string& name : request.targets) message.add_target(name);
  message.mutable_options()->set_timeout_in_ms(absl::ToInt64Milliseconds(request.timeout));
  if (message.ByteSizeLong() > kMaxTensorProtoBytes) {
    return absl::FailedPreconditionError(absl::StrCat("the feeds have ", message.ByteSizeLong(),
                                                      " bytes, and a step takes ",
                                                      kMaxTensorProtoBytes));
  }
  plain_ = coord::SerializeMessage(message);
  message.mutable_options()->set_trace_level(tensorflow::RunOptions::FULL_TRACE);
  // In the body, errors are not limited in length.
  message.set_store_errors_in_response_body(true);
  traced_ = coord::SerializeMessage(message);
  return absl::OkStatus();
}

absl::StatusOr<TracedStep> StepSession::RunTraced() {
  grpc::ByteBuffer bytes;
  FERRY_RETURN_IF_ERROR(Call(run_step_, timeout_ + kMargin, traced_, bytes));
  tensorflow::RunStepResponse response;
  if (!coord::ParseMessage(bytes, response)) {
    return absl::InternalError("the answer to RunStep is none");
  }
  if (response.status_code() != 0) {
    return absl::Status(static_cast<absl::StatusCode>(response.status_code()),
                        response.status_error_message());
  }
  absl::flat_hash_map<std::string, const tensorflow::TensorProto*> by_name;
  for (const auto& named : response.tensor()) by_name[named.name()] = &named.tensor();
  TracedStep step;
  for (const std::string& name : fetches_) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      return absl::InternalError(absl::StrCat("the answer has no ", name));
    }
    FERRY_ASSIGN_OR_RETURN(Tensor tensor, TensorFromProto(*found->second));
    step.fetched.emplace_back(name, std::move(tensor));
  }
  ReadStats(response.metadata().step_stats(), step);
  return step;
}

absl::Status StepSession::Run() {
  grpc::ByteBuffer response;
  return Call(run_step_, timeout_ + kMargin, plain_, response);
}

absl::Status StepSession::Ping() {
  grpc::ByteBuffer response;
  return Call(ping_, kPingTimeout, empty_, response);
}

void StepSession::Cancel() {
  absl::MutexLock lock(&mu_);
  is_cancelled_ = true;
  // Calls remove themselves under this lock.
  for (grpc::ClientContext* context : calls_) context->TryCancel();
}

StepSession::~StepSession() {
  if (handle_.empty()) return;
  {
    absl::MutexLock lock(&mu_);
    is_cancelled_ = false;
  }
  tensorflow::CloseSessionRequest close;
  close.set_session_handle(handle_);
  tensorflow::CloseSessionResponse closed;
  // On failure, the master closes an abandoned session after its idle timeout.
  (void)Ask("/tensorflow.MasterService/CloseSession", kCloseTimeout, close, closed);
}

}  // namespace ferry::cli
