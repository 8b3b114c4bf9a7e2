// SPDX-License-Identifier: Apache-2.0
// A whole job's start: all ranks join, get all devices and endpoints, and pass a barrier.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/clock.h"
#include "base/file_limit.h"
#include "benchmarks/coordinator_bench.h"
#include "benchmarks/support/control_ranks.h"
#include "benchmarks/support/floor_services.h"
#include "benchmarks/support/server_process.h"
#include "benchmarks/support/unary_calls.h"
#include "topology/topology_proto.h"

namespace ferry::bench {
namespace {

constexpr uint64_t kGib = uint64_t{1} << 30;

// A node with one host and `gpus` GPUs, all of them joined by NVSwitch.
LocalTopology NodeTopology(int rank, int gpus) {
  LocalTopology node;
  node.node_id = rank;
  node.host_name = absl::StrFormat("gpu-node-%04d", rank);
  node.boot_id = absl::StrFormat("%08x-0000-4000-8000-%012x", rank * 2654435761u, rank);
  node.endpoint =
      absl::StrFormat("10.%d.%d.%d:50%03d", rank >> 16, rank >> 8 & 255, rank & 255, rank % 1000);
  Device host;
  host.name = "AMD EPYC 9654 96-Core Processor";
  host.vendor = "AuthenticAMD";
  host.core_count = 96;
  host.memory_bytes = 1024 * kGib;
  node.devices.push_back(host);
  for (int i = 0; i < gpus; ++i) {
    Device gpu;
    gpu.kind = DeviceKind::kGpu;
    gpu.ordinal = i;
    gpu.name = "NVIDIA H200";
    gpu.vendor = "NVIDIA";
    gpu.uuid =
        absl::StrFormat("GPU-%08x-%04x-4000-8000-%012x", rank * 2654435761u + i * 40503u, i,
                        uint64_t{0x9e3779b97f4a7c15} * static_cast<uint64_t>(rank + 1) >> 16);
    gpu.pci_bus_id = absl::StrFormat("0000:%02x:00.0", 0x19 + 0x11 * i);
    gpu.compute_major = 9;
    gpu.core_count = 132;
    gpu.memory_bytes = 141 * kGib;
    gpu.numa_node = i < 4 ? 0 : 1;
    node.devices.push_back(gpu);
    for (int j = 1; j <= i; ++j) node.SetLink(j, i + 1, NvLink(18, true, LinkType::kNode, 9, 0));
  }
  return node;
}

std::vector<Script> Scripts(int ranks, int gpus) {
  std::vector<Script> scripts;
  for (int rank = 0; rank < ranks; ++rank) {
    v1::Request enumerate;
    enumerate.mutable_enumerate()->set_local_topology(SerializeTopology(NodeTopology(rank, gpus)));
    enumerate.mutable_enumerate()->set_timeout_ms(600'000);
    // As the agent does: both at once.
    scripts.push_back({Step{{RegisterOp(), Op(enumerate)}, 2}, Step{{BarrierOp("started", 0)}}});
  }
  return scripts;
}

// Every rank holds the same bytes, which contain every node's endpoint. Returns how long one rank
// takes to parse them.
absl::Duration Verify(const ControlRanks& ranks, int gpus) {
  const std::string first = ranks.blob(0);
  for (int i = 1; i < ranks.count(); ++i) {
    if (ranks.blob(i) != first) {
      Fatal(absl::StrCat("rank ", i, " holds another topology than rank 0"));
    }
  }
  const absl::Time begin = SteadyClock().Now();
  const absl::StatusOr<GlobalTopology> topology = ParseGlobalTopology(first);
  const absl::Duration parse_time = SteadyClock().Now() - begin;
  if (!topology.ok()) Fatal(topology.status().ToString());
  if (static_cast<int>(topology->nodes().size()) != ranks.count()) Fatal("nodes are missing");
  for (int i = 0; i < ranks.count(); ++i) {
    if (topology->nodes()[static_cast<size_t>(i)] != NodeTopology(i, gpus)) {
      Fatal(absl::StrCat("node ", i, " is not as it was sent"));
    }
  }
  return parse_time;
}

// The cost of serialising the whole topology once.
absl::Duration SerializeTime(absl::string_view bytes) {
  const absl::StatusOr<GlobalTopology> topology = ParseGlobalTopology(bytes);
  const absl::Time begin = SteadyClock().Now();
  benchmark::DoNotOptimize(SerializeTopology(*topology));
  return SteadyClock().Now() - begin;
}

// Baseline: as many channels connect and make one call each. Estimate: connecting dominates; the
// three rounds of the stream add the 0.2 of it that a barrier takes, and the bytes of the topology.
void BM_Bootstrap(benchmark::State& state, int ranks, int gpus) {
  const std::vector<Script> scripts = Scripts(ranks, gpus);
  Comparison time;
  Comparison cpu;
  std::vector<double> parse_ms;
  double blob_bytes = 0;
  double serialize_ms = 0;
  for (auto _ : state) {
    {
      const ServerProcess floor(ServerKind::kFloor, ranks);
      const ServerProcess coordinator(ServerKind::kCoordinator, ranks);
      const absl::Duration floor_cpu = floor.CpuTime();
      absl::Time begin = SteadyClock().Now();
      auto channels = std::make_unique<UnaryRanks>(floor.address(), ranks);
      channels->CallAll(kEmptyMethod, NoBytes);
      const absl::Duration floor_time = SteadyClock().Now() - begin;
      const absl::Duration floor_cpu_used = floor.CpuTime() - floor_cpu;
      channels = nullptr;

      const absl::Duration cpu_before = coordinator.CpuTime();
      begin = SteadyClock().Now();
      ControlRanks everyone(coordinator.address(), ranks);
      everyone.RunAll(scripts);
      const absl::Duration own_time = SteadyClock().Now() - begin;
      time.Add(absl::ToDoubleMilliseconds(floor_time), absl::ToDoubleMilliseconds(own_time));
      cpu.Add(absl::ToDoubleMilliseconds(floor_cpu_used),
              absl::ToDoubleMilliseconds(coordinator.CpuTime() - cpu_before));
      state.SetIterationTime(absl::ToDoubleSeconds(own_time));
      parse_ms.push_back(absl::ToDoubleMilliseconds(Verify(everyone, gpus)));
      blob_bytes = static_cast<double>(everyone.blob(0).size());
      serialize_ms = absl::ToDoubleMilliseconds(SerializeTime(everyone.blob(0)));
    }
  }
  state.counters["floor_ms"] = time.floor();
  state.counters["ratio_to_floor"] = time.ratio();
  state.counters["topology_bytes"] = blob_bytes;
  state.counters["parse_ms"] = Median(parse_ms);
  state.counters["server_cpu_ms"] = cpu.measured();
  state.counters["floor_cpu_ms"] = cpu.floor();
  state.counters["serialize_ms"] = serialize_ms;

  const std::string gate = absl::StrCat("start of ", ranks, " ranks, ", gpus, " GPUs each: ");
  const bool is_ratio = ranks > 1000;
  if (is_ratio) {
    // One rank per GPU is the usual job of this size; 8 GPUs per rank are reported as well.
    AddGate(gate + "against channels + one RPC", "ms", time, Bound::kAtMost,
            gpus == 1 ? std::optional<double>(1.3) : std::nullopt);
  } else {
    AddGate({.name = gate + "time",
             .unit = "ms",
             .measured = time.measured(),
             .bound = Bound::kAtMost,
             .target = 500});
    AddGate(gate + "against channels + one RPC", "ms", time, Bound::kAtMost, std::nullopt);
  }
  // Had it been serialised for each rank, that alone would have taken `floor`.
  Comparison once;
  once.Add(serialize_ms * ranks, cpu.measured());
  AddGate(gate + "server CPU, against serialising for each rank", "ms", once, Bound::kAtMost,
          std::nullopt);
}

}  // namespace

void RegisterBootstrapBenchmarks(const Plan& plan) {
  struct Size {
    int ranks;
    int gpus;
    int rounds;
  };
  for (const Size& size : {Size{512, 8, 5}, Size{4096, 1, 3}, Size{4096, 8, 1}}) {
    if (plan.is_quick && size.ranks > 512) continue;
    // The floor's connections may not all be closed yet when ours are opened.
    if (2 * size.ranks + 100 > RaiseFileLimit()) continue;
    benchmark::RegisterBenchmark(
        absl::StrCat("BM_Bootstrap_Start/ranks:", size.ranks, "/gpus:", size.gpus).c_str(),
        [size](benchmark::State& state) { BM_Bootstrap(state, size.ranks, size.gpus); })
        ->Iterations(plan.is_quick ? 3 : size.rounds)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace ferry::bench
