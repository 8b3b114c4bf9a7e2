// SPDX-License-Identifier: Apache-2.0
// What several processes tell of one case, as a row. Pure.
#ifndef FERRY_BENCH_PATTERN_MERGE_H_
#define FERRY_BENCH_PATTERN_MERGE_H_

#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"

#include "bench/report.h"

namespace ferry::cli {

// A round lasts from when the first process began it until the last one was through with it, by the
// clock that all of them share.
//   divisor: how many operations a round has, of one of which the row tells.
//   gigabytes: that all processes move in a round, in 10^9 bytes.
//   lines: BenchRounds::ToJson of each, which is without rounds where it took no part, or kept no
//   time. Errors: INTERNAL when they do not have as many rounds as each other, or none at all.
absl::Status MergeRounds(const std::vector<nlohmann::ordered_json>& lines, int divisor,
                         double gigabytes, BenchRow& row);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_PATTERN_MERGE_H_
