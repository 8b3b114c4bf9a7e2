// SPDX-License-Identifier: Apache-2.0
// Sums over a GPU of each node: ferry run --nproc=2 -- build/release/examples/nccl_allreduce
#include <iostream>

#include "base/status_macros.h"
#include "runtime/node.h"

absl::Status AllReduce(ferry::Node& node) {
  std::vector<int> devices;  // the first GPU of each node, in the order of their ids
  for (const ferry::LocalTopology& each : node.topology().nodes()) {
    const int index = *node.topology().NodeIndex(each.node_id);
    for (size_t i = 0; i < each.devices.size(); ++i) {
      if (each.devices[i].kind != ferry::DeviceKind::kGpu) continue;
      devices.push_back(node.topology().GlobalId(index, static_cast<int>(i)));
      break;
    }
  }
  FERRY_ASSIGN_OR_RETURN(const auto communicator, node.Communicator(devices));
  ferry::Gpu& gpu = **node.exchange().gpus()->Get(communicator->ordinal());
  FERRY_ASSIGN_OR_RETURN(const auto stream, ferry::cuda::CudaStream::Create(gpu.device));
  const std::string device = absl::StrCat("gpu:", communicator->ordinal());
  const int me = node.node_id();

  FERRY_ASSIGN_OR_RETURN(ferry::Step step, node.OpenStep(1));
  FERRY_ASSIGN_OR_RETURN(const auto up, node.Key("up", me, me, "host:0", device));
  FERRY_ASSIGN_OR_RETURN(const auto down, node.Key("down", me, me, device, "host:0"));
  FERRY_ASSIGN_OR_RETURN(ferry::Tensor host, node.Allocate("host:0", ferry::DataType::kFloat,
                                                           *ferry::Shape::Create({1 << 20})));
  for (int i = 0; i < 1 << 20; ++i) static_cast<float*>(host.mutable_data())[i] = 1.0f + me;
  FERRY_RETURN_IF_ERROR(step.Send(up, host));
  FERRY_ASSIGN_OR_RETURN(ferry::Tensor sum, step.Recv(up, absl::Minutes(1), stream->get()));
  {
    const ferry::cuda::ScopedCurrent current(*gpu.device);
    FERRY_RETURN_IF_ERROR(communicator->api().Check(
        communicator->api().table().all_reduce(sum.data(), sum.mutable_data(), 1 << 20,
                                               ferry::nccl::kFloat32, ferry::nccl::kReduceSum,
                                               communicator->get(), stream->get()),
        "ncclAllReduce"));
  }
  FERRY_RETURN_IF_ERROR(communicator->WaitEnqueued(absl::Minutes(1)));
  FERRY_RETURN_IF_ERROR(step.Send(down, sum, stream->get()));
  FERRY_ASSIGN_OR_RETURN(host, step.Recv(down, absl::Minutes(1)));
  std::cout << "the sum over " << communicator->size() << " GPUs is " << host.elements<float>()[7]
            << "\n";
  return step.Close(absl::Minutes(1));
}

int main() {
  const absl::StatusOr<std::unique_ptr<ferry::Node>> node = ferry::Node::Join({});
  absl::Status status = node.ok() ? AllReduce(**node) : node.status();
  if (status.ok()) status = (*node)->Shutdown();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
