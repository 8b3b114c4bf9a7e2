// SPDX-License-Identifier: Apache-2.0
// Names in graphs: of nodes, of their inputs, and of fed and fetched tensors.
#ifndef FERRY_TENSORFLOW_GRAPH_NAMES_H_
#define FERRY_TENSORFLOW_GRAPH_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace ferry::graph {

// True if a client may use this node name: a letter, digit or dot, then also "-_/\"; further such
// pieces may follow '>'. Source: tensorflow/core/framework/node_def_util.cc.
//   is_internal: it may begin with '_', like the names that Prune adds.
bool IsNodeName(absl::string_view name, bool is_internal = false);

// Parsed "node", "node:2" or "^node"; a view of the parsed text.
struct InputName {
  absl::string_view node;
  // Saturates at INT32_MAX: no node has so many outputs.
  int port = 0;
  bool is_control = false;
};

// Parses an entry of NodeDef.input. Returns nullopt unless it has exactly one of those forms, with
// a port without leading zeros.
std::optional<InputName> ParseInputName(absl::string_view input, bool is_internal = false);

// Parses the name of a feed, fetch or target. Anything other than "node:2" or "^node" is taken as a
// node name with port 0; the lookup of that node reports unknown names.
InputName ParseTensorName(absl::string_view name);

// "node:2".
std::string TensorText(absl::string_view node, int port);

// Formats a name for messages: unprintable bytes escaped, long names elided in the middle.
std::string Shown(absl::string_view name);

// "\n\t [[{{node x}}]]": the suffix that names the node in TensorFlow's messages. Its clients match
// it to add where the node was created.
std::string AboutNode(absl::string_view name);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_NAMES_H_
