// SPDX-License-Identifier: Apache-2.0
// Joins, sends, receives and uses the coordinator, with every installed header.
#include <iostream>
#include <memory>
#include <string>

#include <ferry/cancellation_token.h>
#include <ferry/coordinator_client.h>
#include <ferry/data_type.h>
#include <ferry/device.h>
#include <ferry/dlpack.h>
#include <ferry/key_watch.h>
#include <ferry/namespace.h>
#include <ferry/nccl_communicator.h>
#include <ferry/node.h>
#include <ferry/request.h>
#include <ferry/step.h>
#include <ferry/tensor.h>
#include <ferry/tensor_id.h>
#include <ferry/topology.h>

#if __has_include("rendezvous/key.h") || __has_include("base/cancellation_token.h")
#error "internal headers are installed"
#endif

namespace {

// Each node sends its rank to the next one, and publishes what it has received.
absl::Status Run(ferry::Node& node) {
  const int next = (node.rank() + 1) % node.num_nodes();
  const int before = (node.rank() + node.num_nodes() - 1) % node.num_nodes();
  absl::StatusOr<ferry::Step> step = node.OpenStep(1);
  if (!step.ok()) return step.status();
  absl::StatusOr<ferry::Tensor> tensor =
      node.Allocate(ferry::Device::Host(), ferry::DataType::kInt32, {1});
  if (!tensor.ok()) return tensor.status();
  tensor->mutable_elements<int32_t>()[0] = node.rank();
  absl::StatusOr<ferry::Tensor> sent =
      step->Send({.name = "rank", .source = node.rank(), .destination = next}, *tensor)
          .Wait(absl::ZeroDuration());
  if (!sent.ok()) return sent.status();
  absl::StatusOr<ferry::Tensor> received =
      step->Recv({.name = "rank", .source = before, .destination = node.rank()})
          .Wait(absl::Seconds(30));
  if (!received.ok()) return received.status();
  const int rank = received->elements<int32_t>()[0];
  if (rank != before) return absl::DataLossError("received the rank of another node");
  absl::Status status =
      node.coordinator().Set("received/" + std::to_string(node.rank()), std::to_string(rank));
  status.Update(node.coordinator().Barrier("received", absl::Seconds(30)));
  if (!status.ok()) return status;
  if (node.rank() == 0) {
    std::cout << node.coordinator().List("received/")->size() << " nodes have received, of "
              << node.topology().nodes().size() << "\n";
  }
  return step->Close(absl::Seconds(30));
}

}  // namespace

int main() {
  absl::StatusOr<std::unique_ptr<ferry::Node>> node = ferry::Node::Join();
  absl::Status status = node.ok() ? Run(**node) : node.status();
  if (status.ok()) status = (*node)->ShutdownCollective();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
