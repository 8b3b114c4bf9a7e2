// SPDX-License-Identifier: Apache-2.0
// One asynchronous call per method.
#include "tensorflow/master/grpc_worker_link.h"

#include <chrono>
#include <limits>
#include <random>
#include <utility>

#include <grpcpp/client_context.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "coord/wire/errors.h"
#include "proto/ferry_trace.grpc.pb.h"
#include "proto/tf_worker.grpc.pb.h"
#include "rendezvous/recv_tensor/call_auth.h"
#include "rendezvous/recv_tensor/tensor_channel.h"

namespace ferry::master {

// The calls in progress. Thread-safe.
class GrpcWorkerLinks::Calls final {
 public:
  // Returns false after Stop: the call must not start.
  bool Begin(const std::shared_ptr<grpc::ClientContext>& call) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (is_stopped_) return false;
    calls_.insert(call);
    return true;
  }
  // Called after the callback: the call's state is no longer used.
  void End(const std::shared_ptr<grpc::ClientContext>& call) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    calls_.erase(call);
  }
  void Stop() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::flat_hash_set<std::shared_ptr<grpc::ClientContext>> calls;
    {
      absl::MutexLock lock(&mu_);
      is_stopped_ = true;
      calls = calls_;
    }
    for (const auto& call : calls) call->TryCancel();
    const auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return calls_.empty(); };
    absl::MutexLock lock(&mu_);
    // No deadline: cancelled calls complete promptly.
    mu_.Await(absl::Condition(&is_over));
  }

 private:
  absl::Mutex mu_;
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_set<std::shared_ptr<grpc::ClientContext>> calls_ ABSL_GUARDED_BY(mu_);
};

namespace {

using Stub = tensorflow::WorkerService::Stub;
using AsyncStub = tensorflow::WorkerService::StubInterface::async_interface;

class GrpcWorkerLink final : public WorkerLink {
 public:
  GrpcWorkerLink(const std::string& address, std::string token, const WorkerLinkOptions& options,
                 std::shared_ptr<GrpcWorkerLinks::Calls> calls)
      : address_(address),
        token_(std::move(token)),
        calls_(std::move(calls)),
        channel_(MakeTensorChannel(address, {options.keepalive_time, options.keepalive_timeout})),
        stub_(tensorflow::WorkerService::NewStub(channel_)),
        trace_stub_(ferry::v1::Trace::NewStub(channel_)) {}

  void CreateWorkerSession(const tensorflow::CreateWorkerSessionRequest& request, CallLimits limits,
                           Done<tensorflow::CreateWorkerSessionResponse> done) override {
    Call("/tensorflow.WorkerService/CreateWorkerSession", &AsyncStub::CreateWorkerSession, request,
         std::move(limits), std::move(done));
  }
  void DeleteWorkerSession(const tensorflow::DeleteWorkerSessionRequest& request, CallLimits limits,
                           Done<tensorflow::DeleteWorkerSessionResponse> done) override {
    Call("/tensorflow.WorkerService/DeleteWorkerSession", &AsyncStub::DeleteWorkerSession, request,
         std::move(limits), std::move(done));
  }
  void RegisterGraph(const tensorflow::RegisterGraphRequest& request, CallLimits limits,
                     Done<tensorflow::RegisterGraphResponse> done) override {
    Call("/tensorflow.WorkerService/RegisterGraph", &AsyncStub::RegisterGraph, request,
         std::move(limits), std::move(done));
  }
  void DeregisterGraph(const tensorflow::DeregisterGraphRequest& request, CallLimits limits,
                       Done<tensorflow::DeregisterGraphResponse> done) override {
    Call("/tensorflow.WorkerService/DeregisterGraph", &AsyncStub::DeregisterGraph, request,
         std::move(limits), std::move(done));
  }
  void RunGraph(const tensorflow::RunGraphRequest& request, CallLimits limits,
                Done<tensorflow::RunGraphResponse> done) override {
    Call("/tensorflow.WorkerService/RunGraph", &AsyncStub::RunGraph, request, std::move(limits),
         std::move(done));
  }
  void CleanupGraph(const tensorflow::CleanupGraphRequest& request, CallLimits limits,
                    Done<tensorflow::CleanupGraphResponse> done) override {
    Call("/tensorflow.WorkerService/CleanupGraph", &AsyncStub::CleanupGraph, request,
         std::move(limits), std::move(done));
  }
  void CleanupAll(const tensorflow::CleanupAllRequest& request, CallLimits limits,
                  Done<tensorflow::CleanupAllResponse> done) override {
    Call("/tensorflow.WorkerService/CleanupAll", &AsyncStub::CleanupAll, request, std::move(limits),
         std::move(done));
  }
  void GetSteps(const ferry::v1::GetStepsRequest& request, CallLimits limits,
                Done<ferry::v1::GetStepsResponse> done) override {
    using Async = ferry::v1::Trace::StubInterface::async_interface;
    void (Async::*const method)(grpc::ClientContext*, const ferry::v1::GetStepsRequest*,
                                ferry::v1::GetStepsResponse*, std::function<void(grpc::Status)>) =
        &Async::GetSteps;
    CallOn("/ferry.v1.Trace/GetSteps", static_cast<Async&>(*trace_stub_->async()), method, request,
           std::move(limits), std::move(done));
  }

 private:
  template <typename Request, typename Response>
  using Method = void (AsyncStub::*)(grpc::ClientContext*, const Request*, Response*,
                                     std::function<void(grpc::Status)>);

  template <typename Response>
  struct State {
    Response response;
    Done<Response> done;
    CallLimits limits;
    CancellationToken::CallbackId token = CancellationToken::kNoCallback;
  };

  template <typename Request, typename Response>
  void Call(absl::string_view path, Method<Request, Response> method, const Request& request,
            CallLimits limits, Done<Response> done) {
    CallOn(path, static_cast<AsyncStub&>(*stub_->async()), method, request, std::move(limits),
           std::move(done));
  }

  template <typename Async, typename MethodOfAsync, typename Request, typename Response>
  void CallOn(absl::string_view path, Async& async, MethodOfAsync method, const Request& request,
              CallLimits limits, Done<Response> done) {
    // gRPC aborts the process on a message that cannot be serialised.
    if (request.ByteSizeLong() > std::numeric_limits<int>::max()) {
      return std::move(done)(absl::InvalidArgumentError(
          absl::StrCat("A message of ", request.ByteSizeLong(),
                       " bytes to a worker: gRPC and protocol buffers carry less than 2 GiB")));
    }
    const auto context = std::make_shared<grpc::ClientContext>();
    if (!token_.empty()) {
      context->AddMetadata(kAuthTagMetadata, MethodAuthTag(token_, path, NewNonce()));
    }
    // Clients encode "no timeout" as values that overflow the clock's range.
    if (limits.timeout < absl::Hours(24 * 365)) {
      context->set_deadline(std::chrono::system_clock::now() +
                            absl::ToChronoMilliseconds(limits.timeout));
    }
    if (!calls_->Begin(context)) {
      return std::move(done)(absl::CancelledError("The master is stopping."));
    }
    const auto state = std::make_shared<State<Response>>();
    state->done = std::move(done);
    state->limits = std::move(limits);
    if (state->limits.cancellation != nullptr) {
      state->token = state->limits.cancellation->Register(
          [weak = std::weak_ptr<grpc::ClientContext>(context)] {
            if (const auto alive = weak.lock()) alive->TryCancel();
          });
      if (state->token == CancellationToken::kNoCallback) {
        calls_->End(context);
        return std::move(state->done)(absl::CancelledError("Step was cancelled"));
      }
    }
    const std::function<void(grpc::Status)> when_done =
        [context, state, calls = calls_, address = address_](const grpc::Status& status) {
          End(*state, status, address);
          calls->End(context);
        };
    (async.*method)(context.get(), &request, &state->response, when_done);
  }

  template <typename Response>
  static void End(State<Response>& state, const grpc::Status& status, const std::string& address) {
    if (state.token != CancellationToken::kNoCallback)
      state.limits.cancellation->Deregister(state.token);
    if (status.ok()) return std::move(state.done)(std::move(state.response));
    std::move(state.done)(ExplainUnreachable(coord::FromGrpcStatus(status), address));
  }

  static int64_t NewNonce() {
    thread_local std::mt19937_64 random{std::random_device{}()};
    return static_cast<int64_t>(random() >> 1) | 1;
  }

  const std::string address_;
  const std::string token_;
  const std::shared_ptr<GrpcWorkerLinks::Calls> calls_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Stub> stub_;
  const std::unique_ptr<ferry::v1::Trace::Stub> trace_stub_;
};

}  // namespace

GrpcWorkerLinks::GrpcWorkerLinks(WorkerLinkOptions options)
    : options_(options), calls_(std::make_shared<Calls>()) {}

GrpcWorkerLinks::~GrpcWorkerLinks() { Stop(); }

std::shared_ptr<WorkerLink> GrpcWorkerLinks::Connect(const std::string& address,
                                                     const std::string& token) {
  return std::make_shared<GrpcWorkerLink>(address, token, options_, calls_);
}

void GrpcWorkerLinks::Stop() { calls_->Stop(); }

}  // namespace ferry::master
