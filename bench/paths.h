// SPDX-License-Identifier: Apache-2.0
// Measures each transport that could carry a bench's tensors.
#ifndef FERRY_BENCH_PATHS_H_
#define FERRY_BENCH_PATHS_H_

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "bench/meeting.h"
#include "bench/plan.h"
#include "bench/plan_flags.h"
#include "bench/report.h"
#include "node/transfer_engine.h"

namespace ferry::cli {

// Value of --transport: the cheapest per size, and then each other transport by itself.
inline constexpr char kAllTransports[] = "all";

// Returns the names of transports that can carry the plan's tensors along all `flows` (pairs of
// source and destination rank) that end here; null if none ends here.
nlohmann::ordered_json PathsOfFlows(const BenchParticipants& party, const BenchPlan& plan,
                                    const std::vector<std::pair<int, int>>& flows);

// Returns the intersection of the non-null values of "ways".
std::vector<std::string> CommonPaths(const std::vector<nlohmann::ordered_json>& lines);

// Returns the transports that appear in none of the rows' paths.
std::vector<std::string> OtherPaths(const BenchReport& report);

// Returns the capabilities of the transport of that path, which may have a variant ("cuda_ipc,
// view"); none for paths that are no transport's, or several transports' ("shm+tcp"), or lead
// through host memory in between ("shm, staged").
TransportCapabilities CapabilitiesOfPath(absl::string_view path);

using MeasureBench = std::function<absl::StatusOr<BenchReport>(
    const BenchPlan& plan, const TransferEngineOptions& transfer)>;

// Returns the modes to measure with transport `path` besides the selected one. Zero-copy is
// measured with reading if that is the first access to the data, as for a view of the sender's
// memory; data from a network was just written by the receiver. If reading is the only mode, it is
// kept.
std::vector<BenchMode> ModesOfPath(const std::vector<BenchMode>& modes, const std::string& path);

// Returns the rows of `measure`; with --transport=all also those of each other transport, in its
// modes, as rows that name it.
//   flags: completed. Errors: those of `measure`, with the transport.
absl::StatusOr<BenchReport> MeasurePaths(const BenchPlanFlags& flags, const MeasureBench& measure);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_PATHS_H_
