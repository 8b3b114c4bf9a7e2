// SPDX-License-Identifier: Apache-2.0
// Graph: validated nodes and the edges between them.
#ifndef FERRY_TENSORFLOW_GRAPH_GRAPH_H_
#define FERRY_TENSORFLOW_GRAPH_GRAPH_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "proto/tf_graph.pb.h"
#include "tensorflow/graph/op_schema.h"
#include "tensorflow/graph/signature.h"

namespace ferry::graph {

// A node without its edges; immutable, shared by the graphs that contain it.
struct Node {
  // Attributes are complete. `input` is what the client wrote and is ignored: the Graph holds the
  // edges.
  tensorflow::NodeDef def;
  const OpSchema* op = nullptr;
  Signature signature;

  const std::string& name() const { return def.name(); }
};

// Output `port` of node number `node`.
struct Endpoint {
  int node = 0;
  int port = 0;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Endpoint& endpoint) {
    return H::combine(std::move(state), endpoint.node, endpoint.port);
  }
};

struct GraphLimits {
  int max_nodes = 1 << 22;
  // Over all nodes together.
  int max_inputs = 1 << 24;
  // Allows the node names that Prune and PartitionByDevice generate: true for graphs from a master,
  // false for graphs from a client.
  bool allow_internal_names = false;
};

// A value: immutable once made, so thread-safe; copies share the nodes. Nodes are numbered from 0
// in the order of the GraphDef; the nodes of an extension follow.
class Graph {
 public:
  // An empty graph.
  Graph() = default;

  // Validates everything that does not depend on devices: names, ops, attributes, inputs and their
  // types, and the absence of cycles.
  //   host: named in the error about an unknown op as the machine that rejected it.
  //   Errors, with TensorFlow's texts: INVALID_ARGUMENT; NOT_FOUND for an unknown op or a missing
  //   attribute; UNIMPLEMENTED, with op and node, for loops, conditions and function calls;
  //   RESOURCE_EXHAUSTED beyond `limits`.
  static absl::StatusOr<Graph> Create(tensorflow::GraphDef def,
                                      absl::string_view host = "this machine",
                                      const GraphLimits& limits = {});
  // Returns this graph plus the nodes of `def`, which may use existing nodes as inputs. Linear in
  // the size of the whole graph, with a small constant.
  //   Errors: as Create; INVALID_ARGUMENT for a node that already exists.
  absl::StatusOr<Graph> Extended(tensorflow::GraphDef def, absl::string_view host = "this machine",
                                 const GraphLimits& limits = {}) const;

  int node_count() const { return static_cast<int>(nodes_.size()); }
  const Node& node(int index) const { return *nodes_[static_cast<size_t>(index)]; }
  const std::shared_ptr<const Node>& shared_node(int index) const {
    return nodes_[static_cast<size_t>(index)];
  }
  // One per input of the node's signature.
  absl::Span<const Endpoint> inputs(int index) const;
  // Control dependencies, without duplicates.
  absl::Span<const int> control_inputs(int index) const;
  // Returns -1 if there is none.
  int Find(absl::string_view name) const;
  const tensorflow::VersionDef& versions() const { return versions_; }

  // Every node follows all its inputs and control inputs.
  const std::vector<int>& topological_order() const { return order_; }

 private:
  friend class GraphBuilder;

  // End offsets of each node's inputs in the shared arrays.
  struct Ends {
    size_t data = 0;
    size_t control = 0;
  };

  std::vector<std::shared_ptr<const Node>> nodes_;
  std::vector<Endpoint> inputs_;
  std::vector<int> control_inputs_;
  std::vector<Ends> ends_;
  std::vector<int> order_;
  // Keys point into the nodes' own names.
  absl::flat_hash_map<absl::string_view, int> by_name_;
  tensorflow::VersionDef versions_;
};

// Builds graphs from validated nodes. Not thread-safe.
class GraphBuilder {
 public:
  GraphBuilder() = default;
  // Extends `graph`.
  explicit GraphBuilder(Graph graph) : graph_(std::move(graph)) {}

  const Graph& graph() const { return graph_; }

  // Returns the node's number. REQUIRES: no node has its name.
  int AddNode(std::shared_ptr<const Node> node);
  // Sets the inputs of the next node, in the order of AddNode. May refer to nodes added later.
  //   control_inputs: duplicates are removed.
  void AddInputs(absl::Span<const Endpoint> inputs, absl::Span<const int> control_inputs);
  void set_versions(const tensorflow::VersionDef& versions) { graph_.versions_ = versions; }

  // REQUIRES: AddInputs was called once per node.
  //   Errors: INVALID_ARGUMENT, with the nodes' names, if there is a cycle.
  absl::StatusOr<Graph> Build() &&;

 private:
  absl::Status Order();

  Graph graph_;
};

// Makes a node from `def`, whose op is known: fills in default attributes and derives its types.
//   Errors: as Graph::Create.
absl::StatusOr<std::shared_ptr<const Node>> MakeNode(tensorflow::NodeDef def, const OpSchema& op);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_GRAPH_H_
