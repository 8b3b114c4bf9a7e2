// SPDX-License-Identifier: Apache-2.0
// The memory of a client's graph, as a message and as a graph.
#include "tensorflow/master/read_graph.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensor/bytes_of_proto.h"
#include "tensorflow/graph/constants.h"
#include "tensorflow/graph/names.h"

namespace ferry::master {
namespace {

// Memory per graph node besides its message: signature, edges and names.
constexpr size_t kNodeBytes = 512;

absl::Status TooLarge(absl::string_view what, absl::string_view option, size_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat(what, " would take more than ", option, " (", limit, ")"));
}

// Checked by shape: a few bytes can declare a billion elements.
absl::Status AddConstants(const tensorflow::GraphDef& def, const MasterOptions& options,
                          size_t& bytes) {
  for (const tensorflow::NodeDef& node : def.node()) {
    const size_t own = graph::ConstantBytes(node);
    if (own > options.max_constant_bytes) {
      return TooLarge(absl::StrCat("The constant ", graph::Shown(node.name())),
                      "--max-constant-bytes", options.max_constant_bytes);
    }
    bytes = AddBytes(bytes, own);
  }
  if (bytes <= options.max_all_constant_bytes) return absl::OkStatus();
  return TooLarge("The constants of the session's graph", "--max-all-constant-bytes",
                  options.max_all_constant_bytes);
}

}  // namespace

size_t GraphMemory(const tensorflow::GraphDef& def) {
  return def.SpaceUsedLong() + kNodeBytes * static_cast<size_t>(def.node_size());
}

absl::Status TakeGraphShare(const MasterContext& context, size_t bytes, Budget::Share& share) {
  if (context.graphs.Take(bytes, share)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("A graph that takes ", bytes, " bytes, and those of all sessions take ",
                   context.graphs.used(), ": --max-all-graph-bytes is ", context.graphs.limit(),
                   "; close sessions"));
}

absl::StatusOr<PlacedGraph> ReadGraph(tensorflow::GraphDef def, const PlacedGraph* before,
                                      const MasterOptions& options) {
  if (def.ByteSizeLong() > options.max_graph_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("The graph is larger than --max-graph-bytes (", options.max_graph_bytes, ")"));
  }
  const size_t nodes = static_cast<size_t>(before == nullptr ? 0 : before->graph.node_count()) +
                       static_cast<size_t>(def.node_size());
  if (nodes > options.max_graph_nodes) {
    return absl::ResourceExhaustedError(absl::StrCat("The session's graph would have ", nodes,
                                                     " nodes, and --max-graph-nodes is ",
                                                     options.max_graph_nodes));
  }
  PlacedGraph read;
  if (before != nullptr) read.constant_bytes = before->constant_bytes;
  FERRY_RETURN_IF_ERROR(AddConstants(def, options, read.constant_bytes));
  if (before != nullptr) {
    FERRY_ASSIGN_OR_RETURN(read.graph,
                           before->graph.Extended(std::move(def), options.host, options.graph));
  } else {
    FERRY_ASSIGN_OR_RETURN(read.graph,
                           graph::Graph::Create(std::move(def), options.host, options.graph));
  }
  return read;
}

}  // namespace ferry::master
