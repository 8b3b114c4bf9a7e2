// SPDX-License-Identifier: Apache-2.0
// DeviceSpec: a client's device request, possibly partial.
#ifndef FERRY_TENSORFLOW_GRAPH_DEVICE_SPEC_H_
#define FERRY_TENSORFLOW_GRAPH_DEVICE_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "rendezvous/device_name.h"

namespace ferry::graph {

// A value. An absent field matches anything.
struct DeviceSpec {
  std::optional<std::string> job;
  std::optional<int64_t> replica;
  std::optional<int64_t> task;
  std::optional<std::string> type;
  std::optional<int64_t> index;

  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

// Parses "/job:worker/task:1", "/device:GPU:*", "/device:CPU", "/gpu:0", "/cpu:*", "" and
// combinations. "*" matches anything; of two parts for the same field the later one wins. Returns
// nullopt if malformed.
// Source: tensorflow/core/util/device_name_utils.cc, ParseFullName.
std::optional<DeviceSpec> ParseDeviceSpec(absl::string_view text);

bool Matches(const DeviceSpec& spec, const TaskDevice& device);

// Formats the fields that are set: "/job:worker/task:1".
std::string ToString(const DeviceSpec& spec);

// Adds the fields of `other` to `spec`. Conflicts
//   in job, replica or task: INVALID_ARGUMENT, with both values;
//   in type or index: the same, or, if `is_soft`, the field is cleared.
// `spec` is unchanged on error.
absl::Status Merge(const DeviceSpec& other, bool is_soft, DeviceSpec& spec);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_DEVICE_SPEC_H_
