// SPDX-License-Identifier: Apache-2.0
// Tables, heat maps and the plot.
#include "bench/html.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

#include "bench/plot.h"
#include "topology/link.h"

namespace ferry::cli {
namespace {

constexpr char kStyle[] =
    "body{font-family:sans-serif;font-size:14px;margin:24px;color:#222;max-width:1400px}"
    "table{border-collapse:collapse;margin:8px 0 20px}"
    "td,th{border:1px solid #ddd;padding:3px 8px;text-align:right;white-space:nowrap}"
    "th{background:#f4f4f4}td:first-child,th:first-child,.facts td{text-align:left}"
    ".facts td{white-space:normal}"
    ".wide{overflow-x:auto}svg{max-width:100%;height:auto}";

// A cell of a heat map: its text, and its heat from 0 to 1; negative: uncoloured.
struct HeatCell {
  std::string text;
  double heat = -1;
};

std::string EscapedHtml(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// name: of its CSS class.
std::string HtmlTable(const std::vector<std::vector<std::string>>& rows, const char* name) {
  std::string text = absl::StrCat("<div class=\"wide\"><table class=\"", name, "\">\n");
  for (size_t i = 0; i < rows.size(); ++i) {
    absl::StrAppend(&text, "<tr>");
    for (const std::string& cell : rows[i]) {
      const char* const tag = i == 0 ? "th" : "td";
      absl::StrAppend(&text, "<", tag, ">", EscapedHtml(cell), "</", tag, ">");
    }
    absl::StrAppend(&text, "</tr>\n");
  }
  return absl::StrCat(text, "</table></div>\n");
}

// From white to blue; black text is readable on all of them.
std::string HeatColour(double heat) {
  const auto mix = [heat](int hot) {
    return static_cast<int>(std::lround(255 + (hot - 255) * std::clamp(heat, 0.0, 1.0)));
  };
  return absl::StrFormat("#%02x%02x%02x", mix(0x6b), mix(0xae), mix(0xd6));
}

std::string HeatMap(const std::string& title, const std::vector<std::string>& names,
                    const std::vector<std::vector<HeatCell>>& cells) {
  std::string text =
      absl::StrCat("<h3>", EscapedHtml(title), "</h3>\n<table class=\"heat\">\n<tr><th></th>");
  for (const std::string& name : names) absl::StrAppend(&text, "<th>", EscapedHtml(name), "</th>");
  absl::StrAppend(&text, "</tr>\n");
  for (size_t row = 0; row < names.size(); ++row) {
    absl::StrAppend(&text, "<tr><th>", EscapedHtml(names[row]), "</th>");
    for (const HeatCell& cell : cells[row]) {
      const std::string colour =
          cell.heat < 0 ? "" : absl::StrCat(" style=\"background:", HeatColour(cell.heat), "\"");
      absl::StrAppend(&text, "<td", colour, ">", EscapedHtml(cell.text), "</td>");
    }
    absl::StrAppend(&text, "</tr>\n");
  }
  return absl::StrCat(text, "</table>\n");
}

// The closer two devices, the hotter.
std::string TopologyMap(const LocalTopology& topology) {
  std::vector<std::string> names;
  std::vector<std::vector<HeatCell>> cells;
  const int count = static_cast<int>(topology.devices.size());
  for (int from = 0; from < count; ++from) {
    names.push_back(DeviceName(topology.devices[static_cast<size_t>(from)]));
    cells.emplace_back();
    for (int to = 0; to < count; ++to) {
      const Link link = topology.LinkBetween(from, to);
      const double farthest = static_cast<double>(LinkType::kDis);
      cells.back().push_back({LinkText(link), 1 - static_cast<double>(link.type) / farthest});
    }
  }
  return HeatMap("How near its devices are", names, cells);
}

// One map per mode and size, scaled to its fastest pair.
std::string PairMaps(const BenchReport& report) {
  std::map<std::pair<std::string, size_t>, std::map<std::string, double>> maps;
  int nodes = 0;
  for (const BenchRow& row : report.rows) {
    if (row.pair.empty()) continue;
    nodes = std::max(nodes, row.nodes);
    maps[{row.ModeText(), row.bytes}][row.pair] = row.BytesPerSecond() / 1e9;
  }
  std::vector<std::string> names;
  for (int node = 0; node < nodes; ++node) names.push_back(absl::StrCat("node ", node));
  std::string text;
  for (const auto& [of, pairs] : maps) {
    double most = 0;
    for (const auto& [pair, rate] : pairs) most = std::max(most, rate);
    std::vector<std::vector<HeatCell>> cells(static_cast<size_t>(nodes));
    for (int from = 0; from < nodes; ++from) {
      for (int to = 0; to < nodes; ++to) {
        const auto found = pairs.find(absl::StrCat(from, "->", to));
        cells[static_cast<size_t>(from)].push_back(
            found == pairs.end() ? HeatCell{"-", -1}
                                 : HeatCell{BenchRateText(found->second), found->second / most});
      }
    }
    absl::StrAppend(&text, HeatMap(absl::StrCat(of.first, " ", BenchSizeText(of.second),
                                                ": GB/s from rows to columns, one pair at a time"),
                                   names, cells));
  }
  return text;
}

}  // namespace

std::string FormatBenchHtml(const BenchReport& report, const BenchMachine& machine) {
  std::vector<std::vector<std::string>> facts = {{"machine", ""}};
  for (const auto& [name, fact] : machine.facts) facts.push_back({name, fact});
  if (report.spin > absl::ZeroDuration()) {
    facts.push_back({"spinning wake-up, measured in this run", BenchTimeText(report.spin)});
    facts.push_back({"futex wake-up, measured in this run", BenchTimeText(report.futex)});
  }
  for (const std::string& pages : report.pages) facts.push_back({"tensors in", pages});
  const size_t errors = report.errors();
  std::string reasons;
  const std::string others = BenchOtherLoadText(report);
  if (!others.empty()) reasons = absl::StrCat("<p><b>", EscapedHtml(others), "</b></p>\n");
  for (const std::string& reason : BenchReasons(report)) {
    absl::StrAppend(&reasons, "<p>", EscapedHtml(reason), "</p>\n");
  }
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>ferry bench ",
      EscapedHtml(report.bench), "</title><style>", kStyle, "</style></head><body>\n<h1>",
      EscapedHtml(BenchTitle(report)), "</h1>\n<p>Times are ", EscapedHtml(report.time),
      "; floors are of the same run. ",
      errors == 0 ? absl::StrCat("Every ", report.errors_of, " was verified.")
                  : absl::StrCat("<b>", errors, " times a ", report.errors_of, " was WRONG.</b>"),
      "</p>\n", HtmlTable(facts, "facts"), TopologyMap(machine.topology), PairMaps(report),
      "<h3>Rows</h3>\n<p>+- is where P50 lies with 95% confidence.</p>\n",
      HtmlTable(BenchCells(report), "rows"), reasons, FormatBenchSvg(report), "</body></html>\n");
}

}  // namespace ferry::cli
