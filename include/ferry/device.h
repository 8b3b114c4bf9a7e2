// SPDX-License-Identifier: Apache-2.0
// Device: the host memory or one GPU of a node.
#ifndef FERRY_INCLUDE_FERRY_DEVICE_H_
#define FERRY_INCLUDE_FERRY_DEVICE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include <ferry/namespace.h>

namespace ferry {
FERRY_NAMESPACE_BEGIN

enum class DeviceKind { kHost = 0, kGpu = 1 };

// A plain value, which names a device within its node. Whether the node has it is checked where it
// is used.
struct Device {
  DeviceKind kind = DeviceKind::kHost;
  // Position among the node's devices of that kind, from 0: for GPUs the CUDA ordinal in the node's
  // process, which CUDA_VISIBLE_DEVICES affects. A node has one host device.
  int index = 0;

  static constexpr Device Host() { return {DeviceKind::kHost, 0}; }
  static constexpr Device Gpu(int index) { return {DeviceKind::kGpu, index}; }
  // The device of a name such as "host:0" or "gpu:1".
  //   Errors: INVALID_ARGUMENT.
  static absl::StatusOr<Device> Parse(absl::string_view name);

  friend bool operator==(const Device&, const Device&) = default;
};

// "host:0", "gpu:1".
std::string ToString(const Device& device);

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_DEVICE_H_
