// SPDX-License-Identifier: Apache-2.0
// Collectives in graphs: which ops they are, and who may take part.
#ifndef FERRY_TENSORFLOW_GRAPH_COLLECTIVE_H_
#define FERRY_TENSORFLOW_GRAPH_COLLECTIVE_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "proto/tf_node.pb.h"
#include "tensorflow/graph/device_set.h"

namespace ferry::graph {

// An attribute of every collective node of a cut graph: a list of "<device>;<incarnation in hex>",
// of all devices of the step that have collectives, by job, replica, task, type and index. Which of
// them are in one group is known when they run: in the second versions of the ops groups are
// inputs.
inline constexpr absl::string_view kCollectiveDevices = "_collective_devices";

// CollectiveReduce, CollectiveBcastRecvV2 and their like.
bool IsCollectiveOp(absl::string_view op);

//   used: devices of the set, in any order.
tensorflow::AttrValue CollectiveDevicesAttr(const DeviceSet& devices, absl::Span<const int> used);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_COLLECTIVE_H_
