// SPDX-License-Identifier: Apache-2.0
// CheckGpu: patterns in a GPU's memory, made and compared there, and a stream that is blocked.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_GPU_H_
#define FERRY_BENCHMARKS_GPU_CHECK_GPU_H_

#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu/cuda/cuda_event.h"
#include "gpu/gpus.h"
#include "gpu/kernels/kernels.h"
#include "tensor/tensor.h"

namespace ferry::check {

// Memory of a device of this process. Fills and compares with Ferry's kernels where the build has
// them and the driver accepts them, else by copies from and to the host. Not thread-safe.
class CheckGpu final {
 public:
  static absl::StatusOr<std::unique_ptr<CheckGpu>> Create(Gpu& gpu);
  ~CheckGpu();

  CheckGpu(const CheckGpu&) = delete;
  CheckGpu& operator=(const CheckGpu&) = delete;

  Gpu& gpu() { return gpu_; }
  cuda::CudaDevice& device() const { return *gpu_.device; }
  const cuda::CudaTable& table() const { return gpu_.device->table(); }
  cuda::Stream stream() const { return stream_->get(); }
  // Why patterns go by the host; empty: they do not.
  const std::string& why_no_kernels() const { return why_no_kernels_; }

  // Enqueues the pattern of cli/pattern.h. Does not wait for the stream; without kernels it uses
  // pinned memory, reusing that of an earlier Fill.
  absl::Status Fill(const void* to, size_t bytes, uint64_t seed, cuda::Stream stream);
  // How many bytes are not the pattern's, once `stream` has come there. Waits.
  absl::StatusOr<uint64_t> CountWrong(const void* from, size_t bytes, uint64_t seed,
                                      cuda::Stream stream);

  // Without a deadline but the part's, so that it costs no more than the driver's wait: for
  // figures, and for work that waits for no other process.
  absl::Status Wait(cuda::Stream stream) const;
  // For work that waits for another process, e.g. NCCL's; polls.
  //   Errors: DEADLINE_EXCEEDED
  absl::Status WaitWithin(absl::Duration timeout, cuda::Stream stream) const;
  // Work enqueued on `stream` from now on comes after the bytes of `tensor`.
  absl::Status EnqueueWait(const Tensor& tensor, cuda::Stream stream) const;
  absl::StatusOr<size_t> FreeBytes() const;
  absl::Status Check(cuda::Result result, const char* call) const {
    return gpu_.device->Check(result, call);
  }

 private:
  // Pinned memory out of which a stream copies until the event is done.
  struct Source {
    void* memory = nullptr;
    size_t bytes = 0;
    cuda::CudaEvent copied;
  };

  explicit CheckGpu(Gpu& gpu) : gpu_(gpu) {}
  absl::Status FillByHost(cuda::DevicePointer to, size_t bytes, uint64_t seed, cuda::Stream stream);
  // One that no stream needs any more.
  absl::StatusOr<Source*> TakeSource(size_t bytes);

  Gpu& gpu_;
  std::unique_ptr<cuda::CudaStream> stream_;
  std::unique_ptr<cuda::Kernels> kernels_;
  std::string why_no_kernels_;
  // u64[1]: the counter of the comparing kernel.
  cuda::DevicePointer count_ = 0;
  std::list<Source> sources_;
};

// A stream on which a kernel spins until Go: work enqueued meanwhile waits for it. Without a driver
// that accepts PTX, a host function blocks it.
class HeldStream final {
 public:
  static absl::StatusOr<std::unique_ptr<HeldStream>> Create(CheckGpu& gpu);
  // Lets it go, and waits.
  ~HeldStream();

  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  cuda::Stream get() const { return stream_->get(); }
  // "a kernel", "a host function".
  const char* holder() const { return function_ != nullptr ? "a kernel" : "a host function"; }
  void Go();

 private:
  explicit HeldStream(CheckGpu& gpu) : gpu_(gpu) {}

  CheckGpu& gpu_;
  std::unique_ptr<cuda::CudaStream> stream_;
  cuda::Module module_ = nullptr;
  cuda::Function function_ = nullptr;
  // Pinned: the device reads it.
  uint32_t* flag_ = nullptr;
};

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_GPU_H_
