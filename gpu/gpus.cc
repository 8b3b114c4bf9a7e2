// SPDX-License-Identifier: Apache-2.0
// Gpus: opens devices on first use.
#include "gpu/gpus.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace ferry {

using cuda::CudaApi;
using cuda::CudaDevice;

Gpus::Gpus(std::shared_ptr<const CudaApi> api, HostAllocator host, CopyPool* copier,
           GpusOptions options, cuda::CompiledKernels kernel_image)
    : api_(std::move(api)),
      host_(std::move(host)),
      copier_(copier),
      options_(std::move(options)),
      kernel_image_(kernel_image) {}

absl::StatusOr<std::unique_ptr<Gpus>> Gpus::Create(std::shared_ptr<const CudaApi> api,
                                                   HostAllocator host, CopyPool* copier,
                                                   GpusOptions options,
                                                   cuda::CompiledKernels kernel_image) {
  auto gpus = std::unique_ptr<Gpus>(
      new Gpus(std::move(api), std::move(host), copier, std::move(options), kernel_image));
  const cuda::CudaTable& table = gpus->api_->table();
  int count = 0;
  FERRY_RETURN_IF_ERROR(gpus->api_->Check(table.device_get_count(&count), "cuDeviceGetCount"));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cuda::Device device = 0;
    cuda::Uuid uuid = {};
    absl::Status status = gpus->api_->Check(table.device_get(&device, ordinal), "cuDeviceGet");
    if (status.ok()) {
      status = gpus->api_->Check(table.device_get_uuid(&uuid, device), "cuDeviceGetUuid_v2");
    }
    if (!status.ok()) FERRY_LOG_WARN(kGpu, "GPU not usable: gpu:{}: {}", ordinal, status);
    gpus->uuids_.push_back(status.ok() ? cuda::UuidText(uuid) : "");
  }
  FERRY_ASSIGN_OR_RETURN(gpus->peers_, cuda::PeerMatrix::Query(*gpus->api_));
  gpus->peer_access_ =
      std::make_unique<cuda::PeerAccess>(gpus->gate(), gpus->peers_, gpus->options_.retry_open);
  FERRY_LOG_INFO(kGpu, "GPUs found: {}{}{}", count, count == 0 ? "" : ": ",
                 absl::StrJoin(gpus->uuids_, ", "));
  absl::MutexLock lock(&gpus->mu_);
  gpus->slots_.resize(static_cast<size_t>(count));
  return gpus;
}

Gpus::~Gpus() { Stop(); }

void Gpus::Stop() {
  std::unique_ptr<Thread> opener;
  {
    absl::MutexLock lock(&mu_);
    is_stopping_ = true;
    opener = std::move(opener_);
  }
  opener.reset();
  std::vector<UseCallback> waiting;
  std::vector<Gpu*> open;
  {
    absl::MutexLock lock(&mu_);
    for (Slot& slot : slots_) {
      for (UseCallback& use : slot.waiting) waiting.push_back(std::move(use));
      slot.waiting.clear();
      if (slot.gpu != nullptr) open.push_back(slot.gpu.get());
    }
  }
  for (UseCallback& use : waiting) std::move(use)(absl::CancelledError("this process is leaving"));
  // Queued functions may use the other executors: stop all before destroying any.
  for (Gpu* const gpu : open) gpu->side->Stop();
  for (Gpu* const gpu : open) gpu->executor->Stop();
  for (Gpu* const gpu : open) gpu->nccl->Stop();
}

absl::StatusOr<std::unique_ptr<Gpu>> Gpus::Open(int ordinal) {
  auto gpu = std::make_unique<Gpu>();
  FERRY_ASSIGN_OR_RETURN(gpu->device, CudaDevice::Open(api_, ordinal));
  gpu->events = cuda::EventPool::Create(gpu->device);
  cuda::GpuArenaOptions arena = options_.arena;
  for (int other = 0; other < count(); ++other) {
    if (other != ordinal && peers_.CanAccess(other, ordinal)) arena.peer_ordinals.push_back(other);
  }
  FERRY_ASSIGN_OR_RETURN(gpu->arena, cuda::GpuArena::Create(gpu->device, gate(), std::move(arena)));
  FERRY_ASSIGN_OR_RETURN(gpu->copies, cuda::CudaStream::Create(gpu->device));
  FERRY_ASSIGN_OR_RETURN(gpu->waits, cuda::WaitStreams::Create(gpu->device));
  std::shared_ptr<cuda::PinnedPool> pinned;
  {
    absl::MutexLock lock(&mu_);
    if (pinned_ == nullptr) {
      FERRY_ASSIGN_OR_RETURN(pinned_,
                             cuda::PinnedPool::Create(gpu->device, gate(), options_.pinned));
    }
    pinned = pinned_;
  }
  gpu->executor = std::make_unique<cuda::DeviceExecutor>(
      gpu->device, cuda::DeviceExecutorOptions{.thread_name = absl::StrCat("ferry-gpu", ordinal)});
  gpu->side = std::make_unique<cuda::DeviceExecutor>(
      gpu->device, cuda::DeviceExecutorOptions{.thread_name = absl::StrCat("ferry-map", ordinal)});
  gpu->nccl = std::make_unique<cuda::DeviceExecutor>(
      gpu->device, cuda::DeviceExecutorOptions{.thread_name = absl::StrCat("ferry-nccl", ordinal)});
  gpu->ring = cuda::StagingRing::Create(*gpu->executor, gate(), options_.staging);
  if (options_.staging.is_reserved) {
    FERRY_RETURN_IF_ERROR(gpu->executor->PostAndWait([ring = gpu->ring] { return ring->Reserve(); },
                                                     kOpenTimeout, "to reserve the staging ring"));
  }
  FERRY_ASSIGN_OR_RETURN(gpu->stager, cuda::HostStager::Create(*gpu->executor, gpu->events,
                                                               std::move(pinned), copier_));
  FERRY_ASSIGN_OR_RETURN(gpu->compute, GpuCompute::Create({.device = gpu->device,
                                                           .events = gpu->events,
                                                           .arena = gpu->arena,
                                                           .gate = gate(),
                                                           .executor = gpu->executor.get()},
                                                          kernel_image_));
  FERRY_LOG_INFO(kGpu, "GPU opened: gpu:{}", ordinal);
  return gpu;
}

absl::StatusOr<Gpu*> Gpus::Get(int ordinal) {
  struct Waiter {
    absl::Mutex mu;
    bool is_done ABSL_GUARDED_BY(mu) = false;
    absl::StatusOr<Gpu*> gpu ABSL_GUARDED_BY(mu) = nullptr;
  };
  auto waiter = std::make_shared<Waiter>();
  Use(ordinal, [waiter](absl::StatusOr<Gpu*> gpu) {
    absl::MutexLock lock(&waiter->mu);
    waiter->gpu = std::move(gpu);
    waiter->is_done = true;
  });
  absl::MutexLock lock(&waiter->mu);
  if (waiter->mu.AwaitWithTimeout(absl::Condition(&waiter->is_done), kOpenTimeout)) {
    return waiter->gpu;
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "the driver has not opened gpu:", ordinal, " within ", absl::FormatDuration(kOpenTimeout),
      ": `nvidia-smi` and the kernel's log may say why"));
}

void Gpus::Use(int ordinal, UseCallback use) {
  absl::StatusOr<Gpu*> gpu = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (ordinal < 0 || ordinal >= count()) {
      gpu = absl::InvalidArgumentError(
          absl::StrCat("there is no gpu:", ordinal, " in this process, which has ", count()));
    } else if (is_stopping_) {
      gpu = absl::CancelledError("this process is leaving");
    } else if (Slot& slot = slots_[static_cast<size_t>(ordinal)]; slot.gpu != nullptr) {
      gpu = slot.gpu.get();
    } else if (!slot.failed.ok() && SteadyClock().Now() < slot.retry_at) {
      gpu = slot.failed;
    } else {
      slot.waiting.push_back(std::move(use));
      if (!std::exchange(slot.is_opening, true)) to_open_.push_back(ordinal);
      if (opener_ == nullptr) {
        opener_ = std::make_unique<Thread>("ferry-gpu-open", [this] { RunOpener(); });
      }
      return;
    }
  }
  std::move(use)(std::move(gpu));
}

void Gpus::RunOpener() {
  while (true) {
    int ordinal = 0;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(
          +[](Gpus* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mu_) {
            return self->is_stopping_ || !self->to_open_.empty();
          },
          this));
      if (is_stopping_) return;
      ordinal = to_open_.front();
      to_open_.erase(to_open_.begin());
    }
    absl::StatusOr<std::unique_ptr<Gpu>> made = Open(ordinal);
    absl::StatusOr<Gpu*> gpu = made.ok() ? absl::StatusOr<Gpu*>(made->get()) : made.status();
    std::vector<UseCallback> waiting;
    {
      absl::MutexLock lock(&mu_);
      Slot& slot = slots_[static_cast<size_t>(ordinal)];
      waiting.swap(slot.waiting);
      if (made.ok()) {
        slot.gpu = *std::move(made);
      } else {
        slot.failed = made.status();
        slot.retry_at = SteadyClock().Now() + options_.retry_open;
        slot.is_opening = false;
      }
    }
    for (UseCallback& use : waiting) std::move(use)(gpu);
  }
}

void Gpus::WaitIdle(absl::Time deadline) {
  std::vector<Gpu*> open;
  {
    absl::MutexLock lock(&mu_);
    for (const Slot& slot : slots_) {
      if (slot.gpu != nullptr) open.push_back(slot.gpu.get());
    }
  }
  const auto is_idle = [&open] {
    return std::all_of(open.begin(), open.end(), [](const Gpu* gpu) {
      return gpu->executor->waiting_count() == 0 && gpu->side->waiting_count() == 0 &&
             gpu->nccl->waiting_count() == 0;
    });
  };
  while (!is_idle() && SteadyClock().Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
}

absl::StatusOr<std::unique_ptr<cuda::ExportRegistration>> Gpus::RegisterMemory(
    const Tensor& tensor) {
  if (!tensor.is_valid() || tensor.location().space != MemorySpace::kCuda) {
    return absl::InvalidArgumentError(
        "only tensors in the memory of a GPU are registered for other processes");
  }
  FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, Get(tensor.location().ordinal));
  return exports_->Register(*gpu->device, tensor);
}

absl::StatusOr<Tensor> Gpus::Allocate(int ordinal, DataType dtype, const Shape& shape) {
  FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(dtype, shape));
  FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, Get(ordinal));
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<cuda::DeviceBuffer> buffer, gpu->arena->Allocate(bytes));
  return Tensor::Create(dtype, shape, std::move(buffer));
}

uint64_t FreeBytesBesideArena(const Gpu& gpu) {
  const cuda::ScopedCurrent current(*gpu.device);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (gpu.device->table().memory_get_info(&free_bytes, &total_bytes) != cuda::kSuccess) return 0;
  return free_bytes + gpu.arena->stats().mapped_bytes;
}

}  // namespace ferry
