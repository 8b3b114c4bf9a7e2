// SPDX-License-Identifier: Apache-2.0
// Order statistics.
#include "bench/times.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace ferry::cli {

BenchTimes SummarizeTimes(std::vector<absl::Duration> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const size_t count = samples.size();
  const auto at = [&samples, count](size_t share, size_t of) {
    return samples[std::min(count - 1, count * share / of)];
  };
  BenchTimes times{at(1, 2), at(9, 10), at(99, 100), at(999, 1000), samples[0], samples[count - 1]};
  // The number of samples below the median is binomial, with a standard deviation of sqrt(count) /
  // 2.
  const double half = 0.98 * std::sqrt(static_cast<double>(count));
  const double middle = static_cast<double>(count) / 2;
  if (count >= 6) {
    times.p50_low = samples[static_cast<size_t>(std::max(0.0, std::floor(middle - half)))];
    times.p50_high = samples[std::min(count - 1, static_cast<size_t>(std::ceil(middle + half)))];
  }
  return times;
}

}  // namespace ferry::cli
