// SPDX-License-Identifier: Apache-2.0
// GpuCompute: a compute stream of one GPU, with Ferry's kernels.
#ifndef FERRY_GPU_GPU_COMPUTE_H_
#define FERRY_GPU_GPU_COMPUTE_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "gpu/cuda/cuda_event.h"
#include "gpu/cuda/device_executor.h"
#include "gpu/cuda/gpu_arena.h"
#include "gpu/cuda/sync_gate.h"
#include "gpu/kernels/element_kernels.h"
#include "tensor/tensor.h"

namespace ferry {

// One stream, on which all work runs in the order in which it was enqueued; the host waits for none
// of it. A kernel whose inputs are not ready yet (cuda::ReadyOf) delays those behind it, which
// cannot deadlock: the work that an input waits for was enqueued before the kernel. Thread-safe;
// calls may block in the driver: when its queue is full, and for memory.
class GpuCompute final {
 public:
  struct Parts {
    std::shared_ptr<cuda::CudaDevice> device;
    std::shared_ptr<cuda::EventPool> events;
    std::shared_ptr<cuda::GpuArena> arena;
    std::shared_ptr<cuda::SyncGate> gate;
    // Outlives this object.
    cuda::DeviceExecutor* executor = nullptr;
  };
  using Launch =
      absl::FunctionRef<absl::Status(const cuda::ElementKernels& kernels, cuda::Stream stream)>;

  //   image: compiled kernels; must stay valid.
  //   Errors: as CudaStream::Create.
  static absl::StatusOr<std::unique_ptr<GpuCompute>> Create(Parts parts,
                                                            cuda::CompiledKernels image);

  // Blocks until launched work has completed.
  ~GpuCompute();

  GpuCompute(const GpuCompute&) = delete;
  GpuCompute& operator=(const GpuCompute&) = delete;

  int ordinal() const { return parts_.device->ordinal(); }

  // Loads the kernels, unless they are loaded. May wait for quiet at the gate.
  //   Errors: as ElementKernels::Load, repeated by every later call; DEADLINE_EXCEEDED if NCCL work
  //   was in flight all the time; a later call then tries again.
  absl::Status LoadKernels() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns a tensor on this GPU with uninitialized elements.
  //   Errors: as GpuArena::Allocate; INVALID_ARGUMENT for a type that is not of fixed size.
  absl::StatusOr<Tensor> Allocate(DataType dtype, const Shape& shape);

  // Calls launch(kernels, stream), on a stream that waits for the inputs' events. Returns `output`
  // with an event for the launched work. The tensors that the launch uses are kept until then.
  //   inputs, output: on this GPU.
  //   Errors: INVALID_ARGUMENT for an input that is elsewhere; as LoadKernels; errors of the driver
  //   or `launch`.
  absl::StatusOr<Tensor> Run(absl::Span<const Tensor> inputs, const Tensor& output, Launch launch);

 private:
  GpuCompute(Parts parts, cuda::CompiledKernels image) : parts_(std::move(parts)), image_(image) {}

  absl::StatusOr<const cuda::ElementKernels*> Kernels() ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after Create.
  const Parts parts_;
  const cuda::CompiledKernels image_;
  std::shared_ptr<cuda::CudaStream> stream_;

  absl::Mutex mu_;
  // Held while kernels are loaded: other callers wait.
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<cuda::ElementKernels> kernels_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_GPU_GPU_COMPUTE_H_
