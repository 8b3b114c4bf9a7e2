// SPDX-License-Identifier: Apache-2.0
// ferry bench sendrecv: a coordinator and two processes of its own, and how long tensors take.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "cli/bench_plan.h"
#include "cli/bench_plot.h"
#include "cli/bench_report.h"
#include "cli/bench_verbs.h"
#include "cli/exchange_flags.h"
#include "cli/hosted_coordinator.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/tool_process.h"
#include "runtime/exchange.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

// Of one line of a process: the largest size in one mode takes seconds.
constexpr absl::Duration kLinePatience = absl::Minutes(3);

struct BenchFlags {
  std::string sizes = "8:1G:x8";
  std::string transport = "auto";
  std::string mode = "both";
  BenchPlan plan;
  bool json = false;
  bool csv = false;
  std::string plot;
  BenchGates gates;
  ExchangeOptions exchange;
};

// A page of zeros that other processes can map while this lives.
class FloorFile final {
 public:
  static absl::StatusOr<std::unique_ptr<FloorFile>> Create() {
    const char* const folder = std::getenv("TMPDIR");
    std::string path = absl::StrCat(folder != nullptr ? folder : "/tmp", "/ferry-bench-XXXXXX");
    const UniqueFd fd(mkstemp(path.data()));
    if (fd.get() < 0 || ftruncate(fd.get(), 4096) != 0) {
      return absl::UnavailableError(absl::StrCat("cannot make ", path));
    }
    return std::unique_ptr<FloorFile>(new FloorFile(std::move(path)));
  }
  ~FloorFile() { unlink(path_.c_str()); }
  FloorFile(const FloorFile&) = delete;
  FloorFile& operator=(const FloorFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit FloorFile(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// What is being measured, for the line that says so. Thread-safe.
class Current final {
 public:
  void Set(std::string text) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    text_ = std::move(text);
  }
  std::string Get() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return text_;
  }

 private:
  mutable absl::Mutex mu_;
  std::string text_ ABSL_GUARDED_BY(mu_) = "starting two processes";
};

absl::StatusOr<Json> Expect(ToolProcess& process, const std::string& event) {
  FERRY_ASSIGN_OR_RETURN(const std::string line,
                         process.ReadLine(SteadyClock().Now() + kLinePatience, false));
  Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.value("event", "") == event) return json;
  return absl::InternalError(
      absl::StrCat(process.name(), " said ", line, " instead of \"", event, "\""));
}

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
  Current current;
  const Progress progress([&current] { return current.Get(); });
  std::vector<std::unique_ptr<ToolProcess>> peers;
  for (int node = 0; node < 2; ++node) {
    std::vector<std::string> arguments = {"bench-worker",
                                          absl::StrCat("--coordinator=", coordinator->address()),
                                          absl::StrCat("--node-id=", node), "--num-nodes=2",
                                          absl::StrCat("--plan=", EncodeBenchPlan(plan))};
    for (std::string& each : ExchangeArguments(flags.exchange)) {
      arguments.push_back(std::move(each));
    }
    // Neither needs a GPU, and one that two nodes use is refused.
    FERRY_ASSIGN_OR_RETURN(auto peer, ToolProcess::Start(absl::StrCat("process ", node),
                                                         std::move(arguments), std::string()));
    peers.push_back(std::move(peer));
  }
  BenchReport report;
  report.transport = flags.transport;
  report.is_polling = plan.is_polling;
  report.cores = static_cast<int>(std::thread::hardware_concurrency());
  FERRY_ASSIGN_OR_RETURN(const Json spin, Expect(*peers[0], "spin"));
  FERRY_RETURN_IF_ERROR(Expect(*peers[1], "spin").status());
  report.spin = absl::Seconds(spin.value("spin_s", 0.0));
  for (const size_t bytes : plan.sizes) {
    current.Set(absl::StrCat("measuring ", ShortBytes(static_cast<double>(bytes))));
    FERRY_ASSIGN_OR_RETURN(const Json floors, Expect(*peers[0], "floors"));
    FERRY_RETURN_IF_ERROR(Expect(*peers[1], "floors").status());
    for (size_t i = 0; i < CasesOf(plan, bytes); ++i) {
      FERRY_ASSIGN_OR_RETURN(const Json here, Expect(*peers[0], "case"));
      FERRY_ASSIGN_OR_RETURN(const Json there, Expect(*peers[1], "case"));
      BenchRow row = ReadRow(here);
      if (row.path.empty()) row.path = there.value("path", "");
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
      SetFloor(floors, report.spin, row);
      report.rows.push_back(std::move(row));
    }
  }
  for (const auto& peer : peers) {
    FERRY_RETURN_IF_ERROR(peer->WaitForExit(SteadyClock().Now() + kLinePatience));
  }
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
  FERRY_ASSIGN_OR_RETURN(const auto file, FloorFile::Create());
  plan.floor_file = file->path();
  absl::StatusOr<BenchReport> report = Measure(flags, plan);
  if (!report.ok()) {
    return absl::AbortedError(absl::StrCat("bench: ", report.status().message()));
  }
  const std::string text = flags.json  ? FormatBenchJson(*report)
                           : flags.csv ? FormatBenchCsv(*report)
                                       : FormatBenchText(*report);
  std::fputs(text.c_str(), stdout);
  if (!flags.plot.empty()) FERRY_RETURN_IF_ERROR(WriteFile(flags.plot, FormatBenchSvg(*report)));
  if (report->errors() > 0) {
    return absl::DataLossError(absl::StrCat("bench: ", report->errors(), " bytes were wrong"));
  }
  FERRY_RETURN_IF_ERROR(CheckBenchGates(*report, flags.gates));
  return kDone;
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
  CLI::Option* const json = verb.add_flag("--json", flags->json, "for programs");
  verb.add_flag("--csv", flags->csv, "for spreadsheets")->excludes(json);
  verb.add_option("--plot", flags->plot, "also a picture: time and GB/s over size")
      ->type_name("FILE.svg");
  verb.add_option("--min-gbps", flags->gates.min_gbps, "fail if a row is below so many GB/s")
      ->type_name("GBPS")
      ->check(CLI::PositiveNumber.description(""));
  verb.add_option("--max-us", flags->gates.max_us, "fail if a row's P50 is above so many us")
      ->type_name("US")
      ->check(CLI::PositiveNumber.description(""));
  AddExchangeFlags(verb, flags->exchange);
  return [flags]() { return Bench(*flags); };
}

}  // namespace ferry::cli
