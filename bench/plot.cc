// SPDX-License-Identifier: Apache-2.0
// Axes, lines and a legend.
#include "bench/plot.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

#include "cli/table.h"

namespace ferry::cli {
namespace {

// Distinguishable by people with colour vision deficiency (Okabe and Ito).
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#882255", "#777777"};
constexpr double kWidth = 1120;
constexpr double kPlotWidth = 450;
constexpr double kPlotHeight = 320;
constexpr double kTop = 70;
constexpr double kLegendLine = 20;

struct Point {
  // Bytes, or nodes.
  double x;
  double seconds;
  // GB/s.
  double rate;
};

struct Line {
  std::string name;
  // Legend entry, shown once: all pairs share one.
  std::string legend;
  std::string colour;
  // Determines the colour: the name without the pair and the number in flight.
  std::string kind;
  // Several in flight: points are hollow.
  bool is_stream = false;
  bool is_floor = false;
  std::vector<Point> points;
};

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

std::string SizeLabel(double bytes) {
  constexpr const char* kUnits[] = {"", "K", "M", "G"};
  size_t unit = 0;
  // Tolerates rounding of ticks.
  for (; bytes >= 1023.5 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return absl::StrFormat("%g%s", bytes, kUnits[unit]);
}

std::string TimeLabel(double seconds) {
  if (seconds < 0.999e-6) return absl::StrFormat("%g ns", seconds * 1e9);
  if (seconds < 0.999e-3) return absl::StrFormat("%g us", seconds * 1e6);
  if (seconds < 0.999) return absl::StrFormat("%g ms", seconds * 1e3);
  return absl::StrFormat("%g s", seconds);
}

// Zero-copy transfers exceed any memory bandwidth.
std::string RateLabel(double gbps) {
  return gbps < 9999 ? absl::StrFormat("%g", gbps) : absl::StrFormat("%.0fk", gbps / 1000);
}

// A logarithmic axis over whole steps of `base`, between the pixels `from` and `to`.
class Axis final {
 public:
  Axis(double least, double most, double base, double from, double to)
      : log_(std::log(base)),
        // Tolerates rounding of values that lie on a step.
        first_(static_cast<int>(std::floor(std::log(least) / log_ + 1e-9))),
        last_(std::max(first_ + 1, static_cast<int>(std::ceil(std::log(most) / log_ - 1e-9)))),
        from_(from),
        to_(to) {}

  double At(double value) const {
    return from_ + (to_ - from_) * (std::log(value) / log_ - first_) / (last_ - first_);
  }
  // Returns at most about ten ticks.
  std::vector<double> Ticks() const {
    const int step = (last_ - first_ + 9) / 10;
    std::vector<double> ticks;
    for (int i = first_; i <= last_; i += step) ticks.push_back(std::exp(log_ * i));
    return ticks;
  }

 private:
  const double log_;
  const int first_;
  const int last_;
  const double from_;
  const double to_;
};

// If nothing is moved, the x axis is the number of nodes.
bool IsOverNodes(const BenchReport& report) {
  return std::all_of(report.rows.begin(), report.rows.end(),
                     [](const BenchRow& row) { return row.bytes == 0; });
}

bool HasRates(const BenchReport& report) {
  return std::any_of(report.rows.begin(), report.rows.end(),
                     [](const BenchRow& row) { return row.BytesPerSecond() > 0; });
}

std::string NameOf(const BenchReport& report, const BenchRow& row) {
  BenchRow named = row;
  if (IsOverNodes(report)) named.nodes = BenchRow().nodes;
  return named.Label();
}

double RateOf(const BenchReport& report, BenchRow row, absl::Duration time) {
  if (!HasRates(report)) return 1;
  row.times.p50 = time;
  return row.BytesPerSecond() / 1e9;
}

std::vector<Line> LinesOf(const BenchReport& report) {
  std::vector<Line> lines;
  std::vector<Line> floors;
  size_t kinds = 0;
  for (const BenchRow& row : report.rows) {
    const double seconds = absl::ToDoubleSeconds(row.times.p50);
    if (!(seconds > 0)) continue;
    std::string name = NameOf(report, row);
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&name](const auto& each) { return each.name == name; });
    if (line == lines.end()) {
      BenchRow alone = row;
      alone.inflight = BenchRow().inflight;
      alone.batch = BenchRow().batch;
      alone.pair = "";
      const std::string kind = NameOf(report, alone);
      const auto same = std::find_if(lines.begin(), lines.end(),
                                     [&kind](const auto& each) { return each.kind == kind; });
      const std::string colour =
          same != lines.end() ? same->colour : kColours[kinds++ % std::size(kColours)];
      BenchRow any_pair = row;
      any_pair.pair = "";
      line = lines.insert(lines.end(),
                          Line{.name = name,
                               .legend = absl::StrCat(NameOf(report, any_pair),
                                                      row.pair.empty() ? "" : ", each pair"),
                               .colour = colour,
                               .kind = kind,
                               .is_stream = row.inflight != alone.inflight});
    }
    const double x = IsOverNodes(report) ? row.nodes : static_cast<double>(row.bytes);
    line->points.push_back({x, seconds, RateOf(report, row, row.times.p50)});
    const double floor = absl::ToDoubleSeconds(row.floor);
    if (row.floor_name.empty() || !(floor > 0)) continue;
    name = absl::StrCat("floor of ", line->legend, ": ", row.floor_name);
    auto below = std::find_if(floors.begin(), floors.end(),
                              [&name](const auto& each) { return each.name == name; });
    if (below == floors.end()) {
      below = floors.insert(
          floors.end(),
          Line{.name = name, .legend = name, .colour = line->colour, .is_floor = true});
    }
    // All pairs share one baseline.
    if (!row.pair.empty() && std::any_of(below->points.begin(), below->points.end(),
                                         [x](const Point& each) { return each.x == x; })) {
      continue;
    }
    below->points.push_back({x, floor, RateOf(report, row, row.floor)});
  }
  lines.insert(lines.end(), floors.begin(), floors.end());
  for (Line& line : lines) {
    std::stable_sort(line.points.begin(), line.points.end(),
                     [](const Point& a, const Point& b) { return a.x < b.x; });
  }
  return lines;
}

std::string Marker(const Line& line, double x, double y) {
  return absl::StrFormat(
      "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\" stroke=\"%s\" "
      "stroke-width=\"1.5\"/>",
      x, y, line.is_stream ? "#fff" : line.colour.c_str(), line.colour);
}

// Returns the first line of each legend entry.
std::vector<Line> LegendOf(const std::vector<Line>& lines) {
  std::vector<Line> legend;
  for (const Line& line : lines) {
    const bool is_told = std::any_of(legend.begin(), legend.end(), [&line](const Line& each) {
      return each.legend == line.legend;
    });
    if (!is_told) legend.push_back(line);
  }
  return legend;
}

struct ChartSpace {
  double left;
  const char* x_name;
};

template <typename ValueOf, typename LabelOf>
std::string Chart(const std::vector<Line>& lines, const std::string& title, const ChartSpace& space,
                  const ValueOf& value_of, const LabelOf& label_of) {
  const double left = space.left;
  double least_x = HUGE_VAL;
  double most_x = 0;
  double least_y = HUGE_VAL;
  double most_y = 0;
  for (const Line& line : lines) {
    for (const Point& each : line.points) {
      least_x = std::min(least_x, each.x);
      most_x = std::max(most_x, each.x);
      least_y = std::min(least_y, value_of(each));
      most_y = std::max(most_y, value_of(each));
    }
  }
  const double bottom = kTop + kPlotHeight;
  const Axis x(least_x, most_x, 2, left, left + kPlotWidth);
  const Axis y(least_y, most_y, 10, bottom, kTop);
  std::string text = absl::StrFormat("<text x=\"%g\" y=\"%g\" font-weight=\"bold\">%s</text>\n",
                                     left, kTop - 14, Escaped(title));
  for (const double tick : x.Ticks()) {
    absl::StrAppendFormat(&text,
                          "<path d=\"M%.1f %g V%g\" stroke=\"#ddd\"/>"
                          "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>\n",
                          x.At(tick), kTop, bottom, x.At(tick), bottom + 18, SizeLabel(tick));
  }
  for (const double tick : y.Ticks()) {
    absl::StrAppendFormat(&text,
                          "<path d=\"M%g %.1f H%g\" stroke=\"#ddd\"/>"
                          "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                          left, y.At(tick), left + kPlotWidth, left - 8, y.At(tick) + 4,
                          label_of(tick));
  }
  absl::StrAppendFormat(&text, "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">%s</text>\n",
                        left + kPlotWidth / 2, bottom + 38, space.x_name);
  for (const Line& line : lines) {
    std::vector<std::string> points;
    std::string markers;
    for (const Point& each : line.points) {
      points.push_back(absl::StrFormat("%.1f,%.1f", x.At(each.x), y.At(value_of(each))));
      if (line.is_floor) continue;
      absl::StrAppend(&markers, Marker(line, x.At(each.x), y.At(value_of(each))), "\n");
    }
    absl::StrAppendFormat(
        &text, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"%s\"%s/>\n",
        absl::StrJoin(points, " "), line.colour, line.is_floor ? "1.5" : "2",
        line.is_floor ? " stroke-dasharray=\"6 4\"" : "");
    // Drawn above their lines.
    absl::StrAppend(&text, markers);
  }
  return text;
}

}  // namespace

std::string FormatBenchSvg(const BenchReport& report) {
  const std::vector<Line> lines = LinesOf(report);
  const double legend = kTop + kPlotHeight + 62;
  const std::vector<Line> told = LegendOf(lines);
  const double height = legend + kLegendLine * std::ceil(static_cast<double>(told.size()) / 2) + 10;
  std::string text = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" "
      "height=\"%g\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
      "<text x=\"20\" y=\"28\" font-size=\"15\">%s</text>\n",
      kWidth, height, kWidth, height, Escaped(BenchTitle(report)));
  if (lines.empty()) return absl::StrCat(text, "</svg>\n");
  const ChartSpace space{80, IsOverNodes(report) ? "nodes" : "bytes"};
  absl::StrAppend(&text, Chart(
                             lines, absl::StrCat("time, P50 ", report.time), space,
                             [](const Point& each) { return each.seconds; }, TimeLabel));
  if (HasRates(report)) {
    absl::StrAppend(&text, Chart(
                               lines, "GB/s", {80 + kPlotWidth + 110, space.x_name},
                               [](const Point& each) { return each.rate; }, RateLabel));
  }
  for (size_t i = 0; i < told.size(); ++i) {
    const Line& line = told[i];
    const double x = i % 2 == 0 ? 80 : 80 + kPlotWidth + 110;
    const double y = legend + kLegendLine * std::floor(static_cast<double>(i) / 2);
    absl::StrAppendFormat(&text,
                          "<path d=\"M%g %g h36\" stroke=\"%s\" stroke-width=\"2\"%s/>"
                          "%s<text x=\"%g\" y=\"%g\">%s</text>\n",
                          x, y, line.colour, line.is_floor ? " stroke-dasharray=\"6 4\"" : "",
                          line.is_floor ? "" : Marker(line, x + 18, y), x + 44, y + 4,
                          Escaped(line.legend));
  }
  return absl::StrCat(text, "</svg>\n");
}

}  // namespace ferry::cli
