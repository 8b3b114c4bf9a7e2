// SPDX-License-Identifier: Apache-2.0
// The flags of every ferry bench about what becomes of its report.
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

// Whether rows have GB/s, so that --min-gbps means something.
enum class BenchMoves { kTensors, kNothing };

// --json, --csv, --plot, --html, --max-us, and --min-gbps where tensors are moved.
//   output: outlives `verb`.
void AddBenchOutputFlags(CLI::App& verb, BenchOutput& output, BenchMoves moves);

// Prints the report, or what it failed with, draws it, and holds it against the gates.
//   Errors: ABORTED with the reason why there is no report, or the rows that miss a gate; DATA_LOSS
//   when anything was wrong; UNAVAILABLE when a file cannot be written.
absl::StatusOr<int> FinishBench(absl::StatusOr<BenchReport> report, const BenchOutput& output);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_OUTPUT_H_
