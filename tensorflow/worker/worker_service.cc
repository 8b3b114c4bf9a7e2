// SPDX-License-Identifier: Apache-2.0
// Converts between messages and Worker's methods.
#include "tensorflow/worker/worker_service.h"

#include <optional>
#include <string>
#include <utility>

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

#include "coord/wire/bytes.h"
#include "coord/wire/errors.h"
#include "coord/wire/raw_service.h"
#include "proto/ferry_trace.pb.h"
#include "proto/tf_worker.pb.h"
#include "tensorflow/worker/call_authenticator.h"
#include "tensorflow/worker/collectives/group_resolver.h"
#include "tensorflow/worker/request_check.h"
#include "tensorflow/worker/run_call.h"
#include "tensorflow/worker/step_trace.h"

namespace ferry::worker {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

absl::Status NoSuchMessage(const google::protobuf::MessageLite& message) {
  return absl::InvalidArgumentError(
      absl::StrCat("the request is no ", message.GetTypeName(), ", or is incomplete"));
}

// Returns the session that a request belongs to.
template <typename Request>
SessionHandle SessionOf(const Request& request) {
  if (!request.create_worker_session_called()) return std::nullopt;
  return std::string(request.session_handle());
}

// A call that completes when other members have called too. Owned by gRPC.
template <typename Response>
class GroupCall final : public ServerUnaryReactor {
 public:
  GroupCall(GroupResolver& resolver, ByteBuffer* response)
      : resolver_(resolver), response_(response) {}

  template <typename Request, typename Method>
  void Start(const ByteBuffer& bytes, Method method) {
    Request request;
    ByteBuffer copy = bytes;
    if (!coord::ParseMessage(copy, request)) {
      return Finish(coord::ToGrpcStatus(NoSuchMessage(request)));
    }
    ticket_ = (resolver_.*method)(request, [this](absl::StatusOr<Response> answered) {
      if (answered.ok()) *response_ = coord::SerializeMessage(*answered);
      Finish(coord::ToGrpcStatus(answered.status()));
    });
  }

 private:
  // gRPC calls this only after Start has returned.
  void OnCancel() override { resolver_.Cancel(ticket_); }
  void OnDone() override { delete this; }

  GroupResolver& resolver_;
  ByteBuffer* const response_;
  GroupResolver::Ticket ticket_ = 0;
};

class WorkerService final : public coord::RawService {
 public:
  WorkerService(Worker& worker, AuthPolicy auth) : worker_(worker), guard_(std::move(auth)) {
    Add<tensorflow::GetStatusRequest, tensorflow::GetStatusResponse>(
        "/tensorflow.WorkerService/GetStatus", &WorkerService::GetStatus);
    Add<tensorflow::CreateWorkerSessionRequest, tensorflow::CreateWorkerSessionResponse>(
        "/tensorflow.WorkerService/CreateWorkerSession", &WorkerService::CreateSession);
    Add<tensorflow::DeleteWorkerSessionRequest, tensorflow::DeleteWorkerSessionResponse>(
        "/tensorflow.WorkerService/DeleteWorkerSession", &WorkerService::DeleteSession);
    Add<tensorflow::RegisterGraphRequest, tensorflow::RegisterGraphResponse>(
        "/tensorflow.WorkerService/RegisterGraph", &WorkerService::RegisterGraph,
        /*takes_long=*/true);
    Add<tensorflow::DeregisterGraphRequest, tensorflow::DeregisterGraphResponse>(
        "/tensorflow.WorkerService/DeregisterGraph", &WorkerService::DeregisterGraph);
    Add<tensorflow::CleanupGraphRequest, tensorflow::CleanupGraphResponse>(
        "/tensorflow.WorkerService/CleanupGraph", &WorkerService::CleanupGraph);
    Add<tensorflow::CleanupAllRequest, tensorflow::CleanupAllResponse>(
        "/tensorflow.WorkerService/CleanupAll", &WorkerService::CleanupAll);
    AddUnary("/tensorflow.WorkerService/RunGraph",
             [this](CallbackServerContext* context, const ByteBuffer* request,
                    ByteBuffer* response) -> ServerUnaryReactor* {
               if (auto* refused = Refuse(context, "/tensorflow.WorkerService/RunGraph")) {
                 return refused;
               }
               return StartRunCall(worker_, *request, response);
             });
    Add<ferry::v1::GetStepsRequest, ferry::v1::GetStepsResponse>("/ferry.v1.Trace/GetSteps",
                                                                 &WorkerService::GetSteps);
    Add<tensorflow::LoggingRequest, tensorflow::LoggingResponse>(
        "/tensorflow.WorkerService/Logging", &WorkerService::Logging);
    // TensorFlow's own worker does not implement it either:
    // tensorflow/core/distributed_runtime/worker.cc.
    AddUnimplemented("/tensorflow.WorkerService/Tracing", "Tracing");
    AddUnimplemented("/tensorflow.WorkerService/RecvBuf",
                     "RecvBuf: what collectives move goes through RecvTensor here");
    AddGroupCall<tensorflow::CompleteGroupRequest, tensorflow::CompleteGroupResponse>(
        "/tensorflow.WorkerService/CompleteGroup", &GroupResolver::CompleteGroup);
    AddGroupCall<tensorflow::CompleteInstanceRequest, tensorflow::CompleteInstanceResponse>(
        "/tensorflow.WorkerService/CompleteInstance", &GroupResolver::CompleteInstance);
    Add<tensorflow::GetStepSequenceRequest, tensorflow::GetStepSequenceResponse>(
        "/tensorflow.WorkerService/GetStepSequence", &WorkerService::GetStepSequence);
  }

 private:
  template <typename Request, typename Response>
  using Method = absl::Status (WorkerService::*)(Request& request, Response& response);

  template <typename Request, typename Response>
  void Add(const char* path, Method<Request, Response> method, bool takes_long = false) {
    AddUnary(path,
             [this, path, method, takes_long](CallbackServerContext* context,
                                              const ByteBuffer* request, ByteBuffer* response) {
               if (auto* refused = Refuse(context, path)) return refused;
               // Both buffers stay valid until the call is finished.
               ServerUnaryReactor* const reactor = context->DefaultReactor();
               auto answer = [this, method, request, response, reactor] {
                 Request message;
                 Response answered;
                 ByteBuffer bytes = *request;
                 absl::Status status = CheckSize(worker_, *message.GetDescriptor(), bytes);
                 if (status.ok()) {
                   status = coord::ParseMessage(bytes, message) ? (this->*method)(message, answered)
                                                                : NoSuchMessage(message);
                 }
                 if (status.ok()) *response = coord::SerializeMessage(answered);
                 reactor->Finish(coord::ToGrpcStatus(status));
               };
               if (takes_long) {
                 worker_.Run(std::move(answer));
               } else {
                 answer();
               }
               return reactor;
             });
  }

  // Returns a reactor that rejects the call if it is not authenticated; else null.
  ServerUnaryReactor* Refuse(CallbackServerContext* context, const char* path) {
    const absl::Status status = guard_.Check(context->client_metadata(), path);
    if (status.ok()) return nullptr;
    ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(coord::ToGrpcStatus(status));
    return reactor;
  }

  template <typename Request, typename Response, typename Method>
  void AddGroupCall(const char* path, Method method) {
    AddUnary(path,
             [this, path, method](CallbackServerContext* context, const ByteBuffer* request,
                                  ByteBuffer* response) -> ServerUnaryReactor* {
               if (auto* refused = Refuse(context, path)) return refused;
               auto* const call = new GroupCall<Response>(groups_, response);
               call->template Start<Request>(*request, method);
               return call;
             });
  }

  void AddUnimplemented(const char* path, const char* text) {
    AddUnary(path, [text](CallbackServerContext* context, const ByteBuffer*, ByteBuffer*) {
      ServerUnaryReactor* const reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, text));
      return reactor;
    });
  }

  absl::Status GetStatus(tensorflow::GetStatusRequest&, tensorflow::GetStatusResponse& response) {
    for (const WorkerDevice& device : worker_.options().devices) {
      tensorflow::DeviceAttributes& attributes = *response.add_device_attributes();
      attributes.set_name(device.name);
      attributes.set_device_type(device.type);
      attributes.set_memory_limit(device.memory_bytes);
      attributes.mutable_locality();
      if (device.numa_node >= 0) attributes.mutable_locality()->set_numa_node(device.numa_node);
      attributes.set_incarnation(device.incarnation);
      attributes.set_physical_device_desc(device.description);
    }
    return absl::OkStatus();
  }

  absl::Status CreateSession(tensorflow::CreateWorkerSessionRequest& request,
                             tensorflow::CreateWorkerSessionResponse&) {
    return worker_.CreateSession({.handle = request.session_handle(),
                                  .master_task = request.master_task(),
                                  .master_incarnation = request.master_incarnation()},
                                 request.isolate_session_state());
  }

  absl::Status DeleteSession(tensorflow::DeleteWorkerSessionRequest& request,
                             tensorflow::DeleteWorkerSessionResponse&) {
    worker_.DeleteSession(request.session_handle());
    return absl::OkStatus();
  }

  absl::Status RegisterGraph(tensorflow::RegisterGraphRequest& request,
                             tensorflow::RegisterGraphResponse& response) {
    absl::StatusOr<std::string> handle =
        worker_.RegisterGraph(SessionOf(request), std::move(*request.mutable_graph_def()));
    if (!handle.ok()) return handle.status();
    response.set_graph_handle(*std::move(handle));
    return absl::OkStatus();
  }

  absl::Status DeregisterGraph(tensorflow::DeregisterGraphRequest& request,
                               tensorflow::DeregisterGraphResponse&) {
    return worker_.DeregisterGraph(SessionOf(request), request.graph_handle());
  }

  absl::Status CleanupGraph(tensorflow::CleanupGraphRequest& request,
                            tensorflow::CleanupGraphResponse&) {
    worker_.CleanupStep(request.step_id());
    return absl::OkStatus();
  }

  absl::Status CleanupAll(tensorflow::CleanupAllRequest& request, tensorflow::CleanupAllResponse&) {
    const std::vector<std::string> containers(request.container().begin(),
                                              request.container().end());
    worker_.ClearContainers(containers);
    return absl::OkStatus();
  }

  absl::Status GetSteps(ferry::v1::GetStepsRequest& request,
                        ferry::v1::GetStepsResponse& response) {
    const std::vector<int64_t> step_ids(request.step_ids().begin(), request.step_ids().end());
    ferry::v1::TraceProcess& process = *response.add_processes();
    process.set_name(ToString(worker_.options().task));
    process.set_host(worker_.options().host_name);
    process.set_kept(static_cast<uint32_t>(worker_.trace().max_runs()));
    FillTrace(worker_.trace().Find(step_ids), process);
    return absl::OkStatus();
  }

  absl::Status Logging(tensorflow::LoggingRequest& request, tensorflow::LoggingResponse& response) {
    TransferLog& log = worker_.transfer_log();
    if (request.enable_rpc_logging()) log.Switch(true);
    // Old masters switch it off by sending false for switching it on.
    if (request.disable_rpc_logging() ||
        (!request.enable_rpc_logging() && request.fetch_step_id().empty())) {
      log.Switch(false);
    }
    for (const int64_t step : request.fetch_step_id()) {
      std::optional<tensorflow::StepStats> rows = log.Take(step);
      if (!rows.has_value()) continue;
      tensorflow::LabeledStepStats& labeled = *response.add_step();
      labeled.set_step_id(step);
      *labeled.mutable_step_stats() = *std::move(rows);
    }
    if (request.clear()) log.Clear();
    return absl::OkStatus();
  }

  absl::Status GetStepSequence(tensorflow::GetStepSequenceRequest& request,
                               tensorflow::GetStepSequenceResponse& response) {
    // Step ids leave their topmost bits free.
    constexpr uint64_t kStepMask = (uint64_t{1} << 56) - 1;
    const uint64_t life = worker_.options().devices.front().incarnation;
    for (const int64_t key : request.graph_key()) {
      tensorflow::StepSequence& sequence = *response.add_step_sequence();
      sequence.set_graph_key(key);
      sequence.set_next_step_id(static_cast<int64_t>(absl::HashOf(key, life) & kStepMask));
    }
    return absl::OkStatus();
  }

  Worker& worker_;
  CallAuthenticator guard_;
  GroupResolver groups_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerService(Worker& worker, AuthPolicy auth) {
  return std::make_unique<WorkerService>(worker, std::move(auth));
}

}  // namespace ferry::worker
