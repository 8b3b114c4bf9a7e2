// SPDX-License-Identifier: Apache-2.0
// BenchComparison: compares two runs of ferry bench row by row.
#ifndef FERRY_BENCH_COMPARISON_H_
#define FERRY_BENCH_COMPARISON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ferry::cli {

// A row of either run, and its counterpart in the other.
struct ComparedRow {
  enum class Verdict {
    // Within the threshold, or within the confidence intervals.
    kSame,
    kFaster,
    kSlower,
    // A run had wrong data, so its times are meaningless.
    kWrong,
    kOnlyOld,
    kOnlyNew,
  };

  // BenchRow::Label.
  std::string label;
  uint64_t bytes = 0;
  double old_p50_s = 0;
  double new_p50_s = 0;
  // Half the width of the median's 95 % confidence interval, relative to the median.
  double old_spread = 0;
  double new_spread = 0;
  // new / old - 1; positive is slower.
  double change = 0;
  // wrong_bytes of each run.
  uint64_t old_errors = 0;
  uint64_t new_errors = 0;
  Verdict verdict = Verdict::kSame;
};

struct BenchComparison {
  double threshold = 0;
  // In the new run's order; then rows that only the old run has.
  std::vector<ComparedRow> rows;

  size_t CountOf(ComparedRow::Verdict verdict) const;
};

// Compares medians. A row with wrong bytes in either run is wrong. A row is slower or faster if its
// median changed by more than `threshold` and the medians' 95 % confidence intervals do not
// overlap.
//   old_text, new_text: output of ferry bench --json.
//   Errors: FAILED_PRECONDITION, saying which of the two is malformed; if they are of different
//   benches, transports or wait modes, or have no row in common; if a row is duplicated, has no
//   samples (count 0), or lacks a compared value or the error count; or if the run has more wrong
//   bytes than its rows.
absl::StatusOr<BenchComparison> CompareBenches(absl::string_view old_text,
                                               absl::string_view new_text, double threshold);

std::string FormatComparison(const BenchComparison& comparison);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_COMPARISON_H_
