// SPDX-License-Identifier: Apache-2.0
// Kernels in a stream: in order, behind the writers of their inputs, and without blocking threads.
#include "gpu/gpu_compute.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"

#include "base/thread.h"
#include "gpu/cuda/ready_tensor.h"
#include "gpu/gpus.h"
#include "tests/gpu/cuda_fixture.h"
#include "tests/support/kernel_image.h"

namespace ferry {
namespace {

using cuda::BinaryOp;
using cuda::ElementKernels;
using cuda::ElementType;
using ::testing::HasSubstr;

class GpuComputeTest : public cuda::CudaTest {
 protected:
  GpuComputeTest() { Open(KernelImage()); }
  void SetUp() override {
    if (KernelImage().empty()) GTEST_SKIP() << "this build has no kernels: there was no nvcc";
  }

  void Open(cuda::CompiledKernels image) {
    GpusOptions options;
    options.arena.segment_bytes = size_t{2} << 20;
    gpus_ = *Gpus::Create(cuda::StrictApi(), AllocateHeapBuffer, nullptr, options, image);
    compute_ = (*gpus_->Get(0))->compute.get();
  }

  Tensor OnHost(const std::vector<float>& values) {
    Tensor tensor =
        *Tensor::Allocate(DataType::kFloat, *Shape::Create({static_cast<int64_t>(values.size())}));
    std::copy(values.begin(), values.end(), static_cast<float*>(tensor.mutable_data()));
    return tensor;
  }
  Tensor Moved(const Tensor& tensor, TensorLocation to) {
    MoveRequest move;
    move.tensor = tensor;
    move.to = to;
    move.deadline = SteadyClock().Now() + absl::Seconds(30);
    move.what = "test";
    absl::StatusOr<Tensor> moved = gpus_->MoveAndWait(std::move(move));
    EXPECT_OK(moved.status());
    return moved.value_or(Tensor());
  }
  Tensor OnGpu(const std::vector<float>& values, int ordinal = 0) {
    return Moved(OnHost(values), {MemorySpace::kCuda, ordinal});
  }
  std::vector<float> Values(const Tensor& tensor) {
    const Tensor host = Moved(tensor, {});
    const auto elements = host.elements<float>();
    return {elements.begin(), elements.end()};
  }

  absl::StatusOr<Tensor> Binary(BinaryOp op, const Tensor& x, const Tensor& y) {
    absl::StatusOr<Tensor> out = compute_->Allocate(DataType::kFloat, x.shape());
    if (!out.ok()) return out;
    cuda::BinaryCall call = {};
    call.x = x.data();
    call.y = y.data();
    call.out = out->mutable_data();
    call.count = call.extents[0] = static_cast<uint64_t>(x.shape().element_count());
    call.op = op;
    call.type = ElementType::kFloat;
    call.rank = 1;
    call.x_strides[0] = call.y_strides[0] = 1;
    const Tensor inputs[] = {x, y};
    return compute_->Run(inputs, *out, [&call](const ElementKernels& kernels, cuda::Stream stream) {
      return kernels.Binary(stream, call);
    });
  }
  static bool IsReady(const Tensor& tensor) {
    const auto ready = cuda::ReadyOf(tensor);
    return ready == nullptr || *ready->IsDone();
  }
  // The same tensor, which will have been written when the stream gets there.
  Tensor Behind(const Tensor& tensor, cuda::Stream stream) {
    return cuda::WithReady(tensor, *cuda::ReadyEvent::Record(*events_, stream));
  }

  std::unique_ptr<Gpus> gpus_;
  GpuCompute* compute_ = nullptr;
};

TEST_F(GpuComputeTest, KernelReadsAnotherKernelsOutput) {
  const Tensor a = OnGpu({1, 2, 3});
  const Tensor b = OnGpu({10, 20, 30});
  const Tensor sum = *Binary(BinaryOp::kAdd, a, b);
  const Tensor product = *Binary(BinaryOp::kMul, sum, a);
  EXPECT_EQ(Values(product), (std::vector<float>{11, 44, 99}));
  EXPECT_EQ(Values(sum), (std::vector<float>{11, 22, 33}));
  EXPECT_EQ(Values(*Binary(BinaryOp::kMax, a, *Binary(BinaryOp::kSub, b, sum))),
            (std::vector<float>{1, 2, 3}));
}

// A long kernel of the producer's delays the device, and no thread.
TEST_F(GpuComputeTest, OnlyTheStreamWaitsForInputs) {
  NEEDS_FAKE_DRIVER("holds up a stream");
  cuda::HeldStream held(device_);
  const Tensor late = Behind(OnGpu({1, 2}), held.get());
  const Tensor sum = *Binary(BinaryOp::kAdd, late, OnGpu({5, 5}));
  const Tensor more = *Binary(BinaryOp::kAdd, sum, sum);
  EXPECT_FALSE(IsReady(sum));
  EXPECT_FALSE(IsReady(more));
  held.Go();
  EXPECT_EQ(Values(more), (std::vector<float>{12, 14}));
}

// Memory that a kernel still has to read is not reused when its last tensor is destroyed.
TEST_F(GpuComputeTest, MemoryOfInputsIsKeptUntilTheyAreRead) {
  NEEDS_FAKE_DRIVER("holds up a stream");
  cuda::HeldStream held(device_);
  Tensor a = OnGpu(std::vector<float>(1000, 1));
  Tensor b = Behind(OnGpu(std::vector<float>(1000, 2)), held.get());
  const void* const places[] = {a.data(), b.data()};
  const Tensor sum = *Binary(BinaryOp::kAdd, a, b);
  a = b = Tensor();
  std::vector<Tensor> others;
  for (int i = 0; i < 8; ++i) {
    others.push_back(OnGpu(std::vector<float>(1000, 7)));
    EXPECT_NE(others.back().data(), places[0]);
    EXPECT_NE(others.back().data(), places[1]);
  }
  held.Go();
  EXPECT_EQ(Values(sum), std::vector<float>(1000, 3));
}

// The program completes the input only afterwards, perhaps on this thread.
TEST_F(GpuComputeTest, KernelWithoutAnEvent_WaitsForNobody) {
  NEEDS_FAKE_DRIVER("holds up a stream");
  for (const char* const call : {"cuEventCreate", "cuEventRecord"}) {
    cuda::HeldStream held(device_);
    const Tensor one = OnGpu(std::vector<float>(1000, 1));
    const Tensor late = Behind(OnGpu(std::vector<float>(1000, 2)), held.get());
    absl::StatusOr<Tensor> sum = compute_->Allocate(DataType::kFloat, one.shape());
    ASSERT_OK(sum.status());
    const void* const place = sum->data();
    std::vector<cuda::CudaEvent> all;
    cuda::EventPool& pool = *(*gpus_->Get(0))->events;
    while (pool.idle_count() > 0) all.push_back(*pool.Take());
    if (call == std::string("cuEventRecord")) all.pop_back();
    cuda::FailNext(call, cuda::kErrorOutOfMemory);
    absl::Notification is_over;
    Thread runs("runs", [&] {
      const Tensor inputs[] = {one, late};
      cuda::BinaryCall add = {};
      add.x = one.data();
      add.y = late.data();
      add.out = sum->mutable_data();
      add.count = add.extents[0] = 1000;
      add.op = BinaryOp::kAdd;
      add.type = ElementType::kFloat;
      add.rank = 1;
      add.x_strides[0] = add.y_strides[0] = 1;
      sum = compute_->Run(inputs, *sum, [&add](const ElementKernels& kernels, cuda::Stream stream) {
        return kernels.Binary(stream, add);
      });
      is_over.Notify();
    });
    EXPECT_TRUE(is_over.WaitForNotificationWithTimeout(absl::Seconds(20))) << call;
    all.clear();
    const Tensor other = OnGpu(std::vector<float>(1000, 7));
    if (call == std::string("cuEventRecord")) {
      EXPECT_NE(other.data(), place) << "the kernel still writes there";
    }
    held.Go();
    held.Finish();
    is_over.WaitForNotification();
    EXPECT_FALSE(sum.ok());
    EXPECT_EQ(Values(other), std::vector<float>(1000, 7));
  }
}

TEST_F(GpuComputeTest, InputsOnOtherDevicesAreRefused) {
  const absl::Status status = Binary(BinaryOp::kAdd, OnGpu({1, 2}), OnHost({1, 2})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("gpu:0 cannot read float[2] in memory of host"));
}

TEST_F(GpuComputeTest, EmptyTensorsNeedNoKernel) {
  const Tensor none = OnGpu({});
  const Tensor sum = *Binary(BinaryOp::kAdd, none, none);
  EXPECT_EQ(sum.shape().element_count(), 0);
}

// Foreign memory counts no uses.
TEST_F(GpuComputeTest, ForeignMemoryIsKeptAsWell) {
  NEEDS_FAKE_DRIVER("holds up a stream");
  const cuda::DevicePointer memory = Alloc(8);
  Write(memory, std::string(8, '\0'));
  bool is_released = false;
  Tensor foreign = *Tensor::Create(
      DataType::kFloat, *Shape::Create({2}),
      WrapForeignBuffer(cuda::AsHostPointer(memory), 8, [&is_released] { is_released = true; },
                        {MemorySpace::kCuda, 0}));
  cuda::HeldStream held(device_);
  const Tensor sum = *Binary(BinaryOp::kAdd, Behind(foreign, held.get()), OnGpu({1, 2}));
  foreign = Tensor();
  EXPECT_FALSE(is_released);
  held.Go();
  EXPECT_EQ(Values(sum), (std::vector<float>{1, 2}));
  gpus_->WaitIdle(SteadyClock().Now() + absl::Seconds(10));
  EXPECT_TRUE(is_released);
  Free(memory);
}

TEST_F(GpuComputeTest, WithoutKernelsEveryCallReturnsTheReason) {
  Open({});
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = Binary(BinaryOp::kAdd, OnGpu({1}), OnGpu({2})).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(status.message(), HasSubstr("made without nvcc"));
  }
  EXPECT_EQ(compute_->LoadKernels().code(), absl::StatusCode::kUnimplemented);
}

// A module is not loaded while NCCL's kernels wait for their peers.
TEST_F(GpuComputeTest, KernelsAreLoadedWhileNoTransferWaitsForAPeer) {
  gpus_->gate()->BeginWork();
  std::atomic<bool> is_loaded{false};
  Thread loader("loader", [this, &is_loaded] {
    EXPECT_OK(compute_->LoadKernels());
    is_loaded = true;
  });
  while (!gpus_->gate()->is_quiesce_requested() && !is_loaded)
    absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(is_loaded);
  gpus_->gate()->EndWork();
}

}  // namespace
}  // namespace ferry
