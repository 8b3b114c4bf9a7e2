// SPDX-License-Identifier: Apache-2.0
// A table and a document.
#include "cli/bench_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "cli/table.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

// Three figures: "0.13us", "41.2us", "1.30ms".
std::string Time(absl::Duration time) {
  const double us = absl::ToDoubleMicroseconds(time);
  const double value = us < 1000 ? us : us / 1000;
  const char* const unit = us < 1000 ? "us" : "ms";
  const int decimals = value < 10 ? 2 : value < 100 ? 1 : 0;
  return absl::StrFormat("%.*f%s", decimals, value, unit);
}

std::string Rate(double gigabytes_per_s) {
  // Not one call with either format: Abseil checks formats when it is compiled.
  return gigabytes_per_s < 100 ? absl::StrFormat("%.3g", gigabytes_per_s)
                               : absl::StrFormat("%.0f", gigabytes_per_s);
}

std::string Size(size_t bytes) {
  for (const auto& [unit, name] : {std::pair<size_t, const char*>{size_t{1} << 30, " GiB"},
                                   {size_t{1} << 20, " MiB"},
                                   {size_t{1} << 10, " KiB"}}) {
    if (bytes >= unit && bytes % unit == 0) return absl::StrCat(bytes / unit, name);
  }
  return absl::StrCat(bytes, " B");
}

}  // namespace

double BenchRow::BytesPerSecond() const {
  const double seconds = absl::ToDoubleSeconds(times.p50);
  return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
}

double BenchRow::ShareOfFloor() const {
  const double seconds = absl::ToDoubleSeconds(times.p50);
  return seconds > 0 ? absl::ToDoubleSeconds(floor) / seconds : 0;
}

size_t BenchReport::errors() const {
  size_t errors = 0;
  for (const BenchRow& row : rows) errors += row.errors;
  return errors;
}

std::string FormatBenchText(const BenchReport& report) {
  std::vector<std::vector<std::string>> rows = {{"MODE", "SIZE", "TYPE", "COUNT", "P50", "P90",
                                                 "P99", "P99.9", "GB/S", "CPU S/GB", "PATH",
                                                 "FLOOR", "OF FLOOR", "ERRORS"}};
  for (const BenchRow& row : report.rows) {
    const bool has_floor = !row.floor_name.empty();
    rows.push_back({row.inflight == 1 ? row.mode : absl::StrCat(row.mode, " x", row.inflight),
                    Size(row.bytes), "uint8", absl::StrCat(row.count), Time(row.times.p50),
                    Time(row.times.p90), Time(row.times.p99), Time(row.times.p999),
                    Rate(row.BytesPerSecond() / 1e9), Rate(row.cpu_s_per_gb), row.path,
                    has_floor ? absl::StrCat(Time(row.floor), " ", row.floor_name) : "-",
                    has_floor ? absl::StrFormat("%.0f%%", row.ShareOfFloor() * 100) : "-",
                    absl::StrCat(row.errors)});
  }
  return absl::StrCat(
      "ferry bench sendrecv: two processes on this machine, ", Count(report.cores, "core"),
      "; transport ", report.transport, ", ", report.is_polling ? "polling" : "spin, then sleep",
      report.pages.empty() ? "" : "; tensors in ", absl::StrJoin(report.pages, "; "),
      "\ntimes are one way; floors of the same run: spinning wake-up ", Time(report.spin), "\n\n",
      FormatTable(rows), "\n",
      report.errors() == 0 ? "every byte was verified"
                           : absl::StrCat(report.errors(), " BYTES WERE WRONG"),
      "\n");
}

std::string FormatBenchJson(const BenchReport& report) {
  Json rows = Json::array();
  for (const BenchRow& row : report.rows) {
    const bool has_floor = !row.floor_name.empty();
    rows.push_back({{"mode", row.mode},
                    {"inflight", row.inflight},
                    {"bytes", row.bytes},
                    {"dtype", "uint8"},
                    {"count", row.count},
                    {"one_way_p50_s", absl::ToDoubleSeconds(row.times.p50)},
                    {"one_way_p90_s", absl::ToDoubleSeconds(row.times.p90)},
                    {"one_way_p99_s", absl::ToDoubleSeconds(row.times.p99)},
                    {"one_way_p99_9_s", absl::ToDoubleSeconds(row.times.p999)},
                    {"p50_low_s", absl::ToDoubleSeconds(row.times.p50_low)},
                    {"p50_high_s", absl::ToDoubleSeconds(row.times.p50_high)},
                    {"bytes_per_s", row.BytesPerSecond()},
                    {"cpu_s_per_gb", row.cpu_s_per_gb},
                    {"path", row.path},
                    {"floor", has_floor ? Json(row.floor_name) : Json()},
                    {"floor_s", has_floor ? Json(absl::ToDoubleSeconds(row.floor)) : Json()},
                    {"share_of_floor", has_floor ? Json(row.ShareOfFloor()) : Json()},
                    {"wrong_bytes", row.errors}});
  }
  const Json document = {{"bench", "sendrecv"},
                         {"transport", report.transport},
                         {"polling", report.is_polling},
                         {"cores", report.cores},
                         {"arena_pages", absl::StrJoin(report.pages, "; ")},
                         {"spin_floor_s", absl::ToDoubleSeconds(report.spin)},
                         {"rows", std::move(rows)},
                         {"wrong_bytes", report.errors()}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string FormatBenchCsv(const BenchReport& report) {
  std::string text =
      "mode,inflight,bytes,dtype,count,one_way_p50_s,one_way_p90_s,one_way_p99_s,one_way_p99_9_s,"
      "p50_low_s,p50_high_s,bytes_per_s,cpu_s_per_gb,path,floor,floor_s,share_of_floor,"
      "wrong_bytes\n";
  const auto seconds = [](absl::Duration time) {
    return absl::StrFormat("%.4g", absl::ToDoubleSeconds(time));
  };
  for (const BenchRow& row : report.rows) {
    const bool has_floor = !row.floor_name.empty();
    const std::vector<std::string> cells = {
        row.mode,
        absl::StrCat(row.inflight),
        absl::StrCat(row.bytes),
        "uint8",
        absl::StrCat(row.count),
        seconds(row.times.p50),
        seconds(row.times.p90),
        seconds(row.times.p99),
        seconds(row.times.p999),
        seconds(row.times.p50_low),
        seconds(row.times.p50_high),
        absl::StrFormat("%.4g", row.BytesPerSecond()),
        absl::StrFormat("%.4g", row.cpu_s_per_gb),
        row.path,
        row.floor_name,
        has_floor ? seconds(row.floor) : "",
        has_floor ? absl::StrFormat("%.4g", row.ShareOfFloor()) : "",
        absl::StrCat(row.errors)};
    absl::StrAppend(&text, absl::StrJoin(cells, ","), "\n");
  }
  return text;
}

absl::Status CheckBenchGates(const BenchReport& report, const BenchGates& gates) {
  std::vector<std::string> misses;
  const auto check = [&](double gate, absl::string_view flag, const auto& is_missed,
                         const auto& describe) {
    if (gate <= 0) return;
    std::vector<std::string> rows;
    for (const BenchRow& row : report.rows) {
      if (is_missed(row)) {
        rows.push_back(absl::StrCat(row.mode, row.inflight == 1 ? "" : " x",
                                    row.inflight == 1 ? "" : absl::StrCat(row.inflight), " ",
                                    Size(row.bytes), " (", describe(row), ")"));
      }
    }
    if (rows.empty()) return;
    misses.push_back(absl::StrCat(rows.size(), " of ", report.rows.size(), " rows miss ", flag, "=",
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
