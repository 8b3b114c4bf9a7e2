// SPDX-License-Identifier: Apache-2.0
// BenchLines: the results reported by a bench's processes.
#ifndef FERRY_BENCH_LINES_H_
#define FERRY_BENCH_LINES_H_

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"

namespace ferry::cli {

// Not thread-safe.
class BenchLines {
 public:
  using Json = nlohmann::ordered_json;

  virtual ~BenchLines() = default;

  // Returns the next line of each process, by rank, all of them {"event": `event`, ...}.
  //   Errors: how a process ended; INTERNAL with an unexpected line.
  virtual absl::StatusOr<std::vector<Json>> Expect(const std::string& event) = 0;
};

// Lines that were received earlier.
class KeptBenchLines final : public BenchLines {
 public:
  explicit KeptBenchLines(std::deque<std::vector<Json>> lines) : lines_(std::move(lines)) {}

  absl::StatusOr<std::vector<Json>> Expect(const std::string& event) override;

 private:
  std::deque<std::vector<Json>> lines_;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_LINES_H_
