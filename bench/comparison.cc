// SPDX-License-Identifier: Apache-2.0
// Parses two documents and compares their rows.
#include "bench/comparison.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "bench/report.h"
#include "cli/table.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;
using Verdict = ComparedRow::Verdict;

struct Figures {
  uint64_t errors = 0;
  double p50_s = 0;
  double low_s = 0;
  double high_s = 0;
};
// Label, and bytes.
using RowKey = std::pair<std::string, uint64_t>;
struct Run {
  // The parameters that must be equal for two runs to be comparable.
  std::string how;
  std::vector<std::pair<RowKey, Figures>> rows;
};

absl::StatusOr<Figures> ReadFigures(const Json& row) {
  if (!row.contains("wrong_bytes") || !row["wrong_bytes"].is_number_unsigned()) {
    return absl::FailedPreconditionError("a row without the number wrong_bytes");
  }
  // Without samples a median is meaningless.
  if (!row.contains("count") || !row["count"].is_number_integer() ||
      row["count"].get<int64_t>() <= 0) {
    return absl::FailedPreconditionError("a row without the number count, above 0");
  }
  for (const char* const name : {"p50_s", "p50_low_s", "p50_high_s"}) {
    if (!row.contains(name) || !row[name].is_number()) {
      return absl::FailedPreconditionError(absl::StrCat("a row without the number ", name));
    }
  }
  const Figures median{row["wrong_bytes"].get<uint64_t>(), row["p50_s"].get<double>(),
                       row["p50_low_s"].get<double>(), row["p50_high_s"].get<double>()};
  if (!(median.low_s >= 0) || !(median.low_s <= median.p50_s) || !(median.p50_s <= median.high_s) ||
      !(median.p50_s > 0) || !std::isfinite(median.high_s)) {
    return absl::FailedPreconditionError("a row whose times make no sense");
  }
  return median;
}

// Returns what identifies a row in both runs.
absl::StatusOr<RowKey> ReadKey(const Json& row) {
  const Json mode = row.is_object() ? row.value("mode", Json()) : Json();
  const Json bytes = row.is_object() ? row.value("bytes", Json()) : Json();
  BenchRow named;
  bool is_good = mode.is_string() && bytes.is_number_unsigned();
  for (const auto& [name, count] : {std::pair{"inflight", &named.inflight},
                                    {"nodes", &named.nodes},
                                    {"threads", &named.threads}}) {
    const Json json = row.is_object() ? row.value(name, Json()) : Json();
    is_good = is_good && json.is_number_integer();
    if (is_good) *count = json.get<int>();
  }
  if (!is_good) {
    return absl::FailedPreconditionError("a row without mode, inflight, nodes, threads and bytes");
  }
  // Runs of earlier releases have no batches.
  const Json batch = row.value("batch", Json(named.batch));
  if (!batch.is_number_integer())
    return absl::FailedPreconditionError("a row whose batch is not an integer");
  named.batch = batch.get<int>();
  named.mode = mode.get<std::string>();
  const Json transport = row.value("transport", Json());
  if (transport.is_string()) named.transport = transport.get<std::string>();
  const Json pair = row.value("pair", Json());
  if (pair.is_string()) named.pair = pair.get<std::string>();
  return RowKey(named.Label(), bytes.get<uint64_t>());
}

absl::StatusOr<Run> ReadRun(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("bench") || !json["bench"].is_string() ||
      !json.contains("rows") || !json["rows"].is_array()) {
    return absl::FailedPreconditionError("it is not what a ferry bench with --json writes");
  }
  const Json transport = json.value("transport", Json());
  const Json polling = json.value("polling", Json());
  if (!transport.is_string() || !polling.is_boolean()) {
    return absl::FailedPreconditionError("it does not say its transport and whether it polled");
  }
  const Json waiting = json.value("waiting", Json());
  Run run;
  run.how = absl::StrCat(json["bench"].get<std::string>(), ", transport ",
                         transport.get<std::string>(), ", ",
                         waiting.is_string()   ? waiting.get<std::string>()
                         : polling.get<bool>() ? "polling"
                                               : "spin, then sleep");
  const Json all_wrong = json.value("wrong_bytes", Json());
  if (!all_wrong.is_number_unsigned()) {
    return absl::FailedPreconditionError("it does not say how many bytes were wrong");
  }
  uint64_t wrong = 0;
  std::set<RowKey> names;
  for (const Json& row : json["rows"]) {
    FERRY_ASSIGN_OR_RETURN(RowKey key, ReadKey(row));
    FERRY_ASSIGN_OR_RETURN(const Figures figures, ReadFigures(row));
    if (!names.insert(key).second) {
      return absl::FailedPreconditionError(
          absl::StrCat("two rows ", key.first, " of ", key.second, " bytes"));
    }
    wrong += figures.errors;
    run.rows.emplace_back(std::move(key), figures);
  }
  // The errors cannot be attributed to a row, so no row is trustworthy.
  if (all_wrong.get<uint64_t>() != wrong) {
    return absl::FailedPreconditionError(absl::StrCat("it has ", all_wrong.get<uint64_t>(),
                                                      " wrong bytes, and its rows have ", wrong));
  }
  return run;
}

double SpreadOf(const Figures& median) { return (median.high_s - median.low_s) / 2 / median.p50_s; }

ComparedRow Named(const RowKey& key) {
  ComparedRow row;
  std::tie(row.label, row.bytes) = key;
  return row;
}

ComparedRow Compare(const RowKey& key, const Figures& before, const Figures& now,
                    double threshold) {
  ComparedRow row = Named(key);
  row.old_p50_s = before.p50_s;
  row.new_p50_s = now.p50_s;
  row.old_spread = SpreadOf(before);
  row.new_spread = SpreadOf(now);
  row.change = now.p50_s / before.p50_s - 1;
  row.old_errors = before.errors;
  row.new_errors = now.errors;
  if (before.errors > 0 || now.errors > 0) {
    row.verdict = Verdict::kWrong;
    return row;
  }
  if (row.change > threshold && now.low_s > before.high_s) row.verdict = Verdict::kSlower;
  // The same ratio, from the other side.
  if (before.p50_s / now.p50_s - 1 > threshold && now.high_s < before.low_s) {
    row.verdict = Verdict::kFaster;
  }
  return row;
}

const char* VerdictText(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSame:
      return "";
    case Verdict::kFaster:
      return "faster";
    case Verdict::kSlower:
      return "SLOWER";
    case Verdict::kWrong:
      return "WRONG";
    case Verdict::kOnlyOld:
      return "only in the old run";
    case Verdict::kOnlyNew:
      return "only in the new run";
  }
  return "";
}

std::string TimeText(double seconds, double spread) {
  if (seconds == 0) return "-";
  return absl::StrFormat("%.4g us +-%.0f%%", seconds * 1e6, spread * 100);
}

}  // namespace

size_t BenchComparison::CountOf(ComparedRow::Verdict verdict) const {
  return static_cast<size_t>(std::count_if(
      rows.begin(), rows.end(), [verdict](const auto& row) { return row.verdict == verdict; }));
}

absl::StatusOr<BenchComparison> CompareBenches(absl::string_view old_text,
                                               absl::string_view new_text, double threshold) {
  const absl::StatusOr<Run> before = ReadRun(old_text);
  if (!before.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("the old run: ", before.status().message()));
  }
  const absl::StatusOr<Run> now = ReadRun(new_text);
  if (!now.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("the new run: ", now.status().message()));
  }
  if (before->how != now->how) {
    return absl::FailedPreconditionError(absl::StrCat("they cannot be compared: the old run is of ",
                                                      before->how, " and the new one of ",
                                                      now->how));
  }
  BenchComparison comparison;
  comparison.threshold = threshold;
  std::map<RowKey, Figures> left(before->rows.begin(), before->rows.end());
  for (const auto& [key, median] : now->rows) {
    const auto found = left.find(key);
    if (found != left.end()) {
      comparison.rows.push_back(Compare(key, found->second, median, threshold));
      left.erase(found);
      continue;
    }
    ComparedRow row = Named(key);
    row.new_p50_s = median.p50_s;
    row.new_spread = SpreadOf(median);
    row.new_errors = median.errors;
    row.verdict = median.errors > 0 ? Verdict::kWrong : Verdict::kOnlyNew;
    comparison.rows.push_back(std::move(row));
  }
  if (left.size() == before->rows.size()) {
    return absl::FailedPreconditionError("they have no row in common");
  }
  for (const auto& [key, median] : before->rows) {
    if (!left.contains(key)) continue;
    ComparedRow row = Named(key);
    row.old_p50_s = median.p50_s;
    row.old_spread = SpreadOf(median);
    row.old_errors = median.errors;
    row.verdict = median.errors > 0 ? Verdict::kWrong : Verdict::kOnlyOld;
    comparison.rows.push_back(std::move(row));
  }
  return comparison;
}

std::string FormatComparison(const BenchComparison& comparison) {
  std::vector<std::vector<std::string>> rows = {
      {"MODE", "BYTES", "OLD P50", "NEW P50", "CHANGE", ""}};
  for (const ComparedRow& row : comparison.rows) {
    const bool is_in_both = row.old_p50_s > 0 && row.new_p50_s > 0;
    rows.push_back({row.label, absl::StrCat(row.bytes), TimeText(row.old_p50_s, row.old_spread),
                    TimeText(row.new_p50_s, row.new_spread),
                    is_in_both ? absl::StrFormat("%+.1f%%", row.change * 100) : "-",
                    row.verdict == Verdict::kWrong
                        ? absl::StrCat("WRONG: ", row.old_errors, " in the old run, ",
                                       row.new_errors, " in the new one")
                        : VerdictText(row.verdict)});
  }
  const size_t wrong = comparison.CountOf(Verdict::kWrong);
  return absl::StrCat(FormatTable(rows), "\n", wrong > 0 ? absl::StrCat(wrong, " wrong, ") : "",
                      comparison.CountOf(Verdict::kSlower), " slower, ",
                      comparison.CountOf(Verdict::kFaster), " faster, ",
                      comparison.CountOf(Verdict::kSame), " the same (threshold ",
                      absl::StrFormat("%g%%", comparison.threshold * 100),
                      "; +- is where the median lies with 95% confidence)\n");
}

}  // namespace ferry::cli
