// SPDX-License-Identifier: Apache-2.0
// Send and receive nodes, and the rendezvous keys they use.
#ifndef FERRY_TENSORFLOW_GRAPH_TRANSFER_H_
#define FERRY_TENSORFLOW_GRAPH_TRANSFER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "proto/tf_node.pb.h"
#include "tensorflow/graph/device_set.h"
#include "tensorflow/graph/op_schema.h"

namespace ferry::graph {

// One transfer of a tensor: the attributes of _Send and _Recv.
struct Transfer {
  // Unique among transfers between the same devices.
  std::string tensor_name;
  DataType type = tensorflow::DT_INVALID;
  int src_device = 0;
  int dst_device = 0;
  // Between client and graph, at the client's device.
  bool is_client = false;
};

// Fills in op, device and attributes; the caller sets the inputs.
//   is_on_host: the tensor is in host memory, although the device may be a GPU.
void FillSend(const Transfer& transfer, const DeviceSet& devices, bool is_on_host,
              tensorflow::NodeDef& node);
void FillRecv(const Transfer& transfer, const DeviceSet& devices, bool is_on_host,
              tensorflow::NodeDef& node);

// Returns the transfer's key in the step's rendezvous (rendezvous/key.h).
std::string KeyOf(const Transfer& transfer, const DeviceSet& devices);
// Returns the same, from the attributes of a _Send or _Recv.
//   Errors: INVALID_ARGUMENT if an attribute is missing.
absl::StatusOr<std::string> KeyOf(const tensorflow::NodeDef& node);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_TRANSFER_H_
