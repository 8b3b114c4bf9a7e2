// SPDX-License-Identifier: Apache-2.0
// ferry bench sendrecv: a coordinator and two processes of its own, and how long tensors take.
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "cli/bench_output.h"
#include "cli/bench_plan.h"
#include "cli/bench_processes.h"
#include "cli/bench_report.h"
#include "cli/bench_verbs.h"
#include "cli/exchange_flags.h"
#include "cli/hosted_coordinator.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "runtime/exchange.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

struct BenchFlags {
  std::string sizes = "8:1G:x8";
  std::string transport = "auto";
  std::string mode = "both";
  BenchPlan plan;
  BenchOutput output;
  ExchangeOptions exchange;
};

void SetFloor(const Json& floors, absl::Duration spin, BenchRow& row) {
  // Of many at a time there is none: what bounds them is what they are asking.
  if (row.inflight > 1) return;
  if (floors.contains("raw_tcp_s")) {
    row.floor_name = "raw tcp";
    row.floor = absl::Seconds(floors.value("raw_tcp_s", 0.0));
  } else if (row.mode == BenchModeName(BenchMode::kInto)) {
    row.floor_name = "spin + memcpy";
    row.floor = spin + absl::Seconds(floors.value("memcpy_s", 0.0));
  } else {
    row.floor_name = "spin";
    row.floor = spin;
  }
}

BenchRow ReadRow(const Json& json) {
  BenchRow row;
  row.bytes = json.value("bytes", size_t{0});
  row.mode = json.value("mode", "");
  row.inflight = json.value("inflight", 1);
  row.count = json.value("count", 0);
  const auto seconds = [&json](const char* name) { return absl::Seconds(json.value(name, 0.0)); };
  row.times = {seconds("p50_s"),  seconds("p90_s"),     seconds("p99_s"),
               seconds("p999_s"), seconds("p50_low_s"), seconds("p50_high_s")};
  row.path = json.value("path", "");
  row.errors = json.value("errors", size_t{0});
  return row;
}

// How many lines of "case" both processes write for a size.
size_t CasesOf(const BenchPlan& plan, size_t bytes) {
  const bool has_batches =
      plan.inflight > 1 && bytes <= (size_t{1} << 30) / static_cast<size_t>(plan.inflight);
  return plan.modes.size() * (has_batches ? 2 : 1);
}

absl::StatusOr<BenchReport> Measure(const BenchFlags& flags, const BenchPlan& plan) {
  FERRY_ASSIGN_OR_RETURN(const auto coordinator,
                         HostedCoordinator::OnThisMachine(2, Graphs::kNone));
  BenchStage stage("starting two processes");
  const Progress progress([&stage] { return stage.Get(); });
  FERRY_ASSIGN_OR_RETURN(
      const auto workers,
      BenchWorkers::Start(2, coordinator->address(), EncodeBenchPlan(plan), flags.exchange));
  BenchReport report;
  report.subject = "two processes on this machine";
  report.transport = flags.transport;
  report.is_polling = plan.is_polling;
  report.cores = static_cast<int>(std::thread::hardware_concurrency());
  FERRY_ASSIGN_OR_RETURN(const std::vector<Json> spin, workers->Expect("spin"));
  report.spin = absl::Seconds(spin[0].value("spin_s", 0.0));
  for (const size_t bytes : plan.sizes) {
    stage.Set(absl::StrCat("measuring ", ShortBytes(static_cast<double>(bytes))));
    FERRY_ASSIGN_OR_RETURN(const std::vector<Json> floors, workers->Expect("floors"));
    for (size_t i = 0; i < CasesOf(plan, bytes); ++i) {
      FERRY_ASSIGN_OR_RETURN(const std::vector<Json> both, workers->Expect("case"));
      const Json& here = both[0];
      const Json& there = both[1];
      BenchRow row = ReadRow(here);
      if (row.path.empty()) row.path = there.value("path", "");
      row.path_reason = here.value("path_reason", "");
      row.errors += there.value("errors", size_t{0});
      for (const Json* const peer : {&here, &there}) {
        const std::string pages = peer->value("pages", "");
        const bool is_known =
            std::find(report.pages.begin(), report.pages.end(), pages) != report.pages.end();
        if (!pages.empty() && pages != "none yet" && !is_known) report.pages.push_back(pages);
      }
      const double moved_gb = here.value("moved_bytes", 0.0) / 1e9;
      const double cpu_s = here.value("cpu_s", 0.0) + there.value("cpu_s", 0.0);
      row.cpu_s_per_gb = moved_gb > 0 ? cpu_s / moved_gb : 0;
      SetFloor(floors[0], report.spin, row);
      report.rows.push_back(std::move(row));
    }
  }
  FERRY_RETURN_IF_ERROR(workers->WaitForExit());
  // By mode, so that a column reads from small to large.
  std::stable_sort(report.rows.begin(), report.rows.end(), [](const auto& a, const auto& b) {
    return std::pair(a.mode, a.inflight) < std::pair(b.mode, b.inflight);
  });
  return report;
}

absl::StatusOr<int> Bench(BenchFlags flags) {
  BenchPlan& plan = flags.plan;
  FERRY_ASSIGN_OR_RETURN(plan.sizes, ParseSizesFlag(flags.sizes));
  if (flags.mode != "into") plan.modes.push_back(BenchMode::kHandoff);
  if (flags.mode != "handoff") plan.modes.push_back(BenchMode::kInto);
  if (flags.transport != "auto") flags.exchange.require_transport = flags.transport;
  flags.transport =
      flags.exchange.require_transport.empty() ? "auto" : flags.exchange.require_transport;
  plan.has_tcp_floor = flags.transport == "tcp";
  plan.tcp_streams = flags.exchange.transports.tcp.connections;
  if (plan.is_polling) flags.exchange.spin = absl::InfiniteDuration();
  // What is sent, what is received into, and what the peer has not given back yet.
  const size_t largest = *std::max_element(plan.sizes.begin(), plan.sizes.end());
  const size_t batch = std::min(size_t{1} << 30, largest * static_cast<size_t>(plan.inflight));
  flags.exchange.arena.budget_bytes =
      std::max(flags.exchange.arena.budget_bytes, 4 * std::max(largest, batch));
  FERRY_ASSIGN_OR_RETURN(const auto pages, BenchPages::Create());
  plan.floor_file = pages->path();
  return FinishBench(Measure(flags, plan), flags.output);
}

}  // namespace

Verb AddSendRecvBench(CLI::App& bench) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App& verb = *bench.add_subcommand(
      "sendrecv",
      "How long tensors take between two processes, and how far that is from the floor");
  verb.add_option("--sizes", flags->sizes, "FIRST:LAST:xFACTOR, or a list such as 8,4K,1M")
      ->type_name("SIZES")
      ->capture_default_str();
  verb.add_option("--transport", flags->transport, "which one; auto: the cheapest of each size")
      ->type_name("shm|tcp|auto")
      ->check(CLI::IsMember({"shm", "tcp", "auto"}).description(""))
      ->capture_default_str();
  verb.add_option("--mode", flags->mode,
                  "handoff: the receiver takes it as it comes; into: into a buffer of its own")
      ->type_name("handoff|into|both")
      ->check(CLI::IsMember({"handoff", "into", "both"}).description(""))
      ->capture_default_str();
  verb.add_flag("--poll", flags->plan.is_polling, "never sleep while waiting");
  verb.add_option("--iters", flags->plan.iterations, "of each size; else fewer of large ones")
      ->type_name("N")
      ->check(Within(1, 1000000));
  verb.add_option("--inflight", flags->plan.inflight,
                  "also rows with so many tensors on their way at a time")
      ->type_name("N")
      ->check(Within(1, 4096))
      ->capture_default_str();
  AddBenchOutputFlags(verb, flags->output, BenchMoves::kTensors);
  AddExchangeFlags(verb, flags->exchange);
  return [flags]() { return Bench(*flags); };
}

}  // namespace ferry::cli
