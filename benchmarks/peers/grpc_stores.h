// SPDX-License-Identifier: Apache-2.0
// Unary calls to a server of gRPC, bytes in and bytes out, by the callback API.
#ifndef FERRY_BENCHMARKS_PEERS_GRPC_STORES_H_
#define FERRY_BENCHMARKS_PEERS_GRPC_STORES_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "stores.h"

namespace peers {

// One connection; its calls are answered on gRPC's threads.
class GrpcClient final {
 public:
  explicit GrpcClient(const std::string& address) : stub_(ChannelTo(address)) {}

  // Ends the process if the call fails.
  void Call(const std::string& method, const std::string& request,
            std::function<void(const std::string&)> done) {
    auto* const call = new Pending;
    call->context.set_wait_for_ready(true);
    call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const grpc::Slice slice(request);
    call->request = grpc::ByteBuffer(&slice, 1);
    stub_.UnaryCall(
        &call->context, method, grpc::StubOptions(), &call->request, &call->answer,
        [method, call, done = std::move(done)](grpc::Status status) {
          grpc::Slice answer;
          if (!status.ok() || !call->answer.DumpToSingleSlice(&answer).ok()) {
            Fail(method + ": " + status.error_message());
          }
          delete call;
          done(std::string(reinterpret_cast<const char*>(answer.begin()), answer.size()));
        });
  }

  std::string CallAndWait(const std::string& method, const std::string& request) {
    std::string found;
    std::mutex mu;
    std::condition_variable come;
    bool is_there = false;
    Call(method, request, [&](const std::string& answer) {
      std::lock_guard<std::mutex> lock(mu);
      found = answer;
      is_there = true;
      come.notify_one();
    });
    std::unique_lock<std::mutex> lock(mu);
    come.wait(lock, [&] { return is_there; });
    return found;
  }

 private:
  struct Pending {
    grpc::ClientContext context;
    grpc::ByteBuffer request, answer;
  };

  static std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address) {
    grpc::ChannelArguments arguments;
    // Else channels to one address share a connection.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }

  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
};

// `inflight` calls at a time over `clients`, each answer begins the next; `make` gives a request,
// `check` the number of wrong bytes of its answer. With one at a time a thread waits for each
// answer.
inline Load RunCalls(std::vector<std::unique_ptr<GrpcClient>>& clients, size_t inflight,
                     size_t operations, const std::string& method,
                     const std::function<std::string(size_t)>& make,
                     const std::function<uint64_t(size_t, const std::string&)>& check,
                     uint64_t& wrong) {
  if (inflight == 1) {
    std::atomic<uint64_t> bad{0};
    const Load load = RunLoad(1, operations, [&](size_t, size_t i) {
      bad += check(i, clients[0]->CallAndWait(method, make(i)));
    });
    wrong += bad;
    return load;
  }
  std::vector<double> times(operations);
  std::atomic<size_t> next{0}, done{0};
  std::atomic<uint64_t> bad{0};
  std::mutex mu;
  std::condition_variable all;
  std::function<void()> begin = [&] {
    const size_t i = next++;
    if (i >= operations) return;
    const double start = Now();
    clients[i % clients.size()]->Call(method, make(i), [&, i, start](const std::string& answer) {
      times[i] = Now() - start;
      bad += check(i, answer);
      begin();
      if (++done == operations) {
        std::lock_guard<std::mutex> lock(mu);
        all.notify_one();
      }
    });
  };
  const double start = Now();
  for (size_t i = 0; i < inflight; ++i) begin();
  std::unique_lock<std::mutex> lock(mu);
  all.wait(lock, [&] { return done == operations; });
  const double end = Now();
  wrong += bad;
  return {Median(times), static_cast<double>(operations) / (end - start)};
}

// Until `count` answers have come.
class Latch final {
 public:
  explicit Latch(size_t count) : left_(count) {}
  void Down() {
    std::lock_guard<std::mutex> lock(mu_);
    if (--left_ == 0) all_.notify_one();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mu_);
    all_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  std::mutex mu_;
  std::condition_variable all_;
  size_t left_;
};

inline void PrintLoad(const std::string& what, const Load& load, size_t operations,
                      uint64_t wrong) {
  Print(what + "_p50_s", load.p50, operations, wrong);
  Print(what + "_per_s", load.per_s, operations, wrong);
}

}  // namespace peers

#endif  // FERRY_BENCHMARKS_PEERS_GRPC_STORES_H_
