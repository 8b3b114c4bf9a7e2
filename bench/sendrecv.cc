// SPDX-License-Identifier: Apache-2.0
// ferry bench sendrecv: starts a coordinator and two processes, and measures tensor transfers.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/usable_resources.h"
#include "bench/joined.h"
#include "bench/output.h"
#include "bench/paths.h"
#include "bench/plan.h"
#include "bench/plan_flags.h"
#include "bench/processes.h"
#include "bench/raw_nccl.h"
#include "bench/report.h"
#include "bench/verbs.h"
#include "cli/hosted_coordinator.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "node/transfer_engine.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

// The customary depth of message rate benchmarks.
constexpr int kUsualStream = 64;

struct BenchFlags : BenchPlanFlags {
  BenchOutput output;
  BenchJoinFlags join;
};

// Sets the row's baseline. `report` has the time to wake the other process, which is zero if they
// share no memory.
void SetFloor(const Json& floors, const BenchReport& report, BenchRow& row) {
  const absl::Duration wake = report.wake();
  // With many in flight, processing dominates, so there is a baseline only for a shared network.
  if (row.inflight > 1) {
    if (row.path == RawNccl::kPath && floors.contains("raw_nccl_stream_s")) {
      row.floor_name = "raw nccl stream";
      row.floor = absl::Seconds(floors.value("raw_nccl_stream_s", 0.0));
    } else if (floors.contains("raw_tcp_stream_s")) {
      row.floor_name = "raw tcp stream";
      row.floor = absl::Seconds(floors.value("raw_tcp_stream_s", 0.0));
    }
    return;
  }
  if (row.path == RawNccl::kPath && floors.contains("raw_nccl_s")) {
    row.floor_name = "raw nccl";
    row.floor = absl::Seconds(floors.value("raw_nccl_s", 0.0));
    return;
  }
  const std::string before =
      wake > absl::ZeroDuration() ? absl::StrCat(report.wake_name(), " + ") : "";
  if (floors.contains("uses_gpus")) {
    // A view is not copied; all else is.
    const bool is_copy =
        row.mode == BenchModeName(BenchMode::kInto) || !absl::EndsWith(row.path, kViewSuffix);
    if (is_copy && floors.contains("gpu_copy_s")) {
      row.floor_name = floors.value("gpu_copy", "");
      row.floor = absl::Seconds(floors.value("gpu_copy_s", 0.0));
    } else if (!is_copy && !before.empty()) {
      row.floor_name = report.wake_name();
      row.floor = wake;
    }
  } else if (floors.contains("raw_tcp_s")) {
    row.floor_name = "raw tcp";
    row.floor = absl::Seconds(floors.value("raw_tcp_s", 0.0));
  } else if (before.empty() && !CapabilitiesOfPath(row.path).shares_memory) {
    // No measurement of the connection between the two.
  } else if (row.mode == BenchModeName(BenchMode::kInto)) {
    row.floor_name = before + "memcpy";
    row.floor = wake + absl::Seconds(floors.value("memcpy_s", 0.0));
  } else if (row.mode == BenchModeName(BenchMode::kRead)) {
    row.floor_name = before + "read";
    row.floor = wake + absl::Seconds(floors.value("read_s", 0.0));
  } else if (!before.empty()) {
    row.floor_name = report.wake_name();
    row.floor = wake;
  }
}

BenchRow ReadRow(const Json& json, const BenchPlan& plan) {
  BenchRow row;
  row.bytes = json.value("bytes", size_t{0});
  row.mode = json.value("mode", "");
  row.dtype = plan.dtype;
  row.element_bytes = plan.element_bytes;
  row.inflight = json.value("inflight", 1);
  row.count = json.value("count", 0);
  const auto seconds = [&json](const char* name) { return absl::Seconds(json.value(name, 0.0)); };
  row.times = {seconds("p50_s"),  seconds("p90_s"),     seconds("p99_s"),
               seconds("p999_s"), seconds("p50_low_s"), seconds("p50_high_s")};
  row.path = json.value("path", "");
  row.errors = json.value("errors", size_t{0});
  return row;
}

// Builds rows from both processes' lines as they arrive.
absl::Status ReadLines(const BenchPlan& plan, BenchStage& stage, BenchLines& lines,
                       BenchReport& report) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<Json> spin, lines.Expect("spin"));
  report.spin = absl::Seconds(spin[0].value("spin_s", 0.0));
  report.futex = absl::Seconds(spin[0].value("futex_s", 0.0));
  report.paths = CommonPaths(spin);
  if (spin[0].contains("no_raw_tcp")) {
    std::fprintf(stderr, "ferry: no floor of raw TCP: %s\n",
                 spin[0].value("no_raw_tcp", "").c_str());
  }
  if (plan.uses_gpus()) {
    absl::StrAppend(&report.subject, " (", plan.DeviceOf(0), ", ", plan.DeviceOf(1), ")");
  }
  if (plan.keys > 1) absl::StrAppend(&report.subject, ", ", plan.keys, " names in turns");
  if (plan.is_unexpected) absl::StrAppend(&report.subject, ", receives posted after the sends");
  for (const size_t bytes : plan.sizes) {
    stage.Set(absl::StrCat("measuring ", ShortBytes(static_cast<double>(bytes))));
    FERRY_ASSIGN_OR_RETURN(const std::vector<Json> floors, lines.Expect("floors"));
    // Each process has measured some of the baselines.
    Json all_floors = floors[1];
    all_floors.update(floors[0]);
    if (all_floors.contains("no_gpu_copy") && bytes == plan.sizes.front()) {
      std::fprintf(stderr, "ferry: no floor of copies between the GPUs: %s\n",
                   all_floors.value("no_gpu_copy", "").c_str());
    }
    const size_t first_row = report.rows.size();
    for (size_t i = 0; i < plan.modes.size() * plan.DepthsOf(bytes).size(); ++i) {
      FERRY_ASSIGN_OR_RETURN(const std::vector<Json> both, lines.Expect("case"));
      const Json& here = both[0];
      const Json& there = both[1];
      BenchRow row = ReadRow(here, plan);
      if (row.path.empty()) row.path = there.value("path", "");
      row.path_reason = here.value("path_reason", "");
      row.errors += there.value("errors", size_t{0});
      for (const Json& peer : both) report.AddPages(peer.value("pages", ""));
      const double moved_gb = here.value("moved_bytes", 0.0) / 1e9;
      const double cpu_s = here.value("cpu_s", 0.0) + there.value("cpu_s", 0.0);
      row.cpu_s_per_gb = moved_gb > 0 ? cpu_s / moved_gb : 0;
      report.rows.push_back(std::move(row));
    }
    if (plan.has_later_floors()) {
      FERRY_ASSIGN_OR_RETURN(const std::vector<Json> later, lines.Expect("later floors"));
      all_floors.update(later[0]);
    }
    for (size_t i = first_row; i < report.rows.size(); ++i) {
      SetFloor(all_floors, report, report.rows[i]);
    }
  }
  // By mode, so that sizes within a mode are ascending.
  std::stable_sort(report.rows.begin(), report.rows.end(), [](const auto& a, const auto& b) {
    return std::pair(a.mode, a.inflight) < std::pair(b.mode, b.inflight);
  });
  return absl::OkStatus();
}

absl::StatusOr<BenchReport> Measure(const BenchFlags& flags, BenchPlan plan,
                                    const TransferEngineOptions& transfer) {
  FERRY_ASSIGN_OR_RETURN(const auto pages, BenchPages::Create());
  plan.floor_file = pages->path();
  FERRY_ASSIGN_OR_RETURN(const auto coordinator,
                         HostedCoordinator::OnThisMachine(2, Graphs::kNone));
  BenchStage stage("starting two processes");
  const Progress progress([&stage] { return stage.Get(); });
  FERRY_ASSIGN_OR_RETURN(
      const auto workers,
      BenchWorkers::Start(2, coordinator->address(), EncodeBenchPlan(plan), transfer, stage,
                          plan.uses_gpus() ? BenchGpus::kShared : BenchGpus::kHidden));
  BenchReport report;
  report.subject = "two processes on this machine";
  report.transport = flags.transport;
  report.is_polling = plan.is_polling;
  report.is_sleeping = plan.is_sleeping;
  report.cores = Usable().processors;
  FERRY_RETURN_IF_ERROR(ReadLines(plan, stage, *workers, report));
  FERRY_RETURN_IF_ERROR(workers->WaitForExit());
  return report;
}

absl::StatusOr<int> Join(BenchFlags& flags) {
  return RunJoinedBench(
      flags, flags.join, flags.output,
      {.nodes = 2,
       .depth = static_cast<size_t>(flags.plan.inflight),
       .time =
           "one way, by the first node's clock: half of a round trip; of several at a time until "
           "they were answered",
       .read = [&flags](int, BenchLines& lines, BenchReport& report) {
         BenchStage stage("reading");
         return ReadLines(flags.plan, stage, lines, report);
       }});
}

absl::StatusOr<int> Bench(BenchFlags flags) {
  flags.most_devices = 2;
  BenchPlan& plan = flags.plan;
  if (plan.is_unexpected && flags.join.joins()) {
    return absl::InvalidArgumentError(
        "--unexpected: nodes of an existing job share no page that says what has been sent; leave "
        "--coordinator, --node-id and --join out");
  }
  if (flags.join.joins()) return Join(flags);
  FERRY_RETURN_IF_ERROR(CompletePlan(flags, 1, static_cast<size_t>(plan.inflight)));
  if (plan.is_unexpected && plan.is_sleeping) {
    return absl::InvalidArgumentError(
        "--unexpected: a receiver that sleeps is not woken by a word in a page; leave --spin=0 "
        "out");
  }
  return FinishBench(
      MeasurePaths(flags,
                   [&flags](const BenchPlan& of_path, const TransferEngineOptions& transfer) {
                     return Measure(flags, of_path, transfer);
                   }),
      flags.output);
}

}  // namespace

Verb AddSendRecvBench(CLI::App& bench) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App& verb = *bench.add_subcommand(
      "sendrecv", "Measure tensor transfers between two processes against the hardware limit");
  flags->transport = kAllTransports;
  flags->plan.inflight = kUsualStream;
  AddBenchPlanFlags(verb, *flags);
  AddNumber(verb, "--inflight", flags->plan.inflight,
            "also measure with N tensors in flight in one direction; 1: do not", 1, 4096);
  AddNumber(verb, "--keys", flags->plan.keys,
            "names that the tensors use in turns; as many as there are in flight: each has its own",
            1, 100000)
      ->type_name("K");
  verb.add_flag("--unexpected", flags->plan.is_unexpected,
                "post a receive only when its tensor has been sent");
  AddBenchOutputFlags(verb, flags->output, BenchMoves::kTensors);
  AddBenchJoinFlags(verb, flags->join);
  return [flags]() { return Bench(*flags); };
}

}  // namespace ferry::cli
