// SPDX-License-Identifier: Apache-2.0
// TensorId: the key that matches a send with a receive of the same step.
#ifndef FERRY_INCLUDE_FERRY_TENSOR_ID_H_
#define FERRY_INCLUDE_FERRY_TENSOR_ID_H_

#include <string>

#include <ferry/device.h>
#include <ferry/namespace.h>

namespace ferry {
FERRY_NAMESPACE_BEGIN

// A plain value, which sender and receiver each write for themselves; all parts must be equal on
// both sides. Nothing is checked or looked up before it is used in Step::Send or Step::Recv.
//   ferry::TensorId{.name = "weights", .source = 0, .destination = 1}
struct TensorId {
  // Chosen by the program: 1 to 31744 bytes, without ';'.
  std::string name;
  // Ranks.
  int source = 0;
  int destination = 0;
  // The device whose memory the tensor is sent from, and the one in whose memory it arrives.
  Device source_device;
  Device destination_device;

  friend bool operator==(const TensorId&, const TensorId&) = default;
};

// "\"weights\" from node0/host:0 to node1/gpu:2".
std::string ToString(const TensorId& id);

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_TENSOR_ID_H_
