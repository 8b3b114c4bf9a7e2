// SPDX-License-Identifier: Apache-2.0
// Derives rows per transport from a node's paths.
#include "bench/ways.h"

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

Json WaysOfFlows(const BenchParticipants& party, const BenchPlan& plan,
                 const std::vector<std::pair<int, int>>& flows) {
  Json ways;
  for (const auto& [src, dst] : flows) {
    if (dst != party.rank) continue;
    const std::set<std::string> of_flow = DeviceWays(
        party.node, party.NodeOf(src), plan.sizes.back(), plan.DeviceOf(src), plan.DeviceOf(dst));
    if (ways.is_null()) {
      ways = of_flow;
      continue;
    }
    Json common = Json::array();
    for (const Json& way : ways) {
      if (of_flow.contains(way.get<std::string>())) common.push_back(way);
    }
    ways = std::move(common);
  }
  return ways;
}

std::vector<std::string> CommonWays(const std::vector<Json>& lines) {
  std::vector<std::string> common;
  bool is_first = true;
  for (const Json& line : lines) {
    if (!line.contains("ways") || !line["ways"].is_array()) continue;
    const auto ways = line["ways"].get<std::vector<std::string>>();
    if (is_first) common = ways;
    is_first = false;
    std::erase_if(common, [&ways](const std::string& way) {
      return std::find(ways.begin(), ways.end(), way) == ways.end();
    });
  }
  return common;
}

std::vector<std::string> OtherWays(const BenchReport& report) {
  std::vector<std::string> others = report.ways;
  // A path is a transport with an optional variant: "cuda_ipc, view"; several flows may give
  // "shm+tcp".
  std::erase_if(others, [&report](const std::string& way) {
    return std::any_of(report.rows.begin(), report.rows.end(), [&way](const BenchRow& row) {
      return row.path == way || absl::StartsWith(row.path, absl::StrCat(way, ",")) ||
             absl::StartsWith(row.path, absl::StrCat(way, "+")) ||
             absl::StrContains(row.path, absl::StrCat("+", way));
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

std::vector<BenchMode> ModesOfWay(const std::vector<BenchMode>& modes, const std::string& way) {
  std::vector<BenchMode> of_way = modes;
  if (!CapabilitiesOfPath(way).shares_memory) std::erase(of_way, BenchMode::kRead);
  return of_way.empty() ? modes : of_way;
}

absl::StatusOr<BenchReport> MeasureWays(const BenchPlanFlags& flags, const MeasureBench& measure) {
  const BackgroundLoad others;
  FERRY_ASSIGN_OR_RETURN(BenchReport report, measure(flags.plan, flags.transfer));
  const bool is_all = flags.transport == kAllTransports;
  for (const std::string& way : is_all ? OtherWays(report) : std::vector<std::string>()) {
    BenchPlan plan = flags.plan;
    plan.modes = ModesOfWay(flags.plan.modes, way);
    plan.has_tcp_floor = CapabilitiesOfPath(way).moves_over_tcp && !plan.uses_gpus();
    TransferEngineOptions transfer = flags.transfer;
    transfer.require_transport = way;
    absl::StatusOr<BenchReport> other = measure(plan, transfer);
    if (!other.ok()) {
      return absl::Status(other.status().code(),
                          absl::StrCat("by ", way, ": ", other.status().message(),
                                       "; leave it out with --transport=auto"));
    }
    for (BenchRow& row : other->rows) {
      row.transport = way;
      report.rows.push_back(std::move(row));
    }
    for (const std::string& pages : other->pages) report.AddPages(pages);
  }
  report.other_cores = others.Cores();
  return report;
}

}  // namespace ferry::cli
