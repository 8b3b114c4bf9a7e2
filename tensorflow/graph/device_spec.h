// SPDX-License-Identifier: Apache-2.0
// DeviceSpec: which device a client wants, as far as it says.
#ifndef FERRY_TENSORFLOW_GRAPH_DEVICE_SPEC_H_
#define FERRY_TENSORFLOW_GRAPH_DEVICE_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "rendezvous/device_name.h"

namespace ferry::graph {

// A value. What is absent may be anything.
struct DeviceSpec {
  std::optional<std::string> job;
  std::optional<int64_t> replica;
  std::optional<int64_t> task;
  std::optional<std::string> type;
  std::optional<int64_t> index;

  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

// "/job:worker/task:1", "/device:GPU:*", "/device:CPU", "/gpu:0", "/cpu:*", "" and combinations;
// "*" is anything, and of two parts that say the same the later one holds. Nothing if it is none.
// Source: tensorflow/core/util/device_name_utils.cc, ParseFullName.
std::optional<DeviceSpec> ParseDeviceSpec(absl::string_view text);

bool Matches(const DeviceSpec& spec, const TaskDevice& device);

// "/job:worker/task:1": what is there.
std::string ToString(const DeviceSpec& spec);

// Adds what `other` says to `spec`. Where they contradict each other
//   in job, replica or task: INVALID_ARGUMENT, with both;
//   in type or index: the same; if `is_soft`, both forget it instead.
// `spec` is unchanged by an error.
absl::Status Merge(const DeviceSpec& other, bool is_soft, DeviceSpec& spec);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_DEVICE_SPEC_H_
