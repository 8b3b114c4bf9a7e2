// SPDX-License-Identifier: Apache-2.0
// The supported ops.
#ifndef FERRY_TENSORFLOW_GRAPH_OP_REGISTRY_H_
#define FERRY_TENSORFLOW_GRAPH_OP_REGISTRY_H_

#include <vector>

#include "absl/strings/string_view.h"

#include "tensorflow/graph/op_schema.h"

namespace ferry::graph {

// Returns null if there is none of that name. Thread-safe; the schema lives as long as the process.
const OpSchema* FindOp(absl::string_view name);

// Returns all ops, sorted by name.
std::vector<const OpSchema*> AllOps();

// True for TensorFlow ops that choose at run time what runs, or that call functions. Graphs that
// contain one are rejected: only graphs without control flow are supported.
bool IsControlFlowOp(absl::string_view name);
bool IsFunctionCallOp(absl::string_view name);

// True for _Send, _Recv and their variants.
bool IsSendOp(absl::string_view name);
bool IsRecvOp(absl::string_view name);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_OP_REGISTRY_H_
