// SPDX-License-Identifier: Apache-2.0
// Graph: nodes that have been checked, and what each takes from which.
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

// One node by itself; immutable, shared by the graphs that it is in.
struct Node {
  // Its attributes are complete. Its `input` is what the client wrote, and of no account: a Graph
  // says what it takes.
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
  // Of all nodes together.
  int max_inputs = 1 << 24;
  // Whether nodes may have the names that Prune and PartitionByDevice give to those they add: what
  // comes from a master is such a graph, what comes from a client is not.
  bool allow_internal_names = false;
};

// A value: immutable once made, so thread-safe; a copy shares the nodes. Nodes have numbers from 0
// on in the order of the GraphDef, and those of an extension follow.
class Graph {
 public:
  // No nodes.
  Graph() = default;

  // Checks everything that can be told without devices: names, ops, attributes, inputs and their
  // types, that no node waits for itself.
  //   host: stands in the error about an op that nobody knows, as where that was.
  //   Errors, with TensorFlow's texts: INVALID_ARGUMENT; NOT_FOUND for an unknown op or a missing
  //   attribute; UNIMPLEMENTED, with op and node, for loops, conditions and calls of functions;
  //   RESOURCE_EXHAUSTED beyond `limits`.
  static absl::StatusOr<Graph> Create(tensorflow::GraphDef def,
                                      absl::string_view host = "this machine",
                                      const GraphLimits& limits = {});
  // This graph and the nodes of `def`, which may take from those that are there. Takes time for all
  // of it, but little.
  //   Errors: as of Create; INVALID_ARGUMENT for a node that is there already.
  absl::StatusOr<Graph> Extended(tensorflow::GraphDef def, absl::string_view host = "this machine",
                                 const GraphLimits& limits = {}) const;

  int node_count() const { return static_cast<int>(nodes_.size()); }
  const Node& node(int index) const { return *nodes_[static_cast<size_t>(index)]; }
  const std::shared_ptr<const Node>& shared_node(int index) const {
    return nodes_[static_cast<size_t>(index)];
  }
  // One for each input of its signature.
  absl::Span<const Endpoint> inputs(int index) const;
  // Nodes that must have run before; without duplicates.
  absl::Span<const int> control_inputs(int index) const;
  // -1 if there is none.
  int Find(absl::string_view name) const;
  const tensorflow::VersionDef& versions() const { return versions_; }

  // Every node after all that it takes from and waits for.
  const std::vector<int>& topological_order() const { return order_; }

 private:
  friend class GraphBuilder;

  // Where the inputs of each node end in the arrays of all.
  struct Ends {
    size_t data = 0;
    size_t control = 0;
  };

  std::vector<std::shared_ptr<const Node>> nodes_;
  std::vector<Endpoint> inputs_;
  std::vector<int> control_inputs_;
  std::vector<Ends> ends_;
  std::vector<int> order_;
  // The keys are the nodes' own names.
  absl::flat_hash_map<absl::string_view, int> by_name_;
  tensorflow::VersionDef versions_;
};

// Puts graphs together from nodes that have been checked. Not thread-safe.
class GraphBuilder {
 public:
  GraphBuilder() = default;
  // Goes on where `graph` ends.
  explicit GraphBuilder(Graph graph) : graph_(std::move(graph)) {}

  const Graph& graph() const { return graph_; }

  // Returns its number. REQUIRES: there is none of that name.
  int AddNode(std::shared_ptr<const Node> node);
  // For the nodes in their order: what the next one takes. Nodes that it names may come later.
  //   control_inputs: duplicates are dropped.
  void AddInputs(absl::Span<const Endpoint> inputs, absl::Span<const int> control_inputs);
  void set_versions(const tensorflow::VersionDef& versions) { graph_.versions_ = versions; }

  // REQUIRES: as many AddInputs as nodes.
  //   Errors: INVALID_ARGUMENT if nodes wait for each other, naming them.
  absl::StatusOr<Graph> Build() &&;

 private:
  absl::Status Order();

  Graph graph_;
};

// A node of `def`, whose op is known, with its defaults and its types.
//   Errors: as of Graph::Create.
absl::StatusOr<std::shared_ptr<const Node>> MakeNode(tensorflow::NodeDef def, const OpSchema& op);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_GRAPH_H_
