// SPDX-License-Identifier: Apache-2.0
// ferry bench compare: checks a new run for regressions against an old one.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "bench/comparison.h"
#include "bench/verbs.h"
#include "cli/tensor_literal.h"

namespace ferry::cli {
namespace {

struct CompareFlags {
  std::string before;
  std::string now;
  double threshold_percent = 10;
};

absl::StatusOr<int> Compare(const CompareFlags& flags) {
  if (flags.before == "-" && flags.now == "-") {
    return absl::InvalidArgumentError("bench compare: only one of OLD and NEW can be -, for stdin");
  }
  FERRY_ASSIGN_OR_RETURN(const std::string before, ReadWholeFile(flags.before));
  FERRY_ASSIGN_OR_RETURN(const std::string now, ReadWholeFile(flags.now));
  FERRY_ASSIGN_OR_RETURN(const BenchComparison comparison,
                         CompareBenches(before, now, flags.threshold_percent / 100));
  std::fputs(FormatComparison(comparison).c_str(), stdout);
  const size_t wrong = comparison.CountOf(ComparedRow::Verdict::kWrong);
  if (wrong > 0) {
    return absl::DataLossError(absl::StrCat("bench compare: ", wrong, " of ",
                                            comparison.rows.size(), " rows hold wrong data"));
  }
  const size_t slower = comparison.CountOf(ComparedRow::Verdict::kSlower);
  if (slower == 0) return kDone;
  return absl::AbortedError(absl::StrCat("bench compare: ", slower, " of ", comparison.rows.size(),
                                         " rows are slower by more than ",
                                         absl::StrFormat("%g%%", flags.threshold_percent)));
}

}  // namespace

Verb AddCompareBench(CLI::App& bench) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App& verb =
      *bench.add_subcommand("compare", "Compare two runs of --json; fails on regressions");
  verb.add_option("OLD", flags->before, "file of the old run; - for stdin")->required();
  verb.add_option("NEW", flags->now, "file of the new run; - for stdin")->required();
  AddReal(verb, "--threshold", flags->threshold_percent,
          "ignore changes of up to this many percent", LowerBound::kInclusive, 0, 1e6)
      ->type_name("PERCENT")
      ->default_str(absl::StrCat(flags->threshold_percent));
  return [flags]() { return Compare(*flags); };
}

}  // namespace ferry::cli
