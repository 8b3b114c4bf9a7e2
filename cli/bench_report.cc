// SPDX-License-Identifier: Apache-2.0
// A table and a document.
#include "cli/bench_report.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

#include "cli/table.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

// One figure of a row: once for programs, once for people. Null is a figure that there is not.
struct Column {
  const char* key;
  // Null: not in the table.
  const char* heading;
  std::function<Json(const BenchRow&)> value;
  std::function<std::string(const BenchRow&)> text;
  // Whether the row has something to say there; a table in which none has is without the column.
  // Null: always.
  std::function<bool(const BenchRow&)> is_filled;
};

std::string Time(absl::Duration time) { return BenchTimeText(time); }
std::string Rate(double rate) { return BenchRateText(rate); }
std::string Size(size_t bytes) { return BenchSizeText(bytes); }

Json OrNull(double number) { return number > 0 ? Json(number) : Json(); }

Column TimeColumn(const char* key, const char* heading, absl::Duration BenchTimes::*time) {
  return {key, heading,
          [time](const BenchRow& row) { return Json(absl::ToDoubleSeconds(row.times.*time)); },
          [time](const BenchRow& row) { return Time(row.times.*time); }};
}

// In 10^9 by the second.
Column RateColumn(const char* key, const char* heading, double (BenchRow::*rate)() const) {
  return {key, heading, [rate](const BenchRow& row) { return OrNull((row.*rate)()); },
          [rate](const BenchRow& row) { return Rate((row.*rate)() / 1e9); },
          [rate](const BenchRow& row) { return (row.*rate)() > 0; }};
}

Column CountColumn(const char* key, const char* heading, int BenchRow::*count, int usual) {
  return {key, heading, [count](const BenchRow& row) { return Json(row.*count); },
          [count](const BenchRow& row) { return absl::StrCat(row.*count); },
          [count, usual](const BenchRow& row) { return row.*count != usual; }};
}

std::vector<Column> NameColumns() {
  const auto has_bytes = [](const BenchRow& row) { return row.bytes > 0; };
  return {{"mode", "MODE", [](const BenchRow& row) { return Json(row.mode); },
           [](const BenchRow& row) { return row.ModeText(); }},
          {"transport", nullptr,
           [](const BenchRow& row) { return row.transport.empty() ? Json() : Json(row.transport); },
           nullptr},
          {"inflight", nullptr, [](const BenchRow& row) { return Json(row.inflight); }, nullptr},
          CountColumn("nodes", "NODES", &BenchRow::nodes, 2),
          CountColumn("threads", "THREADS", &BenchRow::threads, 1),
          {"pair", "PAIR",
           [](const BenchRow& row) { return row.pair.empty() ? Json() : Json(row.pair); },
           [](const BenchRow& row) { return row.pair; },
           [](const BenchRow& row) { return !row.pair.empty(); }},
          {"bytes", "SIZE", [](const BenchRow& row) { return Json(row.bytes); },
           [](const BenchRow& row) { return row.bytes == 0 ? "" : Size(row.bytes); }, has_bytes},
          {"elements", "ELEMENTS",
           [](const BenchRow& row) {
             return row.bytes == 0 ? Json() : Json(row.bytes / row.element_bytes);
           },
           [](const BenchRow& row) {
             return row.bytes == 0 ? "" : absl::StrCat(row.bytes / row.element_bytes);
           },
           [](const BenchRow& row) { return row.element_bytes > 1; }},
          {"dtype", "TYPE",
           [](const BenchRow& row) { return row.bytes == 0 ? Json() : Json(row.dtype); },
           [](const BenchRow& row) { return row.bytes == 0 ? "" : row.dtype; }, has_bytes},
          {"count", "COUNT", [](const BenchRow& row) { return Json(row.count); },
           [](const BenchRow& row) { return absl::StrCat(row.count); }}};
}

std::vector<Column> FigureColumns() {
  return {TimeColumn("p50_s", "P50", &BenchTimes::p50),
          TimeColumn("p90_s", "P90", &BenchTimes::p90),
          TimeColumn("p99_s", "P99", &BenchTimes::p99),
          TimeColumn("p99_9_s", "P99.9", &BenchTimes::p999),
          TimeColumn("p50_low_s", nullptr, &BenchTimes::p50_low),
          TimeColumn("p50_high_s", nullptr, &BenchTimes::p50_high),
          {"ops_per_s", "OPS/S", [](const BenchRow& row) { return OrNull(row.ops_per_s); },
           [](const BenchRow& row) {
             return row.ops_per_s == 0 ? "" : absl::StrFormat("%.0f", row.ops_per_s);
           },
           [](const BenchRow& row) { return row.ops_per_s > 0; }},
          RateColumn("bytes_per_s", "GB/S", &BenchRow::BytesPerSecond),
          RateColumn("algbw_bytes_per_s", "ALGBW", &BenchRow::AlgbwBytesPerSecond),
          RateColumn("busbw_bytes_per_s", "BUSBW", &BenchRow::BusbwBytesPerSecond),
          {"cpu_s_per_gb", "CPU S/GB", [](const BenchRow& row) { return OrNull(row.cpu_s_per_gb); },
           [](const BenchRow& row) { return row.cpu_s_per_gb == 0 ? "" : Rate(row.cpu_s_per_gb); },
           [](const BenchRow& row) { return row.cpu_s_per_gb > 0; }},
          {"cpu_s_per_op", "CPU/OP", [](const BenchRow& row) { return OrNull(row.cpu_s_per_op); },
           [](const BenchRow& row) {
             return row.cpu_s_per_op == 0 ? "" : Time(absl::Seconds(row.cpu_s_per_op));
           },
           [](const BenchRow& row) { return row.cpu_s_per_op > 0; }}};
}

std::vector<Column> OriginColumns() {
  const auto has_floor = [](const BenchRow& row) { return !row.floor_name.empty(); };
  return {
      {"path", "PATH", [](const BenchRow& row) { return Json(row.path); },
       [](const BenchRow& row) { return row.path; }},
      {"path_reason", nullptr,
       [](const BenchRow& row) { return row.path_reason.empty() ? Json() : Json(row.path_reason); },
       nullptr},
      {"floor", "FLOOR",
       [has_floor](const BenchRow& row) { return has_floor(row) ? Json(row.floor_name) : Json(); },
       [has_floor](const BenchRow& row) {
         return has_floor(row) ? absl::StrCat(Time(row.floor), " ", row.floor_name) : "-";
       }},
      {"floor_s", nullptr,
       [has_floor](const BenchRow& row) {
         return has_floor(row) ? Json(absl::ToDoubleSeconds(row.floor)) : Json();
       },
       nullptr},
      {"share_of_floor", "OF FLOOR",
       [has_floor](const BenchRow& row) {
         return has_floor(row) ? Json(row.ShareOfFloor()) : Json();
       },
       [has_floor](const BenchRow& row) {
         return has_floor(row) ? absl::StrFormat("%.0f%%", row.ShareOfFloor() * 100) : "-";
       }},
      {"wrong_bytes", "ERRORS", [](const BenchRow& row) { return Json(row.errors); },
       [](const BenchRow& row) { return absl::StrCat(row.errors); }}};
}

std::vector<Column> Columns() {
  std::vector<Column> columns = NameColumns();
  for (const auto& more : {FigureColumns(), OriginColumns()}) {
    columns.insert(columns.end(), more.begin(), more.end());
  }
  return columns;
}

bool IsShown(const Column& column, const BenchReport& report) {
  if (column.heading == nullptr || column.is_filled == nullptr) return column.heading != nullptr;
  return std::any_of(report.rows.begin(), report.rows.end(), column.is_filled);
}

// From each node (rows) to each other one (columns).
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
        row.push_back(cell == cells.end() ? "-" : Rate(cell->second));
      }
      rows.push_back(std::move(row));
    }
    absl::StrAppend(&text, of.first, " ", Size(of.second), ", GB/s of one pair at a time\n",
                    FormatTable(rows), "\n");
  }
  return text;
}

std::string FormatReasons(const BenchReport& report) {
  std::string text;
  std::set<std::string> told;
  for (const BenchRow& row : report.rows) {
    // Costs differ from size to size; once for each path is enough for people.
    if (row.path_reason.empty() || !told.insert(row.path).second) continue;
    absl::StrAppend(&text, "by ", row.path, ": ", row.path_reason, "\n");
  }
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

// Three figures: "0.13us", "41.2us", "1.30ms".
std::string BenchTimeText(absl::Duration time) {
  const double us = absl::ToDoubleMicroseconds(time);
  const double value = us < 1000 ? us : us / 1000;
  const char* const unit = us < 1000 ? "us" : "ms";
  const int decimals = value < 10 ? 2 : value < 100 ? 1 : 0;
  return absl::StrFormat("%.*f%s", decimals, value, unit);
}

std::string BenchRateText(double rate) {
  // Not one call with either format: Abseil checks formats when it is compiled.
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

std::vector<std::vector<std::string>> BenchCells(const BenchReport& report) {
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows(1);
  for (Column& column : Columns()) {
    if (!IsShown(column, report)) continue;
    rows[0].push_back(column.heading);
    columns.push_back(std::move(column));
  }
  for (const BenchRow& row : report.rows) {
    std::vector<std::string> cells;
    for (const Column& column : columns) cells.push_back(column.text(row));
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
      has_floors ? "; floors of the same run" : "",
      has_spin ? absl::StrCat(": spinning wake-up ", Time(report.spin), ", futex wake-up ",
                              Time(report.futex))
               : "",
      "\n\n", FormatTable(BenchCells(report)), "\n", FormatMatrices(report), FormatReasons(report),
      report.errors() == 0
          ? absl::StrCat("every ", report.errors_of, " was verified")
          : absl::StrCat(Count(static_cast<long long>(report.errors()), report.errors_of),
                         " WRONG"),
      "\n");
}

std::string FormatBenchJson(const BenchReport& report) {
  const std::vector<Column> columns = Columns();
  Json rows = Json::array();
  for (const BenchRow& row : report.rows) {
    Json json = Json::object();
    for (const Column& column : columns) json[column.key] = column.value(row);
    rows.push_back(std::move(json));
  }
  const Json document = {{"bench", report.bench},
                         {"subject", report.subject},
                         {"time", report.time},
                         {"transport", report.transport},
                         {"polling", report.is_polling},
                         {"waiting", report.moves_tensors ? Json(report.Waiting()) : Json()},
                         {"cores", report.cores},
                         {"arena_pages", absl::StrJoin(report.pages, "; ")},
                         {"spin_floor_s", OrNull(absl::ToDoubleSeconds(report.spin))},
                         {"futex_floor_s", OrNull(absl::ToDoubleSeconds(report.futex))},
                         {"rows", std::move(rows)},
                         {"wrong_bytes", report.errors()}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string FormatBenchCsv(const BenchReport& report) {
  const std::vector<Column> columns = Columns();
  std::string text = absl::StrCat(
      absl::StrJoin(columns, ",",
                    [](std::string* out, const Column& column) { out->append(column.key); }),
      "\n");
  for (const BenchRow& row : report.rows) {
    absl::StrAppend(&text,
                    absl::StrJoin(columns, ",",
                                  [&row](std::string* out, const Column& column) {
                                    out->append(CsvCell(column.value(row)));
                                  }),
                    "\n");
  }
  return text;
}

absl::Status CheckBenchGates(const BenchReport& report, const BenchGates& gates) {
  std::vector<std::string> misses;
  // Who asks for all ways does not ask of each that it be good.
  const auto is_judged = [](const BenchRow& row) { return row.transport.empty(); };
  const auto judged = std::count_if(report.rows.begin(), report.rows.end(), is_judged);
  const auto check = [&](double gate, absl::string_view flag, const auto& is_missed,
                         const auto& describe) {
    if (gate <= 0) return;
    std::vector<std::string> rows;
    for (const BenchRow& row : report.rows) {
      if (is_judged(row) && is_missed(row)) {
        rows.push_back(absl::StrCat(row.Label(),
                                    row.bytes == 0 ? "" : absl::StrCat(" ", Size(row.bytes)), " (",
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
      [](const BenchRow& row) { return Rate(row.BytesPerSecond() / 1e9); });
  check(
      gates.max_us, "--max-us",
      [&gates](const BenchRow& row) {
        return absl::ToDoubleMicroseconds(row.times.p50) > gates.max_us;
      },
      [](const BenchRow& row) { return Time(row.times.p50); });
  if (misses.empty()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("bench: ", absl::StrJoin(misses, "; ")));
}

}  // namespace ferry::cli
