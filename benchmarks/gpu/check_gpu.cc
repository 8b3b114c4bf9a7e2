// SPDX-License-Identifier: Apache-2.0
// Filling, comparing, holding.
#include "benchmarks/gpu/check_gpu.h"

#include <sched.h>

#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "cli/pattern.h"
#include "gpu/cuda/ready_tensor.h"

namespace ferry::check {
namespace {

// Reads its flag until that is not zero.
constexpr char kSpin[] = R"(.version 7.0
.target sm_80
.address_size 64
.visible .entry spin(.param .u64 flag)
{
  .reg .pred %stay;
  .reg .b32 %value;
  .reg .b64 %address;
  ld.param.u64 %address, [flag];
again:
  ld.volatile.u32 %value, [%address];
  setp.eq.u32 %stay, %value, 0;
  @%stay bra again;
  ret;
}
)";

constexpr absl::Duration kPoll = absl::Microseconds(200);
constexpr size_t kWord = sizeof(uint64_t);

void Hold(void* argument) {
  const auto* const flag = static_cast<const uint32_t*>(argument);
  while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0) sched_yield();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckGpu>> CheckGpu::Create(Gpu& gpu) {
  auto made = absl::WrapUnique(new CheckGpu(gpu));
  FERRY_ASSIGN_OR_RETURN(made->stream_, cuda::CudaStream::Create(gpu.device));
  absl::StatusOr<std::unique_ptr<cuda::Kernels>> kernels = cuda::Kernels::Load(gpu.device);
  if (kernels.ok()) {
    made->kernels_ = *std::move(kernels);
    const cuda::ScopedCurrent current(*gpu.device);
    FERRY_RETURN_IF_ERROR(
        made->Check(made->table().memory_alloc(&made->count_, kWord), "cuMemAlloc"));
  } else {
    made->why_no_kernels_ = std::string(kernels.status().message());
  }
  return made;
}

CheckGpu::~CheckGpu() {
  const cuda::ScopedCurrent current(device());
  if (count_ != 0) table().memory_free(count_);
  for (const Source& source : sources_) {
    // Memory that a stream may still read is kept until the process ends.
    if (source.copied.IsDone().value_or(false)) table().host_free(source.memory);
  }
}

absl::Status CheckGpu::Fill(const void* to, size_t bytes, uint64_t seed, cuda::Stream stream) {
  const cuda::DevicePointer pointer = cuda::AsDevicePointer(to);
  if (kernels_ != nullptr && pointer % kWord == 0) {
    return kernels_->FillPattern(stream, pointer, bytes, seed);
  }
  return FillByHost(pointer, bytes, seed, stream);
}

// From pageable memory the call would wait for earlier work on the stream.
absl::Status CheckGpu::FillByHost(cuda::DevicePointer to, size_t bytes, uint64_t seed,
                                  cuda::Stream stream) {
  const cuda::ScopedCurrent current(device());
  FERRY_ASSIGN_OR_RETURN(Source* const source, TakeSource(bytes));
  cli::WritePattern(static_cast<char*>(source->memory), bytes, seed);
  FERRY_RETURN_IF_ERROR(
      Check(table().copy_to_device_async(to, source->memory, bytes, stream), "cuMemcpyHtoDAsync"));
  return source->copied.Record(stream);
}

absl::StatusOr<CheckGpu::Source*> CheckGpu::TakeSource(size_t bytes) {
  for (Source& source : sources_) {
    if (source.bytes < bytes) continue;
    FERRY_ASSIGN_OR_RETURN(const bool is_done, source.copied.IsDone());
    if (is_done) return &source;
  }
  Source source;
  source.bytes = bytes;
  FERRY_ASSIGN_OR_RETURN(source.copied, gpu_.events->Take());
  FERRY_RETURN_IF_ERROR(
      Check(table().host_alloc(&source.memory, bytes, cuda::kHostAllocPortable), "cuMemHostAlloc"));
  sources_.push_back(std::move(source));
  return &sources_.back();
}

absl::StatusOr<uint64_t> CheckGpu::CountWrong(const void* from, size_t bytes, uint64_t seed,
                                              cuda::Stream stream) {
  const cuda::DevicePointer pointer = cuda::AsDevicePointer(from);
  const cuda::ScopedCurrent current(device());
  if (kernels_ == nullptr || pointer % kWord != 0) {
    std::vector<char> found(bytes);
    FERRY_RETURN_IF_ERROR(Check(table().copy_to_host_async(found.data(), pointer, bytes, stream),
                                "cuMemcpyDtoHAsync"));
    FERRY_RETURN_IF_ERROR(Wait(stream));
    return cli::CountPatternErrors(found.data(), bytes, seed);
  }
  uint64_t wrong = 0;
  FERRY_RETURN_IF_ERROR(
      Check(table().set_bytes_async(count_, 0, kWord, stream), "cuMemsetD8Async"));
  FERRY_RETURN_IF_ERROR(kernels_->ComparePattern(stream, pointer, bytes, seed, count_));
  FERRY_RETURN_IF_ERROR(
      Check(table().copy_to_host_async(&wrong, count_, kWord, stream), "cuMemcpyDtoHAsync"));
  FERRY_RETURN_IF_ERROR(Wait(stream));
  return wrong;
}

absl::Status CheckGpu::Wait(cuda::Stream stream) const {
  const cuda::ScopedCurrent current(device());
  return Check(table().stream_synchronize(stream), "cuStreamSynchronize");
}

absl::Status CheckGpu::WaitWithin(absl::Duration timeout, cuda::Stream stream) const {
  const cuda::ScopedCurrent current(device());
  const absl::Time give_up = SteadyClock().Now() + timeout;
  cuda::Result result = cuda::kSuccess;
  while ((result = table().stream_query(stream)) == cuda::kErrorNotReady) {
    if (SteadyClock().Now() >= give_up) {
      return absl::DeadlineExceededError(
          absl::StrCat("the work on a stream has not ended within ",
                       absl::FormatDuration(absl::Trunc(timeout, absl::Milliseconds(1)))));
    }
    absl::SleepFor(kPoll);
  }
  return Check(result, "cuStreamQuery");
}

absl::Status CheckGpu::EnqueueWait(const Tensor& tensor, cuda::Stream stream) const {
  const auto ready = cuda::ReadyOf(tensor);
  return ready == nullptr ? absl::OkStatus() : ready->EnqueueWait(device(), stream);
}

absl::StatusOr<size_t> CheckGpu::FreeBytes() const {
  const cuda::ScopedCurrent current(device());
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  FERRY_RETURN_IF_ERROR(Check(table().memory_get_info(&free_bytes, &total_bytes), "cuMemGetInfo"));
  return free_bytes;
}

absl::StatusOr<std::unique_ptr<HeldStream>> HeldStream::Create(CheckGpu& gpu) {
  auto held = absl::WrapUnique(new HeldStream(gpu));
  FERRY_ASSIGN_OR_RETURN(held->stream_, cuda::CudaStream::Create(gpu.gpu().device));
  const cuda::ScopedCurrent current(gpu.device());
  const cuda::CudaTable& table = gpu.table();
  void* flag = nullptr;
  FERRY_RETURN_IF_ERROR(gpu.Check(
      table.host_alloc(&flag, sizeof(uint32_t), cuda::kHostAllocPortable), "cuMemHostAlloc"));
  held->flag_ = static_cast<uint32_t*>(flag);
  *held->flag_ = 0;
  if (table.module_load_data(&held->module_, kSpin) == cuda::kSuccess) {
    cuda::Function function = nullptr;
    FERRY_RETURN_IF_ERROR(
        gpu.Check(table.module_get_function(&function, held->module_, "spin"), "spin"));
    void* parameters[] = {&held->flag_};
    FERRY_RETURN_IF_ERROR(gpu.Check(
        table.launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, held->get(), parameters, nullptr),
        "cuLaunchKernel"));
    held->function_ = function;
    return held;
  }
  FERRY_RETURN_IF_ERROR(
      gpu.Check(table.launch_host_function(held->get(), Hold, held->flag_), "cuLaunchHostFunc"));
  return held;
}

void HeldStream::Go() { __atomic_store_n(flag_, 1, __ATOMIC_RELEASE); }

HeldStream::~HeldStream() {
  if (flag_ == nullptr) return;
  Go();
  const cuda::ScopedCurrent current(gpu_.device());
  gpu_.table().stream_synchronize(get());
  if (module_ != nullptr) gpu_.table().module_unload(module_);
  gpu_.table().host_free(flag_);
}

}  // namespace ferry::check
