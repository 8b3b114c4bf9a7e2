// SPDX-License-Identifier: Apache-2.0
// Searches backwards from fetches and targets to feeds.
#include "tensorflow/graph/prune.h"

#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/graph/names.h"
#include "tensorflow/graph/op_registry.h"
#include "tensorflow/graph/transfer.h"

namespace ferry::graph {
namespace {

constexpr int kUnknown = -1;

class Pruner {
 public:
  Pruner(const Graph& graph, absl::Span<const int> placement, const DeviceSet& devices)
      : graph_(graph),
        placement_(placement),
        devices_(devices),
        is_needed_(static_cast<size_t>(graph.node_count()), false) {}

  absl::StatusOr<StepGraph> Run(const StepRequest& request) {
    FERRY_RETURN_IF_ERROR(ReadFeeds(request.feeds));
    FERRY_RETURN_IF_ERROR(ReadFetches(request.fetches));
    FERRY_RETURN_IF_ERROR(ReadTargets(request.targets));
    if (request.fetches.empty() && request.targets.empty()) {
      return absl::InvalidArgumentError("Must specify at least one target to fetch or execute.");
    }
    Walk();
    return Build();
  }

 private:
  struct Feed {
    Endpoint endpoint;
    bool is_used = false;
  };

  absl::Status ReadFeeds(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const InputName parsed = ParseTensorName(name);
      const int node = parsed.is_control ? kUnknown : graph_.Find(parsed.node);
      if (node < 0) {
        return absl::NotFoundError(
            absl::StrCat("FeedInputs: unable to find feed output ", Shown(name)));
      }
      const TypeList& outputs = graph_.node(node).signature.outputs;
      if (parsed.port >= outputs.size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "FeedInputs: ", Shown(name), " should have output index < ", outputs.size()));
      }
      const Endpoint endpoint{node, parsed.port};
      if (!feed_of_.emplace(endpoint, feeds_.size()).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("Endpoint \"", Shown(name), "\" fed more than once."));
      }
      if (graph_.node(node).op->name == "Placeholder") fed_placeholders_[node] = feeds_.size();
      feeds_.push_back({endpoint});
      step_.feeds.push_back({name, outputs.type(parsed.port), {}, kUnknown});
    }
    return absl::OkStatus();
  }

  absl::Status ReadFetches(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const InputName parsed = ParseTensorName(name);
      const int node = graph_.Find(parsed.node);
      if (node < 0) {
        return absl::NotFoundError(absl::StrCat("FetchOutputs node ", Shown(name), ": not found"));
      }
      const TypeList& outputs = graph_.node(node).signature.outputs;
      if (outputs.size() == 0 || parsed.is_control) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Tried to fetch data for '", Shown(name),
            "', which produces no output.  To run to a node but not fetch any data, pass '",
            Shown(name),
            "' as an argument to the 'target_node_names' argument of the Session::Run API."));
      }
      if (parsed.port >= outputs.size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "FetchOutputs ", Shown(name), ": output index too large, must be < ", outputs.size()));
      }
      const Endpoint endpoint{node, parsed.port};
      if (feed_of_.contains(endpoint)) {
        return absl::InvalidArgumentError(absl::StrCat(Shown(name), " is both fed and fetched."));
      }
      const size_t send = sends_of_.emplace(endpoint, fetched_.size()).first->second;
      if (send == fetched_.size()) fetched_.push_back(endpoint);
      send_of_fetch_.push_back(send);
      step_.fetches.push_back(
          {name, outputs.type(parsed.port), KeyOf(ClientTransfer(endpoint), devices_), kUnknown});
      Need(node);
    }
    return absl::OkStatus();
  }

  absl::Status ReadTargets(const std::vector<std::string>& names) {
    std::string unknown;
    for (const std::string& name : names) {
      const int node = graph_.Find(ParseTensorName(name).node);
      if (node < 0) {
        absl::StrAppend(&unknown, Shown(name), " ");
      } else if (const auto fed = fed_placeholders_.find(node); fed != fed_placeholders_.end()) {
        Use(fed->second);
      } else {
        Need(node);
      }
    }
    if (unknown.empty()) return absl::OkStatus();
    return absl::NotFoundError(
        absl::StrCat("PruneForTargets: Some target nodes not found: ", unknown));
  }

  void Need(int node) {
    if (is_needed_[static_cast<size_t>(node)]) return;
    is_needed_[static_cast<size_t>(node)] = true;
    pending_.push_back(node);
  }
  void Use(size_t feed) { feeds_[feed].is_used = true; }

  void Walk() {
    while (!pending_.empty()) {
      const int node = pending_.back();
      pending_.pop_back();
      for (const Endpoint& input : graph_.inputs(node)) {
        if (const auto feed = FeedOf(input)) {
          Use(*feed);
        } else {
          Need(input.node);
        }
      }
      for (const int input : graph_.control_inputs(node)) {
        if (const auto fed = fed_placeholders_.find(input); fed != fed_placeholders_.end()) {
          Use(fed->second);
        } else {
          Need(input);
        }
      }
    }
  }

  absl::StatusOr<StepGraph> Build() {
    FERRY_RETURN_IF_ERROR(AddFeeds());
    std::vector<int> moved_to(is_needed_.size(), kUnknown);
    for (int i = 0; i < graph_.node_count(); ++i) {
      if (!is_needed_[static_cast<size_t>(i)]) continue;
      moved_to[static_cast<size_t>(i)] =
          Add(graph_.shared_node(i), placement_[static_cast<size_t>(i)]);
    }
    AddNeededInputs(moved_to);
    FERRY_RETURN_IF_ERROR(AddFetches(moved_to));
    builder_.set_versions(graph_.versions());
    FERRY_ASSIGN_OR_RETURN(step_.graph, std::move(builder_).Build());
    return std::move(step_);
  }

  int Add(std::shared_ptr<const Node> node, int device) {
    step_.placement.push_back(device);
    return builder_.AddNode(std::move(node));
  }

  absl::Status AddFeeds() {
    for (size_t i = 0; i < feeds_.size(); ++i) {
      const Endpoint& endpoint = feeds_[i].endpoint;
      const Transfer transfer = ClientTransfer(endpoint);
      step_.feeds[i].key = KeyOf(transfer, devices_);
      if (!feeds_[i].is_used) continue;
      tensorflow::NodeDef def;
      // Cannot collide: clients may not use names that begin with '_'.
      def.set_name(absl::StrCat("_recv_", graph_.node(endpoint.node).name(), "_", endpoint.port));
      FillRecv(transfer, devices_, false, def);
      FERRY_ASSIGN_OR_RETURN(std::shared_ptr<const Node> node,
                             MakeNode(std::move(def), *FindOp("_Recv")));
      step_.feeds[i].node = Add(std::move(node), devices_.client_device());
      builder_.AddInputs({}, {});
    }
    return absl::OkStatus();
  }

  void AddNeededInputs(const std::vector<int>& moved_to) {
    std::vector<Endpoint> inputs;
    std::vector<int> controls;
    for (int i = 0; i < graph_.node_count(); ++i) {
      if (!is_needed_[static_cast<size_t>(i)]) continue;
      inputs.clear();
      controls.clear();
      for (const Endpoint& input : graph_.inputs(i)) {
        const auto feed = FeedOf(input);
        inputs.push_back(feed.has_value()
                             ? Endpoint{step_.feeds[*feed].node, 0}
                             : Endpoint{moved_to[static_cast<size_t>(input.node)], input.port});
      }
      for (const int input : graph_.control_inputs(i)) {
        const auto fed = fed_placeholders_.find(input);
        controls.push_back(fed != fed_placeholders_.end() ? step_.feeds[fed->second].node
                                                          : moved_to[static_cast<size_t>(input)]);
      }
      builder_.AddInputs(inputs, controls);
    }
  }

  absl::Status AddFetches(const std::vector<int>& moved_to) {
    std::vector<int> sends;
    for (const Endpoint& endpoint : fetched_) {
      tensorflow::NodeDef def;
      def.set_name(absl::StrCat("_send_", graph_.node(endpoint.node).name(), "_", endpoint.port));
      FillSend(ClientTransfer(endpoint), devices_, false, def);
      FERRY_ASSIGN_OR_RETURN(std::shared_ptr<const Node> node,
                             MakeNode(std::move(def), *FindOp("_Send")));
      sends.push_back(Add(std::move(node), devices_.client_device()));
      builder_.AddInputs({{moved_to[static_cast<size_t>(endpoint.node)], endpoint.port}}, {});
    }
    for (size_t i = 0; i < step_.fetches.size(); ++i) {
      step_.fetches[i].node = sends[send_of_fetch_[i]];
    }
    return absl::OkStatus();
  }

  Transfer ClientTransfer(const Endpoint& endpoint) const {
    const Node& node = graph_.node(endpoint.node);
    return {TensorText(node.name(), endpoint.port), node.signature.outputs.type(endpoint.port),
            devices_.client_device(), devices_.client_device(), true};
  }

  std::optional<size_t> FeedOf(const Endpoint& endpoint) const {
    if (feed_of_.empty()) return std::nullopt;
    const auto found = feed_of_.find(endpoint);
    if (found == feed_of_.end()) return std::nullopt;
    return found->second;
  }

  const Graph& graph_;
  const absl::Span<const int> placement_;
  const DeviceSet& devices_;
  std::vector<Feed> feeds_;
  absl::flat_hash_map<Endpoint, size_t> feed_of_;
  // Node of a fed placeholder to its feed. Control dependencies on the node wait for the feed.
  absl::flat_hash_map<int, size_t> fed_placeholders_;
  std::vector<Endpoint> fetched_;
  absl::flat_hash_map<Endpoint, size_t> sends_of_;
  // Per fetch, its index in fetched_.
  std::vector<size_t> send_of_fetch_;
  std::vector<bool> is_needed_;
  // Needed nodes whose inputs have not been visited.
  std::vector<int> pending_;
  GraphBuilder builder_;
  StepGraph step_;
};

}  // namespace

absl::StatusOr<StepGraph> Prune(const Graph& graph, absl::Span<const int> placement,
                                const DeviceSet& devices, const StepRequest& request) {
  FERRY_CHECK(placement.size() == static_cast<size_t>(graph.node_count()));
  return Pruner(graph, placement, devices).Run(request);
}

}  // namespace ferry::graph
