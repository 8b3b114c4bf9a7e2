// SPDX-License-Identifier: Apache-2.0
// A node of a job that makes communicators over one GPU of each node, lets go of them, and makes
// them again; and one of its own GPU alone.
#include <iostream>

#include "base/status_macros.h"
#include "runtime/node.h"

namespace ferry {
namespace {

using Communicator = std::shared_ptr<NcclCommunicator>;

constexpr absl::Duration kPatience = absl::Seconds(30);

absl::Status Expect(bool is_true, absl::string_view what) {
  return is_true ? absl::OkStatus() : absl::InternalError(absl::StrCat("not so: ", what));
}

// The sum of `mine` over all ranks.
absl::StatusOr<float> Sum(Node& node, NcclCommunicator& all, float mine) {
  FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, node.exchange().gpus()->Get(0));
  FERRY_ASSIGN_OR_RETURN(Tensor number,
                         node.Allocate("gpu:0", DataType::kFloat, *Shape::Create({1})));
  FERRY_ASSIGN_OR_RETURN(const auto stream, cuda::CudaStream::Create(gpu->device));
  const cuda::ScopedCurrent current(*gpu->device);
  const cuda::CudaTable& table = gpu->device->table();
  const cuda::DevicePointer at = cuda::AsDevicePointer(number.data());
  FERRY_RETURN_IF_ERROR(gpu->device->Check(
      table.copy_to_device_async(at, &mine, sizeof(mine), stream->get()), "cuMemcpyHtoDAsync"));
  FERRY_RETURN_IF_ERROR(all.Run(stream->get(), [&](const nccl::NcclTable& nccl, ncclComm* comm) {
    return nccl.all_reduce(number.data(), number.mutable_data(), 1, nccl::kFloat32,
                           nccl::kReduceSum, comm, stream->get());
  }));
  float sum = 0;
  FERRY_RETURN_IF_ERROR(gpu->device->Check(
      table.copy_to_host_async(&sum, at, sizeof(sum), stream->get()), "cuMemcpyDtoHAsync"));
  FERRY_RETURN_IF_ERROR(
      gpu->device->Check(table.stream_synchronize(stream->get()), "cuStreamSynchronize"));
  return sum;
}

absl::Status ExpectSumOverAll(Node& node, NcclCommunicator& all) {
  FERRY_ASSIGN_OR_RETURN(const float sum,
                         Sum(node, all, 1.0f + static_cast<float>(node.node_id())));
  const int count = node.num_nodes();
  return Expect(sum == static_cast<float>(count * (count + 1) / 2), "the sum over all GPUs");
}

absl::Status Run() {
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Node> node, Node::Join({}));
  const std::vector<int> gpus = node->topology().OneGpuOfEachNode();
  const auto meet = [&node](absl::string_view name) {
    return node->agent().Barrier(name, kPatience);
  };

  FERRY_ASSIGN_OR_RETURN(Communicator first, node->Communicator(gpus));
  FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, *first));
  FERRY_ASSIGN_OR_RETURN(Communicator same, node->Communicator(gpus));
  FERRY_RETURN_IF_ERROR(Expect(same == first, "whoever asks again gets the same one"));
  same = nullptr;
  const uint32_t generation = first->generation();
  FERRY_RETURN_IF_ERROR(meet("used"));

  // One lets go of it: it is over for all of them.
  if (node->node_id() == 0) first = nullptr;
  FERRY_RETURN_IF_ERROR(meet("dropped"));
  FERRY_ASSIGN_OR_RETURN(const Communicator second, node->Communicator(gpus));
  FERRY_RETURN_IF_ERROR(Expect(second->generation() > generation, "the next generation"));
  FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, *second));
  // The former one of the others goes now, and the clique stays where it is.
  first = nullptr;
  FERRY_RETURN_IF_ERROR(meet("all dropped"));
  FERRY_ASSIGN_OR_RETURN(const Communicator third, node->Communicator(gpus));
  FERRY_RETURN_IF_ERROR(Expect(third == second, "it has not been touched"));
  FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, *third));

  // Of one rank.
  FERRY_ASSIGN_OR_RETURN(const Communicator own,
                         node->Communicator({gpus[static_cast<size_t>(node->node_id())]}));
  FERRY_RETURN_IF_ERROR(Expect(own->size() == 1, "a rank by itself"));
  FERRY_ASSIGN_OR_RETURN(const float sum, Sum(*node, *own, 7));
  FERRY_RETURN_IF_ERROR(Expect(sum == 7, "the sum over one"));

  // With an id for every two ranks.
  CommunicatorOptions options;
  options.ranks_per_id = 2;
  std::vector<int> reversed(gpus.rbegin(), gpus.rend());
  FERRY_ASSIGN_OR_RETURN(const Communicator scalable,
                         node->Communicator(reversed, std::nullopt, options));
  FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, *scalable));
  std::cout << "made and made again\n";
  return node->Shutdown();
}

}  // namespace
}  // namespace ferry

int main() {
  const absl::Status status = ferry::Run();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
