// SPDX-License-Identifier: Apache-2.0
// ferry bench bidir, ring, fan-in, fan-out, all-pairs, keyed and steps: starts a coordinator and
// several processes, and measures their joint transfers.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "base/usable_resources.h"
#include "bench/flows.h"
#include "bench/joined.h"
#include "bench/output.h"
#include "bench/paths.h"
#include "bench/pattern_merge.h"
#include "bench/plan_flags.h"
#include "bench/processes.h"
#include "bench/raw_nccl.h"
#include "bench/verbs.h"
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
  // True if --nodes was given.
  std::function<bool()> names_nodes = [] { return false; };
  BenchOutput output;
  BenchJoinFlags join;
};

// Synchronisation overhead contained in every round; one of the two is zero.
struct RoundCosts {
  absl::Duration wake;
  std::string wake_name;
  // For nodes without a shared clock.
  absl::Duration empty_round;

  bool is_joined() const { return empty_round > absl::ZeroDuration(); }
};

// Returns a row with the fields common to a pattern's cases.
BenchRow BlankRow(const BenchPlan& plan, int nodes, size_t bytes, BenchMode mode, int inflight,
                  int batch) {
  BenchRow row;
  row.bytes = bytes;
  row.dtype = plan.dtype;
  row.element_bytes = plan.element_bytes;
  row.mode = BenchModeName(mode);
  row.nodes = nodes;
  row.inflight = plan.pattern == "keyed" ? plan.keys : inflight;
  row.batch = batch;
  row.threads = plan.pattern == "keyed" ? plan.threads : 1;
  return row;
}

// Baselines for the bytes that a node receives in one round.
struct PatternFloors {
  double memcpy_s = 0;
  double read_s = 0;
  // The plan's first GPU, and driver copies within it, and between it and the host.
  std::string gpu;
  double gpu_copy_s = 0;
  double gpu_pinned_s = 0;
};

PatternFloors ReadFloors(const std::vector<Json>& lines) {
  PatternFloors floors;
  floors.memcpy_s = lines[0].value("memcpy_s", 0.0);
  floors.read_s = lines[0].value("read_s", 0.0);
  for (const Json& line : lines) {
    if (!line.contains("gpu")) continue;
    floors.gpu = line.value("gpu", "");
    floors.gpu_copy_s = line.value("gpu_copy_s", 0.0);
    floors.gpu_pinned_s = line.value("gpu_pinned_s", 0.0);
  }
  return floors;
}

// The cost of reading or copying the received data, and its name.
struct CopyFloor {
  std::string name;
  double seconds = 0;
};

// Returns an empty name if the data is neither copied nor read; nullopt if there is no measurement,
// for example between GPUs, or if flows differ.
std::optional<CopyFloor> CopyFloorOf(const BenchPlan& plan, const PatternFloors& floors,
                                     const BenchFlowSet& set, const BenchRow& row) {
  // "keyed" and "steps" have no flows.
  const std::vector<BenchFlow> flows =
      set.flows.empty() ? std::vector<BenchFlow>{{0, 1}} : set.flows;
  std::set<std::set<std::string>> pairs;
  for (const BenchFlow& flow : flows) {
    pairs.insert({plan.DeviceOf(flow.src), plan.DeviceOf(flow.dst)});
  }
  if (pairs.size() > 1) return std::nullopt;
  const std::set<std::string>& pair = *pairs.begin();
  if (pair == std::set<std::string>{kHostDevice}) {
    if (row.mode == BenchModeName(BenchMode::kRead)) return CopyFloor{"read", floors.read_s};
    if (row.mode == BenchModeName(BenchMode::kInto)) return CopyFloor{"memcpy", floors.memcpy_s};
    return CopyFloor{};
  }
  if (absl::EndsWith(row.path, kViewSuffix)) return CopyFloor{};
  if (!pair.contains(floors.gpu)) return std::nullopt;
  if (pair.size() == 1) return CopyFloor{"cuMemcpyDtoD", floors.gpu_copy_s};
  if (!pair.contains(kHostDevice)) return std::nullopt;
  return CopyFloor{"cuMemcpy, pinned", floors.gpu_pinned_s};
}

void SetPatternFloor(const BenchPlan& plan, const PatternFloors& floors, const RoundCosts& costs,
                     const BenchFlowSet& set, BenchRow& row) {
  // No baseline with many in flight, which measures throughput of requests; and no memory baseline
  // for data that goes through the kernel.
  if ((row.inflight > 1 && plan.pattern != "steps") || plan.has_tcp_floor) return;
  const std::optional<CopyFloor> copy = CopyFloorOf(plan, floors, set, row);
  if (!copy) return;
  // A copy is no baseline for a network; and a ping's time contains no synchronisation.
  const bool is_near = CapabilitiesOfPath(row.path).shares_memory;
  if (costs.is_joined() && (!row.pair.empty() || (!copy->name.empty() && !is_near))) return;
  // All tensors of a step must be copied, one after the other.
  const int copies = plan.pattern == "steps" ? row.inflight : 1;
  row.floor_name = costs.is_joined() ? "empty round" : costs.wake_name;
  if (!copy->name.empty()) {
    absl::StrAppend(&row.floor_name, " + ", copy->name);
    if (copies > 1) absl::StrAppend(&row.floor_name, " x", copies);
  }
  row.floor = costs.wake + costs.empty_round + copies * absl::Seconds(copy->seconds);
}

// later: time of raw NCCL transfers, by the number in flight each way.
void SetNcclFloor(const Json& later, const RoundCosts& costs, BenchRow& row) {
  const std::string count = std::to_string(row.inflight);
  if (row.path != RawNccl::kPath || !later.contains(count)) return;
  row.floor_name = absl::StrCat(costs.is_joined() ? "empty round" : costs.wake_name, " + raw nccl",
                                row.inflight > 1 ? " x" + count : "");
  row.floor = costs.wake + costs.empty_round + absl::Seconds(later[count].get<double>());
}

// is_ping: rounds are round trips.
absl::Status ReadCase(const BenchPlan& plan, const BenchFlowSet& set, bool is_ping,
                      const std::vector<Json>& lines, BenchRow& row) {
  const std::string& pattern = plan.pattern;
  const double tensor_gb = static_cast<double>(row.bytes) / 1e9;
  if (pattern == "keyed") {
    FERRY_RETURN_IF_ERROR(MergeRounds(lines, plan.keys, tensor_gb * plan.keys, row));
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
  const BenchBandwidth bandwidth = BandwidthOf(pattern, row.nodes);
  row.algbw_bytes = bandwidth.alg * static_cast<double>(row.bytes);
  row.busbw_bytes = bandwidth.bus * static_cast<double>(row.bytes);
  const int there_and_back = row.inflight * (is_ping ? 2 : 1);
  FERRY_RETURN_IF_ERROR(
      MergeRounds(lines, there_and_back, tensor_gb * row.tensors * there_and_back, row));
  if (is_ping) row.count /= 2;
  return absl::OkStatus();
}

// Builds rows from the lines of all processes as they arrive.
absl::Status ReadLines(const BenchPlan& plan, int nodes, BenchStage& stage, BenchLines& lines,
                       BenchReport& report) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<Json> spin, lines.Expect("spin"));
  report.spin = absl::Seconds(spin[0].value("spin_s", 0.0));
  report.futex = absl::Seconds(spin[0].value("futex_s", 0.0));
  const RoundCosts costs = {report.wake(), report.wake_name(),
                            absl::Seconds(spin[0].value("empty_round_s", 0.0))};
  report.paths = CommonPaths(spin);
  if (plan.uses_gpus()) {
    BenchDevices devices;
    for (int rank = 0; rank < nodes; ++rank) devices.push_back(plan.DeviceOf(rank));
    absl::StrAppend(&report.subject, " (", absl::StrJoin(devices, ", "), ")");
  }
  if (costs.is_joined() && plan.pattern != "all-pairs") {
    absl::StrAppend(&report.time, "; an empty round takes ", BenchTimeText(costs.empty_round));
  }
  // A pattern without flows still has one case: an empty set.
  std::vector<BenchFlowSet> sets = FlowSetsOf(plan.pattern, nodes);
  if (sets.empty()) sets.emplace_back();
  for (const size_t bytes : plan.sizes) {
    stage.Set(absl::StrCat("measuring ", BenchSizeText(bytes)));
    FERRY_ASSIGN_OR_RETURN(const std::vector<Json> floors, lines.Expect("floors"));
    const size_t first_row = report.rows.size();
    for (const BenchMode mode : plan.modes) {
      for (const int inflight : plan.DepthsOf(bytes)) {
        for (const int batch : plan.BatchesOf(inflight)) {
          for (const BenchFlowSet& set : sets) {
            FERRY_ASSIGN_OR_RETURN(const std::vector<Json> told, lines.Expect("case"));
            BenchRow row = BlankRow(plan, nodes, bytes, mode, inflight, batch);
            const bool is_ping = costs.is_joined() && !set.pair.empty();
            FERRY_RETURN_IF_ERROR(ReadCase(plan, set, is_ping, told, row));
            SetPatternFloor(plan, ReadFloors(floors), costs, set, row);
            report.rows.push_back(std::move(row));
            for (const Json& line : told) report.AddPages(line.value("pages", ""));
          }
        }
      }
    }
    if (!plan.has_later_floors()) continue;
    FERRY_ASSIGN_OR_RETURN(const std::vector<Json> later, lines.Expect("later floors"));
    for (size_t i = first_row; i < report.rows.size(); ++i) {
      SetNcclFloor(later[0].value("raw_nccl_s", Json::object()), costs, report.rows[i]);
    }
  }
  // By mode, so that sizes within a mode are ascending.
  std::stable_sort(report.rows.begin(), report.rows.end(), [](const auto& a, const auto& b) {
    return std::tie(a.mode, a.inflight, a.batch, a.pair) <
           std::tie(b.mode, b.inflight, b.batch, b.pair);
  });
  return absl::OkStatus();
}

absl::StatusOr<BenchReport> MeasurePattern(const PatternFlags& flags, BenchPlan plan,
                                           const TransferEngineOptions& transfer) {
  FERRY_ASSIGN_OR_RETURN(const auto pages, BenchPages::Create());
  plan.floor_file = pages->path();
  FERRY_ASSIGN_OR_RETURN(const auto coordinator,
                         HostedCoordinator::OnThisMachine(flags.nodes, Graphs::kNone));
  BenchStage stage(absl::StrCat("starting ", flags.nodes, " processes"));
  const Progress progress([&stage] { return stage.Get(); });
  FERRY_ASSIGN_OR_RETURN(
      const auto workers,
      BenchWorkers::Start(flags.nodes, coordinator->address(), EncodeBenchPlan(plan), transfer,
                          stage, plan.uses_gpus() ? BenchGpus::kShared : BenchGpus::kHidden));
  BenchReport report;
  report.bench = plan.pattern;
  report.subject = absl::StrCat(flags.nodes, " processes on this machine");
  report.time =
      plan.pattern == "keyed"
          ? "a round's time divided by its keys, from the first send until all have arrived"
      : plan.pattern == "steps" ? "a whole step, from the first open until both have closed it"
                                : "from the first send until all have arrived";
  report.transport = flags.transport;
  report.is_polling = plan.is_polling;
  report.is_sleeping = plan.is_sleeping;
  report.cores = Usable().processors;
  FERRY_RETURN_IF_ERROR(ReadLines(plan, flags.nodes, stage, *workers, report));
  FERRY_RETURN_IF_ERROR(workers->WaitForExit());
  return report;
}

bool IsOfTwo(const std::string& pattern) {
  return pattern == "bidir" || pattern == "keyed" || pattern == "steps";
}

std::string JoinedTime(const std::string& pattern) {
  if (pattern == "all-pairs") return "one way, by the sender's clock: half of a round trip";
  const std::string by =
      ", by the first node's clock: from its word to begin until all have told "
      "it that they are through";
  return pattern == "keyed"   ? "a round's by its keys" + by
         : pattern == "steps" ? "a whole step's" + by
                              : "a round's" + by;
}

absl::StatusOr<int> JoinPattern(PatternFlags& flags) {
  const auto depth = static_cast<size_t>(std::max(flags.plan.inflight, flags.plan.keys));
  const int nodes = IsOfTwo(flags.plan.pattern) ? 2 : flags.names_nodes() ? flags.nodes : 0;
  return RunJoinedBench(flags, flags.join, flags.output,
                        {.nodes = nodes,
                         .depth = depth,
                         .time = JoinedTime(flags.plan.pattern),
                         .read = [&flags](int nodes, BenchLines& lines, BenchReport& report) {
                           BenchStage stage("reading");
                           return ReadLines(flags.plan, nodes, stage, lines, report);
                         }});
}

absl::StatusOr<int> BenchPattern(PatternFlags flags) {
  BenchPlan& plan = flags.plan;
  // In an existing job no flag gives the number of nodes.
  if (IsOfTwo(plan.pattern)) flags.most_devices = 2;
  if (!IsOfTwo(plan.pattern) && !flags.join.joins()) flags.most_devices = flags.nodes;
  FERRY_ASSIGN_OR_RETURN(const std::vector<size_t> sizes, ParseSizesFlag(flags.sizes));
  const size_t largest = *std::max_element(sizes.begin(), sizes.end());
  if (largest > kMostBenchBytesAtOnce / static_cast<size_t>(plan.keys)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sizes: ", plan.keys, " keys of ", BenchSizeText(largest),
                     " at a time are more than ", BenchSizeText(kMostBenchBytesAtOnce)));
  }
  if (flags.join.joins()) return JoinPattern(flags);
  const auto depth = static_cast<size_t>(std::max(plan.inflight, plan.keys));
  FERRY_RETURN_IF_ERROR(CompletePlan(flags, static_cast<size_t>(flags.nodes), depth));
  return FinishBench(
      MeasurePaths(flags,
                   [&flags](const BenchPlan& of_path, const TransferEngineOptions& transfer) {
                     return MeasurePattern(flags, of_path, transfer);
                   }),
      flags.output);
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
    AddNumber(verb, "--keys", flags->plan.keys, "of each round, each sent once", 1, 100000)
        ->type_name("K");
    flags->plan.threads = 2;
    AddNumber(verb, "--threads", flags->plan.threads, "that send, and as many that receive", 1, 256)
        ->type_name("T");
    flags->plan.batch = 64;
  } else if (is_steps) {
    flags->sizes = "8,64K,1M";
    flags->plan.inflight = 8;
    flags->plan.batch = 8;
  } else if (pattern != "bidir") {
    flags->nodes = 4;
    if (pattern == "all-pairs") {
      flags->sizes = "8,64K,16M";
      flags->plan.most_iterations = kMostRoundsOfAPair;
    }
    flags->names_nodes = [&verb] { return verb.count("--nodes") > 0; };
    AddNumber(verb, "--nodes", flags->nodes, "processes, each of which is a node", 2, 64);
  }
  AddBenchPlanFlags(verb, *flags);
  if (!is_keyed) {
    AddNumber(verb, "--inflight", flags->plan.inflight,
              is_steps ? "also measure steps with N sends and receives per node"
                       : "also measure with N tensors in flight in each direction",
              1, 4096);
  }
  if (is_keyed || is_steps) {
    AddNumber(verb, "--batch", flags->plan.batch,
              "also measure with N tensors in a call of SendMany, and of RecvMany; 1: do not", 1,
              4096);
  }
  AddBenchOutputFlags(verb, flags->output, BenchMoves::kTensors);
  AddBenchJoinFlags(verb, flags->join);
  return [flags]() { return BenchPattern(*flags); };
}

}  // namespace

std::vector<std::pair<std::string, Verb>> AddPatternBenches(CLI::App& bench) {
  const std::pair<const char*, const char*> patterns[] = {
      {"bidir", "Two processes send to each other at the same time"},
      {"ring", "Every node sends to the next and receives from the previous one"},
      {"fan-in", "Every node sends to node 0"},
      {"fan-out", "Node 0 sends to every other node"},
      {"all-pairs", "Measure every pair of nodes, one at a time: a matrix"},
      {"keyed", "Many keys, sent and received in random orders by several threads"},
      {"steps", "Whole steps: open, send and receive, close"}};
  std::vector<std::pair<std::string, Verb>> verbs;
  for (const auto& [name, what] : patterns) {
    verbs.emplace_back(name, AddPattern(bench, name, what));
  }
  return verbs;
}

}  // namespace ferry::cli
