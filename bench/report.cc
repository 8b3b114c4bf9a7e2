// SPDX-License-Identifier: Apache-2.0
// Formats a report as table and document.
#include "bench/report.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

#include "bench/columns.h"
#include "cli/table.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

// Fraction of a core below which background load is normal.
constexpr double kOthersAtWork = 0.1;

Json NumberOrNull(double number) { return number > 0 ? Json(number) : Json(); }

bool IsShown(const BenchColumn& column, const BenchReport& report) {
  if (column.heading == nullptr || column.is_filled == nullptr) return column.heading != nullptr;
  return std::any_of(report.rows.begin(), report.rows.end(), column.is_filled);
}

// Matrices from each node (rows) to each other one (columns).
std::string FormatMatrices(const BenchReport& report) {
  std::map<std::pair<std::string, size_t>, std::map<std::string, double>> matrices;
  int nodes = 0;
  for (const BenchRow& row : report.rows) {
    if (row.pair.empty()) continue;
    nodes = std::max(nodes, row.nodes);
    matrices[{row.ModeText(), row.bytes}][row.pair] = row.BytesPerSecond() / 1e9;
  }
  std::string text;
  for (const auto& [of, cells] : matrices) {
    std::vector<std::vector<std::string>> rows = {{"FROM \\ TO"}};
    for (int to = 0; to < nodes; ++to) rows[0].push_back(absl::StrCat(to));
    for (int from = 0; from < nodes; ++from) {
      std::vector<std::string> row = {absl::StrCat(from)};
      for (int to = 0; to < nodes; ++to) {
        const auto cell = cells.find(absl::StrCat(from, "->", to));
        row.push_back(cell == cells.end() ? "-" : BenchRateText(cell->second));
      }
      rows.push_back(std::move(row));
    }
    absl::StrAppend(&text, of.first, " ", BenchSizeText(of.second),
                    ", GB/s of one pair at a time\n", FormatTable(rows), "\n");
  }
  return text;
}

std::string FormatReasons(const BenchReport& report) {
  std::string text;
  for (const std::string& reason : BenchReasons(report)) absl::StrAppend(&text, reason, "\n");
  return text;
}

std::string CsvCell(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_number_float()) return absl::StrFormat("%.4g", value.get<double>());
  if (!value.is_string()) return value.dump();
  const std::string text = value.get<std::string>();
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

double Per(double bytes, absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  return seconds > 0 ? bytes / seconds : 0;
}

}  // namespace

// Three significant digits: "0.13us", "41.2us", "1.30ms".
std::string BenchTimeText(absl::Duration time) {
  const double us = absl::ToDoubleMicroseconds(time);
  const double value = us < 1000 ? us : us / 1000;
  const char* const unit = us < 1000 ? "us" : "ms";
  const int decimals = value < 10 ? 2 : value < 100 ? 1 : 0;
  return absl::StrFormat("%.*f%s", decimals, value, unit);
}

std::string BenchRateText(double rate) {
  // Two calls, because Abseil checks format strings at compile time.
  return rate < 100 ? absl::StrFormat("%.3g", rate) : absl::StrFormat("%.0f", rate);
}

std::string BenchSizeText(size_t bytes) {
  for (const auto& [unit, name] : {std::pair<size_t, const char*>{size_t{1} << 30, " GiB"},
                                   {size_t{1} << 20, " MiB"},
                                   {size_t{1} << 10, " KiB"}}) {
    if (bytes >= unit && bytes % unit == 0) return absl::StrCat(bytes / unit, name);
  }
  return absl::StrCat(bytes, " B");
}

double BenchRow::BytesPerSecond() const {
  return Per(static_cast<double>(bytes) * tensors, times.p50);
}

double BenchRow::AlgbwBytesPerSecond() const { return Per(algbw_bytes, times.p50); }

double BenchRow::BusbwBytesPerSecond() const { return Per(busbw_bytes, times.p50); }

double BenchRow::ShareOfFloor() const {
  const double seconds = absl::ToDoubleSeconds(times.p50);
  return seconds > 0 ? absl::ToDoubleSeconds(floor) / seconds : 0;
}

std::string BenchRow::ModeText() const {
  return absl::StrCat(mode, inflight == 1 ? "" : absl::StrCat(" x", inflight),
                      transport.empty() ? "" : " by ", transport);
}

std::string BenchRow::Label() const {
  std::string label = ModeText();
  if (batch != 1) absl::StrAppend(&label, ", batches of ", batch);
  if (threads != 1) absl::StrAppend(&label, ", ", threads, " threads");
  if (nodes != 2) absl::StrAppend(&label, ", ", Count(nodes, "node"));
  if (!pair.empty()) absl::StrAppend(&label, ", ", pair);
  return label;
}

const char* BenchReport::Waiting() const {
  return is_polling ? "polling" : is_sleeping ? "sleeping" : "spin, then sleep";
}

size_t BenchReport::errors() const {
  size_t errors = 0;
  for (const BenchRow& row : rows) errors += row.errors;
  return errors;
}

void BenchReport::AddPages(const std::string& text) {
  if (text.empty() || text == "none yet") return;
  if (std::find(pages.begin(), pages.end(), text) == pages.end()) pages.push_back(text);
}

std::string BenchTitle(const BenchReport& report) {
  return absl::StrCat("ferry bench ", report.bench, ": ", report.subject, ", ",
                      Count(report.cores, "core"), "; transport ", report.transport,
                      report.moves_tensors ? ", " : "",
                      report.moves_tensors ? report.Waiting() : "");
}

std::string BenchOtherLoadText(const BenchReport& report) {
  if (report.other_cores.value_or(0) < kOthersAtWork) return "";
  return absl::StrFormat(
      "others took %.2f of this machine's %s meanwhile: times have theirs in them\n",
      *report.other_cores, Count(report.cores, "core"));
}

std::vector<std::string> BenchReasons(const BenchReport& report) {
  std::vector<std::string> reasons;
  std::set<std::string> told;
  for (const BenchRow& row : report.rows) {
    // Costs vary with size; one reason per path is enough.
    if (row.path_reason.empty() || !told.insert(row.path).second) continue;
    reasons.push_back(absl::StrCat("by ", row.path, ": ", row.path_reason));
  }
  return reasons;
}

std::vector<std::vector<std::string>> BenchCells(const BenchReport& report) {
  std::vector<BenchColumn> columns;
  std::vector<std::vector<std::string>> rows(1);
  for (BenchColumn& column : BenchColumns()) {
    if (!IsShown(column, report)) continue;
    rows[0].push_back(column.heading);
    columns.push_back(std::move(column));
  }
  for (const BenchRow& row : report.rows) {
    std::vector<std::string> cells;
    for (const BenchColumn& column : columns) cells.push_back(column.text(row));
    rows.push_back(std::move(cells));
  }
  return rows;
}

std::string FormatBenchText(const BenchReport& report) {
  const bool has_spin = report.spin > absl::ZeroDuration();
  const bool has_floors =
      has_spin || std::any_of(report.rows.begin(), report.rows.end(),
                              [](const auto& row) { return !row.floor_name.empty(); });
  return absl::StrCat(
      BenchTitle(report), report.pages.empty() ? "" : "; tensors in ",
      absl::StrJoin(report.pages, "; "), "\ntimes are ", report.time,
      "; +- is where P50 lies with 95% confidence", has_floors ? "; floors of the same run" : "",
      has_spin ? absl::StrCat(": spinning wake-up ", BenchTimeText(report.spin), ", futex wake-up ",
                              BenchTimeText(report.futex))
               : "",
      "\n\n", FormatTable(BenchCells(report)), "\n", FormatMatrices(report), FormatReasons(report),
      BenchOtherLoadText(report),
      report.errors() == 0
          ? absl::StrCat("every ", report.errors_of, " was verified")
          : absl::StrCat(Count(static_cast<long long>(report.errors()), report.errors_of),
                         " WRONG"),
      "\n");
}

std::string FormatBenchJson(const BenchReport& report) {
  const std::vector<BenchColumn> columns = BenchColumns();
  Json rows = Json::array();
  for (const BenchRow& row : report.rows) {
    Json json = Json::object();
    for (const BenchColumn& column : columns) json[column.key] = column.value(row);
    rows.push_back(std::move(json));
  }
  Json run = Json::object();
  for (const auto& [name, fact] : report.facts) run[name] = fact;
  const Json document = {{"bench", report.bench},
                         {"run", std::move(run)},
                         {"subject", report.subject},
                         {"time", report.time},
                         {"transport", report.transport},
                         {"polling", report.is_polling},
                         {"waiting", report.moves_tensors ? Json(report.Waiting()) : Json()},
                         {"cores", report.cores},
                         {"other_cores", report.other_cores ? Json(*report.other_cores) : Json()},
                         {"arena_pages", absl::StrJoin(report.pages, "; ")},
                         {"spin_floor_s", NumberOrNull(absl::ToDoubleSeconds(report.spin))},
                         {"futex_floor_s", NumberOrNull(absl::ToDoubleSeconds(report.futex))},
                         {"rows", std::move(rows)},
                         {"wrong_bytes", report.errors()}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string FormatBenchCsv(const BenchReport& report) {
  const std::vector<BenchColumn> columns = BenchColumns();
  std::string text = absl::StrCat(
      absl::StrJoin(columns, ",",
                    [](std::string* out, const BenchColumn& column) { out->append(column.key); }),
      "\n");
  for (const BenchRow& row : report.rows) {
    absl::StrAppend(&text,
                    absl::StrJoin(columns, ",",
                                  [&row](std::string* out, const BenchColumn& column) {
                                    out->append(CsvCell(column.value(row)));
                                  }),
                    "\n");
  }
  return text;
}

absl::Status CheckBenchRows(const BenchReport& report) {
  std::set<std::pair<std::string, size_t>> names;
  for (const BenchRow& row : report.rows) {
    const std::string name =
        row.bytes == 0 ? row.Label() : absl::StrCat(row.Label(), " ", BenchSizeText(row.bytes));
    if (!names.emplace(row.Label(), row.bytes).second) {
      return absl::InternalError(absl::StrCat("bench: there are two rows ", name));
    }
    const BenchTimes& times = row.times;
    const bool is_ordered = absl::ZeroDuration() <= times.p50_low && times.p50_low <= times.p50 &&
                            times.p50 <= times.p50_high && times.p50 <= times.p90 &&
                            times.p90 <= times.p99 && times.p99 <= times.p999 &&
                            times.p999 < absl::InfiniteDuration();
    if (row.count < 1 || times.p50 <= absl::ZeroDuration() || !is_ordered) {
      return absl::InternalError(
          absl::StrCat("bench: the row ", name, " has no times of its ", row.count, " samples"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBenchGates(const BenchReport& report, const BenchGates& gates) {
  std::vector<std::string> misses;
  // With --transport=all, the rows of the other transports are not subject to the gates.
  const auto is_judged = [](const BenchRow& row) { return row.transport.empty(); };
  const auto judged = std::count_if(report.rows.begin(), report.rows.end(), is_judged);
  const auto check = [&](double gate, absl::string_view flag, const auto& is_missed,
                         const auto& describe) {
    if (gate <= 0) return;
    std::vector<std::string> rows;
    for (const BenchRow& row : report.rows) {
      if (is_judged(row) && is_missed(row)) {
        rows.push_back(absl::StrCat(
            row.Label(), row.bytes == 0 ? "" : absl::StrCat(" ", BenchSizeText(row.bytes)), " (",
            describe(row), ")"));
      }
    }
    if (rows.empty()) return;
    misses.push_back(absl::StrCat(rows.size(), " of ", judged, " rows miss ", flag, "=",
                                  absl::StrFormat("%g", gate), ": ", absl::StrJoin(rows, ", ")));
  };
  check(
      gates.min_gbps, "--min-gbps",
      [&gates](const BenchRow& row) { return row.BytesPerSecond() < gates.min_gbps * 1e9; },
      [](const BenchRow& row) { return BenchRateText(row.BytesPerSecond() / 1e9); });
  check(
      gates.max_us, "--max-us",
      [&gates](const BenchRow& row) {
        return absl::ToDoubleMicroseconds(row.times.p50) > gates.max_us;
      },
      [](const BenchRow& row) { return BenchTimeText(row.times.p50); });
  if (misses.empty()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("bench: ", absl::StrJoin(misses, "; ")));
}

}  // namespace ferry::cli
