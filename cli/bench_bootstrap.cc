// SPDX-License-Identifier: Apache-2.0
// ferry bench bootstrap: how long a job of many nodes takes to start, until everyone's endpoint is
// at everyone, beside as many channels of gRPC that connect and make a call.
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "cli/bench_members.h"
#include "cli/bench_output.h"
#include "cli/bench_plan.h"
#include "cli/bench_processes.h"
#include "cli/bench_verbs.h"
#include "cli/grpc_bench_floor.h"
#include "cli/progress.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kBootstrapPatience = absl::Minutes(1);

struct BootstrapFlags {
  std::string nodes = "2,16,64,256";
  int iterations = 7;
  BenchOutput output;
};

// Channels that did not exist before, each of which makes one call.
absl::StatusOr<absl::Duration> ConnectChannels(const std::string& address, int count) {
  const absl::Time start = SteadyClock().Now();
  UnaryFloor floor(address, count);
  FERRY_RETURN_IF_ERROR(floor.CallAll(/*is_held=*/false, kBootstrapPatience).status());
  return SteadyClock().Now() - start;
}

absl::StatusOr<BenchRow> MeasureStarts(int nodes, int iterations, const BenchServer& floor_server) {
  BenchRow row;
  row.mode = "bootstrap";
  row.nodes = nodes;
  row.tensors = 0;
  row.path = "control stream";
  std::vector<absl::Duration> samples;
  std::vector<absl::Duration> floors;
  double used_s = 0;
  // The first one is to warm up: the code of both sides.
  for (int round = 0; round <= iterations; ++round) {
    FERRY_ASSIGN_OR_RETURN(const absl::Duration connected,
                           ConnectChannels(floor_server.address, nodes));
    FERRY_ASSIGN_OR_RETURN(
        const BenchServer coordinator,
        StartBenchServer("the coordinator",
                         {"coordinator", absl::StrCat("--nodes=", nodes), "--listen=127.0.0.1:0"}));
    const double cpu_before = OwnCpuSeconds() + coordinator.CpuSeconds();
    FERRY_ASSIGN_OR_RETURN(const auto members, BenchMembers::Join(coordinator.address, nodes));
    const double cpu_s = OwnCpuSeconds() + coordinator.CpuSeconds() - cpu_before;
    row.errors += members->CountWrongEndpoints();
    FERRY_RETURN_IF_ERROR(members->Leave());
    if (round == 0) continue;
    samples.push_back(members->join_time());
    floors.push_back(connected);
    used_s += cpu_s;
  }
  row.count = iterations;
  row.cpu_s_per_op = used_s / iterations;
  row.times = SummarizeTimes(std::move(samples));
  row.floor = SummarizeTimes(std::move(floors)).p50;
  row.floor_name = "grpc connect + unary";
  return row;
}

absl::StatusOr<BenchReport> Measure(const BootstrapFlags& flags, const std::vector<int>& nodes) {
  BenchStage stage("starting");
  const Progress progress([&stage] { return stage.Get(); });
  FERRY_ASSIGN_OR_RETURN(const BenchServer floor,
                         StartBenchServer("the floor's server", {"bench-floor"}));
  BenchReport report;
  report.bench = "bootstrap";
  report.subject = "nodes that are simulated by one process, and a new coordinator each time";
  report.time = "from when all begin until the last holds everyone's endpoint";
  report.errors_of = "endpoint";
  report.transport = "control stream";
  report.moves_tensors = false;
  report.cores = static_cast<int>(std::thread::hardware_concurrency());
  for (const int each : nodes) {
    stage.Set(absl::StrCat("measuring the start of ", each, " nodes"));
    FERRY_ASSIGN_OR_RETURN(BenchRow row, MeasureStarts(each, flags.iterations, floor));
    report.rows.push_back(std::move(row));
  }
  return report;
}

absl::StatusOr<int> Bench(const BootstrapFlags& flags) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<int> nodes, ParseNodesFlag(flags.nodes));
  FERRY_RETURN_IF_ERROR(CheckFileLimit(2 * *std::max_element(nodes.begin(), nodes.end())));
  return FinishBench(Measure(flags, nodes), flags.output);
}

}  // namespace

Verb AddBootstrapBench(CLI::App& bench) {
  auto flags = std::make_shared<BootstrapFlags>();
  CLI::App& verb = *bench.add_subcommand(
      "bootstrap", "How long a job of many nodes takes to start, beside channels that connect");
  verb.add_option("--nodes", flags->nodes, "FIRST:LAST:xFACTOR, or a list such as 16,64,512")
      ->type_name("COUNTS")
      ->capture_default_str();
  verb.add_option("--iters", flags->iterations, "starts of each number of nodes")
      ->type_name("N")
      ->check(Within(1, 10000))
      ->capture_default_str();
  AddBenchOutputFlags(verb, flags->output, BenchMoves::kNothing);
  return [flags]() { return Bench(*flags); };
}

}  // namespace ferry::cli
