// SPDX-License-Identifier: Apache-2.0
// Medians and the table of gates.
#include "benchmarks/support/gates.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ferry::bench {
namespace {

std::vector<Gate>& Gates() {
  static auto* gates = new std::vector<Gate>;
  return *gates;
}

std::string Number(double value) {
  if (value >= 1000) return absl::StrFormat("%.0f", value);
  return absl::StrFormat("%.3g", value);
}

}  // namespace

double Percentile(std::vector<double>& values, double fraction) {
  if (values.empty()) return 0;
  const size_t index = std::min(values.size() - 1,
                                static_cast<size_t>(fraction * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(index), values.end());
  return values[index];
}

double Median(std::vector<double> values) { return Percentile(values, 0.5); }

void Comparison::Add(double floor, double measured) {
  floors_.push_back(floor);
  measured_.push_back(measured);
}

double Comparison::ratio() const {
  std::vector<double> ratios;
  for (size_t i = 0; i < floors_.size(); ++i) ratios.push_back(measured_[i] / floors_[i]);
  return Median(std::move(ratios));
}

void AddGate(Gate gate) { Gates().push_back(std::move(gate)); }

void AddGate(std::string name, std::string unit, const Comparison& comparison, Bound bound,
             std::optional<double> target) {
  AddGate({.name = std::move(name),
           .unit = std::move(unit),
           .floor = comparison.floor(),
           .measured = comparison.measured(),
           .ratio = comparison.ratio(),
           .bound = bound,
           .target = target});
}

std::string GateTable() {
  std::string table =
      "| gate | floor | measured | ratio | target | |\n"
      "|---|---|---|---|---|---|\n";
  for (const Gate& gate : Gates()) {
    const bool is_ratio = gate.floor.has_value();
    const double value = is_ratio ? gate.ratio : gate.measured;
    const bool is_floor_bound = gate.bound == Bound::kAtLeast;
    std::string target = "-";
    std::string verdict = "info";
    if (gate.target.has_value()) {
      target = absl::StrCat(is_floor_bound ? ">= " : "<= ", Number(*gate.target),
                            is_ratio ? "" : absl::StrCat(" ", gate.unit));
      verdict = (is_floor_bound ? value >= *gate.target : value <= *gate.target) ? "PASS" : "MISS";
    }
    absl::StrAppend(&table, "| ", gate.name, " | ",
                    is_ratio ? absl::StrCat(Number(*gate.floor), " ", gate.unit) : "-", " | ",
                    Number(gate.measured), " ", gate.unit, " | ",
                    is_ratio ? absl::StrFormat("%.2f", gate.ratio) : "-", " | ", target, " | ",
                    verdict, " |\n");
  }
  return table;
}

}  // namespace ferry::bench
