// SPDX-License-Identifier: Apache-2.0
// Places nodes group by group.
#include "tensorflow/graph/place.h"

#include "base/status_macros.h"
#include "tensorflow/graph/colocation.h"

namespace ferry::graph {
namespace {

// A node without inputs and with one output: best placed with its consumers.
bool IsGenerator(const Graph& graph, int node) {
  const Signature& signature = graph.node(node).signature;
  return signature.inputs.size() == 0 && signature.outputs.size() == 1;
}

// Reads only a tensor's shape, not its elements.
bool IsMetadata(const Node& node) { return node.op->name == "Shape" || node.op->name == "Rank"; }

// For each node, the one device of all its consumers; kNobody if none, or kSeveral.
constexpr int kNobody = -1;
constexpr int kSeveral = -2;

std::vector<int> ConsumerDevices(const Graph& graph, const std::vector<int>& placement) {
  std::vector<int> devices(static_cast<size_t>(graph.node_count()), kNobody);
  for (int i = 0; i < graph.node_count(); ++i) {
    const int device = placement[static_cast<size_t>(i)];
    // Another generator that is not placed yet.
    if (device < 0) continue;
    for (const Endpoint& input : graph.inputs(i)) {
      int& of_input = devices[static_cast<size_t>(input.node)];
      if (of_input == kNobody) of_input = device;
      if (of_input != device) of_input = kSeveral;
    }
  }
  return devices;
}

}  // namespace

absl::StatusOr<std::vector<int>> Place(const Graph& graph, const DeviceSet& devices,
                                       const PlaceOptions& options, absl::Span<const int> placed) {
  FERRY_CHECK(placed.size() <= static_cast<size_t>(graph.node_count()));
  Colocation groups(graph, devices, options.allow_soft_placement);
  FERRY_RETURN_IF_ERROR(groups.Gather(placed));
  std::vector<int> placement(static_cast<size_t>(graph.node_count()), -1);
  std::vector<int> generators;
  for (const int node : graph.topological_order()) {
    int device = groups.decided(node);
    if (device < 0 && groups.is_alone(node)) {
      if (IsGenerator(graph, node)) {
        generators.push_back(node);
        continue;
      }
      if (IsMetadata(graph.node(node))) {
        const int wanted = placement[static_cast<size_t>(graph.inputs(node)[0].node)];
        if (wanted >= 0 && groups.IsPossible(node, wanted)) device = wanted;
      }
    }
    if (device < 0) {
      FERRY_ASSIGN_OR_RETURN(device, groups.Choose(node));
    } else {
      FERRY_RETURN_IF_ERROR(groups.CheckKernel(node, device));
    }
    groups.Decide(node, device);
    placement[static_cast<size_t>(node)] = device;
  }
  const std::vector<int> consumers = ConsumerDevices(graph, placement);
  for (const int node : generators) {
    int device = consumers[static_cast<size_t>(node)];
    if (device < 0 || !groups.IsPossible(node, device)) {
      FERRY_ASSIGN_OR_RETURN(device, groups.Choose(node));
    }
    placement[static_cast<size_t>(node)] = device;
  }
  return placement;
}

}  // namespace ferry::graph
