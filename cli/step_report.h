// SPDX-License-Identifier: Apache-2.0
// What ferry step found, for people and for programs.
#ifndef FERRY_CLI_STEP_REPORT_H_
#define FERRY_CLI_STEP_REPORT_H_

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

#include "tensor/tensor.h"

namespace ferry::cli {

// A tensor that went from one device to another, as its receiver says.
struct Crossing {
  std::string edge;
  std::string from;
  std::string to;
  std::string transport;
  size_t bytes = 0;
  // From the receiver's asking to its having it.
  absl::Duration wait;
};

// A step that was told to say what it did.
struct TracedStep {
  // In the order of the flags.
  std::vector<std::pair<std::string, Tensor>> fetched;
  std::vector<Crossing> crossings;
  // Nodes that ran, by device.
  std::map<std::string, int> node_counts;

  size_t crossing_bytes() const;
};

struct StepTimes {
  absl::Duration p50;
  absl::Duration p99;
};

struct StepReport {
  std::string coordinator;
  int nodes_in_graph = 0;
  TracedStep first;
  int count = 0;
  int concurrency = 1;
  StepTimes step;
  double steps_per_s = 0;
  // Of a unary call of the same server that does nothing, in turns with the steps; zero where
  // several steps were under way at once.
  StepTimes ping;
};

std::string FormatStepText(const StepReport& report);
std::string FormatStepJson(const StepReport& report);

// REQUIRES: not empty.
StepTimes SummarizeStepTimes(std::vector<absl::Duration> samples);

}  // namespace ferry::cli

#endif  // FERRY_CLI_STEP_REPORT_H_
