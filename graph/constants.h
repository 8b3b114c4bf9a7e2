// SPDX-License-Identifier: Apache-2.0
// The values of constants in a graph.
#ifndef FERRY_GRAPH_CONSTANTS_H_
#define FERRY_GRAPH_CONSTANTS_H_

#include <cstddef>

#include "proto/tf_node.pb.h"
#include "tensor/bytes_of_proto.h"

namespace ferry::graph {

// The tensor of a Const node; null for any other node, and for one without a value.
inline const tensorflow::TensorProto* ConstantTensor(const tensorflow::NodeDef& node) {
  if (node.op() != "Const") return nullptr;
  const auto found = node.attr().find("value");
  return found == node.attr().end() ? nullptr : &found->second.tensor();
}

// Bytes of a constant's tensor, as DecodedBytes; 0 for any other node.
inline size_t ConstantBytes(const tensorflow::NodeDef& node) {
  const tensorflow::TensorProto* const tensor = ConstantTensor(node);
  return tensor == nullptr ? 0 : DecodedBytes(*tensor);
}

}  // namespace ferry::graph

#endif  // FERRY_GRAPH_CONSTANTS_H_
