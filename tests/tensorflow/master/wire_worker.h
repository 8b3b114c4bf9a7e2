// SPDX-License-Identifier: Apache-2.0
// WireWorker: a worker's service that computes nothing.
#ifndef FERRY_TESTS_TENSORFLOW_MASTER_WIRE_WORKER_H_
#define FERRY_TESTS_TENSORFLOW_MASTER_WIRE_WORKER_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#include "proto/tf_master.pb.h"
#include "proto/tf_worker.grpc.pb.h"
#include "rendezvous/recv_tensor/call_auth.h"
#include "rendezvous/recv_tensor/tensor_channel.h"

namespace ferry::master {

// A float tensor of `bytes`, a multiple of 4, to feed.
inline tensorflow::TensorProto FloatFeed(size_t bytes) {
  tensorflow::TensorProto tensor;
  tensor.set_dtype(tensorflow::DT_FLOAT);
  tensor.mutable_tensor_shape()->add_dim()->set_size(static_cast<int64_t>(bytes / 4));
  tensor.set_tensor_content(std::string(bytes, 'y'));
  return tensor;
}

inline void AddFeed(tensorflow::RunStepRequest& request, size_t bytes = 4) {
  tensorflow::NamedTensorProto& feed = *request.add_feed();
  feed.set_name("x:0");
  *feed.mutable_tensor() = FloatFeed(bytes);
}

// Answers every wanted tensor with the number of bytes that were fed; a graph with a node "hang"
// waits to be cancelled, one with a node "fail" has an error as long as `error`.
class WireWorker final : public tensorflow::WorkerService::CallbackService {
 public:
  WireWorker() {
    grpc::ServerBuilder builder;
    PrepareTensorServer(builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~WireWorker() override { server_->Shutdown(std::chrono::system_clock::now()); }

  int port() const { return port_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  void Stop() { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string error = "fantasia!";
  std::atomic<int> sessions{0};
  // Sessions that were opened with an authentication tag made with the token "secret".
  std::atomic<int> proved{0};
  std::atomic<int> cancelled{0};
  std::atomic<int> cleaned{0};
  absl::Notification hangs;
  // The names of containers that were cleared, one behind the other.
  std::string cleared() {
    absl::MutexLock lock(&mu_);
    return cleared_;
  }

 private:
  class Hanging final : public grpc::ServerUnaryReactor {
   public:
    explicit Hanging(std::atomic<int>& cancelled) : cancelled_(cancelled) {}
    void OnCancel() override {
      ++cancelled_;
      Finish(grpc::Status::CANCELLED);
    }
    void OnDone() override { delete this; }

   private:
    std::atomic<int>& cancelled_;
  };

  static grpc::ServerUnaryReactor* Ok(grpc::CallbackServerContext* context) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* CreateWorkerSession(grpc::CallbackServerContext* context,
                                                const tensorflow::CreateWorkerSessionRequest*,
                                                tensorflow::CreateWorkerSessionResponse*) override {
    ++sessions;
    if (CheckMethodAuthTag(context->client_metadata(), "secret",
                           "/tensorflow.WorkerService/CreateWorkerSession")
            .ok()) {
      ++proved;
    }
    return Ok(context);
  }
  grpc::ServerUnaryReactor* DeleteWorkerSession(grpc::CallbackServerContext* context,
                                                const tensorflow::DeleteWorkerSessionRequest*,
                                                tensorflow::DeleteWorkerSessionResponse*) override {
    --sessions;
    return Ok(context);
  }
  grpc::ServerUnaryReactor* RegisterGraph(grpc::CallbackServerContext* context,
                                          const tensorflow::RegisterGraphRequest* request,
                                          tensorflow::RegisterGraphResponse* response) override {
    response->set_graph_handle("plain");
    for (const auto& node : request->graph_def().node()) {
      if (node.name() == "hang" || node.name() == "fail") response->set_graph_handle(node.name());
    }
    return Ok(context);
  }
  grpc::ServerUnaryReactor* RunGraph(grpc::CallbackServerContext* context,
                                     const tensorflow::RunGraphRequest* request,
                                     tensorflow::RunGraphResponse* response) override {
    if (request->graph_handle() == "hang") {
      auto* reactor = new Hanging(cancelled);
      hangs.Notify();
      return reactor;
    }
    if (request->graph_handle() == "fail") {
      response->set_status_code(tensorflow::error::INTERNAL);
      response->set_status_error_message(error);
      return Ok(context);
    }
    size_t bytes = 0;
    for (const auto& feed : request->send()) bytes += feed.tensor().tensor_content().size();
    for (const auto& key : request->recv_key()) {
      auto& received = *response->add_recv();
      received.set_name(key);
      received.mutable_tensor()->add_float_val(static_cast<float>(bytes));
      // As large as the request.
      received.mutable_tensor()->set_tensor_content(std::string(bytes, 'x'));
    }
    return Ok(context);
  }
  grpc::ServerUnaryReactor* CleanupGraph(grpc::CallbackServerContext* context,
                                         const tensorflow::CleanupGraphRequest*,
                                         tensorflow::CleanupGraphResponse*) override {
    ++cleaned;
    return Ok(context);
  }
  grpc::ServerUnaryReactor* CleanupAll(grpc::CallbackServerContext* context,
                                       const tensorflow::CleanupAllRequest* request,
                                       tensorflow::CleanupAllResponse*) override {
    {
      absl::MutexLock lock(&mu_);
      for (const std::string& container : request->container()) cleared_ += container;
    }
    return Ok(context);
  }

  absl::Mutex mu_;
  std::string cleared_ ABSL_GUARDED_BY(mu_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace ferry::master

#endif  // FERRY_TESTS_TENSORFLOW_MASTER_WIRE_WORKER_H_
