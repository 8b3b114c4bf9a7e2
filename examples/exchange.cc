// SPDX-License-Identifier: Apache-2.0
// A tensor from node 0 to node 1: ferry run --nproc=2 -- build/release/examples/exchange
#include <iostream>
#include <memory>
#include <numeric>

#include <ferry/node.h>

// Both nodes write the id for themselves; it is sent and received in the same step.
const ferry::TensorId kWeights = {.name = "weights", .source = 0, .destination = 1};

absl::Status Send(ferry::Node& node, ferry::Step& step) {
  // Memory of the node is shared with processes of this host, which receive it without a copy.
  absl::StatusOr<ferry::Tensor> tensor =
      node.Allocate(ferry::Device::Host(), ferry::DataType::kInt32, {256, 1024});
  if (!tensor.ok()) return tensor.status();
  absl::Span<int32_t> elements = tensor->mutable_elements<int32_t>();
  std::iota(elements.begin(), elements.end(), 0);
  // A send never blocks: its request is done, with an error or with the tensor itself.
  ferry::Request request = step.Send(kWeights, *tensor);
  return request.Wait(absl::ZeroDuration()).status();
}

absl::Status Receive(ferry::Step& step) {
  ferry::Request request = step.Recv(kWeights);
  const absl::StatusOr<ferry::Tensor> tensor = request.Wait(absl::Seconds(30));
  if (!tensor.ok()) return tensor.status();
  int32_t expected = 0;
  for (const int32_t element : tensor->elements<int32_t>()) {
    if (element != expected++) return absl::DataLossError("not what node 0 has sent");
  }
  std::cout << "got " << ferry::ToString(*tensor) << " by " << request.path() << "\n";
  return absl::OkStatus();
}

absl::Status Exchange(ferry::Node& node) {
  absl::StatusOr<ferry::Step> step = node.OpenStep(1);
  if (!step.ok()) return step.status();
  absl::Status status;
  if (node.rank() == 0) status = Send(node, *step);
  if (node.rank() == 1) status = Receive(*step);
  // Waits until node 1 has received the tensor.
  status.Update(step->Close(absl::Seconds(30)));
  return status;
}

int main() {
  // Rank, number of nodes and coordinator are those that the launcher has set.
  absl::StatusOr<std::unique_ptr<ferry::Node>> node = ferry::Node::Join();
  absl::Status status = node.ok() ? Exchange(**node) : node.status();
  // All nodes leave together; after an error this one leaves alone, when it is destroyed.
  if (status.ok()) status = (*node)->ShutdownCollective();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
