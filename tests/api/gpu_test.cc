// SPDX-License-Identifier: Apache-2.0
// Tensors in the memory of GPUs, and a communicator of them, on the fake driver.
#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "absl/synchronization/notification.h"

#include "job.h"

namespace ferry {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kCount = 1 << 16;

class GpuTest : public ::testing::Test {
 protected:
  // The libraries are loaded once in a process.
  static void SetUpTestSuite() {
    for (const char* name : {"FERRY_CUDA_LIBRARY", "FERRY_NVML_LIBRARY", "FERRY_NCCL_LIBRARY"}) {
      setenv(name, STRICT_CUDA_LIBRARY, /*overwrite=*/1);
    }
  }
  void SetUp() override {
    node_ = std::move(coordinator_.Join({0})[0]);
    ASSERT_NE(node_, nullptr);
    step_.emplace(node_->OpenStep(1).value());
  }

  Tensor Filled(float value) {
    Tensor tensor = node_->Allocate(Device::Host(), DataType::kFloat, {kCount}).value();
    for (float& element : tensor.mutable_elements<float>()) element = value;
    return tensor;
  }
  // Sends `tensor` to `to`, where it is received.
  absl::StatusOr<Tensor> Move(const Tensor& tensor, Device to, SendOptions send = {},
                              RecvOptions recv = {}) {
    TensorId id = {.name = "x"};
    id.source_device = tensor.device();
    id.destination_device = to;
    const absl::Status status = step_->Send(id, tensor, send).Wait(kLong).status();
    if (!status.ok()) return status;
    return step_->Recv(id, std::move(recv)).Wait(kLong);
  }

  TestCoordinator coordinator_{1};
  std::unique_ptr<Node> node_;
  std::optional<Step> step_;
};

TEST_F(GpuTest, Recv_WithoutAStream_IsDoneWhenTheBytesAreThere) {
  const absl::StatusOr<Tensor> up = Move(Filled(3), Device::Gpu(0));
  ASSERT_TRUE(up.ok()) << up.status();
  EXPECT_EQ(up->device(), Device::Gpu(0));
  const absl::StatusOr<Tensor> down = Move(*up, Device::Host());
  ASSERT_TRUE(down.ok()) << down.status();
  EXPECT_EQ(down->device(), Device::Host());
  EXPECT_THAT(down->elements<float>(), Each(3));
}

TEST_F(GpuTest, RecvInto_MemoryOfAGpu_FillsIt) {
  Tensor into = node_->Allocate(Device::Gpu(0), DataType::kFloat, {kCount}).value();
  const absl::StatusOr<Tensor> up = Move(Filled(4), Device::Gpu(0), {}, {.into = into});
  ASSERT_TRUE(up.ok()) << up.status();
  EXPECT_EQ(up->data(), into.data());
  EXPECT_THAT(Move(into, Device::Host())->elements<float>(), Each(4));
}

TEST_F(GpuTest, Recv_StreamForHostMemory_IsRefused) {
  const absl::Status status =
      Move(Filled(1), Device::Host(), {}, {.stream = reinterpret_cast<CUstream_st*>(8)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

// The bytes come with work of a stream, which a receive without a stream waits for.
TEST_F(GpuTest, Cancel_WorkThatWritesTheTensorIsPending_EndsTheReceive) {
  const auto communicator = node_->Communicator(node_->topology().OneGpuOfEachNode());
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  CUstream_st* const stream = (*communicator)->stream();
  void* const library = dlopen(STRICT_CUDA_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  using Launch = int (*)(CUstream_st*, void (*)(void*), void*);
  const auto launch = reinterpret_cast<Launch>(dlsym(library, "cuLaunchHostFunc"));
  ASSERT_NE(launch, nullptr);
  absl::Notification go_on;
  const auto wait = [](void* until) {
    static_cast<absl::Notification*>(until)->WaitForNotification();
  };
  Tensor tensor = node_->Allocate(Device::Gpu(0), DataType::kFloat, {kCount}).value();
  TensorId id = {.name = "x"};
  id.source_device = id.destination_device = Device::Gpu(0);
  ASSERT_EQ(launch(stream, wait, &go_on), 0);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(step_->Send(id, tensor, {.stream = stream}).Wait(kLong).ok());
  }
  CancellationToken token;
  Request by_token = step_->Recv(id, {.cancellation = token});
  Request request = step_->Recv(id);
  EXPECT_THAT(std::string(request.Wait(absl::ZeroDuration()).status().message()),
              HasSubstr("work of gpu:0 has not written its bytes yet"));
  EXPECT_FALSE(request.done());
  request.Cancel(absl::AbortedError("no longer needed"));
  EXPECT_TRUE(request.done());
  token.Cancel(absl::AbortedError("no longer needed"));
  for (Request* each : {&request, &by_token}) {
    EXPECT_EQ(each->Wait(absl::ZeroDuration()).status(), absl::AbortedError("no longer needed"));
  }
  go_on.Notify();
  ASSERT_EQ(step_->Flush(kLong), absl::OkStatus());
  // The work is over before what waits is destroyed.
  ASSERT_TRUE(step_->Send(id, tensor, {.stream = stream}).Wait(kLong).ok());
  EXPECT_TRUE(step_->Recv(id).Wait(kLong).ok());
  dlclose(library);
}

TEST_F(GpuTest, DevicesAndTensors_ThatDoNotFit_AreRefused) {
  const auto is_invalid = [](const absl::Status& status, const char* text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  is_invalid(Move(Filled(1), Device::Gpu(63)).status(), "has no device \"gpu:63\"");
  is_invalid(Move(Filled(1), Device{DeviceKind::kHost, 1}).status(), "has no device \"host:1\"");
  TensorId id = {.name = "x"};
  is_invalid(step_->Recv({.name = "x", .source_device = Device::Gpu(63)}).Wait(kLong).status(),
             "has no device \"gpu:63\"");
  is_invalid(
      step_->Recv(id, {.into = node_->Allocate(Device::Gpu(0), DataType::kFloat, {1}).value()})
          .Wait(kLong)
          .status(),
      "is for host:0, and the tensor to receive into is in the memory of gpu:0");
  id.source_device = Device::Gpu(0);
  is_invalid(step_->Send(id, Filled(1)).Wait(kLong).status(),
             "is sent from gpu:0, and the tensor is in the memory of host:0");
}

TEST_F(GpuTest, Communicator_Operations_CheckTheirTensors) {
  absl::StatusOr<std::unique_ptr<NcclCommunicator>> communicator =
      node_->Communicator(node_->topology().OneGpuOfEachNode());
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  NcclCommunicator& all = **communicator;
  EXPECT_EQ(all.rank(), 0);
  EXPECT_EQ(all.size(), 1);
  EXPECT_EQ(all.device(), Device::Gpu(0));
  EXPECT_EQ(all.Check(), absl::OkStatus());

  absl::StatusOr<Tensor> input = Move(Filled(5), Device::Gpu(0), {}, {.stream = all.stream()});
  ASSERT_TRUE(input.ok()) << input.status();
  Tensor output = node_->Allocate(Device::Gpu(0), DataType::kFloat, {kCount}).value();
  EXPECT_EQ(all.AllReduce(*input, output, ReduceOp::kSum, all.stream()), absl::OkStatus());
  EXPECT_EQ(all.Broadcast(output, 0, all.stream()), absl::OkStatus());
  EXPECT_EQ(all.AllGather(output, *input, all.stream()), absl::OkStatus());
  const absl::StatusOr<Tensor> down = Move(*input, Device::Host(), {.stream = all.stream()});
  ASSERT_TRUE(down.ok()) << down.status();
  EXPECT_THAT(down->elements<float>(), Each(5));

  const auto is_invalid = [](const absl::Status& status, const char* text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  Tensor host = Filled(1);
  is_invalid(all.AllReduce(host, host, ReduceOp::kSum, all.stream()), "not in the memory of gpu:0");
  Tensor half = output.Slice(0, kCount / 2).value();
  is_invalid(all.AllGather(output, half, all.stream()), "the output is float[32768]");
  is_invalid(all.Broadcast(output, 1, all.stream()), "no rank 1");
  Tensor flags = node_->Allocate(Device::Gpu(0), DataType::kBool, {2}).value();
  is_invalid(all.Broadcast(flags, 0, all.stream()), "NCCL has no type bool");
}

TEST_F(GpuTest, Communicator_Aborted_RefusesLaterCalls) {
  const auto communicator = node_->Communicator(node_->topology().OneGpuOfEachNode());
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  NcclCommunicator& all = **communicator;
  Tensor tensor = node_->Allocate(Device::Gpu(0), DataType::kFloat, {2}).value();
  all.Abort(absl::CancelledError("no longer needed"));
  all.Abort(absl::OkStatus());
  for (const absl::Status& status :
       {all.AllReduce(tensor, tensor, ReduceOp::kSum, all.stream()),
        all.AllGather(tensor, tensor, all.stream()), all.Broadcast(tensor, 0, all.stream()),
        all.Run(all.stream(), [](ncclComm*) { return 0; }), all.Check()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  }
  // Another one can be made of the same GPU.
  EXPECT_TRUE(node_->Communicator(node_->topology().OneGpuOfEachNode()).ok());
}

TEST_F(GpuTest, ReservedMemory_IsThereWhenTheGpuIsPrepared) {
  EXPECT_EQ(node_->PrepareGpu(Device::Gpu(0)), absl::OkStatus());
  EXPECT_EQ(node_->PrepareGpu(Device::Host()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(node_->PrepareGpu(Device::Gpu(63)).code(), absl::StatusCode::kInvalidArgument);
  // Another node of the process, with more than a GPU's limit.
  TestCoordinator other{1};
  TransferOptions options;
  options.gpu_reserve_bytes = size_t{3} << 30;
  const std::unique_ptr<Node> node = std::move(other.Join({0}, options)[0]);
  ASSERT_NE(node, nullptr);
  const absl::Status refused = node->PrepareGpu(Device::Gpu(0));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--gpu-reserve-bytes"));
}

TEST(GpuOptionsTest, NegativeIdleTimeout_IsRefused) {
  TestCoordinator coordinator{1};
  NodeOptions options = coordinator.OptionsOf(0);
  options.transfer.gpu_mapping_idle_timeout = -absl::Seconds(1);
  const absl::Status refused = Node::Join(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("gpu_mapping_idle_timeout"));
}

TEST_F(GpuTest, MemoryAndNcclOfTheProgram_AreMadeKnown) {
  const Tensor tensor = node_->Allocate(Device::Gpu(0), DataType::kFloat, {kCount}).value();
  const auto registration = node_->RegisterMemory(tensor);
  ASSERT_TRUE(registration.ok()) << registration.status();
  EXPECT_EQ((*registration)->Release(kLong), absl::OkStatus());
  EXPECT_EQ(node_->RegisterMemory(Filled(1)).status().code(), absl::StatusCode::kInvalidArgument);
  const auto scope = node_->BeginExternalNccl(Device::Gpu(0), kLong);
  ASSERT_TRUE(scope.ok()) << scope.status();
  EXPECT_EQ((*scope)->End(nullptr), absl::OkStatus());
  EXPECT_EQ((*scope)->End(nullptr).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(node_->BeginExternalNccl(Device::Host()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ferry
