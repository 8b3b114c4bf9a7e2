// SPDX-License-Identifier: Apache-2.0
// Sorts edges by producer and output port.
#include "tensorflow/worker/plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace ferry::worker {
namespace {

using Kind = PlanNode::Kind;

// Weight divisor of a new sample in the moving average.
constexpr int64_t kCostShare = 4;

}  // namespace

absl::StatusOr<std::shared_ptr<const Plan>> Plan::Create(std::vector<PlanNode> nodes) {
  auto plan = std::shared_ptr<Plan>(new Plan());
  plan->nodes_.reserve(nodes.size());
  for (PlanNode& each : nodes) {
    Node node;
    node.kind = each.kind;
    node.first_slot = plan->slot_count_;
    node.input_count = static_cast<int>(each.inputs.size());
    node.output_count = each.output_count;
    node.in_degree = static_cast<int>(each.inputs.size() + each.controls.size());
    if (each.kind == Kind::kRecv || each.kind == Kind::kCollective) {
      node.recv_index = plan->recv_count_++;
    }
    node.device = each.device;
    node.dtype = each.dtype;
    node.is_for_host = each.is_for_host;
    node.kernel = std::move(each.kernel);
    node.environment = each.environment;
    node.key = std::move(each.key);
    node.collective = std::move(each.collective);
    node.name = std::move(each.name);
    plan->slot_count_ += node.input_count;
    plan->nodes_.push_back(std::move(node));
  }
  FERRY_RETURN_IF_ERROR(plan->Connect(nodes));
  FERRY_RETURN_IF_ERROR(plan->CheckOrder());
  for (const bool is_transfer : {true, false}) {
    for (int i = 0; i < plan->node_count(); ++i) {
      const Node& node = plan->node(i);
      if (node.in_degree == 0 && (node.kind != Kind::kCompute) == is_transfer) {
        plan->sources_.push_back(i);
      }
    }
  }
  plan->costs_ = std::make_unique<std::atomic<uint32_t>[]>(plan->nodes_.size());
  return plan;
}

absl::Status Plan::Connect(absl::Span<const PlanNode> nodes) {
  const auto check = [&](size_t index, int node, int port) {
    const bool is_there = node >= 0 && node < node_count() && port >= kControl &&
                          port < nodes_[static_cast<size_t>(node)].output_count;
    if (is_there) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("node ", Quoted(nodes_[index].name),
                                                   " takes what is not there: ", node, ":", port));
  };
  // Counting sort: each node's edges are adjacent, ordered by port.
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const PlanNode::Input& input : nodes[i].inputs) {
      FERRY_RETURN_IF_ERROR(check(i, input.node, std::max(input.port, 0)));
      ++nodes_[static_cast<size_t>(input.node)].edge_count;
    }
    for (const int control : nodes[i].controls) {
      FERRY_RETURN_IF_ERROR(check(i, control, kControl));
      ++nodes_[static_cast<size_t>(control)].edge_count;
    }
  }
  int total = 0;
  for (Node& node : nodes_) {
    node.first_edge = total;
    total += std::exchange(node.edge_count, 0);
  }
  edges_.resize(static_cast<size_t>(total));
  const auto add = [&](int src, const Edge& edge) {
    Node& node = nodes_[static_cast<size_t>(src)];
    edges_[static_cast<size_t>(node.first_edge + node.edge_count++)] = edge;
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    int slot = nodes_[i].first_slot;
    for (const PlanNode::Input& input : nodes[i].inputs) {
      add(input.node, {.port = input.port, .node = static_cast<int>(i), .slot = slot++});
    }
    for (const int control : nodes[i].controls) {
      add(control, {.port = kControl, .node = static_cast<int>(i)});
    }
  }
  for (const Node& node : nodes_) {
    const auto begin = edges_.begin() + node.first_edge;
    const auto end = begin + node.edge_count;
    std::stable_sort(begin, end, [](const Edge& a, const Edge& b) { return a.port < b.port; });
    for (auto it = begin; it != end; ++it) {
      it->is_last_of_port = it + 1 == end || (it + 1)->port != it->port;
    }
  }
  return absl::OkStatus();
}

absl::Status Plan::CheckOrder() const {
  std::vector<int> pending;
  std::vector<int> ready;
  for (int i = 0; i < node_count(); ++i) {
    pending.push_back(node(i).in_degree);
    if (pending.back() == 0) ready.push_back(i);
  }
  for (size_t next = 0; next < ready.size(); ++next) {
    for (const Edge& edge : edges(node(ready[next]))) {
      if (--pending[static_cast<size_t>(edge.node)] == 0) ready.push_back(edge.node);
    }
  }
  if (ready.size() == nodes_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(nodes_.size() - ready.size(), " nodes wait for each other"));
}

void Plan::NoteCost(int node, int64_t nanos) const {
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  std::atomic<uint32_t>& cost = costs_[static_cast<size_t>(node)];
  const int64_t now = std::clamp<int64_t>(nanos, 1, kMost);
  const int64_t before = cost.load(std::memory_order_relaxed);
  // Concurrent runs may overwrite each other's update; it is only an estimate.
  const int64_t after = before == 0 ? now : before + (now - before) / kCostShare;
  cost.store(static_cast<uint32_t>(std::max<int64_t>(after, 1)), std::memory_order_relaxed);
}

}  // namespace ferry::worker
