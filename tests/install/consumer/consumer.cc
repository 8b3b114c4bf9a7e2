// SPDX-License-Identifier: Apache-2.0
// Calls one function of several installed libraries.
#include <iostream>
#include <optional>
#include <string>

#include "base/ranges.h"
#include "node/identity.h"
#include "topology/device.h"

int main() {
  const absl::StatusOr<ferry::Identity> identity =
      ferry::ReadIdentity([](const char* name) -> std::optional<std::string> {
        if (std::string(name) == "FERRY_NODE_ID") return "3";
        return std::nullopt;
      });
  ferry::Device device;
  device.kind = ferry::DeviceKind::kGpu;
  device.ordinal = 1;
  const std::string text =
      ferry::DeviceName(identity->node_id->value, device) + " " + ferry::FormatRanges({0, 1, 2});
  std::cout << text << "\n";
  return text == "node3/gpu:1 0-2" ? 0 : 1;
}
