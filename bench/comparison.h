// SPDX-License-Identifier: Apache-2.0
// BenchComparison: two runs of ferry bench, row by row.
#ifndef FERRY_BENCH_COMPARISON_H_
#define FERRY_BENCH_COMPARISON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ferry::cli {

// A row of either run, and what has become of it in the other.
struct ComparedRow {
  enum class Verdict {
    // Within the threshold, or within what samples of one run spread.
    kSame,
    kFaster,
    kSlower,
    // Data was wrong in one of the runs, so its times are meaningless.
    kWrong,
    kOnlyOld,
    kOnlyNew,
  };

  // BenchRow::Label.
  std::string label;
  uint64_t bytes = 0;
  double old_p50_s = 0;
  double new_p50_s = 0;
  // Of the medians, 95 %: half the interval's width, as a share of the median.
  double old_spread = 0;
  double new_spread = 0;
  // new / old - 1: above 0 is slower.
  double change = 0;
  // wrong_bytes of both runs.
  uint64_t old_errors = 0;
  uint64_t new_errors = 0;
  Verdict verdict = Verdict::kSame;
};

struct BenchComparison {
  double threshold = 0;
  // In the order of the new run; then what only the old one has.
  std::vector<ComparedRow> rows;

  size_t CountOf(ComparedRow::Verdict verdict) const;
};

// Compares medians. A row with wrong bytes in either run is wrong. A row is slower or faster if its
// median has changed by more than `threshold`, and the intervals in which the medians lie with 95 %
// confidence do not touch.
//   old_text, new_text: what a ferry bench with --json has written.
//   Errors: FAILED_PRECONDITION, saying which of the two is no such document, or that they are of
//   different benches, transports or ways of waiting, or that no row is in both; that a row is
//   there twice, was never measured (count 0), or lacks one of the figures that are compared, or
//   the count of what was wrong; or that the run has more wrong bytes than its rows.
absl::StatusOr<BenchComparison> CompareBenches(absl::string_view old_text,
                                               absl::string_view new_text, double threshold);

std::string FormatComparison(const BenchComparison& comparison);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_COMPARISON_H_
