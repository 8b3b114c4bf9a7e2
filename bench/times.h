// SPDX-License-Identifier: Apache-2.0
// BenchTimes: statistics of a series of durations.
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
  // 95 % confidence interval of the median, for independent samples of any distribution, from their
  // ranks. With fewer than 6 samples, the smallest and the largest.
  absl::Duration p50_low;
  absl::Duration p50_high;

  // Half the width of that interval, relative to the median.
  double Spread() const {
    const double seconds = absl::ToDoubleSeconds(p50);
    return seconds > 0 ? absl::ToDoubleSeconds(p50_high - p50_low) / 2 / seconds : 0;
  }
};

// A percentile is the sample at that rank; the largest if there are too few samples. All zero if
// there are none.
BenchTimes SummarizeTimes(std::vector<absl::Duration> samples);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_TIMES_H_
