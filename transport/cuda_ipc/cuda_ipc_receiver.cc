// SPDX-License-Identifier: Apache-2.0
// Opens the producer's memory, waits on the device, and maps or copies.
#include "transport/cuda_ipc/cuda_ipc_receiver.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "gpu/cuda/ready_tensor.h"
#include "net/event_loop.h"
#include "tensor/host_arena.h"

namespace ferry {
namespace {

using cuda::ImportedMemory;
using cuda::ReadyEvent;
using cuda::ScopedCurrent;

// Delay before retrying a resource that is temporarily unavailable.
constexpr absl::Duration kMoment = absl::Milliseconds(1);
// Timeout for device memory that is in use.
constexpr absl::Duration kRoomTimeout = absl::Seconds(10);

// Calls `release` on the executor's thread when the last of the events has completed; not if the
// executor is stopping, since then the process is leaving. `uses` is not empty.
void ReleaseBehind(cuda::DeviceExecutor& executor, cuda::DeviceBuffer::Uses uses,
                   absl::AnyInvocable<void() &&> release) {
  struct Count {
    std::atomic<size_t> left;
    absl::AnyInvocable<void() &&> release;
  };
  auto count = std::make_shared<Count>();
  count->left = uses.size();
  count->release = std::move(release);
  for (auto& use : uses) {
    executor
        .Watch({.event = std::move(use), .what = "a reader of another process's tensor"},
               [count](absl::Status) {
                 if (count->left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
                   std::move(count->release)();
                 }
               })
        .IgnoreError();
  }
}

}  // namespace

CudaIpcReceiver::CudaIpcReceiver(TransportEnvironment environment, Endpoint peer, CacheOf cache_of,
                                 ClosePeer close_peer, std::shared_ptr<GpuLink> link,
                                 ReleaseCallback release)
    : environment_(std::move(environment)),
      peer_(std::move(peer)),
      cache_of_(std::move(cache_of)),
      close_peer_(std::move(close_peer)),
      link_(std::move(link)),
      release_(std::move(release)) {}

CudaIpcReceiver::~CudaIpcReceiver() = default;

void CudaIpcReceiver::Fetch(uint64_t id, const TensorHeader& header, absl::string_view body,
                            absl::Span<UniqueFd> descriptors, const Tensor& destination,
                            FetchCallback done) {
  const auto parse = [&]() -> absl::StatusOr<JobPtr> {
    if (environment_.gpus == nullptr) {
      return absl::InvalidArgumentError("a cuda_ipc descriptor for a process that uses no GPUs");
    }
    auto job = std::make_shared<Job>();
    job->id = id;
    job->header = header;
    job->destination = destination;
    FERRY_ASSIGN_OR_RETURN(job->descriptor, DecodeCudaIpcDescriptor(body));
    size_t bytes = 0;
    size_t owned = 0;
    for (const CudaIpcPiece& piece : job->descriptor.pieces) {
      bytes += piece.memory.bytes;
      owned += piece.has_fd ? 1 : 0;
    }
    if (header.place.space != MemorySpace::kCuda || header.bytes == 0 ||
        (bytes != header.bytes && !job->descriptor.is_staged()) || owned != descriptors.size() ||
        header.place.ordinal != static_cast<int>(job->descriptor.pair.destination)) {
      return absl::InvalidArgumentError(
          "a cuda_ipc descriptor for something else than was asked for");
    }
    for (UniqueFd& each : descriptors) job->descriptors.push_back(std::move(each));
    return job;
  };
  absl::StatusOr<JobPtr> job = parse();
  if (!job.ok()) return std::move(done)(job.status(), false);
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    status = aborted_;
    if (status.ok() && !jobs_.emplace(id, *job).second) {
      status = absl::InvalidArgumentError(absl::StrCat("transfer ", id, " for a second time"));
    }
    if (status.ok()) (*job)->done = std::move(done);
  }
  // Moved only if it is OK. NOLINTNEXTLINE(bugprone-use-after-move)
  if (!status.ok()) return std::move(done)(std::move(status), false);
  // The slices complete it.
  if ((*job)->descriptor.is_staged()) return;
  environment_.gpus->Use(header.place.ordinal,
                         [self = shared_from_this(), job = *job](absl::StatusOr<Gpu*> gpu) {
                           if (!gpu.ok()) return self->End(job, gpu.status());
                           job->gpu = *gpu;
                           self->OpenNext(job);
                         });
}

absl::string_view CudaIpcReceiver::PathOf(const TensorHeader& header, absl::string_view body,
                                          const Tensor& destination) const {
  const absl::StatusOr<CudaIpcDescriptor> descriptor = DecodeCudaIpcDescriptor(body);
  if (!descriptor.ok() || environment_.gpus == nullptr) return {};
  if (descriptor->is_staged()) return "cuda_ipc, staged";
  const auto& uuids = environment_.gpus->uuids();
  const auto ordinal = static_cast<size_t>(header.place.ordinal);
  const bool is_view = !destination.is_valid() && descriptor->pieces.size() == 1 &&
                       ordinal < uuids.size() &&
                       uuids[ordinal] == cuda::UuidText(descriptor->pieces[0].memory.device);
  return is_view ? "cuda_ipc, view" : "cuda_ipc, copy";
}

void CudaIpcReceiver::OpenNext(const JobPtr& job) {
  if (job->held.memory.size() == job->descriptor.pieces.size()) {
    const absl::Status posted =
        job->gpu->executor->Post([self = shared_from_this(), job] { self->Deliver(job); });
    if (!posted.ok()) End(job, posted);
    return;
  }
  const CudaIpcPiece& piece = job->descriptor.pieces[job->held.memory.size()];
  UniqueFd fd;
  if (piece.has_fd) fd = std::move(job->descriptors[job->next_descriptor++]);
  if (!piece.is_kept) {
    // Before it is opened: once it is, a tensor that is released must not close it as the last.
    absl::MutexLock lock(&mu_);
    ++foreign_users_[piece.memory.buffer_id];
  }
  OpenPiece(*job->gpu, job->descriptor.pair, piece, std::move(fd),
            [self = shared_from_this(), job, &piece](absl::StatusOr<ImportedMemory> memory) {
              if (!memory.ok()) {
                if (!piece.is_kept) self->ForgetUser(*job->gpu, piece.memory.buffer_id);
                return self->End(job, memory.status());
              }
              job->held.memory.push_back(*std::move(memory));
              if (!piece.is_kept) job->held.foreign.push_back(piece.memory.buffer_id);
              self->OpenNext(job);
            });
}

void CudaIpcReceiver::Later(const JobPtr& job, std::function<void()> what) {
  environment_.loop->PostAt(SteadyClock().Now() + kMoment,
                            [self = shared_from_this(), job, what = std::move(what)] {
                              const absl::Status posted = job->gpu->executor->Post(what);
                              if (!posted.ok()) self->End(job, posted);
                            });
}

bool CudaIpcReceiver::IsOver(const Job& job) const {
  absl::MutexLock lock(&mu_);
  return job.is_over;
}

absl::Status CudaIpcReceiver::MakeRoom(Job& job) {
  if (job.into.is_valid()) return absl::OkStatus();
  if (job.destination.is_valid()) {
    job.into = job.destination;
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<cuda::DeviceBuffer>> buffer =
      job.gpu->arena->Allocate(job.header.bytes);
  const absl::Time now = SteadyClock().Now();
  if (absl::IsResourceExhausted(buffer.status())) {
    if (job.give_up == absl::InfiniteFuture()) job.give_up = now + kRoomTimeout;
    if (now < job.give_up) return absl::UnavailableError(buffer.status().message());
  }
  if (!buffer.ok()) return buffer.status();
  FERRY_ASSIGN_OR_RETURN(job.into,
                         Tensor::Create(job.header.dtype, job.header.shape, *std::move(buffer)));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<cuda::ImportedEvents>> CudaIpcReceiver::EventsOf(
    const GpuPair& pair) {
  absl::MutexLock lock(&mu_);
  const auto found = events_.find(pair);
  if (found != events_.end()) return found->second;
  if (!aborted_.ok()) return aborted_;
  return absl::InvalidArgumentError("a cuda_ipc descriptor with an event before its probe");
}

void CudaIpcReceiver::Deliver(const JobPtr& job) {
  const cuda::CudaDevice& device = *job->gpu->device;
  const ScopedCurrent current(device);
  const bool is_same_device =
      job->descriptor.pieces.size() == 1 && std::memcmp(&job->descriptor.pieces[0].memory.device,
                                                        &device.uuid(), sizeof(cuda::Uuid)) == 0;
  const bool is_view = is_same_device && !job->destination.is_valid();
  const auto try_it = [&]() -> absl::StatusOr<Tensor> {
    for (size_t i = 0; i < job->held.memory.size(); ++i) {
      const cuda::IpcDescriptor& piece = job->descriptor.pieces[i].memory;
      if (piece.offset + piece.bytes > job->held.memory[i].bytes()) {
        return absl::InvalidArgumentError("a cuda_ipc descriptor beyond the end of its memory");
      }
    }
    if (!is_view) FERRY_RETURN_IF_ERROR(MakeRoom(*job));
    cuda::Stream stream = job->gpu->copies->get();
    std::shared_ptr<const ReadyEvent> ready;
    std::shared_ptr<cuda::ImportedEvents> to_wait_for;
    if (job->descriptor.ready.sequence != 0) {
      FERRY_ASSIGN_OR_RETURN(auto events, EventsOf(job->descriptor.pair));
      FERRY_ASSIGN_OR_RETURN(const bool is_ready, events->HasPassed(job->descriptor.ready));
      if (!is_ready) {
        stream = job->gpu->waits->TakeIdle();
        // No stream can wait: the host polls instead.
        if (stream == nullptr) return absl::UnavailableError("not ready");
        if (is_view) {
          FERRY_RETURN_IF_ERROR(events->MakeWait(job->descriptor.ready, stream));
          FERRY_ASSIGN_OR_RETURN(ready, ReadyEvent::RecordOrWait(*job->gpu->events, stream));
        } else {
          to_wait_for = std::move(events);
        }
      }
    }
    return is_view ? View(*job, std::move(ready)) : Copy(*job, stream, to_wait_for.get());
  };
  absl::StatusOr<Tensor> tensor = try_it();
  if (absl::IsUnavailable(tensor.status()) && !IsOver(*job)) {
    return Later(job, [self = shared_from_this(), job] { self->Deliver(job); });
  }
  if (tensor.ok()) Note(*job, is_view ? "a view, since it is on the same GPU" : "a copy");
  End(job, std::move(tensor));
}

absl::StatusOr<Tensor> CudaIpcReceiver::View(Job& job, std::shared_ptr<const ReadyEvent> ready) {
  const cuda::IpcDescriptor& piece = job.descriptor.pieces[0].memory;
  const cuda::DevicePointer pointer = job.held.memory[0].base() + piece.offset;
  // The producer's event is in use until our wait for it is over.
  auto buffer = std::make_shared<cuda::DeviceBuffer>(
      pointer, piece.bytes, job.gpu->device->ordinal(),
      [self = shared_from_this(), gpu = job.gpu, held = std::exchange(job.held, {}), id = job.id,
       ready](cuda::DeviceBuffer::Uses uses) mutable {
        if (ready != nullptr) uses.push_back(std::move(ready));
        if (uses.empty()) return self->LetGo(*gpu, std::move(held), id);
        const std::shared_ptr<GpuLink> link = self->link_;
        absl::ReaderMutexLock lock(&link->mu);
        // This process is leaving, and the control channel has closed.
        if (link->gpus == nullptr) return;
        ReleaseBehind(*gpu->executor, std::move(uses),
                      [self, gpu, held = std::move(held), id]() mutable {
                        self->LetGo(*gpu, std::move(held), id);
                      });
      });
  FERRY_ASSIGN_OR_RETURN(const Tensor view,
                         Tensor::Create(job.header.dtype, job.header.shape, std::move(buffer)));
  return cuda::WithReady(view, std::move(ready));
}

absl::StatusOr<Tensor> CudaIpcReceiver::Copy(Job& job, cuda::Stream stream,
                                             cuda::ImportedEvents* to_wait_for) {
  Gpu& gpu = *job.gpu;
  std::shared_ptr<const ReadyEvent> copied;
  {
    absl::MutexLock lock(&mu_);
    // Under the lock, so that a Cancel finds the copy enqueued, and it completes, or prevents it.
    if (job.is_over) return absl::CancelledError("cancelled");
    // A cancelled job must not wait either: the producer would receive ACK, and record the event
    // again, before the device has passed the wait.
    if (to_wait_for != nullptr) {
      FERRY_RETURN_IF_ERROR(to_wait_for->MakeWait(job.descriptor.ready, stream));
    }
    cuda::DevicePointer to = cuda::AsDevicePointer(job.into.data());
    for (size_t i = 0; i < job.held.memory.size(); ++i) {
      const cuda::IpcDescriptor& piece = job.descriptor.pieces[i].memory;
      FERRY_RETURN_IF_ERROR(
          gpu.device->Check(gpu.device->table().copy_async(
                                to, job.held.memory[i].base() + piece.offset, piece.bytes, stream),
                            "cuMemcpyAsync"));
      to += piece.bytes;
    }
    FERRY_ASSIGN_OR_RETURN(copied, ReadyEvent::RecordOrWait(*gpu.events, stream));
  }
  // Both memories are kept until the device has passed the copy, even if it is cancelled.
  auto held = std::make_shared<Held>(std::exchange(job.held, {}));
  FERRY_RETURN_IF_ERROR(gpu.executor->Watch(
      {.event = copied,
       .what = "a copy from another process's GPU memory",
       .keep = std::make_shared<std::pair<std::shared_ptr<Held>, Tensor>>(held, job.into)},
      [self = shared_from_this(), &gpu, held, id = job.id](absl::Status) {
        self->LetGo(gpu, std::move(*held), id);
      }));
  return cuda::WithReady(std::exchange(job.into, Tensor()), std::move(copied));
}

}  // namespace ferry
