// SPDX-License-Identifier: Apache-2.0
// The size in bytes of constants in a graph.
#ifndef FERRY_TENSORFLOW_GRAPH_CONSTANTS_H_
#define FERRY_TENSORFLOW_GRAPH_CONSTANTS_H_

#include <cstddef>

#include "proto/tf_node.pb.h"
#include "tensor/bytes_of_proto.h"

namespace ferry::graph {

// Returns the bytes of a constant's tensor, as DecodedBytes does; 0 for any other node.
inline size_t ConstantBytes(const tensorflow::NodeDef& node) {
  if (node.op() != "Const") return 0;
  const auto found = node.attr().find("value");
  return found == node.attr().end() ? 0 : DecodedBytes(found->second.tensor());
}

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_CONSTANTS_H_
