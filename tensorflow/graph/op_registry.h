// SPDX-License-Identifier: Apache-2.0
// The ops that graphs may consist of.
#ifndef FERRY_TENSORFLOW_GRAPH_OP_REGISTRY_H_
#define FERRY_TENSORFLOW_GRAPH_OP_REGISTRY_H_

#include <vector>

#include "absl/strings/string_view.h"

#include "tensorflow/graph/op_schema.h"

namespace ferry::graph {

// Null if there is none of that name. Thread-safe; the schema lives as long as the process.
const OpSchema* FindOp(absl::string_view name);

// All of them, by name.
std::vector<const OpSchema*> AllOps();

// Ops of TensorFlow that decide at run time what runs, or call functions: a graph with one of them
// cannot be run by what knows only straight graphs.
bool IsControlFlowOp(absl::string_view name);
bool IsFunctionCallOp(absl::string_view name);

// _Send, _Recv and their like.
bool IsSendOp(absl::string_view name);
bool IsRecvOp(absl::string_view name);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_OP_REGISTRY_H_
