// SPDX-License-Identifier: Apache-2.0
// A run's results against its goals: medians, ratios, and the table at the end.
#ifndef FERRY_BENCHMARKS_SUPPORT_GATES_H_
#define FERRY_BENCHMARKS_SUPPORT_GATES_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ferry::bench {

// Keys of the store benchmarks look like "bench/000123"; their values have this many bytes.
inline constexpr size_t kValueBytes = 64;

// How much to measure.
struct Plan {
  bool is_quick = false;
  // Rounds of baseline and subject, alternating; the medians count.
  int rounds = 7;
  double slice_s = 0.15;
};

double Median(std::vector<double> values);
// The value that `fraction` of all are below; sorts `values`.
double Percentile(std::vector<double>& values, double fraction);

// One quantity of a baseline and of a subject, measured alternately: the ratio of each pair, so
// that load of the machine's neighbours affects both.
class Comparison final {
 public:
  void Add(double floor, double measured);
  double floor() const { return Median(floors_); }
  double measured() const { return Median(measured_); }
  double ratio() const;

 private:
  std::vector<double> floors_;
  std::vector<double> measured_;
};

enum class Bound { kAtLeast, kAtMost };

struct Gate {
  std::string name;
  std::string unit;
  // Absent: `target` is the limit of `measured` itself, not of its ratio to a floor.
  std::optional<double> floor;
  double measured = 0;
  double ratio = 0;
  Bound bound = Bound::kAtMost;
  // Absent: reported for information.
  std::optional<double> target;
};

// Gates of this run, in order; main prints them.
void AddGate(Gate gate);
void AddGate(std::string name, std::string unit, const Comparison& comparison, Bound bound,
             std::optional<double> target);
// A Markdown table.
std::string GateTable();

}  // namespace ferry::bench

#endif  // FERRY_BENCHMARKS_SUPPORT_GATES_H_
