// SPDX-License-Identifier: Apache-2.0
// GpuCompute: waits, launches and events on one stream.
#include "gpu/gpu_compute.h"

#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/cuda/ready_tensor.h"
#include "gpu/cuda/stream_retention.h"

namespace ferry {
namespace {

// Maximum wait for quiet at the gate; the same as for memory.
constexpr absl::Duration kTimeout = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::unique_ptr<GpuCompute>> GpuCompute::Create(Parts parts,
                                                               cuda::CompiledKernels image) {
  auto compute = absl::WrapUnique(new GpuCompute(std::move(parts), image));
  FERRY_ASSIGN_OR_RETURN(compute->stream_, cuda::CudaStream::Create(compute->parts_.device));
  return compute;
}

GpuCompute::~GpuCompute() {
  if (stream_ == nullptr) return;
  // Kernels in flight need their module.
  const cuda::ScopedCurrent current(*parts_.device);
  parts_.device->table().stream_synchronize(stream_->get());
}

absl::StatusOr<const cuda::ElementKernels*> GpuCompute::Kernels() {
  absl::MutexLock lock(&mu_);
  if (kernels_ != nullptr) return kernels_.get();
  FERRY_RETURN_IF_ERROR(failed_);
  absl::StatusOr<std::unique_ptr<cuda::ElementKernels>> loaded;
  const auto load = [&] { loaded = cuda::ElementKernels::Load(parts_.device, image_); };
  FERRY_RETURN_IF_ERROR(parts_.gate->RunQuiesced(kTimeout, "load kernels", load));
  if (!loaded.ok()) return failed_ = loaded.status();
  kernels_ = *std::move(loaded);
  return kernels_.get();
}

absl::Status GpuCompute::LoadKernels() { return Kernels().status(); }

absl::StatusOr<Tensor> GpuCompute::Allocate(DataType dtype, const Shape& shape) {
  FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(dtype, shape));
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<cuda::DeviceBuffer> buffer, parts_.arena->Allocate(bytes));
  return Tensor::Create(dtype, shape, std::move(buffer));
}

absl::StatusOr<Tensor> GpuCompute::Run(absl::Span<const Tensor> inputs, const Tensor& output,
                                       Launch launch) {
  FERRY_ASSIGN_OR_RETURN(const cuda::ElementKernels* const kernels, Kernels());
  if (output.bytes() == 0) return output;
  for (const Tensor& input : inputs) {
    if (input.bytes() == 0 || input.location() == output.location()) continue;
    return absl::InvalidArgumentError(absl::StrCat("a kernel on ", ToString(output.location()),
                                                   " cannot read ", ToString(input),
                                                   " in memory of ", ToString(input.location())));
  }
  // Before anything is enqueued: the stream may wait for the program, which may wait for this
  // thread.
  FERRY_ASSIGN_OR_RETURN(cuda::CudaEvent event, parts_.events->Take());
  const cuda::ScopedCurrent current(*parts_.device);
  FERRY_RETURN_IF_ERROR(current.status());
  for (const Tensor& input : inputs) {
    const std::shared_ptr<const cuda::ReadyEvent> ready = cuda::ReadyOf(input);
    if (ready == nullptr) continue;
    FERRY_RETURN_IF_ERROR(ready->EnqueueWait(*parts_.device, stream_->get()));
  }
  // The launch may have been partly enqueued even if it failed: the memory is in use in either
  // case.
  const absl::Status launched = launch(*kernels, stream_->get());
  const absl::StatusOr<std::shared_ptr<const cuda::ReadyEvent>> recorded =
      cuda::ReadyEvent::Record(std::move(event), stream_->get());
  if (!recorded.ok()) {
    auto all = std::make_shared<std::vector<Tensor>>(inputs.begin(), inputs.end());
    all->push_back(output);
    cuda::RetainUntilIdle(*parts_.executor, stream_->get(), "a kernel", std::move(all), stream_);
    return recorded.status();
  }
  const std::shared_ptr<const cuda::ReadyEvent>& done = *recorded;
  // Tensors whose memory does not count uses are kept alive.
  std::vector<Tensor> kept;
  for (const Tensor& input : inputs) {
    if (!cuda::AddUse(input, done)) kept.push_back(input);
  }
  if (!cuda::AddUse(output, done)) kept.push_back(output);
  if (!kept.empty()) {
    FERRY_RETURN_IF_ERROR(parts_.executor->Watch(
        {.event = done,
         .what = "a kernel",
         .keep = std::make_shared<const std::vector<Tensor>>(std::move(kept))},
        [](absl::Status) {}));
  }
  FERRY_RETURN_IF_ERROR(launched);
  return cuda::WithReady(output, done);
}

}  // namespace ferry
