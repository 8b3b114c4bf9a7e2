// SPDX-License-Identifier: Apache-2.0
// ferry bench bootstrap: the time a job of many nodes takes to start, until every node has every
// endpoint, compared to as many gRPC channels that connect and make a call.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/floor.h"
#include "bench/members.h"
#include "bench/nodes.h"
#include "bench/processes.h"
#include "bench/verbs.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kBootstrapTimeout = absl::Minutes(1);

// Measures new channels, each of which makes one call.
absl::StatusOr<absl::Duration> ConnectChannels(const std::string& address, int count) {
  const absl::Time start = SteadyClock().Now();
  UnaryFloor floor(address, count);
  FERRY_RETURN_IF_ERROR(floor.CallAll(/*is_held=*/false, kBootstrapTimeout).status());
  return SteadyClock().Now() - start;
}

absl::StatusOr<BenchRow> MeasureStarts(int nodes, int iterations, const BenchServer& floor_server,
                                       BenchStage& stage) {
  BenchRow row = NodesBenchRow("bootstrap", nodes, iterations);
  std::vector<absl::Duration> samples;
  std::vector<absl::Duration> floors;
  double used_s = 0;
  // The first round warms up both sides.
  for (int round = 0; round <= iterations; ++round) {
    FERRY_ASSIGN_OR_RETURN(const absl::Duration connected,
                           ConnectChannels(floor_server.address, nodes));
    FERRY_ASSIGN_OR_RETURN(
        const BenchServer coordinator,
        StartBenchServer("the coordinator",
                         {"coordinator", absl::StrCat("--nodes=", nodes), "--listen=127.0.0.1:0"},
                         stage));
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
  row.cpu_s_per_op = used_s / iterations;
  row.times = SummarizeTimes(std::move(samples));
  row.floor = SummarizeTimes(std::move(floors)).p50;
  row.floor_name = "grpc connect + unary";
  return row;
}

}  // namespace

Verb AddBootstrapBench(CLI::App& bench) {
  return AddNodesBench(
      bench,
      {.name = "bootstrap",
       .description = "Measure the start of a job of many nodes against connecting gRPC channels",
       .subject = "nodes that are simulated by one process, and a new coordinator each time",
       .time = "from when all begin until the last holds everyone's endpoint",
       .errors_of = "endpoint",
       .nodes = "2,16,64,256",
       .iterations = 7,
       .most_iterations = 10000,
       .iterations_of = "starts",
       .why_own_job = "a job that is there has started: each sample is of a job of its own",
       .measure = MeasureStarts});
}

}  // namespace ferry::cli
