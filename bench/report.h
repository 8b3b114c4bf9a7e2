// SPDX-License-Identifier: Apache-2.0
// BenchReport: the results of any ferry bench, as text and documents.
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

// One measured case: a size, a number of nodes, a pair.
struct BenchRow {
  // Per tensor, or per value; 0: nothing is moved.
  size_t bytes = 0;
  // Element type, by ferry::DataTypeName.
  std::string dtype = "uint8";
  size_t element_bytes = 1;
  // "handoff", "into", "set", "barrier".
  std::string mode;
  int inflight = 1;
  // Tensors in a call of SendMany and of RecvMany.
  int batch = 1;
  // Participating nodes, and threads per node.
  int nodes = 2;
  int threads = 1;
  // One direction among several: "0->1".
  std::string pair;
  int count = 0;
  BenchTimes times;
  // The required transport; empty: the cheapest, or the report's.
  std::string transport;
  // Moved within one sample's time, in total.
  int tensors = 1;
  // Bytes by nccl-tests' formulas for this pattern, per sample; 0: not defined.
  double algbw_bytes = 0;
  double busbw_bytes = 0;
  // Operations per second over the whole loop; 0: not counted.
  double ops_per_s = 0;
  // CPU time of all processes between the clock readings of each round, per gigabyte moved;
  // includes busy waiting.
  double cpu_s_per_gb = 0;
  double cpu_s_per_op = 0;
  std::string path;
  // Why this path was selected; empty: there was no choice.
  std::string path_reason;
  // Number of errors: bytes, over all participants; values of a store; endpoints.
  size_t errors = 0;
  // The machine's baseline, and its composition: "spin", "spin + memcpy", "raw tcp".
  absl::Duration floor;
  std::string floor_name;

  // bytes * tensors / p50, in bytes per second.
  double BytesPerSecond() const;
  double AlgbwBytesPerSecond() const;
  double BusbwBytesPerSecond() const;
  // floor / p50: 1 is as fast as the machine; 0 if there is no baseline.
  double ShareOfFloor() const;
  // The measured mode: "into x64 by tcp".
  std::string ModeText() const;
  // Identifies it among rows of the same size: "into x64, 4 nodes, 0->1".
  std::string Label() const;
};

struct BenchReport {
  // The subcommand.
  std::string bench = "sendrecv";
  // "two processes on this machine".
  std::string subject;
  // The meaning of its times: "one way", "round trip".
  std::string time = "one way";
  // The unit of wrong_bytes.
  std::string errors_of = "byte";
  // How it was measured: runs that differ in this are not comparable.
  std::string transport;
  bool is_polling = false;
  bool is_sleeping = false;
  // Transports that could have carried everything.
  std::vector<std::string> paths;
  // False for benches of the coordinator, whose clients' waiting is not configurable.
  bool moves_tensors = true;
  int cores = 0;
  // Zero: not measured.
  absl::Duration spin;
  absl::Duration futex;
  // Average number of processors used by other processes meanwhile; nullopt: unknown.
  std::optional<double> other_cores;
  // Where, when and how it was measured: "kernel", "Linux 6.1.0 x86_64".
  std::vector<std::pair<std::string, std::string>> facts;
  // Page sizes of the tensors' arenas, by DescribePages; several if they changed.
  std::vector<std::string> pages;
  std::vector<BenchRow> rows;

  // How this bench's processes are woken, of the two above; "spin" and zero if not measured.
  const char* wake_name() const { return is_sleeping ? "futex" : "spin"; }
  absl::Duration wake() const { return is_sleeping ? futex : spin; }
  // "polling", "spin, then sleep", "sleeping".
  const char* Waiting() const;
  size_t errors() const;
  // Adds `text` to `pages`, unless it is there or is "none yet".
  void AddPages(const std::string& text);
};

// "ferry bench ring: 4 processes on this machine, 2 cores; transport auto, polling".
std::string BenchTitle(const BenchReport& report);
// Formats a table with the columns its rows fill; for pairs also a matrix per mode and size.
std::string FormatBenchText(const BenchReport& report);
// Returns the reasons for its paths, a line per path.
std::vector<std::string> BenchReasons(const BenchReport& report);
// Reports background load of at least a tenth of a core; empty if there was less.
std::string BenchOtherLoadText(const BenchReport& report);
// Returns the cells of that table, with its header first.
std::vector<std::vector<std::string>> BenchCells(const BenchReport& report);
std::string FormatBenchJson(const BenchReport& report);
// Returns a header and a line per row; times in seconds.
std::string FormatBenchCsv(const BenchReport& report);

// "41.2us", "12.3", "64 MiB": as in the table.
std::string BenchTimeText(absl::Duration time);
std::string BenchRateText(double rate);
std::string BenchSizeText(size_t bytes);

// Checks that no two rows have the same Label and size, and that each row has at least one sample,
// with times present and in order. Duplicate rows would make a comparison of two runs ambiguous.
//   Errors: INTERNAL naming the row.
absl::Status CheckBenchRows(const BenchReport& report);

// Limits that every row must meet.
struct BenchGates {
  // GB/s; 0: no limit.
  double min_gbps = 0;
  // P50, in microseconds; 0: no limit.
  double max_us = 0;
};
//   Errors: ABORTED naming the flag and the rows that miss it.
absl::Status CheckBenchGates(const BenchReport& report, const BenchGates& gates);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_REPORT_H_
