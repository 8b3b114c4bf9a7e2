// SPDX-License-Identifier: Apache-2.0
// A worker's rendezvous on a free port of the loopback.
#ifndef FERRY_TESTS_RENDEZVOUS_WIRE_TEST_WORKER_H_
#define FERRY_TESTS_RENDEZVOUS_WIRE_TEST_WORKER_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "rendezvous/recv_tensor/recv_tensor_service.h"
#include "rendezvous/recv_tensor/tensor_channel.h"
#include "rendezvous/recv_tensor/tensor_fetcher.h"
#include "rendezvous/rendezvous_manager.h"
#include "rendezvous/tensor_source.h"
#include "tests/coord/wire/wire_client.h"
#include "tests/rendezvous/rendezvous_fixture.h"

namespace ferry {

inline TaskName TaskOf(int task) { return {"worker", 0, task}; }

// Where tasks are. Thread-safe.
class AddressBook final {
 public:
  void Set(int task, std::string address) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    addresses_[task] = std::move(address);
  }
  WorkerResolver Resolver() {
    return [this](const TaskName& task) -> absl::StatusOr<std::string> {
      if (while_resolving) while_resolving();
      absl::MutexLock lock(&mu_);
      const auto found = addresses_.find(task.task);
      if (found == addresses_.end()) return absl::NotFoundError("it is not in the book");
      return found->second;
    };
  }

  // Set before the first resolution.
  std::function<void()> while_resolving;

 private:
  absl::Mutex mu_;
  std::map<int64_t, std::string> addresses_ ABSL_GUARDED_BY(mu_);
};

// A server on the loopback for any service. Thread-compatible.
class LoopbackServer final {
 public:
  // `port` 0: a free one.
  explicit LoopbackServer(grpc::Service& service, int port = 0) {
    grpc::ServerBuilder builder;
    PrepareTensorServer(builder);
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&service);
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
  }
  ~LoopbackServer() { Stop(); }

  // Ends every call.
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_ = nullptr;
  }
  int port() const { return port_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

struct TestWorkerOptions {
  int task = 0;
  // For its only device, CPU:0.
  uint64_t incarnation = 1;
  int port = 0;
  TensorSourceOptions source;
  RecvTensorServiceOptions service;
  GrpcTensorFetcherOptions fetcher;
};

class TestWorker final {
 public:
  explicit TestWorker(AddressBook& book, TestWorkerOptions options = {})
      : options_(std::move(options)),
        fetcher_(SteadyClock(), book.Resolver(), options_.fetcher),
        manager_(SteadyClock(), fetcher_),
        source_(
            manager_,
            [this](const TaskDevice& device) -> std::optional<uint64_t> {
              if (!(device == TaskDevice{TaskOf(options_.task), "CPU", 0})) return std::nullopt;
              return options_.incarnation;
            },
            options_.source),
        service_(MakeRecvTensorService(source_, options_.service)),
        server_(*service_, options_.port) {
    book.Set(options_.task, server_.address());
  }
  ~TestWorker() {
    manager_.CleanupAll();
    server_.Stop();
  }

  std::shared_ptr<RemoteRendezvous> Begin(int64_t step_id) {
    auto step = *manager_.Find(step_id);
    EXPECT_TRUE(step->Initialize(TaskOf(options_.task)).ok());
    return step;
  }
  // Requests and values that wait here.
  size_t pending() const {
    size_t count = 0;
    manager_.ForEachPending(absl::ZeroDuration(), [&count](const PendingStepOp&) { ++count; });
    return count;
  }
  [[nodiscard]] bool WaitUntilPending(size_t count) const {
    return coord::Eventually([this, count] { return pending() == count; });
  }

  GrpcTensorFetcher& fetcher() { return fetcher_; }
  RendezvousManager& manager() { return manager_; }
  TensorSource& source() { return source_; }
  LoopbackServer& server() { return server_; }
  std::string address() const { return server_.address(); }

 private:
  const TestWorkerOptions options_;
  GrpcTensorFetcher fetcher_;
  RendezvousManager manager_;
  TensorSource source_;
  const std::unique_ptr<grpc::Service> service_;
  LoopbackServer server_;
};

// From task 0 to task 1.
inline std::string EdgeText(absl::string_view edge, uint64_t incarnation = 1,
                            absl::string_view src_device = "CPU:0") {
  return RendezvousKey::Text(absl::StrCat("/job:worker/replica:0/task:0/device:", src_device),
                             incarnation, "/job:worker/replica:0/task:1/device:CPU:0", edge);
}
inline RendezvousKey Edge(absl::string_view edge, uint64_t incarnation = 1) {
  return *RendezvousKey::Parse(EdgeText(edge, incarnation));
}

}  // namespace ferry

#endif  // FERRY_TESTS_RENDEZVOUS_WIRE_TEST_WORKER_H_
