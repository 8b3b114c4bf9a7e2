// SPDX-License-Identifier: Apache-2.0
// A node of a job whose GPUs all exchange tensors with each other, by NCCL, in an order that is not
// agreed on: from several threads, each with an order of its own.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <random>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "node/node.h"

namespace ferry {
namespace {

constexpr int kThreads = 3;
constexpr absl::Duration kTimeout = absl::Seconds(60);

size_t BytesOf(int from, int to, int index) {
  return static_cast<size_t>(1000 + 60'000 * ((from + 3 * to + index) % 7) + index);
}

std::vector<unsigned char> Pattern(int from, int to, int index) {
  std::vector<unsigned char> bytes(BytesOf(from, to, index));
  std::mt19937 random(static_cast<uint32_t>(1000 * from + 100 * to + index));
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

absl::Status TransferEngine(Node& node, int thread, int count, uint32_t seed) {
  const int me = node.node_id();
  FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, node.transfer_engine().gpus()->Get(0));
  const cuda::CudaTable& table = gpu->device->table();
  FERRY_ASSIGN_OR_RETURN(const auto stream, cuda::CudaStream::Create(gpu->device));
  FERRY_ASSIGN_OR_RETURN(Step step, node.OpenStep(1));
  struct Work {
    int peer = 0;
    int index = 0;
    bool is_send = false;
  };
  std::vector<Work> sends;
  std::vector<Work> receives;
  for (int peer = 0; peer < node.num_nodes(); ++peer) {
    for (int index = thread; index < count; index += kThreads) {
      if (peer != me) sends.push_back({peer, index, true});
      if (peer != me) receives.push_back({peer, index, false});
    }
  }
  std::mt19937 random(seed + static_cast<uint32_t>(97 * me + thread));
  std::shuffle(sends.begin(), sends.end(), random);
  std::shuffle(receives.begin(), receives.end(), random);
  // Receives come last: the values that others wait for have been sent before.
  std::vector<Work> work = sends;
  work.insert(work.end(), receives.begin(), receives.end());
  std::vector<std::vector<unsigned char>> patterns;
  for (const Work& each : work) {
    const std::string name = absl::StrCat("t", each.index);
    if (each.is_send) {
      patterns.push_back(Pattern(me, each.peer, each.index));
      const auto bytes = static_cast<int64_t>(patterns.back().size());
      FERRY_ASSIGN_OR_RETURN(const auto key, node.Key(name, me, each.peer, "gpu:0", "gpu:0"));
      FERRY_ASSIGN_OR_RETURN(const Tensor tensor,
                             node.Allocate("gpu:0", DataType::kUint8, *Shape::Create({bytes})));
      const cuda::ScopedCurrent current(*gpu->device);
      FERRY_RETURN_IF_ERROR(gpu->device->Check(
          table.copy_to_device_async(cuda::AsDevicePointer(tensor.data()), patterns.back().data(),
                                     tensor.bytes(), stream->get()),
          "cuMemcpyHtoDAsync"));
      FERRY_RETURN_IF_ERROR(step.Send(key, tensor, stream->get()));
      continue;
    }
    FERRY_ASSIGN_OR_RETURN(const auto key, node.Key(name, each.peer, me, "gpu:0", "gpu:0"));
    FERRY_ASSIGN_OR_RETURN(const Received received, step.RecvValue(key, kTimeout));
    if (received.path != "nccl") return absl::InternalError(absl::StrCat("by ", received.path));
    const std::vector<unsigned char> expected = Pattern(each.peer, me, each.index);
    std::vector<unsigned char> seen(received.tensor.bytes());
    const cuda::ScopedCurrent current(*gpu->device);
    FERRY_RETURN_IF_ERROR(gpu->device->Check(
        table.copy_to_host_async(seen.data(), cuda::AsDevicePointer(received.tensor.data()),
                                 seen.size(), stream->get()),
        "cuMemcpyDtoHAsync"));
    FERRY_RETURN_IF_ERROR(
        gpu->device->Check(table.stream_synchronize(stream->get()), "cuStreamSynchronize"));
    if (seen != expected) {
      return absl::DataLossError(absl::StrCat("not what was sent: ", key.text()));
    }
  }
  return absl::OkStatus();
}

absl::Status Run(int count, uint32_t seed) {
  NodeOptions options;
  options.transfer.require_transport = "nccl";
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Node> node, Node::Join(std::move(options)));
  if (node->transfer_engine().gpus() == nullptr) {
    return absl::FailedPreconditionError(node->transfer_engine().why_no_gpus());
  }
  std::vector<absl::Status> outcomes(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      outcomes[static_cast<size_t>(thread)] = TransferEngine(*node, thread, count, seed);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& outcome : outcomes) FERRY_RETURN_IF_ERROR(outcome);
  FERRY_ASSIGN_OR_RETURN(Step step, node->OpenStep(1));
  FERRY_RETURN_IF_ERROR(step.Close(kTimeout));
  std::cout << "all of " << count * (node->num_nodes() - 1) << " have come\n";
  return node->Shutdown();
}

}  // namespace
}  // namespace ferry

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const absl::Status status =
      ferry::Run(std::atoi(argv[1]), static_cast<uint32_t>(std::atoi(argv[2])));
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
