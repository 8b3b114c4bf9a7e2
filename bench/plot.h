// SPDX-License-Identifier: Apache-2.0
// Plots a bench: time and bandwidth over size.
#ifndef FERRY_BENCH_PLOT_H_
#define FERRY_BENCH_PLOT_H_

#include <string>

#include "bench/report.h"

namespace ferry::cli {

// Returns an SVG document with two charts on logarithmic axes: P50 one way, and GB/s, over the
// size. One line per mode and number in flight, in the same colour in both, with a dot per row;
// baselines are dashed. Self-contained.
std::string FormatBenchSvg(const BenchReport& report);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_PLOT_H_
