// SPDX-License-Identifier: Apache-2.0
// A bench as a picture: time and bandwidth over size.
#ifndef FERRY_BENCH_PLOT_H_
#define FERRY_BENCH_PLOT_H_

#include <string>

#include "bench/report.h"

namespace ferry::cli {

// An SVG document of two charts with logarithmic axes: P50 one way, and GB/s, over the size. A line
// for each mode and number in flight, of the same colour in both, with a dot for each row; what the
// floors of its rows come to is dashed. Needs no font and no file but itself.
std::string FormatBenchSvg(const BenchReport& report);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_PLOT_H_
