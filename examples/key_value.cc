// SPDX-License-Identifier: Apache-2.0
// Store, barrier and membership of a job: ferry run --nproc=4 -- build/release/examples/key_value
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ferry/node.h>

absl::Status Coordinate(ferry::Node& node) {
  ferry::CoordinatorClient& coordinator = node.coordinator();
  // Every node publishes a key, and waits for the keys of all nodes.
  const std::string own_key = "port/" + std::to_string(node.rank());
  absl::Status status = coordinator.Set(own_key, std::to_string(9000 + node.rank()));
  if (!status.ok()) return status;
  std::vector<std::string> keys;
  for (int rank = 0; rank < node.num_nodes(); ++rank) {
    keys.push_back("port/" + std::to_string(rank));
  }
  const absl::StatusOr<std::vector<std::string>> ports =
      coordinator.GetAll(keys, absl::Seconds(30));
  if (!ports.ok()) return ports.status();

  // A counter that all nodes increase. After the barrier every node has done so; a missing node
  // is named in the error of the others.
  const absl::StatusOr<int64_t> sum = coordinator.Add("started", 1);
  if (!sum.ok()) return sum.status();
  status = coordinator.Barrier("all-started", absl::Minutes(1));
  if (!status.ok()) return status;

  if (node.rank() != 0) return absl::OkStatus();
  const absl::StatusOr<std::string> started = coordinator.TryGet("started");
  if (!started.ok()) return started.status();
  const absl::StatusOr<std::vector<ferry::NodeStatus>> nodes = coordinator.Nodes();
  if (!nodes.ok()) return nodes.status();
  std::cout << *started << " of " << node.num_nodes() << " nodes have started\n";
  for (const ferry::NodeStatus& each : *nodes) {
    std::cout << "node " << each.rank << " on " << each.host_name << ", port "
              << (*ports)[static_cast<size_t>(each.rank)] << ": " << ferry::ToString(each.state)
              << "\n";
  }
  return absl::OkStatus();
}

int main() {
  absl::StatusOr<std::unique_ptr<ferry::Node>> node = ferry::Node::Join();
  absl::Status status = node.ok() ? Coordinate(**node) : node.status();
  if (status.ok()) status = (*node)->ShutdownCollective();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
