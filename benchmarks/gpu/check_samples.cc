// SPDX-License-Identifier: Apache-2.0
// Medians and spreads.
#include "benchmarks/gpu/check_samples.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"

namespace ferry::check {
namespace {

constexpr double kGiga = 1e9;
constexpr double kMicro = 1e-6;

double GigabytesPerSecond(size_t bytes, double us) {
  return static_cast<double>(bytes) / (us * kMicro) / kGiga;
}

}  // namespace

double Samples::At(double share) const {
  FERRY_CHECK(!us_.empty());
  std::vector<double> sorted = us_;
  const auto at = static_cast<size_t>(std::lround(share * static_cast<double>(sorted.size() - 1)));
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(at), sorted.end());
  return sorted[at];
}

nlohmann::ordered_json Samples::ToJson() const {
  return {{"median_us", median()}, {"p10_us", At(0.1)}, {"p90_us", At(0.9)}, {"count", us_.size()}};
}

nlohmann::ordered_json FigureJson(const Figure& figure) {
  nlohmann::ordered_json json = {{"name", figure.name},
                                 {"bytes", figure.bytes},
                                 {"in_flight", figure.in_flight},
                                 {"processes_on_gpu", figure.processes_on_gpu},
                                 {"path", figure.path},
                                 {"ferry", figure.ferry.ToJson()},
                                 {"wrong_bytes", figure.wrong_bytes}};
  json["ferry"]["gb_per_s"] = GigabytesPerSecond(figure.bytes, figure.ferry.median());
  if (figure.floor.count() > 0) {
    json["floor"] = figure.floor.ToJson();
    json["floor"]["name"] = figure.floor_name;
    json["floor"]["gb_per_s"] = GigabytesPerSecond(figure.bytes, figure.floor.median());
    json["ratio"] = figure.floor.median() / figure.ferry.median();
  } else {
    json["floor"] = nullptr;
    json["ratio"] = nullptr;
  }
  if (figure.goal.has_value()) {
    json["goal"] = *figure.goal;
  } else {
    json["goal"] = nullptr;
  }
  return json;
}

}  // namespace ferry::check
