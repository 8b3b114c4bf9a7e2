// SPDX-License-Identifier: Apache-2.0
// Memory of the server: private pages in RAM (RssAnon), so without the kernel's socket buffers.
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"

#include "benchmarks/coordinator_bench.h"
#include "benchmarks/support/control_frames.h"
#include "benchmarks/support/control_ranks.h"
#include "benchmarks/support/floor_services.h"
#include "benchmarks/support/server_process.h"
#include "benchmarks/support/unary_calls.h"

namespace ferry::bench {
namespace {

constexpr int kWaitsPerRank = 16;

std::string GetOp(const std::string& key) {
  v1::Request request;
  request.mutable_get()->add_keys(key);
  request.mutable_get()->set_timeout_ms(600'000);
  return Op(request);
}

std::string HeartbeatOp() {
  v1::Request request;
  request.mutable_heartbeat();
  return Op(request);
}

double KibEach(int64_t bytes, int count) {
  return static_cast<double>(bytes) / 1024 / static_cast<double>(count);
}

// Leaves `waits` pending on every rank; the reply to the heartbeat shows that they are.
std::vector<Script> Parking(int ranks, bool at_barriers) {
  std::vector<Script> scripts;
  for (int rank = 0; rank < ranks; ++rank) {
    Step step;
    for (int i = 0; i < kWaitsPerRank; ++i) {
      step.ops.push_back(at_barriers ? BarrierOp(absl::StrCat("never/", i), 0)
                                     : GetOp(absl::StrCat("absent/", rank, "/", i)));
    }
    step.ops.push_back(HeartbeatOp());
    scripts.push_back({step});
  }
  return scripts;
}

// All ranks join; then all but the last wait, so that barriers stay open.
void BM_Memory(benchmark::State& state, bool at_barriers, int ranks) {
  for (auto _ : state) {
    const ServerProcess server(ServerKind::kCoordinator, ranks);
    // Not counted: memory that a server has once, for any number of clients.
    ControlRanks everyone(server.address(), ranks);
    const int64_t bare = server.ResidentBytes();
    absl::Duration time = everyone.RunAll(std::vector<Script>(
        static_cast<size_t>(ranks), Script{Step{{RegisterOp()}}, Step{{HeartbeatOp()}}}));
    const int64_t connected = server.ResidentBytes();
    // The last rank does not come to the barriers.
    time += everyone.RunAll(Parking(ranks - 1, at_barriers));
    const int64_t parked = server.ResidentBytes();
    state.SetIterationTime(absl::ToDoubleSeconds(time));

    const double per_rank = KibEach(connected - bare, ranks);
    const double per_wait = KibEach(parked - connected, (ranks - 1) * kWaitsPerRank);
    state.counters["kib_per_rank"] = per_rank;
    state.counters["kib_per_wait"] = per_wait;
    const absl::string_view what = at_barriers ? "barrier" : "get";
    if (!at_barriers) {
      AddGate({.name = absl::StrCat("memory of a connected rank, of ", ranks),
               .unit = "KiB",
               .measured = per_rank,
               .bound = Bound::kAtMost,
               .target = 40});
    }
    AddGate({.name = absl::StrCat("memory of a parked ", what, " on an open stream"),
             .unit = "KiB",
             .measured = per_wait,
             .bound = Bound::kAtMost,
             .target = 1});
  }
}

// The cost of gRPC for ranks with an open stream each that has carried one message in each
// direction.
double StreamFloorKib(int ranks) {
  const ServerProcess server(ServerKind::kFloor, ranks);
  const int64_t bare = server.ResidentBytes();
  absl::BlockingCounter answered(ranks);
  std::vector<std::unique_ptr<ControlStream>> streams;
  for (int i = 0; i < ranks; ++i) {
    streams.push_back(
        ControlStream::OverGrpc(MakeChannel(server.address()), kEchoMethod,
                                [&answered](const ScannedFrame&) { answered.DecrementCount(); }));
    // Its answer, and an entry to return.
    streams.back()->Send(ToBuffer(""));
    streams.back()->Send(ToBuffer(""));
  }
  answered.Wait();
  const double kib = KibEach(server.ResidentBytes() - bare, ranks);
  for (const auto& stream : streams) stream->Cancel();
  return kib;
}

// The cost of gRPC: connections that have made a call, then one pending call on each.
void BM_MemoryFloor(benchmark::State& state, int ranks) {
  for (auto _ : state) {
    const ServerProcess server(ServerKind::kFloor, ranks);
    UnaryRanks everyone(server.address(), ranks);
    const int64_t bare = server.ResidentBytes();
    const absl::Duration time = everyone.CallAll(kEmptyMethod, NoBytes);
    const int64_t connected = server.ResidentBytes();
    // All but one wait, and stay.
    everyone.StartAll(kParkMethod, NoBytes, ranks - 1);
    // Nothing notifies the client that its call is pending.
    absl::SleepFor(absl::Seconds(1));
    const int64_t parked = server.ResidentBytes();
    state.SetIterationTime(absl::ToDoubleSeconds(time));
    const double per_connection = KibEach(connected - bare, ranks);
    const double per_wait = KibEach(parked - connected, ranks - 1);
    state.counters["kib_per_connection"] = per_connection;
    state.counters["kib_per_call"] = per_wait;
    const double per_stream = StreamFloorKib(ranks);
    state.counters["kib_per_stream"] = per_stream;
    AddGate({.name = "for comparison: memory of a bare connection with an open stream",
             .unit = "KiB",
             .measured = per_stream});
    AddGate({.name = "for comparison: memory of a bare connection",
             .unit = "KiB",
             .measured = per_connection});
    AddGate({.name = "for comparison: memory of a parked empty RPC",
             .unit = "KiB",
             .measured = per_wait});
  }
}

}  // namespace

void RegisterMemoryBenchmarks(const Plan& plan) {
  const int ranks = plan.is_quick ? 512 : 2048;
  const std::string suffix = absl::StrCat("/ranks:", ranks);
  const auto add = [](const std::string& name, auto body) {
    benchmark::RegisterBenchmark(name.c_str(), body)
        ->Iterations(1)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  };
  add("BM_Memory_Connect/floor:grpc" + suffix,
      [ranks](benchmark::State& state) { BM_MemoryFloor(state, ranks); });
  add("BM_Memory_Park/wait:get" + suffix,
      [ranks](benchmark::State& state) { BM_Memory(state, /*at_barriers=*/false, ranks); });
  add("BM_Memory_Park/wait:barrier" + suffix,
      [ranks](benchmark::State& state) { BM_Memory(state, /*at_barriers=*/true, ranks); });
}

}  // namespace ferry::bench
