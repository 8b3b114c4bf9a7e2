// SPDX-License-Identifier: Apache-2.0
// Graphs over the GPUs of two workers: the paths of tensors.
#include "tests/tensorflow/worker/worker_gpu_pair.h"

namespace ferry {
namespace {

using coord::IsOk;
using graph::GraphWriter;
using ::testing::HasSubstr;

// The paths in the rows of receives.
std::vector<std::string> LabelsOf(const SmallMaster::Step& step) {
  std::vector<std::string> labels;
  for (const auto& result : step.results) {
    if (!result.ok()) continue;
    for (const auto& device : result->step_stats().dev_stats()) {
      for (const auto& row : device.node_stats()) {
        const std::string& label = row.timeline_label();
        // Between devices of one worker it is always "local".
        if (!absl::StrContains(label, " by ") || absl::EndsWith(label, " by local")) continue;
        labels.push_back(label);
      }
    }
  }
  return labels;
}

// Feeds `count` numbers, and sends them over the GPUs of both and back.
//   way: must be in the label of each transfer between workers from GPU to GPU.
void DriveBoth(GpuPeer& peer, int count, const std::string& way) {
  const size_t gpus = static_cast<size_t>(peer.gpus().count());
  WorkerClient a = ClientOf(peer.transfer_engine().self(), gpus);
  WorkerClient b = ClientOf(peer.PeerEndpoint(), gpus);
  GraphWriter writer;
  writer.Placeholder("x", a.devices()[0]);
  writer.AddFloat("there", "AddV2", {"x", "x"}, a.devices()[1]);
  writer.AddFloat("far", "Neg", {"there"}, b.devices()[2]);
  writer.AddFloat("farther", "Mul", {"far", "there"}, b.devices()[1]);
  writer.AddFloat("back", "Sub", {"farther", "x"}, a.devices()[2]);
  SmallMaster master({&a, &b}, writer, {{"x"}, {"back"}, {}});
  ASSERT_THAT(master.status, IsOk());
  for (int id = 1; id <= 5; ++id) {
    std::vector<float> values;
    std::vector<float> expected;
    for (int i = 0; i < count; ++i) {
      const auto value = static_cast<float>(i % 1000 + id);
      values.push_back(value);
      expected.push_back(-4 * value * value - value);
    }
    SmallMaster::Step step = master.Start(id, {Floats(values)}, /*record=*/true);
    const auto fetched = step.Wait();
    ASSERT_THAT(fetched, IsOk());
    EXPECT_EQ(ToFloats((*fetched)[0]), expected);
    int crossings = 0;
    for (const std::string& label : LabelsOf(step)) {
      if (absl::StrContains(label, "CPU:0")) continue;
      ++crossings;
      EXPECT_THAT(label, HasSubstr(way));
    }
    // Twice there and once back.
    EXPECT_EQ(crossings, 3);
  }
}

TEST_F(WorkerGpuPair, TensorsMoveBetweenGpusByMappedMemory) {
  RunGpuPair(
      {.transfer = TransferOptionsWithWorker()},
      [](GpuPeer& peer) {
        DriveBoth(peer, 100'000, " by cuda_ipc");
        Leave(peer);
      },
      Leave);
}

TEST_F(WorkerGpuPair, TensorsUseNcclWhereRequired) {
  NEEDS_FAKE_DRIVER("has four GPUs");
  TransferEngineOptions options = TransferOptionsWithWorker();
  options.require_transport = "nccl";
  // NCCL needs one process per GPU.
  RunGpuPair(
      {.transfer = options,
       .environment = {{"STRICT_CUDA_DEVICES", "4"}},
       .producer_environment = {{"CUDA_VISIBLE_DEVICES", "0,1"}},
       .consumer_environment = {{"CUDA_VISIBLE_DEVICES", "2,3"}},
       .is_apart = true},
      [](GpuPeer& peer) {
        DriveBoth(peer, 1'000'000, " by nccl");
        Leave(peer);
      },
      Leave);
}

// Between machines without NCCL.
TEST_F(WorkerGpuPair, TensorsGoThroughTheHostWhereNoOtherPathExists) {
  TransferEngineOptions options = TransferOptionsWithWorker();
  options.require_transport = "tcp";
  RunGpuPair(
      {.transfer = options, .is_apart = true},
      [](GpuPeer& peer) {
        DriveBoth(peer, 100'000, " by tcp, staged");
        Leave(peer);
      },
      Leave);
}

}  // namespace
}  // namespace ferry
