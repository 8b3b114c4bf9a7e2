// SPDX-License-Identifier: Apache-2.0
// Merges several processes' results of one case into a row. Pure.
#ifndef FERRY_BENCH_PATTERN_MERGE_H_
#define FERRY_BENCH_PATTERN_MERGE_H_

#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"

#include "bench/report.h"

namespace ferry::cli {

// A round lasts from the first process's start until the last process's end, by their shared clock.
//   divisor: operations per round; the row is for one of them.
//   gigabytes: moved by all processes in a round, in 10^9 bytes.
//   lines: BenchRounds::ToJson of each; has no rounds if the process did not participate, or
//   measured no time. Errors: INTERNAL if their numbers of rounds differ, or all have none.
absl::Status MergeRounds(const std::vector<nlohmann::ordered_json>& lines, int divisor,
                         double gigabytes, BenchRow& row);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_PATTERN_MERGE_H_
