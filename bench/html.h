// SPDX-License-Identifier: Apache-2.0
// A bench as one page that needs nothing but itself: machine, topology, tables and pictures.
#ifndef FERRY_BENCH_HTML_H_
#define FERRY_BENCH_HTML_H_

#include <string>
#include <utility>
#include <vector>

#include "bench/report.h"
#include "topology/local_topology.h"

namespace ferry::cli {

// What a page says of where its figures were taken.
struct BenchMachine {
  // "kernel", "Linux 6.1.0": in the order of the page.
  std::vector<std::pair<std::string, std::string>> facts;
  LocalTopology topology;
};

// Of this process: host, kernel, processors, version, date and command line.
std::vector<std::pair<std::string, std::string>> LookAtRun();

// This machine, now. Asks the GPU driver for its devices; why there are none is a fact too.
BenchMachine LookAtMachine();

// A document of HTML, styles and SVG within: what was run, the machine, how near its devices are to
// each other and how fast pairs are, as heat maps, the rows, and what FormatBenchSvg draws of them.
std::string FormatBenchHtml(const BenchReport& report, const BenchMachine& machine);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_HTML_H_
