// SPDX-License-Identifier: Apache-2.0
// The output flags of all ferry bench verbs.
#ifndef FERRY_BENCH_OUTPUT_H_
#define FERRY_BENCH_OUTPUT_H_

#include <string>

#include <CLI/CLI.hpp>

#include "absl/status/statusor.h"

#include "bench/report.h"

namespace ferry::cli {

struct BenchOutput {
  bool json = false;
  bool csv = false;
  std::string plot;
  std::string html;
  BenchGates gates;
};

// Whether rows have a bandwidth that --min-gbps can check.
enum class BenchMoves { kTensors, kNothing };

// Adds --json, --csv, --plot, --html, --max-us, and --min-gbps if tensors are moved.
//   output: must outlive `verb`.
void AddBenchOutputFlags(CLI::App& verb, BenchOutput& output, BenchMoves moves);

// Prints and plots the report, or prints its error, and checks the gates.
//   Errors: ABORTED with the reason why there is no report, or the rows that miss a gate; DATA_LOSS
//   if there were wrong results; UNAVAILABLE if a file cannot be written.
absl::StatusOr<int> FinishBench(absl::StatusOr<BenchReport> report, const BenchOutput& output);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_OUTPUT_H_
