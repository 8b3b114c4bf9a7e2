// SPDX-License-Identifier: Apache-2.0
// Table, documents, plot and exit status.
#include "bench/output.h"

#include <cstdio>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "bench/html.h"
#include "bench/plot.h"
#include "cli/output.h"
#include "cli/table.h"
#include "cli/verb.h"

namespace ferry::cli {
namespace {

// The largest value accepted for a gate, in GB/s or microseconds; beyond any machine's results.
constexpr double kMostGate = 1e15;

}  // namespace

void AddBenchOutputFlags(CLI::App& verb, BenchOutput& output, BenchMoves moves) {
  CLI::Option* const json = verb.add_flag("--json", output.json, "for programs");
  verb.add_flag("--csv", output.csv, "for spreadsheets")->excludes(json);
  const auto add_file = [&verb, &output](const char* flag, std::string& path, const char* what) {
    return verb.add_option_function<std::string>(
        flag,
        [&output, &path, flag](const std::string& text) {
          // Flags are parsed in the order in which they are added, so earlier ones are set.
          const char* const other = output.json          ? "--json"
                                    : output.csv         ? "--csv"
                                    : output.plot == "-" ? "--plot"
                                                         : nullptr;
          if (text == "-" && other != nullptr) {
            throw CLI::ValidationError(
                flag, absl::StrCat("- is stdout, where ", other, " writes; name a file"));
          }
          path = text;
        },
        what);
  };
  add_file("--plot", output.plot,
           moves == BenchMoves::kTensors
               ? "also write a plot of time and GB/s over size; - for stdout"
               : "also write a plot of time over the varied parameter; - for stdout")
      ->type_name("FILE.svg");
  add_file("--html", output.html,
           "also a page of its own: this machine, its topology, the rows and the picture; - for "
           "stdout")
      ->type_name("FILE");
  if (moves == BenchMoves::kTensors) {
    AddReal(verb, "--min-gbps", output.gates.min_gbps, "fail if a row is below GBPS",
            LowerBound::kExclusive, 0, kMostGate)
        ->type_name("GBPS");
  }
  AddReal(verb, "--max-us", output.gates.max_us, "fail if a row's P50 is above US microseconds",
          LowerBound::kExclusive, 0, kMostGate)
      ->type_name("US");
}

absl::StatusOr<int> FinishBench(absl::StatusOr<BenchReport> report, const BenchOutput& output) {
  if (!report.ok()) {
    return absl::AbortedError(absl::StrCat("bench: ", report.status().message()));
  }
  FERRY_RETURN_IF_ERROR(CheckBenchRows(*report));
  report->facts = LookAtRun();
  const std::string text = output.json  ? FormatBenchJson(*report)
                           : output.csv ? FormatBenchCsv(*report)
                                        : FormatBenchText(*report);
  // The text goes to stderr if a document goes to stdout.
  std::fputs(text.c_str(), output.plot == "-" || output.html == "-" ? stderr : stdout);
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
