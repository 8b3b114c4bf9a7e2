// SPDX-License-Identifier: Apache-2.0
// Joins nodes on threads of their own, since each waits for the others.
#include "job.h"

#include <cstdlib>
#include <future>
#include <utility>

#include <gtest/gtest.h>

#include "absl/time/clock.h"

#include "coordinator_server.h"

namespace ferry {

TestCoordinator::TestCoordinator(int num_nodes) : num_nodes_(num_nodes) {
  server_ = StartCoordinator(num_nodes, address_);
  if (server_ != nullptr) return;
  ADD_FAILURE() << "the coordinator does not start";
  std::abort();  // nothing of the test makes sense
}

NodeOptions TestCoordinator::OptionsOf(int rank) const {
  NodeOptions options;
  options.rank = rank;
  options.num_nodes = num_nodes_;
  options.coordinator_address = address_;
  options.connect_timeout = kLong;
  return options;
}

std::vector<std::unique_ptr<Node>> TestCoordinator::Join(const std::vector<int>& ranks,
                                                         const TransferOptions& transfer) const {
  std::vector<std::future<absl::StatusOr<std::unique_ptr<Node>>>> joining;
  for (const int rank : ranks) {
    NodeOptions options = OptionsOf(rank);
    options.transfer = transfer;
    joining.push_back(std::async(std::launch::async,
                                 [options = std::move(options)] { return Node::Join(options); }));
  }
  std::vector<std::unique_ptr<Node>> nodes;
  for (auto& each : joining) {
    absl::StatusOr<std::unique_ptr<Node>> node = each.get();
    EXPECT_TRUE(node.ok()) << node.status();
    nodes.push_back(node.ok() ? *std::move(node) : nullptr);
  }
  return nodes;
}

bool Becomes(CoordinatorClient& client, int rank, NodeState state) {
  const absl::Time deadline = absl::Now() + kLong;
  while (absl::Now() < deadline) {
    const absl::StatusOr<std::vector<NodeStatus>> nodes = client.Nodes();
    if (!nodes.ok()) return false;
    for (const NodeStatus& node : *nodes) {
      if (node.rank == rank && node.state == state) return true;
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return false;
}

}  // namespace ferry
