// SPDX-License-Identifier: Apache-2.0
// ferry bench barrier: the time nodes take to pass a barrier, compared to raw gRPC calls that wait
// for each other.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/barrier_worker.h"
#include "bench/floor.h"
#include "bench/joined.h"
#include "bench/lines.h"
#include "bench/loop.h"
#include "bench/members.h"
#include "bench/nodes.h"
#include "bench/pattern_merge.h"
#include "bench/processes.h"
#include "bench/verbs.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kBarrierTimeout = absl::Seconds(30);
constexpr int kBarrierWarmUps = 3;
constexpr char kBarrierErrorsOf[] = "passage";

// Runs one barrier of all members. No member may pass before the last one has entered.
//   errors: incremented for each that did.
absl::StatusOr<BenchLoad> Pass(BenchMembers& members, const std::function<double()>& cpu_s,
                               size_t* errors) {
  const auto count = static_cast<size_t>(members.count());
  // Written on the agents' threads; each member writes its entry before calling `done`.
  auto passed = std::make_shared<std::vector<absl::Time>>(count);
  absl::Time last_came;
  FERRY_ASSIGN_OR_RETURN(
      BenchLoad load,
      RunBenchLoop(
          members.count(), members.count(),
          [&members, passed, &last_came, last = members.count() - 1](
              int node, absl::AnyInvocable<void(absl::Status) &&> done) {
            // Before the call, so that no member can pass earlier.
            if (node == last) last_came = SteadyClock().Now();
            members.agent(node).BarrierAsync(
                "ferry-bench", kBarrierTimeout, {},
                [passed, node, done = std::move(done)](absl::Status status) mutable {
                  (*passed)[static_cast<size_t>(node)] = SteadyClock().Now();
                  std::move(done)(std::move(status));
                });
          },
          cpu_s, kBarrierTimeout));
  for (const absl::Time time : *passed) *errors += time < last_came ? 1 : 0;
  return load;
}

absl::StatusOr<BenchRow> MeasureBarriers(int nodes, int iterations, const BenchServer& floor_server,
                                         BenchStage& stage) {
  FERRY_ASSIGN_OR_RETURN(
      const BenchServer coordinator,
      StartBenchServer("the coordinator",
                       {"coordinator", absl::StrCat("--nodes=", nodes), "--listen=127.0.0.1:0"},
                       stage));
  FERRY_ASSIGN_OR_RETURN(const auto members, BenchMembers::Join(coordinator.address, nodes));
  UnaryFloor floor(floor_server.address, nodes);
  const std::function<double()> cpu_s = [&coordinator] {
    return OwnCpuSeconds() + coordinator.CpuSeconds();
  };
  BenchRow row = NodesBenchRow("barrier", nodes, iterations);
  std::vector<absl::Duration> samples;
  std::vector<absl::Duration> floors;
  double used_s = 0;
  for (int round = -kBarrierWarmUps; round < iterations; ++round) {
    FERRY_ASSIGN_OR_RETURN(const absl::Duration held,
                           floor.CallAll(/*is_held=*/true, kBarrierTimeout));
    FERRY_ASSIGN_OR_RETURN(const BenchLoad load, Pass(*members, cpu_s, &row.errors));
    if (round < 0) continue;
    floors.push_back(held);
    samples.push_back(load.whole);
    used_s += load.cpu_s;
  }
  FERRY_RETURN_IF_ERROR(members->Leave());
  row.cpu_s_per_op = used_s / iterations;
  row.times = SummarizeTimes(std::move(samples));
  row.ops_per_s = 1 / absl::ToDoubleSeconds(row.times.p50);
  row.floor = SummarizeTimes(std::move(floors)).p50;
  row.floor_name = "held grpc unary";
  return row;
}

// Builds rows from the lines of all nodes.
absl::Status ReadLines(int nodes, BenchLines& lines, BenchReport& report) {
  using Json = BenchLines::Json;
  FERRY_ASSIGN_OR_RETURN(const std::vector<Json> empty, lines.Expect("spin"));
  FERRY_ASSIGN_OR_RETURN(const std::vector<Json> told, lines.Expect("case"));
  report.errors_of = kBarrierErrorsOf;
  report.transport = "control stream";
  report.moves_tensors = false;
  BenchRow row = NodesBenchRow("barrier", nodes, 0);
  FERRY_RETURN_IF_ERROR(MergeRounds(told, 1, 0, row));
  double used_s = 0;
  for (const Json& line : told) used_s += line.value("cpu_s", 0.0);
  row.cpu_s_per_op = used_s / row.count;
  row.ops_per_s = 1 / absl::ToDoubleSeconds(row.times.p50);
  // An empty round is a barrier too, over the tensors' connections.
  row.floor = absl::Seconds(empty[0].value("empty_round_s", 0.0));
  row.floor_name = "empty round";
  report.rows.push_back(std::move(row));
  return absl::OkStatus();
}

absl::StatusOr<int> JoinBarrier(BenchPlanFlags& flags, BenchJoinFlags& join,
                                const BenchOutput& output) {
  // The barrier moves no tensors.
  flags.sizes = "1";
  return RunJoinedBench(flags, join, output,
                        {.time = "by the first node's clock: from its word to begin until all have "
                                 "told it that they have passed",
                         .work = RunBarrierWorker,
                         .read = ReadLines});
}

}  // namespace

Verb AddBarrierBench(CLI::App& bench) {
  return AddNodesBench(
      bench, {.name = "barrier",
              .description = "Measure barriers against raw gRPC calls that the server holds",
              .subject = "nodes that are simulated by one process, and a coordinator",
              .time = "from the first who comes until the last has passed",
              .errors_of = kBarrierErrorsOf,
              .nodes = "2,16,64",
              .iterations = 200,
              .most_iterations = 1000000,
              .iterations_of = "barriers",
              .join = JoinBarrier,
              .measure = MeasureBarriers});
}

}  // namespace ferry::cli
