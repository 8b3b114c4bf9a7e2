// SPDX-License-Identifier: Apache-2.0
// Formats a bench as one self-contained page: machine, topology, tables and plots.
#ifndef FERRY_BENCH_HTML_H_
#define FERRY_BENCH_HTML_H_

#include <string>
#include <utility>
#include <vector>

#include "bench/report.h"
#include "topology/local_topology.h"

namespace ferry::cli {

// Where the results were measured.
struct BenchMachine {
  // "kernel", "Linux 6.1.0": in the order of the page.
  std::vector<std::pair<std::string, std::string>> facts;
  LocalTopology topology;
};

// Facts about this process: host, kernel, processors, version, date and command line.
std::vector<std::pair<std::string, std::string>> LookAtRun();

// Describes this machine. Queries the GPU driver; a failure to list GPUs is a fact too.
BenchMachine LookAtMachine();

// Returns an HTML document with embedded styles and SVG: the command, the machine, heat maps of
// device distances and pair bandwidths, the rows, and the plots of FormatBenchSvg.
std::string FormatBenchHtml(const BenchReport& report, const BenchMachine& machine);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_HTML_H_
