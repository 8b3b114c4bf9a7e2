// SPDX-License-Identifier: Apache-2.0
// ferry bench bidir, ring, fan-in, fan-out, all-pairs, keyed and steps: a coordinator and several
// processes of its own, and how long they take together.
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "cli/bench_flows.h"
#include "cli/bench_output.h"
#include "cli/bench_pattern_merge.h"
#include "cli/bench_plan_flags.h"
#include "cli/bench_processes.h"
#include "cli/bench_verbs.h"
#include "cli/hosted_coordinator.h"
#include "cli/progress.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

// Rounds of several processes take longer than those of two.
constexpr int kMostRounds = 500;
constexpr int kMostRoundsOfAPair = 200;

struct PatternFlags : BenchPlanFlags {
  int nodes = 2;
  BenchOutput output;
};

// What a pattern's rows have in common.
BenchRow BlankRow(const BenchPlan& plan, int nodes, size_t bytes, BenchMode mode, int inflight) {
  BenchRow row;
  row.bytes = bytes;
  row.mode = BenchModeName(mode);
  row.nodes = nodes;
  row.inflight = plan.pattern == "keyed" ? plan.keys : inflight;
  row.threads = plan.pattern == "keyed" ? plan.threads : 1;
  return row;
}

void SetPatternFloor(const BenchPlan& plan, double memcpy_s, absl::Duration spin, BenchRow& row) {
  // Of many at a time there is none: what bounds them is what they are asking. Nor is there one of
  // memory for what goes through the kernel.
  if ((row.inflight > 1 && plan.pattern != "steps") || plan.has_tcp_floor) return;
  const bool is_copied = row.mode == BenchModeName(BenchMode::kInto);
  // All of a step's tensors have to be copied, one after the other.
  const int copies = plan.pattern == "steps" ? row.inflight : 1;
  row.floor_name = !is_copied ? "spin" : copies > 1 ? "spin + memcpys" : "spin + memcpy";
  row.floor = spin + (is_copied ? copies * absl::Seconds(memcpy_s) : absl::ZeroDuration());
}

absl::Status ReadCase(const PatternFlags& flags, const BenchFlowSet& set,
                      const std::vector<Json>& lines, BenchRow& row) {
  const std::string& pattern = flags.plan.pattern;
  const double tensor_gb = static_cast<double>(row.bytes) / 1e9;
  if (pattern == "keyed") {
    FERRY_RETURN_IF_ERROR(MergeRounds(lines, flags.plan.keys, tensor_gb * flags.plan.keys, row));
    row.ops_per_s = 1 / absl::ToDoubleSeconds(row.times.p50);
    return absl::OkStatus();
  }
  if (pattern == "steps") {
    row.tensors = 2 * row.inflight;
    FERRY_RETURN_IF_ERROR(MergeRounds(lines, 1, tensor_gb * row.tensors, row));
    row.ops_per_s = 1 / absl::ToDoubleSeconds(row.times.p50);
    return absl::OkStatus();
  }
  row.pair = set.pair;
  row.tensors = static_cast<int>(set.flows.size());
  const BenchBandwidth bandwidth = BandwidthOf(pattern, flags.nodes);
  row.algbw_bytes = bandwidth.alg * static_cast<double>(row.bytes);
  row.busbw_bytes = bandwidth.bus * static_cast<double>(row.bytes);
  return MergeRounds(lines, row.inflight, tensor_gb * row.tensors * row.inflight, row);
}

absl::StatusOr<BenchReport> MeasurePattern(const PatternFlags& flags) {
  const BenchPlan& plan = flags.plan;
  FERRY_ASSIGN_OR_RETURN(const auto coordinator,
                         HostedCoordinator::OnThisMachine(flags.nodes, Graphs::kNone));
  BenchStage stage(absl::StrCat("starting ", flags.nodes, " processes"));
  const Progress progress([&stage] { return stage.Get(); });
  FERRY_ASSIGN_OR_RETURN(const auto workers,
                         BenchWorkers::Start(flags.nodes, coordinator->address(),
                                             EncodeBenchPlan(plan), flags.exchange));
  BenchReport report;
  report.bench = plan.pattern;
  report.subject = absl::StrCat(flags.nodes, " processes on this machine");
  report.time = plan.pattern == "keyed"
                    ? "a round's by its keys, from the first send until all have come"
                : plan.pattern == "steps"
                    ? "a whole step's, from the first who opens it until both have closed it"
                    : "from the first send until all have come";
  report.transport = flags.transport;
  report.is_polling = plan.is_polling;
  report.cores = static_cast<int>(std::thread::hardware_concurrency());
  FERRY_ASSIGN_OR_RETURN(const std::vector<Json> spin, workers->Expect("spin"));
  report.spin = absl::Seconds(spin[0].value("spin_s", 0.0));
  // One of nothing where the pattern has no flows: a case all the same.
  std::vector<BenchFlowSet> sets = FlowSetsOf(plan.pattern, flags.nodes);
  if (sets.empty()) sets.emplace_back();
  for (const size_t bytes : plan.sizes) {
    stage.Set(absl::StrCat("measuring ", BenchSizeText(bytes)));
    FERRY_ASSIGN_OR_RETURN(const std::vector<Json> floors, workers->Expect("floors"));
    for (const BenchMode mode : plan.modes) {
      for (const int inflight : plan.DepthsOf(bytes)) {
        for (const BenchFlowSet& set : sets) {
          FERRY_ASSIGN_OR_RETURN(const std::vector<Json> lines, workers->Expect("case"));
          BenchRow row = BlankRow(plan, flags.nodes, bytes, mode, inflight);
          FERRY_RETURN_IF_ERROR(ReadCase(flags, set, lines, row));
          SetPatternFloor(plan, floors[0].value("memcpy_s", 0.0), report.spin, row);
          report.rows.push_back(std::move(row));
          for (const Json& line : lines) report.AddPages(line.value("pages", ""));
        }
      }
    }
  }
  FERRY_RETURN_IF_ERROR(workers->WaitForExit());
  // By mode, so that a column reads from small to large.
  std::stable_sort(report.rows.begin(), report.rows.end(), [](const auto& a, const auto& b) {
    return std::tie(a.mode, a.inflight, a.pair) < std::tie(b.mode, b.inflight, b.pair);
  });
  return report;
}

absl::StatusOr<int> BenchPattern(PatternFlags flags) {
  BenchPlan& plan = flags.plan;
  const auto depth = static_cast<size_t>(std::max(plan.inflight, plan.keys));
  FERRY_RETURN_IF_ERROR(CompletePlan(flags, static_cast<size_t>(flags.nodes), depth));
  const size_t largest = *std::max_element(plan.sizes.begin(), plan.sizes.end());
  if (largest > kMostBenchBytesAtOnce / static_cast<size_t>(plan.keys)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sizes: ", plan.keys, " keys of ", BenchSizeText(largest),
                     " at a time are more than ", BenchSizeText(kMostBenchBytesAtOnce)));
  }
  FERRY_ASSIGN_OR_RETURN(const auto pages, BenchPages::Create());
  plan.floor_file = pages->path();
  return FinishBench(MeasurePattern(flags), flags.output);
}

Verb AddPattern(CLI::App& bench, const std::string& pattern, const std::string& what) {
  auto flags = std::make_shared<PatternFlags>();
  flags->plan.pattern = pattern;
  flags->plan.most_iterations = kMostRounds;
  flags->sizes = "8:64M:x8";
  CLI::App& verb = *bench.add_subcommand(pattern, what);
  const bool is_keyed = pattern == "keyed";
  const bool is_steps = pattern == "steps";
  if (is_keyed) {
    flags->sizes = "8,4K,64K";
    flags->plan.keys = 1000;
    verb.add_option("--keys", flags->plan.keys, "of each round, each sent once")
        ->type_name("K")
        ->check(Within(1, 100000))
        ->capture_default_str();
    flags->plan.threads = 2;
    verb.add_option("--threads", flags->plan.threads, "that send, and as many that receive")
        ->type_name("T")
        ->check(Within(1, 256))
        ->capture_default_str();
  } else if (is_steps) {
    flags->sizes = "8,64K,1M";
    flags->plan.inflight = 8;
  } else if (pattern != "bidir") {
    flags->nodes = 4;
    if (pattern == "all-pairs") {
      flags->sizes = "8,64K,16M";
      flags->plan.most_iterations = kMostRoundsOfAPair;
    }
    verb.add_option("--nodes", flags->nodes, "processes, each of which is a node")
        ->type_name("N")
        ->check(Within(2, 64))
        ->capture_default_str();
  }
  AddBenchPlanFlags(verb, *flags, BenchReads::kNever);
  if (!is_keyed) {
    verb.add_option("--inflight", flags->plan.inflight,
                    is_steps ? "also steps with so many sends and receives of each node"
                             : "also rows with so many tensors on each way at a time")
        ->type_name("N")
        ->check(Within(1, 4096))
        ->capture_default_str();
  }
  AddBenchOutputFlags(verb, flags->output, BenchMoves::kTensors);
  return [flags]() { return BenchPattern(*flags); };
}

}  // namespace

std::vector<std::pair<std::string, Verb>> AddPatternBenches(CLI::App& bench) {
  const std::pair<const char*, const char*> patterns[] = {
      {"bidir", "Two processes send to each other at the same time"},
      {"ring", "Everyone sends to the next, and receives from the one before"},
      {"fan-in", "Everyone sends to node 0"},
      {"fan-out", "Node 0 sends to everyone"},
      {"all-pairs", "From each to each other one, one pair at a time: a matrix"},
      {"keyed", "Many keys, sent and received in random orders by several threads"},
      {"steps", "Whole steps: open, send and receive, close"}};
  std::vector<std::pair<std::string, Verb>> verbs;
  for (const auto& [name, what] : patterns) {
    verbs.emplace_back(name, AddPattern(bench, name, what));
  }
  return verbs;
}

}  // namespace ferry::cli
