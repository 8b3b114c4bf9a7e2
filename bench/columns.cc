// SPDX-License-Identifier: Apache-2.0
// Names, units and formatting of columns.
#include "bench/columns.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string Time(absl::Duration time) { return BenchTimeText(time); }
std::string Rate(double rate) { return BenchRateText(rate); }
std::string Size(size_t bytes) { return BenchSizeText(bytes); }

// One unit, so that the values of a column are comparable.
std::string Microseconds(absl::Duration time) {
  const double us = absl::ToDoubleMicroseconds(time);
  return absl::StrFormat("%.*f", us < 10 ? 2 : us < 100 ? 1 : 0, us);
}

Json OrNull(double number) { return number > 0 ? Json(number) : Json(); }

BenchColumn TimeColumn(const char* key, const char* heading, absl::Duration BenchTimes::*time) {
  return {key, heading,
          [time](const BenchRow& row) { return Json(absl::ToDoubleSeconds(row.times.*time)); },
          [time](const BenchRow& row) { return Microseconds(row.times.*time); }};
}

// In units of 10^9 per second.
BenchColumn RateColumn(const char* key, const char* heading, double (BenchRow::*rate)() const) {
  return {key, heading, [rate](const BenchRow& row) { return OrNull((row.*rate)()); },
          [rate](const BenchRow& row) { return Rate((row.*rate)() / 1e9); },
          [rate](const BenchRow& row) { return (row.*rate)() > 0; }};
}

BenchColumn CountColumn(const char* key, const char* heading, int BenchRow::*count, int usual) {
  return {key, heading, [count](const BenchRow& row) { return Json(row.*count); },
          [count](const BenchRow& row) { return absl::StrCat(row.*count); },
          [count, usual](const BenchRow& row) { return row.*count != usual; }};
}

std::vector<BenchColumn> NameColumns() {
  const auto has_bytes = [](const BenchRow& row) { return row.bytes > 0; };
  return {{"mode", "MODE", [](const BenchRow& row) { return Json(row.mode); },
           [](const BenchRow& row) { return row.ModeText(); }},
          {"transport", nullptr,
           [](const BenchRow& row) { return row.transport.empty() ? Json() : Json(row.transport); },
           nullptr},
          {"inflight", nullptr, [](const BenchRow& row) { return Json(row.inflight); }, nullptr},
          CountColumn("batch", "BATCH", &BenchRow::batch, 1),
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

std::vector<BenchColumn> FigureColumns() {
  return {TimeColumn("p50_s", "P50 US", &BenchTimes::p50),
          {"p50_spread", "+-", [](const BenchRow& row) { return Json(row.times.Spread()); },
           [](const BenchRow& row) { return absl::StrFormat("%.0f%%", row.times.Spread() * 100); }},
          TimeColumn("p90_s", "P90 US", &BenchTimes::p90),
          TimeColumn("p99_s", "P99 US", &BenchTimes::p99),
          TimeColumn("p99_9_s", "P99.9 US", &BenchTimes::p999),
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

std::vector<BenchColumn> OriginColumns() {
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

}  // namespace

std::vector<BenchColumn> BenchColumns() {
  std::vector<BenchColumn> columns = NameColumns();
  for (const auto& more : {FigureColumns(), OriginColumns()}) {
    columns.insert(columns.end(), more.begin(), more.end());
  }
  return columns;
}

}  // namespace ferry::cli
