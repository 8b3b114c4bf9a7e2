// SPDX-License-Identifier: Apache-2.0
// ferry bench barrier: how long nodes take to pass a barrier, beside raw calls of gRPC that wait
// for each other.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "cli/bench_loop.h"
#include "cli/bench_members.h"
#include "cli/bench_output.h"
#include "cli/bench_plan.h"
#include "cli/bench_processes.h"
#include "cli/bench_verbs.h"
#include "cli/grpc_bench_floor.h"
#include "cli/progress.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kBarrierPatience = absl::Seconds(30);
constexpr int kBarrierWarmUps = 3;

struct BarrierFlags {
  std::string nodes = "2,16,64";
  int iterations = 200;
  BenchOutput output;
};

// One barrier of all members. Nobody may be let through before the last has come.
//   errors: grows by each that was.
absl::StatusOr<BenchLoad> Pass(BenchMembers& members, const std::function<double()>& cpu_s,
                               size_t* errors) {
  const auto count = static_cast<size_t>(members.count());
  // Written on the agents' threads, each by its own member, before that is done.
  auto passed = std::make_shared<std::vector<absl::Time>>(count);
  absl::Time last_came;
  FERRY_ASSIGN_OR_RETURN(
      BenchLoad load,
      RunBenchLoop(
          members.count(), members.count(),
          [&members, passed, &last_came, last = members.count() - 1](
              int node, absl::AnyInvocable<void(absl::Status) &&> done) {
            // Before the call: nobody can pass earlier.
            if (node == last) last_came = SteadyClock().Now();
            members.agent(node).BarrierAsync(
                "ferry-bench", kBarrierPatience, {},
                [passed, node, done = std::move(done)](absl::Status status) mutable {
                  (*passed)[static_cast<size_t>(node)] = SteadyClock().Now();
                  std::move(done)(std::move(status));
                });
          },
          cpu_s, kBarrierPatience));
  for (const absl::Time time : *passed) *errors += time < last_came ? 1 : 0;
  return load;
}

absl::StatusOr<BenchRow> MeasureBarriers(int nodes, int iterations,
                                         const BenchServer& floor_server) {
  FERRY_ASSIGN_OR_RETURN(
      const BenchServer coordinator,
      StartBenchServer("the coordinator",
                       {"coordinator", absl::StrCat("--nodes=", nodes), "--listen=127.0.0.1:0"}));
  FERRY_ASSIGN_OR_RETURN(const auto members, BenchMembers::Join(coordinator.address, nodes));
  UnaryFloor floor(floor_server.address, nodes);
  const std::function<double()> cpu_s = [&coordinator] {
    return OwnCpuSeconds() + coordinator.CpuSeconds();
  };
  BenchRow row;
  row.mode = "barrier";
  row.nodes = nodes;
  row.tensors = 0;
  row.path = "control stream";
  std::vector<absl::Duration> samples;
  std::vector<absl::Duration> floors;
  double used_s = 0;
  for (int round = -kBarrierWarmUps; round < iterations; ++round) {
    FERRY_ASSIGN_OR_RETURN(const absl::Duration held,
                           floor.CallAll(/*is_held=*/true, kBarrierPatience));
    FERRY_ASSIGN_OR_RETURN(const BenchLoad load, Pass(*members, cpu_s, &row.errors));
    if (round < 0) continue;
    floors.push_back(held);
    samples.push_back(load.whole);
    used_s += load.cpu_s;
  }
  FERRY_RETURN_IF_ERROR(members->Leave());
  row.count = iterations;
  row.cpu_s_per_op = used_s / iterations;
  row.times = SummarizeTimes(std::move(samples));
  row.ops_per_s = 1 / absl::ToDoubleSeconds(row.times.p50);
  row.floor = SummarizeTimes(std::move(floors)).p50;
  row.floor_name = "held grpc unary";
  return row;
}

absl::StatusOr<BenchReport> Measure(const BarrierFlags& flags, const std::vector<int>& nodes) {
  BenchStage stage("starting");
  const Progress progress([&stage] { return stage.Get(); });
  FERRY_ASSIGN_OR_RETURN(const BenchServer floor,
                         StartBenchServer("the floor's server", {"bench-floor"}));
  BenchReport report;
  report.bench = "barrier";
  report.subject = "nodes that are simulated by one process, and a coordinator";
  report.time = "from the first who comes until the last has passed";
  report.errors_of = "passage";
  report.transport = "control stream";
  report.moves_tensors = false;
  report.cores = static_cast<int>(std::thread::hardware_concurrency());
  for (const int each : nodes) {
    stage.Set(absl::StrCat("measuring barriers of ", each, " nodes"));
    FERRY_ASSIGN_OR_RETURN(BenchRow row, MeasureBarriers(each, flags.iterations, floor));
    report.rows.push_back(std::move(row));
  }
  return report;
}

absl::StatusOr<int> Bench(const BarrierFlags& flags) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<int> nodes, ParseNodesFlag(flags.nodes));
  // A connection of each to the coordinator, and one to the floor's server.
  FERRY_RETURN_IF_ERROR(CheckFileLimit(2 * *std::max_element(nodes.begin(), nodes.end())));
  return FinishBench(Measure(flags, nodes), flags.output);
}

}  // namespace

Verb AddBarrierBench(CLI::App& bench) {
  auto flags = std::make_shared<BarrierFlags>();
  CLI::App& verb = *bench.add_subcommand(
      "barrier", "How long nodes take to pass a barrier, beside raw calls of gRPC that are held");
  verb.add_option("--nodes", flags->nodes, "FIRST:LAST:xFACTOR, or a list such as 2,16,64")
      ->type_name("COUNTS")
      ->capture_default_str();
  verb.add_option("--iters", flags->iterations, "barriers of each number of nodes")
      ->type_name("N")
      ->check(Within(1, 1000000))
      ->capture_default_str();
  AddBenchOutputFlags(verb, flags->output, BenchMoves::kNothing);
  return [flags]() { return Bench(*flags); };
}

}  // namespace ferry::cli
