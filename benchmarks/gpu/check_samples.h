// SPDX-License-Identifier: Apache-2.0
// Samples of times, and a figure: Ferry's time next to the baseline of the same run.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_SAMPLES_H_
#define FERRY_BENCHMARKS_GPU_CHECK_SAMPLES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/time/time.h"

namespace ferry::check {

// Sorted by the caller. Microseconds.
class Samples final {
 public:
  void Add(absl::Duration each) { us_.push_back(absl::ToDoubleMicroseconds(each)); }
  size_t count() const { return us_.size(); }
  // The sample at `share` of the sorted ones, 0 to 1. REQUIRES: count() > 0.
  double At(double share) const;
  double median() const { return At(0.5); }
  // {"median_us", "p10_us", "p90_us", "count"}
  nlohmann::ordered_json ToJson() const;

 private:
  std::vector<double> us_;
};

// Times are of one transfer of `bytes`.
struct Figure {
  std::string name;
  size_t bytes = 0;
  // The number in flight.
  int in_flight = 1;
  // Without MPS, processes on one GPU take turns: times of two include waits for a turn.
  int processes_on_gpu = 1;
  // The value of Received::path.
  std::string path;
  Samples ferry;
  // The baseline, and how it was measured.
  std::string floor_name;
  Samples floor;
  // Goal for the baseline's time over Ferry's; absent: none.
  std::optional<double> goal;
  // Wrong bytes, over all rounds.
  uint64_t wrong_bytes = 0;
};

// With "ratio": the floor's median over Ferry's, so that 1 is as fast as the machine.
nlohmann::ordered_json FigureJson(const Figure& figure);

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_SAMPLES_H_
