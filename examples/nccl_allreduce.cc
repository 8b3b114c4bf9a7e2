// SPDX-License-Identifier: Apache-2.0
// Sums over a GPU of each node: ferry run --nproc=2 -- build/release/examples/nccl_allreduce
#include <algorithm>
#include <iostream>
#include <memory>

#include <ferry/node.h>

// Moves a tensor between two devices of this node, which its sends and receives do as well.
absl::StatusOr<ferry::Tensor> Move(ferry::Step& step, const ferry::TensorId& id,
                                   const ferry::Tensor& tensor, ferry::SendOptions send,
                                   ferry::RecvOptions recv) {
  ferry::Request sent = step.Send(id, tensor, send);
  if (!sent.Wait(absl::ZeroDuration()).ok()) return sent.Wait(absl::ZeroDuration());
  return step.Recv(id, std::move(recv)).Wait(absl::Minutes(1));
}

absl::Status AllReduce(ferry::Node& node, int64_t count) {
  // Every node that has one of these GPUs makes this call with the same list.
  absl::StatusOr<std::unique_ptr<ferry::NcclCommunicator>> all =
      node.Communicator(node.topology().OneGpuOfEachNode());
  if (!all.ok()) return all.status();
  const ferry::Device gpu = (*all)->device();
  // The copy, the sum and the copy back are ordered by this stream; no thread waits for the GPU.
  CUstream_st* const stream = (*all)->stream();

  absl::StatusOr<ferry::Step> step = node.OpenStep(1);
  if (!step.ok()) return step.status();
  absl::StatusOr<ferry::Tensor> numbers =
      node.Allocate(ferry::Device::Host(), ferry::DataType::kFloat, {count});
  if (!numbers.ok()) return numbers.status();
  const int rank = node.rank();
  std::ranges::fill(numbers->mutable_elements<float>(), 1.0f + static_cast<float>(rank));

  ferry::TensorId up = {.name = "up", .source = rank, .destination = rank};
  up.destination_device = gpu;
  absl::StatusOr<ferry::Tensor> sum = Move(*step, up, *numbers, {}, {.stream = stream});
  if (!sum.ok()) return sum.status();
  absl::Status status = (*all)->AllReduce(*sum, *sum, ferry::ReduceOp::kSum, stream);
  if (!status.ok()) return status;
  ferry::TensorId down = {.name = "down", .source = rank, .destination = rank};
  down.source_device = gpu;
  numbers = Move(*step, down, *sum, {.stream = stream}, {});
  if (!numbers.ok()) return numbers.status();

  std::cout << "the sum over " << (*all)->size() << " GPUs is " << numbers->elements<float>()[7]
            << "\n";
  return step->Close(absl::Minutes(1));
}

int main() {
  absl::StatusOr<std::unique_ptr<ferry::Node>> node = ferry::Node::Join();
  absl::Status status = node.ok() ? AllReduce(**node, 1 << 20) : node.status();
  if (status.ok()) status = (*node)->ShutdownCollective();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
