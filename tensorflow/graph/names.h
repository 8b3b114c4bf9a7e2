// SPDX-License-Identifier: Apache-2.0
// Names in graphs: of nodes, of their inputs, of the tensors that clients feed and fetch.
#ifndef FERRY_TENSORFLOW_GRAPH_NAMES_H_
#define FERRY_TENSORFLOW_GRAPH_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace ferry::graph {

// Whether a client may call a node so: a letter, digit or dot, then also "-_/\"; and more such
// pieces after '>'. Source: tensorflow/core/framework/node_def_util.cc.
//   is_internal: it may begin with '_', as names do that Prune adds.
bool IsNodeName(absl::string_view name, bool is_internal = false);

// "node", "node:2" or "^node", which is a view of the text it was read from.
struct InputName {
  absl::string_view node;
  // Too large ones are INT32_MAX: no node has so many outputs.
  int port = 0;
  bool is_control = false;
};

// An entry of NodeDef.input; nothing unless it has exactly one of those forms, the number without
// leading zeros.
std::optional<InputName> ParseInputName(absl::string_view input, bool is_internal = false);

// What a client feeds, fetches or runs to. Anything that is not "node:2" or "^node" is a node's
// name, port 0: whether there is such a node decides.
InputName ParseTensorName(absl::string_view name);

// "node:2".
std::string TensorText(absl::string_view node, int port);

// As it stands in a message for people: unprintable bytes escaped, the middle of long ones left
// out.
std::string Shown(absl::string_view name);

// "\n\t [[{{node x}}]]": how TensorFlow's messages end by whom they are about; its clients look for
// that to add where the node was made.
std::string AboutNode(absl::string_view name);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_NAMES_H_
