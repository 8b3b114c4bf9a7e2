// SPDX-License-Identifier: Apache-2.0
// Nodes by which tensors leave a device and arrive at another one.
#ifndef FERRY_TENSORFLOW_GRAPH_TRANSFER_H_
#define FERRY_TENSORFLOW_GRAPH_TRANSFER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "proto/tf_node.pb.h"
#include "tensorflow/graph/device_set.h"
#include "tensorflow/graph/op_schema.h"

namespace ferry::graph {

// One tensor on its way: what _Send and _Recv have in their attributes.
struct Transfer {
  // Distinguishes it from others between the same devices.
  std::string tensor_name;
  DataType type = tensorflow::DT_INVALID;
  int src_device = 0;
  int dst_device = 0;
  // Between the graph and the client, at the client's device.
  bool is_client = false;
};

// Fills in op, device and attributes; inputs are the caller's.
//   is_on_host: the tensor is in the host's memory, although the device may be another one.
void FillSend(const Transfer& transfer, const DeviceSet& devices, bool is_on_host,
              tensorflow::NodeDef& node);
void FillRecv(const Transfer& transfer, const DeviceSet& devices, bool is_on_host,
              tensorflow::NodeDef& node);

// Under which it goes through the rendezvous of a step (rendezvous/key.h).
std::string KeyOf(const Transfer& transfer, const DeviceSet& devices);
// The same, from the attributes of a _Send or _Recv.
//   Errors: INVALID_ARGUMENT if one of them is missing.
absl::StatusOr<std::string> KeyOf(const tensorflow::NodeDef& node);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_TRANSFER_H_
