// SPDX-License-Identifier: Apache-2.0
// What a ferry bench has found, for people and for programs: one report for all patterns.
#ifndef FERRY_BENCH_REPORT_H_
#define FERRY_BENCH_REPORT_H_

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "bench/times.h"

namespace ferry::cli {

// One case that was measured: a size, a number of nodes, a pair.
struct BenchRow {
  // Of one tensor, or of one value; 0: nothing is moved.
  size_t bytes = 0;
  // Of its elements, as of ferry::DataTypeName.
  std::string dtype = "uint8";
  size_t element_bytes = 1;
  // "handoff", "into", "set", "barrier".
  std::string mode;
  int inflight = 1;
  // That take part, and of each the threads that do.
  int nodes = 2;
  int threads = 1;
  // Of one direction among several: "0->1".
  std::string pair;
  int count = 0;
  BenchTimes times;
  // The one that was required; empty: the cheapest, or that of the report.
  std::string transport;
  // That are moved in one sample's time, all together.
  int tensors = 1;
  // Bytes of nccl-tests' formulas for this pattern, by one sample's time; 0: it has none for it.
  double algbw_bytes = 0;
  double busbw_bytes = 0;
  // Operations by the time that all of them took; 0: they are not counted.
  double ops_per_s = 0;
  // Of all processes, between the first and the last look at the clock of each round, for what was
  // moved in it; who waits without sleeping takes all that time.
  double cpu_s_per_gb = 0;
  double cpu_s_per_op = 0;
  std::string path;
  // Why that one and no other; empty: there is no choice.
  std::string path_reason;
  // What was wrong: bytes, on all sides; values of a store; endpoints.
  size_t errors = 0;
  // What the machine gives at most, and what that is made of: "spin", "spin + memcpy", "raw tcp".
  absl::Duration floor;
  std::string floor_name;

  // bytes * tensors / p50, in bytes.
  double BytesPerSecond() const;
  double AlgbwBytesPerSecond() const;
  double BusbwBytesPerSecond() const;
  // floor / p50: 1 is as fast as the machine; absent (0) where there is no floor.
  double ShareOfFloor() const;
  // What was done: "into x64 by tcp".
  std::string ModeText() const;
  // Its name among the others of the same size: "into x64, 4 nodes, 0->1".
  std::string Label() const;
};

struct BenchReport {
  // The subcommand.
  std::string bench = "sendrecv";
  // "two processes on this machine".
  std::string subject;
  // What a time is: "one way", "round trip".
  std::string time = "one way";
  // What wrong_bytes counts.
  std::string errors_of = "byte";
  // How it was taken: two runs of another kind cannot be compared.
  std::string transport;
  bool is_polling = false;
  bool is_sleeping = false;
  // Transports that could have carried all of it.
  std::vector<std::string> ways;
  // False: it is the coordinator's, whose clients wait as they do.
  bool moves_tensors = true;
  int cores = 0;
  // Zero: it was not measured.
  absl::Duration spin;
  absl::Duration futex;
  // Processors of this machine that others took meanwhile, on an average; nothing: not known.
  std::optional<double> other_cores;
  // Where, when and how it was taken: "kernel", "Linux 6.1.0 x86_64".
  std::vector<std::pair<std::string, std::string>> facts;
  // Of the arenas in which the tensors lay, by DescribePages; several if that changed.
  std::vector<std::string> pages;
  std::vector<BenchRow> rows;

  // Of those two, how this bench's processes are woken; "spin" and zero where it was not measured.
  const char* wake_name() const { return is_sleeping ? "futex" : "spin"; }
  absl::Duration wake() const { return is_sleeping ? futex : spin; }
  // "polling", "spin, then sleep", "sleeping".
  const char* Waiting() const;
  size_t errors() const;
  // Adds to `pages` what is neither there nor "none yet".
  void AddPages(const std::string& text);
};

// "ferry bench ring: 4 processes on this machine, 2 cores; transport auto, polling".
std::string BenchTitle(const BenchReport& report);
// A table with the columns that its rows fill; of pairs also a matrix for each mode and size.
std::string FormatBenchText(const BenchReport& report);
// Why its paths were taken, a line for each of them.
std::vector<std::string> BenchReasons(const BenchReport& report);
// That others were at work, if they took a tenth of a core; empty: they were not.
std::string BenchOtherLoadText(const BenchReport& report);
// The cells of that table, its header first.
std::vector<std::vector<std::string>> BenchCells(const BenchReport& report);
std::string FormatBenchJson(const BenchReport& report);
// A header and a line for each row; times in seconds.
std::string FormatBenchCsv(const BenchReport& report);

// "41.2us", "12.3", "64 MiB": as in the table.
std::string BenchTimeText(absl::Duration time);
std::string BenchRateText(double rate);
std::string BenchSizeText(size_t bytes);

// Checks that no two rows have the same Label and size, and that each row has at least one sample,
// whose times are present and in order. With duplicate rows a comparison of two runs could not tell
// which of them has become slower.
//   Errors: INTERNAL naming the row.
absl::Status CheckBenchRows(const BenchReport& report);

// What every row has to reach.
struct BenchGates {
  // GB/s; 0: anything.
  double min_gbps = 0;
  // P50, in microseconds; 0: anything.
  double max_us = 0;
};
//   Errors: ABORTED naming the flag and the rows that miss it.
absl::Status CheckBenchGates(const BenchReport& report, const BenchGates& gates);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_REPORT_H_
