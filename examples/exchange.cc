// SPDX-License-Identifier: Apache-2.0
// A tensor from node 0 to node 1: ferry run --nproc=2 -- build/release/examples/exchange
#include <iostream>
#include <numeric>

#include "base/status_macros.h"
#include "node/node.h"

absl::Status TransferEngine(ferry::Node& node) {
  FERRY_ASSIGN_OR_RETURN(ferry::Step step, node.OpenStep(1));
  FERRY_ASSIGN_OR_RETURN(const ferry::RendezvousKey key, node.Key("weights", /*from=*/0, /*to=*/1));
  if (node.node_id() == 0) {
    FERRY_ASSIGN_OR_RETURN(const ferry::Shape shape, ferry::Shape::Create({256, 1024}));
    FERRY_ASSIGN_OR_RETURN(ferry::Tensor tensor,
                           node.Allocate("host:0", ferry::DataType::kInt32, shape));
    int* const first = static_cast<int*>(tensor.mutable_data());
    std::iota(first, first + shape.element_count(), 0);
    FERRY_RETURN_IF_ERROR(step.Send(key, tensor));
  } else if (node.node_id() == 1) {
    FERRY_ASSIGN_OR_RETURN(const ferry::Received received, step.RecvValue(key, absl::Seconds(30)));
    int expected = 0;
    for (const int element : received.tensor.elements<int>()) {
      if (element != expected++) return absl::DataLossError("not what node 0 has sent");
    }
    std::cout << "got " << ferry::ToString(received.tensor) << " by " << received.path << "\n";
  }
  return step.Close(absl::Seconds(30));
}

int main() {
  const absl::StatusOr<std::unique_ptr<ferry::Node>> node = ferry::Node::Join({});
  absl::Status status = node.ok() ? TransferEngine(**node) : node.status();
  if (status.ok()) status = (*node)->Shutdown();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
