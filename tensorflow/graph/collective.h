// SPDX-License-Identifier: Apache-2.0
// Collectives in graphs: the ops, and the candidate group members.
#ifndef FERRY_TENSORFLOW_GRAPH_COLLECTIVE_H_
#define FERRY_TENSORFLOW_GRAPH_COLLECTIVE_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "proto/tf_node.pb.h"
#include "tensorflow/graph/device_set.h"

namespace ferry::graph {

// Attribute of every collective node of a partitioned graph: a list of "<device>;<incarnation in
// hex>" for all devices of the step that run collectives, sorted by job, replica, task, type and
// index. Group membership is only known at run time: in the second versions of the ops the group is
// an input.
inline constexpr absl::string_view kCollectiveDevices = "_collective_devices";

// True for CollectiveReduce, CollectiveBcastRecvV2 and the other collective ops.
bool IsCollectiveOp(absl::string_view op);

//   used: devices of the set, in any order.
tensorflow::AttrValue CollectiveDevicesAttr(const DeviceSet& devices, absl::Span<const int> used);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_COLLECTIVE_H_
