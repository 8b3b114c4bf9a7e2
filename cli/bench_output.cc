// SPDX-License-Identifier: Apache-2.0
// Table, documents, picture and exit status.
#include "cli/bench_output.h"

#include <cstdio>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "cli/bench_html.h"
#include "cli/bench_plot.h"
#include "cli/output.h"
#include "cli/table.h"
#include "cli/verb.h"

namespace ferry::cli {

void AddBenchOutputFlags(CLI::App& verb, BenchOutput& output, BenchMoves moves) {
  CLI::Option* const json = verb.add_flag("--json", output.json, "for programs");
  verb.add_flag("--csv", output.csv, "for spreadsheets")->excludes(json);
  verb.add_option("--plot", output.plot,
                  moves == BenchMoves::kTensors ? "also a picture: time and GB/s over size"
                                                : "also a picture: time over what grows")
      ->type_name("FILE.svg");
  verb.add_option("--html", output.html,
                  "also a page of its own: this machine, its topology, the rows and the picture")
      ->type_name("FILE");
  if (moves == BenchMoves::kTensors) {
    verb.add_option("--min-gbps", output.gates.min_gbps, "fail if a row is below so many GB/s")
        ->type_name("GBPS")
        ->check(CLI::PositiveNumber.description(""));
  }
  verb.add_option("--max-us", output.gates.max_us, "fail if a row's P50 is above so many us")
      ->type_name("US")
      ->check(CLI::PositiveNumber.description(""));
}

absl::StatusOr<int> FinishBench(absl::StatusOr<BenchReport> report, const BenchOutput& output) {
  if (!report.ok()) {
    return absl::AbortedError(absl::StrCat("bench: ", report.status().message()));
  }
  report->facts = LookAtRun();
  const std::string text = output.json  ? FormatBenchJson(*report)
                           : output.csv ? FormatBenchCsv(*report)
                                        : FormatBenchText(*report);
  std::fputs(text.c_str(), stdout);
  if (!output.plot.empty()) {
    FERRY_RETURN_IF_ERROR(WriteFile(output.plot, FormatBenchSvg(*report)));
  }
  if (!output.html.empty()) {
    FERRY_RETURN_IF_ERROR(WriteFile(output.html, FormatBenchHtml(*report, LookAtMachine())));
  }
  if (report->errors() > 0) {
    return absl::DataLossError(absl::StrCat(
        "bench: ", Count(static_cast<long long>(report->errors()), report->errors_of), " wrong"));
  }
  FERRY_RETURN_IF_ERROR(CheckBenchGates(*report, output.gates));
  return kDone;
}

}  // namespace ferry::cli
