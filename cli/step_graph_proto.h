// SPDX-License-Identifier: Apache-2.0
// Graphs from files, and their possible feeds and fetches.
#ifndef FERRY_CLI_STEP_GRAPH_PROTO_H_
#define FERRY_CLI_STEP_GRAPH_PROTO_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "cli/tensor_literal.h"
#include "proto/tf_graph.pb.h"
#include "tensorflow/graph/graph.h"

namespace ferry::cli {

// A parsed and validated GraphDef. A value.
class StepGraph final {
 public:
  // Reads a GraphDef as text or binary; "-" is stdin.
  //   Errors: NOT_FOUND, UNAVAILABLE for the file; FAILED_PRECONDITION with line and column if it
  //   is not a graph; those of graph::Graph::Create.
  static absl::StatusOr<StepGraph> Read(const std::string& path);

  const tensorflow::GraphDef& def() const { return def_; }
  int node_count() const { return graph_.node_count(); }

  // Returns the type and shape of `name`, "node" or "node:2".
  //   Errors: INVALID_ARGUMENT if there is no such node or output, listing some that exist.
  absl::StatusOr<WantedTensor> Output(absl::string_view name) const;
  //   Errors: INVALID_ARGUMENT if there is no such node.
  absl::Status CheckNode(absl::string_view name) const;
  // Lists some node names for messages: "a, b, c and 7 more".
  std::string SomeNodes() const;

 private:
  tensorflow::GraphDef def_;
  graph::Graph graph_;
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_STEP_GRAPH_PROTO_H_
