// SPDX-License-Identifier: Apache-2.0
// DeviceSet: the devices that a session may use.
#ifndef FERRY_TENSORFLOW_GRAPH_DEVICE_SET_H_
#define FERRY_TENSORFLOW_GRAPH_DEVICE_SET_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "rendezvous/device_name.h"
#include "tensorflow/graph/device_spec.h"

namespace ferry::graph {

// One device of the job.
struct SessionDevice {
  TaskDevice device;
  // Incarnation of its process; changes when the worker restarts.
  uint64_t incarnation = 0;
  // "/job:worker/replica:0/task:1/device:GPU:0".
  std::string name;
};

// A value; immutable. Devices are numbered in order of preference for an unconstrained node: GPUs
// first, then the client's task first, then by job, replica, task and index.
class DeviceSet {
 public:
  static constexpr size_t kMaxTypes = 64;

  //   devices: each with its full name and incarnation.
  //   client_device: where feeds enter and fetches leave; must be a host device of `devices`.
  //   last: names of devices that sort after all others, regardless of type.
  //   Errors: INVALID_ARGUMENT for a malformed or duplicate name, for more than kMaxTypes types, or
  //   for a client device that is not in `devices` or not a host device.
  static absl::StatusOr<DeviceSet> Create(
      absl::Span<const std::pair<std::string, uint64_t>> devices, absl::string_view client_device,
      absl::Span<const std::string> last = {});

  int size() const { return static_cast<int>(devices_.size()); }
  const SessionDevice& device(int index) const { return devices_[static_cast<size_t>(index)]; }
  int client_device() const { return client_device_; }
  // Returns -1 if there is none.
  int Find(absl::string_view name) const;

  // Returns the devices that match the spec, in order.
  std::vector<int> Matching(const DeviceSpec& spec) const;

  // "[ /job:worker/.../device:CPU:0, ... ]", truncated if long.
  std::string ListText() const;
  // "[CPU, GPU]".
  std::string TypesText() const;

 private:
  std::vector<SessionDevice> devices_;
  absl::flat_hash_map<std::string, int> by_name_;
  int client_device_ = 0;
};

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_DEVICE_SET_H_
