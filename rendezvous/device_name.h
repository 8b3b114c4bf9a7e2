// SPDX-License-Identifier: Apache-2.0
// Names of tasks and of their devices, in TensorFlow's format.
#ifndef FERRY_RENDEZVOUS_DEVICE_NAME_H_
#define FERRY_RENDEZVOUS_DEVICE_NAME_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

#include "tensor/buffer.h"

namespace ferry {

// A value. Tasks are compared by parts, since "/task:1" is a prefix of "/task:10".
struct TaskName {
  std::string job;
  int64_t replica = 0;
  int64_t task = 0;

  friend bool operator==(const TaskName&, const TaskName&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const TaskName& name) {
    return H::combine(std::move(state), name.job, name.replica, name.task);
  }
};

struct TaskDevice {
  TaskName task;
  // "CPU", "GPU": upper case, also from the short form "/cpu:0".
  std::string type;
  int64_t index = 0;

  friend bool operator==(const TaskDevice&, const TaskDevice&) = default;
};

// Task N of replica 0 of the job "worker" is worker N. Negative: it is another task.
int64_t WorkerNumber(const TaskName& name);

// "/job:worker/replica:0/task:3". A missing replica is 0; job and task are required.
std::optional<TaskName> ParseTaskName(absl::string_view name);
// "/job:worker/replica:0/task:3/device:GPU:1", or the short form ".../gpu:1".
std::optional<TaskDevice> ParseDeviceName(absl::string_view name);

// The memory of its process that holds a value for that device.
TensorLocation LocationOf(const TaskDevice& device);

std::string ToString(const TaskName& name);
std::string ToString(const TaskDevice& name);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_DEVICE_NAME_H_
