// SPDX-License-Identifier: Apache-2.0
// The devices and workers of one session.
#ifndef FERRY_TENSORFLOW_MASTER_SESSION_DEVICES_H_
#define FERRY_TENSORFLOW_MASTER_SESSION_DEVICES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "tensorflow/graph/device_set.h"
#include "tensorflow/graph/device_spec.h"
#include "tensorflow/master/cluster.h"

namespace ferry::master {

// A client's device filters: "/job:worker/task:1", "/job:ps". A value.
class DeviceFilters final {
 public:
  //   Errors: INVALID_ARGUMENT for a filter that is not part of a device name.
  template <typename Texts>
  static absl::StatusOr<DeviceFilters> Create(const Texts& texts) {
    DeviceFilters filters;
    for (const auto& text : texts) {
      if (absl::Status status = filters.Add(text); !status.ok()) return status;
    }
    return filters;
  }

  // True if the task may have a matching device.
  bool Matches(const TaskName& task) const;
  bool Matches(const TaskDevice& device) const;

 private:
  absl::Status Add(absl::string_view text);

  std::vector<graph::DeviceSpec> specs_;
};

// A value. The client's device, for feeds and fetches, is the host device of the first task.
struct SessionDevices {
  graph::DeviceSet set;
  // The workers with devices in the set.
  std::vector<ClusterWorker> workers;
  // Per device, an index of `workers`.
  std::vector<int> worker_of_device;

  int client_worker() const { return worker_of_device[static_cast<size_t>(set.client_device())]; }
};

//   Errors: INVALID_ARGUMENT if no worker is left.
absl::StatusOr<SessionDevices> SelectDevices(const Cluster& cluster, const DeviceFilters& filters);

// Returns the missing workers that match the filters, and why, for an error message; empty if none.
std::string MissingText(const Cluster& cluster, const DeviceFilters& filters);

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_SESSION_DEVICES_H_
