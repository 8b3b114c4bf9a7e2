// SPDX-License-Identifier: Apache-2.0
// What ferry bench sendrecv found, for people and for programs.
#ifndef FERRY_CLI_BENCH_REPORT_H_
#define FERRY_CLI_BENCH_REPORT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "cli/bench_times.h"

namespace ferry::cli {

// A size in one mode.
struct BenchRow {
  size_t bytes = 0;
  std::string mode;
  int inflight = 1;
  int count = 0;
  BenchTimes times;
  // Of both processes, between the first and the last look at the clock of each round, for what was
  // moved in it; who waits without sleeping takes all that time.
  double cpu_s_per_gb = 0;
  std::string path;
  // Bytes that were wrong, on both sides.
  size_t errors = 0;
  // What the machine gives at most, and what that is made of: "spin", "spin + memcpy", "raw tcp".
  absl::Duration floor;
  std::string floor_name;

  // bytes / p50, in bytes.
  double BytesPerSecond() const;
  // floor / p50: 1 is as fast as the machine; absent (0) where there is no floor.
  double ShareOfFloor() const;
};

struct BenchReport {
  std::string transport;
  bool is_polling = false;
  int cores = 0;
  absl::Duration spin;
  // Of the arenas in which the tensors lay, by DescribePages; several if that changed.
  std::vector<std::string> pages;
  std::vector<BenchRow> rows;

  size_t errors() const;
};

std::string FormatBenchText(const BenchReport& report);
std::string FormatBenchJson(const BenchReport& report);
// A header and a line for each row; times in seconds.
std::string FormatBenchCsv(const BenchReport& report);

// What every row has to reach.
struct BenchGates {
  // GB/s; 0: anything.
  double min_gbps = 0;
  // P50 one way, in microseconds; 0: anything.
  double max_us = 0;
};
//   Errors: ABORTED naming the flag and the rows that miss it.
absl::Status CheckBenchGates(const BenchReport& report, const BenchGates& gates);

}  // namespace ferry::cli

#endif  // FERRY_CLI_BENCH_REPORT_H_
