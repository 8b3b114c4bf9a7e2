// SPDX-License-Identifier: Apache-2.0
// Barriers of many ranks with a connection each.
#include <optional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/strings/str_cat.h"

#include "base/file_limit.h"
#include "benchmarks/coordinator_bench.h"
#include "benchmarks/support/control_ranks.h"
#include "benchmarks/support/floor_services.h"
#include "benchmarks/support/server_process.h"
#include "benchmarks/support/unary_calls.h"
#include "coord/wire/bytes.h"
#include "proto/tsl_coordination.pb.h"

namespace ferry::bench {
namespace {

constexpr char kCoordinationPrefix[] = "/tensorflow.CoordinationService/";

grpc::ByteBuffer RegisterRequest(int rank) {
  tensorflow::RegisterTaskRequest request;
  request.set_incarnation(static_cast<uint64_t>(rank) + 1);
  request.mutable_source_task()->set_job_name("jax_worker");
  request.mutable_source_task()->set_task_id(rank);
  return coord::SerializeMessage(request);
}

// JAX sends an empty list of tasks: all tasks.
grpc::ByteBuffer BarrierRequest(int rank, int64_t counter) {
  tensorflow::BarrierRequest request;
  request.set_barrier_id("bench");
  request.set_counter(counter);
  request.set_barrier_timeout_in_ms(600'000);
  request.mutable_source_task()->set_job_name("jax_worker");
  request.mutable_source_task()->set_task_id(rank);
  return coord::SerializeMessage(request);
}

double CpuMs(const ServerProcess& server) { return absl::ToDoubleMilliseconds(server.CpuTime()); }

// From the first call to the last answer, each rank on an open connection of its own. Expected: the
// compatible service adds little to gRPC's own cost of a call; the stream, which sets up no call,
// saves about half of it.
void BM_Barrier(benchmark::State& state, int tasks, const Plan& plan) {
  const ServerProcess floor(ServerKind::kFloor, tasks);
  const ServerProcess unary_server(ServerKind::kCoordinator, tasks);
  const ServerProcess stream_server(ServerKind::kCoordinator, tasks);
  UnaryRanks floor_ranks(floor.address(), tasks);
  UnaryRanks unary_ranks(unary_server.address(), tasks);
  ControlRanks stream_ranks(stream_server.address(), tasks);
  const std::string barrier_method = absl::StrCat(kCoordinationPrefix, "Barrier");

  const auto run_floor = [&] { return floor_ranks.CallAll(kParkMethod, NoBytes); };
  const auto run_unary = [&](int64_t counter) {
    return unary_ranks.CallAll(barrier_method,
                               [counter](int rank) { return BarrierRequest(rank, counter); });
  };
  const auto run_stream = [&](int64_t counter) {
    return stream_ranks.RunAll(std::vector<Script>(static_cast<size_t>(tasks),
                                                   Script{Step{{BarrierOp("bench", counter)}}}));
  };
  // Connects all ranks, and warms up.
  floor_ranks.CallAll(kEmptyMethod, NoBytes);
  unary_ranks.CallAll(absl::StrCat(kCoordinationPrefix, "RegisterTask"), RegisterRequest);
  stream_ranks.RunAll(
      std::vector<Script>(static_cast<size_t>(tasks), Script{Step{{RegisterOp()}}}));
  int64_t counter = 0;
  run_floor();
  run_unary(counter);
  run_stream(counter);

  Comparison unary;
  Comparison stream;
  Comparison unary_cpu;
  Comparison stream_cpu;
  for (auto _ : state) {
    ++counter;
    const double floor_cpu = CpuMs(floor);
    const double unary_cpu_before = CpuMs(unary_server);
    const double stream_cpu_before = CpuMs(stream_server);
    const absl::Duration floor_time = run_floor();
    const absl::Duration unary_time = run_unary(counter);
    const absl::Duration stream_time = run_stream(counter);
    unary.Add(absl::ToDoubleMilliseconds(floor_time), absl::ToDoubleMilliseconds(unary_time));
    stream.Add(absl::ToDoubleMilliseconds(floor_time), absl::ToDoubleMilliseconds(stream_time));
    const double floor_cpu_used = CpuMs(floor) - floor_cpu;
    unary_cpu.Add(floor_cpu_used, CpuMs(unary_server) - unary_cpu_before);
    stream_cpu.Add(floor_cpu_used, CpuMs(stream_server) - stream_cpu_before);
    state.SetIterationTime(absl::ToDoubleSeconds(stream_time));
  }
  state.counters["floor_ms"] = unary.floor();
  state.counters["tensorflow_ms"] = unary.measured();
  state.counters["tensorflow_ratio_to_floor"] = unary.ratio();
  state.counters["stream_ms"] = stream.measured();
  state.counters["ratio_to_floor"] = stream.ratio();
  const std::string gate = absl::StrCat("barrier of ", tasks, ": ");
  AddGate(gate + "tensorflow", "ms", unary, Bound::kAtMost, 1.1);
  AddGate(gate + "our stream", "ms", stream, Bound::kAtMost, 0.7);
  AddGate(gate + "tensorflow, server CPU", "ms", unary_cpu, Bound::kAtMost, std::nullopt);
  AddGate(gate + "our stream, server CPU", "ms", stream_cpu, Bound::kAtMost, std::nullopt);
}

}  // namespace

void RegisterBarrierBenchmarks(const Plan& plan) {
  for (const int tasks : {64, 512, 4096}) {
    if (plan.is_quick && tasks > 512) continue;
    // Three connections for each task, and some for everything else.
    if (3 * tasks + 100 > RaiseFileLimit()) continue;
    benchmark::RegisterBenchmark(
        absl::StrCat("BM_Barrier_Pass/tasks:", tasks).c_str(),
        [tasks, plan](benchmark::State& state) { BM_Barrier(state, tasks, plan); })
        // Small ones are quick and noisy.
        ->Iterations(tasks > 1000 ? plan.rounds : 5 * plan.rounds)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace ferry::bench
