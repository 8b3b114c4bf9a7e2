// SPDX-License-Identifier: Apache-2.0
// Sums over a GPU of each node: ferry run --nproc=2 -- build/release/examples/nccl_allreduce
#include <algorithm>
#include <iostream>

#include "base/status_macros.h"
#include "node/node.h"

using namespace ferry;  // NOLINT: an example

absl::Status AllReduce(Node& node, int me, int count) {
  FERRY_ASSIGN_OR_RETURN(const auto all, node.Communicator(node.topology().OneGpuOfEachNode()));
  FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, node.exchange().gpus()->Get(all->ordinal()));
  FERRY_ASSIGN_OR_RETURN(const auto stream, cuda::CudaStream::Create(gpu->device));
  FERRY_ASSIGN_OR_RETURN(Step step, node.OpenStep(1));
  const std::string device = absl::StrCat("gpu:", all->ordinal());
  FERRY_ASSIGN_OR_RETURN(const auto up, node.Key("up", me, me, "host:0", device));
  FERRY_ASSIGN_OR_RETURN(const auto down, node.Key("down", me, me, device, "host:0"));
  FERRY_ASSIGN_OR_RETURN(Tensor numbers,
                         node.Allocate("host:0", DataType::kFloat, *Shape::Create({count})));
  std::fill_n(static_cast<float*>(numbers.mutable_data()), count, 1.0f + me);
  FERRY_RETURN_IF_ERROR(step.Send(up, numbers));
  FERRY_ASSIGN_OR_RETURN(Tensor sum, step.Recv(up, absl::Minutes(1), stream->get()));
  FERRY_RETURN_IF_ERROR(all->Run(stream->get(), [&](const nccl::NcclTable& nccl, ncclComm* comm) {
    return nccl.all_reduce(sum.data(), sum.mutable_data(), static_cast<size_t>(count),
                           nccl::kFloat32, nccl::kReduceSum, comm, stream->get());
  }));
  FERRY_RETURN_IF_ERROR(step.Send(down, sum, stream->get()));
  FERRY_ASSIGN_OR_RETURN(numbers, step.Recv(down, absl::Minutes(1)));
  std::cout << "the sum over " << all->size() << " GPUs is " << numbers.elements<float>()[7]
            << "\n";
  return step.Close(absl::Minutes(1));
}
int main() {
  const absl::StatusOr<std::unique_ptr<Node>> node = Node::Join({});
  absl::Status status = node.ok() ? AllReduce(**node, (*node)->node_id(), 1 << 20) : node.status();
  if (status.ok()) status = (*node)->Shutdown();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
