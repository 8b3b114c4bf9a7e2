// SPDX-License-Identifier: Apache-2.0
// Plan: a graph compiled for execution, with its edges in flat arrays.
#ifndef FERRY_TENSORFLOW_WORKER_PLAN_H_
#define FERRY_TENSORFLOW_WORKER_PLAN_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "rendezvous/key.h"
#include "tensor/data_type.h"
#include "tensorflow/worker/collectives/collective_node.h"
#include "tensorflow/worker/kernel.h"

namespace ferry::worker {

// The input for one node of a plan.
struct PlanNode {
  enum class Kind : uint8_t { kCompute, kSend, kRecv, kCollective };
  // Output `port` of node number `node`.
  struct Input {
    int node = 0;
    int port = 0;
  };

  Kind kind = Kind::kCompute;
  std::string name;
  std::vector<Input> inputs;
  // Control dependencies, without duplicates.
  std::vector<int> controls;
  int output_count = 0;
  // For kCompute.
  std::shared_ptr<const Kernel> kernel;
  // For kCompute and kCollective; must outlive the plan.
  const KernelEnvironment* environment = nullptr;
  // For kSend and kRecv.
  std::optional<RendezvousKey> key;
  std::shared_ptr<const CollectiveNode> collective;
  // For kRecv and kCollective: the expected type.
  DataType dtype = DataType::kInvalid;
  // For kRecv: deliver to host memory, whatever the device is.
  bool is_for_host = false;
  // The caller's device index, for statistics.
  int device = 0;
};

// Immutable except for learned node costs; thread-safe. Shared by any number of runs.
class Plan final {
 public:
  // A consumer of an output.
  struct Edge {
    // Output port of the producer; kControl: a control dependency.
    int port = 0;
    int node = 0;
    // Index into the inputs of all nodes; unused by control edges.
    int slot = 0;
    // True if no later edge uses the same output.
    bool is_last_of_port = false;
  };
  static constexpr int kControl = -1;

  struct Node {
    PlanNode::Kind kind = PlanNode::Kind::kCompute;
    int first_slot = 0;
    int input_count = 0;
    int output_count = 0;
    // Index into `edges_`.
    int first_edge = 0;
    int edge_count = 0;
    // Number of incoming edges.
    int in_degree = 0;
    // Index among receives and collectives; -1 for other nodes.
    int recv_index = -1;
    int device = 0;
    DataType dtype = DataType::kInvalid;
    bool is_for_host = false;
    std::shared_ptr<const Kernel> kernel;
    const KernelEnvironment* environment = nullptr;
    std::optional<RendezvousKey> key;
    std::shared_ptr<const CollectiveNode> collective;
    std::string name;
  };

  //   Errors: INVALID_ARGUMENT for inputs that do not exist, or a cycle.
  static absl::StatusOr<std::shared_ptr<const Plan>> Create(std::vector<PlanNode> nodes);

  int node_count() const { return static_cast<int>(nodes_.size()); }
  const Node& node(int index) const { return nodes_[static_cast<size_t>(index)]; }
  absl::Span<const Edge> edges(const Node& node) const {
    return absl::MakeConstSpan(edges_).subspan(static_cast<size_t>(node.first_edge),
                                               static_cast<size_t>(node.edge_count));
  }
  // Number of inputs over all nodes.
  int slot_count() const { return slot_count_; }
  int recv_count() const { return recv_count_; }
  // Nodes without dependencies; communication nodes first.
  const std::vector<int>& sources() const { return sources_; }

  // Returns the node's recent duration; nullopt if it has not run.
  std::optional<int64_t> CostNs(int node) const {
    const uint32_t cost = costs_[static_cast<size_t>(node)].load(std::memory_order_relaxed);
    if (cost == 0) return std::nullopt;
    return cost;
  }
  void NoteCost(int node, int64_t nanos) const;

 private:
  Plan() = default;

  absl::Status Connect(absl::Span<const PlanNode> nodes);
  absl::Status CheckOrder() const;

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<int> sources_;
  int slot_count_ = 0;
  int recv_count_ = 0;
  // Moving average in nanoseconds; 0: unknown.
  std::unique_ptr<std::atomic<uint32_t>[]> costs_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_PLAN_H_
