// SPDX-License-Identifier: Apache-2.0
// Assembles graphs and sorts their nodes topologically.
#include "tensorflow/graph/graph.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "tensorflow/graph/names.h"

namespace ferry::graph {
namespace {

// Limit on the nodes listed in a cycle error.
constexpr size_t kShownNodes = 8;

// Returns the nodes of one cycle. Every node that is not done must wait for another such node.
std::vector<int> FindCycle(const Graph& graph, const std::vector<bool>& is_done) {
  std::vector<int> place(is_done.size(), -1);
  const auto first = std::find(is_done.begin(), is_done.end(), false);
  int node = static_cast<int>(first - is_done.begin());
  std::vector<int> path;
  // Every remaining node has a remaining predecessor, so walking backwards must close a cycle.
  while (place[static_cast<size_t>(node)] < 0) {
    place[static_cast<size_t>(node)] = static_cast<int>(path.size());
    path.push_back(node);
    int next = -1;
    for (const Endpoint& input : graph.inputs(node)) {
      if (!is_done[static_cast<size_t>(input.node)]) next = input.node;
    }
    for (const int input : graph.control_inputs(node)) {
      if (!is_done[static_cast<size_t>(input)]) next = input;
    }
    FERRY_CHECK(next >= 0);
    node = next;
  }
  path.erase(path.begin(), path.begin() + place[static_cast<size_t>(node)]);
  return path;
}

absl::Status CycleError(const Graph& graph, const std::vector<bool>& is_done) {
  const std::vector<int> cycle = FindCycle(graph, is_done);
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(cycle.size(), kShownNodes); ++i) {
    names.push_back(Shown(graph.node(cycle[i]).name()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("Graph is invalid, contains a cycle with ", cycle.size(),
                   " nodes, including: ", absl::StrJoin(names, ", ")));
}

}  // namespace

absl::Span<const Endpoint> Graph::inputs(int index) const {
  const auto at = static_cast<size_t>(index);
  const size_t begin = at == 0 ? 0 : ends_[at - 1].data;
  return absl::MakeConstSpan(inputs_).subspan(begin, ends_[at].data - begin);
}

absl::Span<const int> Graph::control_inputs(int index) const {
  const auto at = static_cast<size_t>(index);
  const size_t begin = at == 0 ? 0 : ends_[at - 1].control;
  return absl::MakeConstSpan(control_inputs_).subspan(begin, ends_[at].control - begin);
}

int Graph::Find(absl::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? -1 : found->second;
}

int GraphBuilder::AddNode(std::shared_ptr<const Node> node) {
  const int index = graph_.node_count();
  FERRY_CHECK(graph_.by_name_.emplace(node->name(), index).second);
  graph_.nodes_.push_back(std::move(node));
  return index;
}

void GraphBuilder::AddInputs(absl::Span<const Endpoint> inputs,
                             absl::Span<const int> control_inputs) {
  graph_.inputs_.insert(graph_.inputs_.end(), inputs.begin(), inputs.end());
  const auto first = static_cast<std::ptrdiff_t>(graph_.control_inputs_.size());
  graph_.control_inputs_.insert(graph_.control_inputs_.end(), control_inputs.begin(),
                                control_inputs.end());
  auto& controls = graph_.control_inputs_;
  std::sort(controls.begin() + first, controls.end());
  controls.erase(std::unique(controls.begin() + first, controls.end()), controls.end());
  graph_.ends_.push_back({graph_.inputs_.size(), controls.size()});
}

absl::StatusOr<Graph> GraphBuilder::Build() && {
  FERRY_CHECK(graph_.ends_.size() == graph_.nodes_.size());
  FERRY_RETURN_IF_ERROR(Order());
  return std::move(graph_);
}

// Sorts the new nodes only: existing nodes never depend on new ones, so their order stands.
absl::Status GraphBuilder::Order() {
  const int first = static_cast<int>(graph_.order_.size());
  const auto count = static_cast<size_t>(graph_.node_count() - first);
  // For each new node, the number of dependencies, and its dependents in one flat array.
  std::vector<int> waits(count, 0);
  std::vector<size_t> ends(count + 1, 0);
  const auto for_edges = [this, first, count](const auto& visit) {
    for (size_t i = 0; i < count; ++i) {
      const int node = first + static_cast<int>(i);
      for (const Endpoint& input : graph_.inputs(node)) {
        if (input.node >= first) visit(static_cast<size_t>(input.node - first), i);
      }
      for (const int input : graph_.control_inputs(node)) {
        if (input >= first) visit(static_cast<size_t>(input - first), i);
      }
    }
  };
  for_edges([&waits, &ends](size_t src, size_t dst) {
    ++waits[dst];
    ++ends[src + 1];
  });
  for (size_t i = 0; i < count; ++i) ends[i + 1] += ends[i];
  std::vector<int> waiters(ends[count]);
  std::vector<size_t> next(ends.begin(), ends.end() - 1);
  for_edges(
      [&waiters, &next](size_t src, size_t dst) { waiters[next[src]++] = static_cast<int>(dst); });
  // order_ doubles as the work queue.
  for (size_t i = 0; i < count; ++i) {
    if (waits[i] == 0) graph_.order_.push_back(first + static_cast<int>(i));
  }
  for (auto at = static_cast<size_t>(first); at < graph_.order_.size(); ++at) {
    const auto done = static_cast<size_t>(graph_.order_[at] - first);
    for (size_t i = ends[done]; i < ends[done + 1]; ++i) {
      const int waiter = waiters[i];
      if (--waits[static_cast<size_t>(waiter)] == 0) graph_.order_.push_back(first + waiter);
    }
  }
  if (graph_.order_.size() == graph_.nodes_.size()) return absl::OkStatus();
  std::vector<bool> is_done(graph_.nodes_.size(), false);
  for (const int node : graph_.order_) is_done[static_cast<size_t>(node)] = true;
  return CycleError(graph_, is_done);
}

}  // namespace ferry::graph
