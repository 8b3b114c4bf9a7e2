// SPDX-License-Identifier: Apache-2.0
// Derives rows per transport from a node's paths.
#include "bench/paths.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "bench/background_load.h"
#include "bench/device.h"
#include "transport/transports.h"

namespace ferry::cli {
using Json = nlohmann::ordered_json;

Json PathsOfFlows(const BenchParticipants& party, const BenchPlan& plan,
                  const std::vector<std::pair<int, int>>& flows) {
  Json paths;
  for (const auto& [src, dst] : flows) {
    if (dst != party.rank) continue;
    const std::set<std::string> of_flow = DevicePaths(
        party.node, party.NodeOf(src), plan.sizes.back(), plan.DeviceOf(src), plan.DeviceOf(dst));
    if (paths.is_null()) {
      paths = of_flow;
      continue;
    }
    Json common = Json::array();
    for (const Json& path : paths) {
      if (of_flow.contains(path.get<std::string>())) common.push_back(path);
    }
    paths = std::move(common);
  }
  return paths;
}

std::vector<std::string> CommonPaths(const std::vector<Json>& lines) {
  std::vector<std::string> common;
  bool is_first = true;
  for (const Json& line : lines) {
    if (!line.contains("ways") || !line["ways"].is_array()) continue;
    const auto paths = line["ways"].get<std::vector<std::string>>();
    if (is_first) common = paths;
    is_first = false;
    std::erase_if(common, [&paths](const std::string& path) {
      return std::find(paths.begin(), paths.end(), path) == paths.end();
    });
  }
  return common;
}

std::vector<std::string> OtherPaths(const BenchReport& report) {
  std::vector<std::string> others = report.paths;
  // A path is a transport with an optional variant: "cuda_ipc, view"; several flows may give
  // "shm+tcp".
  std::erase_if(others, [&report](const std::string& path) {
    return std::any_of(report.rows.begin(), report.rows.end(), [&path](const BenchRow& row) {
      return row.path == path || absl::StartsWith(row.path, absl::StrCat(path, ",")) ||
             absl::StartsWith(row.path, absl::StrCat(path, "+")) ||
             absl::StrContains(row.path, absl::StrCat("+", path));
    });
  });
  return others;
}

TransportCapabilities CapabilitiesOfPath(absl::string_view path) {
  const absl::string_view name = path.substr(0, path.find(", "));
  const std::vector<TransportFactory> transports = BuiltinTransports({});
  const TransportFactory* const found = FindTransport(transports, name);
  if (found == nullptr) return {};
  const TransportCapabilities& capabilities = found->info.capabilities;
  if (absl::EndsWith(path, ", staged") && !capabilities.moves_gpu_memory) return {};
  return capabilities;
}

std::vector<BenchMode> ModesOfPath(const std::vector<BenchMode>& modes, const std::string& path) {
  std::vector<BenchMode> of_path = modes;
  if (!CapabilitiesOfPath(path).shares_memory) std::erase(of_path, BenchMode::kRead);
  return of_path.empty() ? modes : of_path;
}

absl::StatusOr<BenchReport> MeasurePaths(const BenchPlanFlags& flags, const MeasureBench& measure) {
  const BackgroundLoad others;
  FERRY_ASSIGN_OR_RETURN(BenchReport report, measure(flags.plan, flags.transfer));
  const bool is_all = flags.transport == kAllTransports;
  for (const std::string& path : is_all ? OtherPaths(report) : std::vector<std::string>()) {
    BenchPlan plan = flags.plan;
    plan.modes = ModesOfPath(flags.plan.modes, path);
    plan.has_tcp_floor = CapabilitiesOfPath(path).moves_over_tcp && !plan.uses_gpus();
    TransferEngineOptions transfer = flags.transfer;
    transfer.require_transport = path;
    absl::StatusOr<BenchReport> other = measure(plan, transfer);
    if (!other.ok()) {
      return absl::Status(other.status().code(),
                          absl::StrCat("by ", path, ": ", other.status().message(),
                                       "; leave it out with --transport=auto"));
    }
    for (BenchRow& row : other->rows) {
      row.transport = path;
      report.rows.push_back(std::move(row));
    }
    for (const std::string& pages : other->pages) report.AddPages(pages);
  }
  report.other_cores = others.Cores();
  return report;
}

}  // namespace ferry::cli
