// SPDX-License-Identifier: Apache-2.0
// Takes the first start and the last end of each round.
#include "bench/pattern_merge.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"

namespace ferry::cli {

absl::Status MergeRounds(const std::vector<nlohmann::ordered_json>& lines, int divisor,
                         double gigabytes, BenchRow& row) {
  std::vector<int64_t> starts;
  std::vector<int64_t> ends;
  std::set<std::string> paths;
  double cpu_s = 0;
  for (const nlohmann::ordered_json& line : lines) {
    const auto own_starts = line.value("starts_ns", std::vector<int64_t>());
    const auto own_ends = line.value("ends_ns", std::vector<int64_t>());
    cpu_s += line.value("cpu_s", 0.0);
    row.errors += line.value("errors", size_t{0});
    for (const auto& path : line.value("paths", std::vector<std::string>())) paths.insert(path);
    if (row.path_reason.empty()) row.path_reason = line.value("path_reason", "");
    if (own_starts.empty() && own_ends.empty()) continue;
    if (starts.empty()) {
      starts = own_starts;
      ends = own_ends;
    }
    if (own_starts.size() != starts.size() || own_ends.size() != ends.size() ||
        starts.size() != ends.size()) {
      return absl::InternalError("the processes of the bench do not tell of the same rounds");
    }
    for (size_t i = 0; i < starts.size(); ++i) {
      starts[i] = std::min(starts[i], own_starts[i]);
      ends[i] = std::max(ends[i], own_ends[i]);
    }
  }
  if (starts.empty()) return absl::InternalError("no process of the bench tells of a round");
  std::vector<absl::Duration> samples;
  for (size_t i = 0; i < starts.size(); ++i) {
    samples.push_back(absl::Nanoseconds(ends[i] - starts[i]) / divisor);
  }
  row.path = absl::StrJoin(paths, "+");
  row.cpu_s_per_gb = gigabytes > 0 ? cpu_s / (gigabytes * static_cast<double>(samples.size())) : 0;
  row.count = static_cast<int>(samples.size()) * divisor;
  row.times = SummarizeTimes(std::move(samples));
  return absl::OkStatus();
}

}  // namespace ferry::cli
