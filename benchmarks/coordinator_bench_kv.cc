// SPDX-License-Identifier: Apache-2.0
// Set and get over the compatible services.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "benchmarks/coordinator_bench.h"
#include "benchmarks/support/control_ranks.h"
#include "benchmarks/support/floor_services.h"
#include "benchmarks/support/server_process.h"
#include "benchmarks/support/unary_calls.h"
#include "coord/wire/bytes.h"
#include "proto/tsl_coordination.pb.h"
#include "proto/xla_coordination.pb.h"
#include "proto/xla_distributed_runtime.pb.h"

namespace ferry::bench {
namespace {

constexpr int kKeys = 1000;
constexpr int kMaxChannels = 8;

enum class Service { kTensorflow, kXla, kRuntime };
enum class Operation { kSet, kGet };

constexpr std::pair<Service, absl::string_view> kServices[] = {
    {Service::kTensorflow, "tensorflow"}, {Service::kXla, "xla"}, {Service::kRuntime, "runtime"}};

std::string Method(Service service, Operation operation) {
  const bool is_set = operation == Operation::kSet;
  if (service == Service::kRuntime) {
    return absl::StrCat("/xla.DistributedRuntimeService/", is_set ? "KeyValueSet" : "KeyValueGet");
  }
  return absl::StrCat(service == Service::kXla ? "/xla.coordination" : "/tensorflow",
                      ".CoordinationService/", is_set ? "InsertKeyValue" : "GetKeyValue");
}

// The two coordination services have the same names in two packages.
template <typename Insert, typename Get>
grpc::ByteBuffer CoordinationRequest(Operation operation, std::string key) {
  if (operation == Operation::kGet) {
    Get get;
    get.set_key(std::move(key));
    return coord::SerializeMessage(get);
  }
  Insert insert;
  insert.mutable_kv()->set_key(std::move(key));
  insert.mutable_kv()->set_value(std::string(kValueBytes, 'v'));
  insert.set_allow_overwrite(true);
  return coord::SerializeMessage(insert);
}

grpc::ByteBuffer RuntimeRequest(Operation operation, std::string key, uint64_t session_id) {
  if (operation == Operation::kGet) {
    ::xla::KeyValueGetRequest get;
    get.set_session_id(session_id);
    get.set_key(std::move(key));
    get.set_timeout_milliseconds(10'000);
    return coord::SerializeMessage(get);
  }
  ::xla::KeyValueSetRequest set;
  set.set_session_id(session_id);
  set.set_key(std::move(key));
  set.set_value(std::string(kValueBytes, 'v'));
  return coord::SerializeMessage(set);
}

std::vector<grpc::ByteBuffer> Requests(Service service, Operation operation, uint64_t session_id) {
  std::vector<grpc::ByteBuffer> requests;
  for (int i = 0; i < kKeys; ++i) {
    std::string key = absl::StrFormat("bench/%06d", i);
    switch (service) {
      case Service::kTensorflow:
        requests.push_back(
            CoordinationRequest<tensorflow::InsertKeyValueRequest, tensorflow::GetKeyValueRequest>(
                operation, key));
        break;
      case Service::kXla:
        requests.push_back(
            CoordinationRequest<::xla::coordination::InsertKeyValueRequest,
                                ::xla::coordination::GetKeyValueRequest>(operation, key));
        break;
      case Service::kRuntime:
        requests.push_back(RuntimeRequest(operation, key, session_id));
        break;
    }
  }
  return requests;
}

std::vector<std::shared_ptr<grpc::Channel>> Channels(const ServerProcess& server, int inflight) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < std::min(inflight, kMaxChannels); ++i) {
    channels.push_back(MakeChannel(server.address()));
  }
  return channels;
}

void PutAll(const ServerProcess& server) {
  v1::Request request;
  for (int i = 0; i < kKeys; ++i) {
    v1::KeyValue& entry = *request.mutable_put()->add_entries();
    entry.set_key(absl::StrFormat("bench/%06d", i));
    entry.set_value(std::string(kValueBytes, 'v'));
  }
  request.mutable_put()->set_overwrite(true);
  // A rank that attaches only for this, and joins no barrier.
  ControlRanks setter(server.address(), 1);
  setter.RunAll({{Step{{Op(request)}}}});
}

// Alternates the load of the baseline with that of the coordinator.
struct Measured {
  Comparison rate;
  Comparison p50;
  // Against the typed service with the same messages.
  Comparison typed_rate;
  std::vector<double> p99_us;
  Comparison server_cpu_us;
};

void AddCounters(benchmark::State& state, Measured& measured) {
  state.counters["rate"] = measured.rate.measured();
  state.counters["floor_rate"] = measured.rate.floor();
  state.counters["ratio_to_floor"] = measured.rate.ratio();
  state.counters["ratio_to_typed"] = measured.typed_rate.ratio();
  state.counters["p50_us"] = measured.p50.measured();
  state.counters["floor_p50_us"] = measured.p50.floor();
  state.counters["p99_us"] = Median(measured.p99_us);
  state.counters["server_cpu_us"] = measured.server_cpu_us.measured();
  state.counters["floor_cpu_us"] = measured.server_cpu_us.floor();
}

void BM_Kv(benchmark::State& state, Service service, absl::string_view name, Operation operation,
           int inflight, const Plan& plan) {
  const ServerProcess floor(ServerKind::kFloor, 1);
  const ServerProcess coordinator(ServerKind::kCoordinator, 1);
  const auto floor_channels = Channels(floor, inflight);
  const auto channels = Channels(coordinator, inflight);
  ::xla::ConnectRequest connect;
  connect.set_protocol_version(3);
  connect.set_timeout_milliseconds(10'000);
  ::xla::ConnectResponse connected;
  CallAndWait(channels[0], "/xla.DistributedRuntimeService/Connect", connect, connected);
  const auto requests = Requests(service, operation, connected.session_id());
  const auto typed_requests = Requests(Service::kTensorflow, operation, 0);
  const std::vector<grpc::ByteBuffer> empty(1, NoBytes(0));
  const std::string method = Method(service, operation);
  const std::string typed_method = Method(Service::kTensorflow, operation);
  const absl::Duration slice = absl::Seconds(plan.slice_s);

  const auto run_floor = [&] {
    return RunUnaryLoad(floor, floor_channels, kEmptyMethod, empty, inflight, slice);
  };
  const auto run_typed = [&] {
    return RunUnaryLoad(floor, floor_channels, typed_method, typed_requests, inflight, slice);
  };
  const auto run = [&] {
    return RunUnaryLoad(coordinator, channels, method, requests, inflight, slice);
  };
  // Every key is there before a get, which would wait for it; then every connection is warmed up.
  PutAll(coordinator);
  run();
  run_floor();
  Measured measured;
  for (auto _ : state) {
    const LoadResult floor_load = run_floor();
    const LoadResult load = run();
    const LoadResult typed_load = run_typed();
    measured.rate.Add(floor_load.calls_per_s, load.calls_per_s);
    measured.p50.Add(floor_load.p50_us, load.p50_us);
    measured.typed_rate.Add(typed_load.calls_per_s, load.calls_per_s);
    measured.p99_us.push_back(load.p99_us);
    measured.server_cpu_us.Add(floor_load.server_cpu_us, load.server_cpu_us);
    state.SetIterationTime(1 / load.calls_per_s);
  }
  // Verified outside the timed region: the value read is the value set.
  tensorflow::GetKeyValueRequest get;
  get.set_key("bench/000000");
  tensorflow::GetKeyValueResponse found;
  CallAndWait(channels[0], Method(Service::kTensorflow, Operation::kGet), get, found);
  if (found.kv().value() != std::string(kValueBytes, 'v')) Fatal("the store holds another value");

  AddCounters(state, measured);
  const std::string gate = absl::StrCat("kv ", operation == Operation::kSet ? "set" : "get", ", ",
                                        name, ", ", inflight, " in flight: ");
  AddGate(gate + "rate", "/s", measured.rate, Bound::kAtLeast, 0.9);
  AddGate(gate + "p50", "us", measured.p50, Bound::kAtMost, 1.1);
  AddGate(gate + "server CPU", "us", measured.server_cpu_us, Bound::kAtMost, std::nullopt);
}

}  // namespace

void RegisterKvBenchmarks(const Plan& plan) {
  for (const auto& [service, name] : kServices) {
    if (plan.is_quick && service != Service::kTensorflow) continue;
    for (const Operation operation : {Operation::kSet, Operation::kGet}) {
      for (const int inflight : {1, 64, 1000}) {
        benchmark::RegisterBenchmark(
            absl::StrCat("BM_Kv_", operation == Operation::kSet ? "Set" : "Get", "/service:", name,
                         "/inflight:", inflight)
                .c_str(),
            [service = service, name = name, operation, inflight, plan](benchmark::State& state) {
              BM_Kv(state, service, name, operation, inflight, plan);
            })
            ->Iterations(plan.rounds)
            ->UseManualTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

}  // namespace ferry::bench
