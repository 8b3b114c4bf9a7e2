// SPDX-License-Identifier: Apache-2.0
// ferry bench cold: the time of the first transfer between two processes, by phase. Each sample
// uses new processes.
#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/usable_resources.h"
#include "bench/cold_worker.h"
#include "bench/joined.h"
#include "bench/output.h"
#include "bench/paths.h"
#include "bench/pattern_merge.h"
#include "bench/plan_flags.h"
#include "bench/processes.h"
#include "bench/verbs.h"
#include "cli/hosted_coordinator.h"
#include "cli/progress.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kColdSamples = 7;

struct ColdFlags : BenchPlanFlags {
  BenchOutput output;
};

// By phase, the lines of each process, over all samples.
using ColdLines = std::map<std::string, std::vector<Json>>;

void AddSample(const Json& line, Json& all) {
  if (!all.is_object()) {
    all = line;
    return;
  }
  for (const char* const key : {"starts_ns", "ends_ns"}) {
    for (const Json& time : line[key]) all[key].push_back(time);
  }
  for (const Json& path : line["paths"]) all["paths"].push_back(path);
  all["cpu_s"] = all["cpu_s"].get<double>() + line["cpu_s"].get<double>();
  all["errors"] = all["errors"].get<size_t>() + line["errors"].get<size_t>();
}

// Runs two new processes once through all phases.
absl::Status MeasureOnce(const ColdFlags& flags, size_t bytes, BenchStage& stage, ColdLines& all,
                         BenchReport& report) {
  BenchPlan plan = flags.plan;
  plan.sizes = {bytes};
  FERRY_ASSIGN_OR_RETURN(const auto pages, BenchPages::Create());
  plan.floor_file = pages->path();
  FERRY_ASSIGN_OR_RETURN(const auto coordinator,
                         HostedCoordinator::OnThisMachine(2, Graphs::kNone));
  FERRY_ASSIGN_OR_RETURN(
      const auto workers,
      BenchWorkers::Start(2, coordinator->address(), EncodeBenchPlan(plan), flags.transfer, stage,
                          plan.uses_gpus() ? BenchGpus::kShared : BenchGpus::kHidden));
  for (const std::string& phase : ColdPhasesOf(plan)) {
    FERRY_ASSIGN_OR_RETURN(const std::vector<Json> lines, workers->Expect("case"));
    std::vector<Json>& pooled = all[phase];
    pooled.resize(lines.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      AddSample(lines[i], pooled[i]);
      report.AddPages(lines[i].value("pages", ""));
    }
  }
  return workers->WaitForExit();
}

absl::StatusOr<BenchReport> MeasureCold(const ColdFlags& flags) {
  BenchStage stage("starting two processes");
  const Progress progress([&stage] { return stage.Get(); });
  BenchReport report;
  report.bench = "cold";
  report.subject = "two processes on this machine that have never met";
  report.time = "from when both begin a phase until both are through it";
  if (flags.plan.uses_gpus()) {
    absl::StrAppend(&report.subject, " (", flags.plan.DeviceOf(0), ", ", flags.plan.DeviceOf(1),
                    ")");
  }
  report.transport = flags.transport;
  report.is_polling = flags.plan.is_polling;
  report.is_sleeping = flags.plan.is_sleeping;
  report.cores = Usable().processors;
  const int samples = flags.plan.iterations > 0 ? flags.plan.iterations : kColdSamples;
  for (const size_t bytes : flags.plan.sizes) {
    stage.Set(absl::StrCat("measuring the first ", BenchSizeText(bytes)));
    ColdLines lines;
    for (int i = 0; i < samples; ++i) {
      FERRY_RETURN_IF_ERROR(MeasureOnce(flags, bytes, stage, lines, report));
    }
    for (const std::string& phase : ColdPhasesOf(flags.plan)) {
      BenchRow row;
      row.mode = phase;
      row.dtype = flags.plan.dtype;
      row.element_bytes = flags.plan.element_bytes;
      row.bytes = bytes;
      row.tensors = 0;
      FERRY_RETURN_IF_ERROR(MergeRounds(lines[phase], 1, 0, row));
      report.rows.push_back(std::move(row));
    }
  }
  return report;
}

absl::StatusOr<int> BenchCold(ColdFlags flags) {
  if (flags.transport == kAllTransports) {
    return absl::InvalidArgumentError("--transport=all: say one of them, and start again for each");
  }
  FERRY_RETURN_IF_ERROR(CompletePlan(flags, 1, 1));
  return FinishBench(MeasureCold(flags), flags.output);
}

}  // namespace

Verb AddColdBench(CLI::App& bench) {
  auto flags = std::make_shared<ColdFlags>();
  flags->sizes = "8,64K,64M";
  flags->plan.pattern = "cold";
  CLI::App& verb = *bench.add_subcommand(
      "cold", "Measure the phases of the first transfer between two processes");
  AddBenchPlanFlags(verb, *flags);
  // The phases cover all modes: zero-copy, read, and copy.
  verb.remove_option(verb.get_option("--mode"));
  flags->most_devices = 2;
  AddBenchOutputFlags(verb, flags->output, BenchMoves::kNothing);
  RefuseBenchJoin(verb,
                  "each sample is of two processes that have never met, which it starts itself");
  return [flags]() { return BenchCold(*flags); };
}

}  // namespace ferry::cli
