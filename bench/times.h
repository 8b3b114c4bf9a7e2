// SPDX-License-Identifier: Apache-2.0
// BenchTimes: what many samples of a time come to.
#ifndef FERRY_BENCH_TIMES_H_
#define FERRY_BENCH_TIMES_H_

#include <vector>

#include "absl/time/time.h"

namespace ferry::cli {

struct BenchTimes {
  absl::Duration p50;
  absl::Duration p90;
  absl::Duration p99;
  absl::Duration p999;
  // Between these the median lies with 95 % confidence, if samples do not depend on each other: by
  // their ranks, whatever their distribution. Of fewer than 6 samples the smallest and the largest.
  absl::Duration p50_low;
  absl::Duration p50_high;

  // Half of what lies between those two, as a share of the median.
  double Spread() const {
    const double seconds = absl::ToDoubleSeconds(p50);
    return seconds > 0 ? absl::ToDoubleSeconds(p50_high - p50_low) / 2 / seconds : 0;
  }
};

// A percentile is the sample at that share of the sorted ones; of too few, the largest. All zero of
// none.
BenchTimes SummarizeTimes(std::vector<absl::Duration> samples);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_TIMES_H_
