// SPDX-License-Identifier: Apache-2.0
// The transports that could carry what a bench moves, each measured by itself.
#ifndef FERRY_BENCH_WAYS_H_
#define FERRY_BENCH_WAYS_H_

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"

#include "bench/meeting.h"
#include "bench/plan.h"
#include "bench/plan_flags.h"
#include "bench/report.h"
#include "node/transfer_engine.h"

namespace ferry::cli {

// Of --transport: the cheapest of each size, and then each other one by itself.
inline constexpr char kAllTransports[] = "all";

// Names of the transports that can bring the plan's tensors along all of `flows`, first and second
// rank of each, that end here; null: none does.
nlohmann::ordered_json WaysOfFlows(const BenchParticipants& party, const BenchPlan& plan,
                                   const std::vector<std::pair<int, int>>& flows);

// What is in each of those that are not null, by the key "ways".
std::vector<std::string> CommonWays(const std::vector<nlohmann::ordered_json>& lines);

// Those that are in none of the rows' paths.
std::vector<std::string> OtherWays(const BenchReport& report);

using MeasureBench = std::function<absl::StatusOr<BenchReport>(
    const BenchPlan& plan, const TransferEngineOptions& exchange)>;

// Those of `modes` that are asked of transport `way` beside the chosen one: what it hands over is
// read where that is the first look at it, as of a view of the sender's memory. What has come over
// a network the receiver has just written. If reading is all that is asked for, it is asked for.
std::vector<BenchMode> ModesOfWay(const std::vector<BenchMode>& modes, const std::string& way);

// What `measure` gives; with --transport=all also what it gives of each other way, in its modes,
// as rows that name it.
//   flags: completed. Errors: those of `measure`, with the way.
absl::StatusOr<BenchReport> MeasureWays(const BenchPlanFlags& flags, const MeasureBench& measure);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_WAYS_H_
