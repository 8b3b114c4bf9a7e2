// SPDX-License-Identifier: Apache-2.0
// Two workers with GPUs, each in a process of its own.
#ifndef FERRY_TESTS_TENSORFLOW_WORKER_WORKER_GPU_PAIR_H_
#define FERRY_TESTS_TENSORFLOW_WORKER_WORKER_GPU_PAIR_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/discovery.h"
#include "tests/node/gpu_pair.h"
#include "tests/support/kernel_image.h"
#include "tests/tensorflow/worker/worker_fixture.h"

namespace ferry {

// Per process.
inline std::unique_ptr<NodeWorker>& OwnWorker() {
  static auto* const worker = new std::unique_ptr<NodeWorker>;
  return *worker;
}

inline TransferEngineOptions TransferOptionsWithWorker() {
  TransferEngineOptions options;
  options.kernel_image = KernelImage();
  options.grpc_services = [](TransferEngine& engine) {
    NodeWorkerOptions worker;
    worker.devices = DiscoverLocal().topology.devices;
    OwnWorker() = std::make_unique<NodeWorker>(engine, worker);
    return std::vector<grpc::Service*>{&OwnWorker()->service()};
  };
  return options;
}

inline void Leave(GpuPeer& peer) {
  peer.Meet();
  EXPECT_TRUE(peer.transfer_engine().Stop().ok());
  OwnWorker().reset();
}

inline WorkerClient ClientOf(const Endpoint& endpoint, size_t gpu_count) {
  std::vector<std::string> devices;
  const std::string task = absl::StrCat("/job:worker/replica:0/task:", endpoint.peer.node_id);
  devices.push_back(absl::StrCat(task, "/device:CPU:0"));
  for (size_t i = 0; i < gpu_count; ++i) {
    devices.push_back(absl::StrCat(task, "/device:GPU:", i));
  }
  return {endpoint.grpc_address, endpoint.peer.incarnation, std::move(devices)};
}

class WorkerGpuPair : public ::testing::Test {
 protected:
  void SetUp() override {
    NEEDS_TWO_GPUS();
    if (KernelImage().empty()) GTEST_SKIP() << "this build has no kernels: there was no nvcc";
  }
};

}  // namespace ferry

#endif  // FERRY_TESTS_TENSORFLOW_WORKER_WORKER_GPU_PAIR_H_
