// SPDX-License-Identifier: Apache-2.0
// Turns an untrusted GraphDef into a Graph.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/graph/graph.h"
#include "tensorflow/graph/names.h"
#include "tensorflow/graph/op_registry.h"

namespace ferry::graph {
namespace {

using tensorflow::GraphDef;
using tensorflow::NodeDef;

// The supported GraphDef version: TensorFlow 2.15's.
constexpr int kGraphVersion = 1645;

absl::Status CheckVersions(const tensorflow::VersionDef& versions) {
  if (versions.producer() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("GraphDef producer version ", versions.producer(),
                     " below min producer 0 supported by Ferry.  Please regenerate your graph."));
  }
  if (versions.min_consumer() > kGraphVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("GraphDef min consumer version ", versions.min_consumer(),
                     " above current version ", kGraphVersion, " for Ferry."));
  }
  const auto& bad = versions.bad_consumers();
  if (std::find(bad.begin(), bad.end(), kGraphVersion) != bad.end()) {
    return absl::InvalidArgumentError(absl::StrCat("GraphDef disallows consumer version ",
                                                   kGraphVersion, ", which is that of Ferry."));
  }
  return absl::OkStatus();
}

// Checks the syntax of a node's name and inputs.
absl::Status CheckSyntax(const NodeDef& node, bool is_internal) {
  if (!IsNodeName(node.name(), is_internal)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Illegal op name '", Shown(node.name()), "'", AboutNode(node.name())));
  }
  bool is_control_seen = false;
  for (const std::string& input : node.input()) {
    const std::optional<InputName> parsed = ParseInputName(input, is_internal);
    if (!parsed.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Illegal op input name '", Shown(input), "'", AboutNode(node.name())));
    }
    if (is_control_seen && !parsed->is_control) {
      return absl::InvalidArgumentError(
          absl::StrCat("All control inputs must follow all data inputs", AboutNode(node.name())));
    }
    is_control_seen = parsed->is_control;
  }
  return absl::OkStatus();
}

// Returns the names of library functions, which nodes call by using them as ops.
absl::flat_hash_set<absl::string_view> FunctionsOf(const GraphDef& def) {
  absl::flat_hash_set<absl::string_view> names;
  for (const tensorflow::FunctionDef& function : def.library().function()) {
    names.insert(function.signature().name());
  }
  return names;
}

absl::StatusOr<const OpSchema*> OpOf(const NodeDef& node,
                                     const absl::flat_hash_set<absl::string_view>& functions,
                                     absl::string_view host) {
  if (const OpSchema* op = FindOp(node.op())) return op;
  const std::string about =
      absl::StrCat("op '", Shown(node.op()), "' of node '", Shown(node.name()), "'");
  if (IsControlFlowOp(node.op())) {
    return absl::UnimplementedError(
        absl::StrCat("loops and conditions cannot be run: ", about, AboutNode(node.name())));
  }
  if (IsFunctionCallOp(node.op()) || functions.contains(node.op())) {
    return absl::UnimplementedError(
        absl::StrCat("functions cannot be called: ", about, AboutNode(node.name())));
  }
  return absl::NotFoundError(absl::StrCat(
      "Op type not registered '", Shown(node.op()), "' in binary running on ", host, ". It is the ",
      about, "; docs/graph.md lists the ops that can be run.", AboutNode(node.name())));
}

// A client may send its own _Send and _Recv nodes, whose attributes become parts of keys.
absl::Status CheckTransfer(const Node& node) {
  for (const absl::string_view attr : {"tensor_name", "send_device", "recv_device"}) {
    const std::string& text = node.def.attr().at(std::string(attr)).s();
    if (text.find(';') == std::string::npos) continue;
    return absl::InvalidArgumentError(absl::StrCat("attr '", attr, "' has a ';' in it, which keys ",
                                                   "are divided by", AboutNode(node.name())));
  }
  return absl::OkStatus();
}

// Adds the nodes of one GraphDef to a graph.
class Parser {
 public:
  Parser(const Graph& base, size_t input_count, const GraphLimits& limits)
      : first_(base.node_count()), limits_(limits), builder_(base), input_count_(input_count) {}

  // Moves the nodes out of `def`: a constant may take a gigabyte.
  absl::Status AddNodes(GraphDef& def, absl::string_view host) {
    // Syntax errors are reported before all others, as TensorFlow does.
    for (const NodeDef& node : def.node())
      FERRY_RETURN_IF_ERROR(CheckSyntax(node, limits_.allow_internal_names));
    if (static_cast<int64_t>(first_) + def.node_size() > limits_.max_nodes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a graph of ", static_cast<int64_t>(first_) + def.node_size(),
                       " nodes, over the limit of ", limits_.max_nodes));
    }
    const absl::flat_hash_set<absl::string_view> functions = FunctionsOf(def);
    for (NodeDef& node : *def.mutable_node()) {
      if (const int index = builder_.graph().Find(node.name()); index >= 0) {
        return absl::InvalidArgumentError(
            index < first_
                ? absl::StrCat("GraphDef argument to Extend includes node '", Shown(node.name()),
                               "', which was created by a previous call to Create or Extend in "
                               "this session.")
                : absl::StrCat("Node '", Shown(node.name()), "' is not unique"));
      }
      FERRY_ASSIGN_OR_RETURN(const OpSchema* op, OpOf(node, functions, host));
      FERRY_ASSIGN_OR_RETURN(std::shared_ptr<const Node> made, MakeNode(std::move(node), *op));
      if (IsSendOp(op->name) || IsRecvOp(op->name)) FERRY_RETURN_IF_ERROR(CheckTransfer(*made));
      builder_.AddNode(std::move(made));
    }
    return absl::OkStatus();
  }

  absl::Status AddInputs() {
    for (int i = first_; i < builder_.graph().node_count(); ++i) {
      const Node& node = builder_.graph().node(i);
      inputs_.clear();
      control_inputs_.clear();
      for (const std::string& input : node.def.input())
        FERRY_RETURN_IF_ERROR(AddInput(node, input));
      FERRY_RETURN_IF_ERROR(CheckInputCount(node));
      input_count_ += inputs_.size() + control_inputs_.size();
      if (input_count_ > static_cast<size_t>(limits_.max_inputs)) {
        return absl::ResourceExhaustedError(
            absl::StrCat("a graph with more than ", limits_.max_inputs, " inputs"));
      }
      builder_.AddInputs(inputs_, control_inputs_);
    }
    return absl::OkStatus();
  }

  GraphBuilder& builder() { return builder_; }

 private:
  absl::Status AddInput(const Node& node, const std::string& input) {
    const InputName name = *ParseInputName(input, limits_.allow_internal_names);
    const int src_index = builder_.graph().Find(name.node);
    if (src_index < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("Node '", Shown(node.name()), "': Unknown input node '", Shown(input), "'"));
    }
    if (name.is_control) {
      control_inputs_.push_back(src_index);
      return absl::OkStatus();
    }
    const Node& src = builder_.graph().node(src_index);
    if (name.port >= src.signature.outputs.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Node '", Shown(node.name()), "': Connecting to invalid output ", name.port,
                       " of source node ", Shown(src.name()), " which has ",
                       src.signature.outputs.size(), " outputs."));
    }
    const auto index = static_cast<int64_t>(inputs_.size());
    inputs_.push_back({src_index, name.port});
    if (index >= node.signature.inputs.size()) return absl::OkStatus();
    const DataType given = src.signature.outputs.type(name.port);
    const DataType wanted = node.signature.inputs.type(index);
    if (given == wanted) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("Input ", index, " of node ", Shown(node.name()), " was passed ",
                     TypeName(given), " from ", Shown(TensorText(src.name(), name.port)),
                     " incompatible with expected ", TypeName(wanted), "."));
  }

  absl::Status CheckInputCount(const Node& node) const {
    const auto given = static_cast<int64_t>(inputs_.size());
    const int64_t wanted = node.signature.inputs.size();
    if (given > wanted) {
      return absl::InvalidArgumentError(
          absl::StrCat("Input ", wanted, " of node ", Shown(node.name()),
                       " does not exist. Node only has ", wanted, " inputs."));
    }
    if (given < wanted) {
      return absl::InvalidArgumentError(absl::StrCat("NodeDef expected ", wanted, " inputs, ",
                                                     given, " inputs specified",
                                                     AboutNode(node.name())));
    }
    return absl::OkStatus();
  }

  const int first_;
  const GraphLimits limits_;
  GraphBuilder builder_;
  size_t input_count_;
  // Inputs of the current node.
  std::vector<Endpoint> inputs_;
  std::vector<int> control_inputs_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Node>> MakeNode(tensorflow::NodeDef def, const OpSchema& op) {
  auto node = std::make_shared<Node>();
  node->def = std::move(def);
  node->op = &op;
  FillDefaults(op, node->def);
  FERRY_RETURN_IF_ERROR(CheckAttrs(op, node->def));
  FERRY_ASSIGN_OR_RETURN(node->signature, SignatureOf(op, node->def));
  return node;
}

absl::StatusOr<Graph> Graph::Create(GraphDef def, absl::string_view host,
                                    const GraphLimits& limits) {
  return Graph().Extended(std::move(def), host, limits);
}

absl::StatusOr<Graph> Graph::Extended(GraphDef def, absl::string_view host,
                                      const GraphLimits& limits) const {
  FERRY_RETURN_IF_ERROR(CheckVersions(def.versions()));
  Parser parser(*this, inputs_.size() + control_inputs_.size(), limits);
  FERRY_RETURN_IF_ERROR(parser.AddNodes(def, host));
  FERRY_RETURN_IF_ERROR(parser.AddInputs());
  if (nodes_.empty()) parser.builder().set_versions(def.versions());
  return std::move(parser.builder()).Build();
}

}  // namespace ferry::graph
