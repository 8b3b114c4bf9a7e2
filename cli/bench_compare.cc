// SPDX-License-Identifier: Apache-2.0
// ferry bench compare: whether a new run is slower than an old one.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "cli/bench_comparison.h"
#include "cli/bench_verbs.h"

namespace ferry::cli {
namespace {

struct CompareFlags {
  std::string before;
  std::string now;
  double threshold_percent = 10;
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  // A folder opens and cannot be read.
  if (file.is_open() && text << file.rdbuf()) return text.str();
  return absl::NotFoundError(
      absl::StrCat("cannot read ", path, ": ", errno == 0 ? "it is empty" : std::strerror(errno)));
}

absl::StatusOr<int> Compare(const CompareFlags& flags) {
  errno = 0;
  FERRY_ASSIGN_OR_RETURN(const std::string before, ReadFile(flags.before));
  errno = 0;
  FERRY_ASSIGN_OR_RETURN(const std::string now, ReadFile(flags.now));
  FERRY_ASSIGN_OR_RETURN(const BenchComparison comparison,
                         CompareBenches(before, now, flags.threshold_percent / 100));
  std::fputs(FormatComparison(comparison).c_str(), stdout);
  const size_t slower = comparison.CountOf(ComparedRow::Verdict::kSlower);
  if (slower == 0) return kDone;
  return absl::AbortedError(absl::StrCat("bench compare: ", slower, " of ", comparison.rows.size(),
                                         " rows are slower by more than ",
                                         absl::StrFormat("%g%%", flags.threshold_percent)));
}

}  // namespace

Verb AddCompareBench(CLI::App& bench) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App& verb = *bench.add_subcommand(
      "compare", "What has changed between two runs of --json; fails if something is slower");
  verb.add_option("OLD", flags->before, "file of the old run")->required();
  verb.add_option("NEW", flags->now, "file of the new run")->required();
  verb.add_option("--threshold", flags->threshold_percent, "changes up to so many percent are none")
      ->type_name("PERCENT")
      ->check(CLI::Range(0.0, 1e6).description(""))
      ->capture_default_str();
  return [flags]() { return Compare(*flags); };
}

}  // namespace ferry::cli
