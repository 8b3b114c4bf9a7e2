// SPDX-License-Identifier: Apache-2.0
// Lists devices in an order that does not depend on the client.
#include "tensorflow/graph/collective.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ferry::graph {

bool IsCollectiveOp(absl::string_view op) { return absl::StartsWith(op, "Collective"); }

tensorflow::AttrValue CollectiveDevicesAttr(const DeviceSet& devices, absl::Span<const int> used) {
  std::vector<int> sorted(used.begin(), used.end());
  const auto place = [&](int index) {
    const TaskDevice& device = devices.device(index).device;
    return std::tie(device.task.job, device.task.replica, device.task.task, device.type,
                    device.index);
  };
  std::sort(sorted.begin(), sorted.end(), [&](int a, int b) { return place(a) < place(b); });
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  tensorflow::AttrValue attr;
  for (const int index : sorted) {
    const SessionDevice& device = devices.device(index);
    attr.mutable_list()->add_s(
        absl::StrCat(device.name, ";", absl::StrFormat("%016x", device.incarnation)));
  }
  return attr;
}

}  // namespace ferry::graph
