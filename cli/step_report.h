// SPDX-License-Identifier: Apache-2.0
// The results of ferry step, as text and JSON.
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

// A tensor transferred between devices, as reported by its receiver.
struct Crossing {
  std::string edge;
  std::string from;
  std::string to;
  std::string transport;
  size_t bytes = 0;
  // From the receiver's request to the tensor's arrival.
  absl::Duration wait;
};

// A step that was run with tracing.
struct TracedStep {
  // In the order of the flags.
  std::vector<std::pair<std::string, Tensor>> fetched;
  std::vector<Crossing> crossings;
  // Number of nodes that ran, by device.
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
  // For an empty unary call of the same server, alternating with the steps; zero if several steps
  // ran concurrently.
  StepTimes ping;
};

std::string FormatStepText(const StepReport& report);
std::string FormatStepJson(const StepReport& report);

// REQUIRES: not empty.
StepTimes SummarizeStepTimes(std::vector<absl::Duration> samples);

}  // namespace ferry::cli

#endif  // FERRY_CLI_STEP_REPORT_H_
