// SPDX-License-Identifier: Apache-2.0
// Opening, waiting on the device, looking or copying, and saying when it is over.
#include "transport/cuda_ipc/cuda_ipc_inlet.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "gpu/cuda/ready_tensor.h"

namespace ferry {
namespace {

using cuda::ImportedMemory;
using cuda::ReadyEvent;
using cuda::ScopedCurrent;

constexpr absl::Duration kOpenTimeout = absl::Seconds(10);

// Calls `release` on the executor's thread when the last of the events is done. An executor that is
// stopping does not: this process is leaving. `uses` is not empty.
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

CudaIpcInlet::CudaIpcInlet(TransportEnvironment environment, Endpoint peer, CacheOf cache_of,
                           ClosePeer close_peer, std::shared_ptr<GpuLink> link,
                           ReleaseCallback release)
    : environment_(std::move(environment)),
      peer_(std::move(peer)),
      cache_of_(std::move(cache_of)),
      close_peer_(std::move(close_peer)),
      link_(std::move(link)),
      release_(std::move(release)) {}

CudaIpcInlet::~CudaIpcInlet() = default;

absl::Status CudaIpcInlet::OnAnnouncement(absl::string_view body,
                                          absl::Span<UniqueFd> descriptors) {
  FERRY_ASSIGN_OR_RETURN(CudaIpcProbe probe, DecodeCudaIpcProbe(body));
  if (environment_.gpus == nullptr) {
    return absl::InvalidArgumentError("a probe of GPU memory for a process that uses no GPUs");
  }
  UniqueFd fd;
  if (!descriptors.empty()) fd = std::move(descriptors[0]);
  environment_.gpus->Use(
      probe.pair.destination, [self = shared_from_this(), probe = std::move(probe),
                               fd = std::move(fd)](absl::StatusOr<Gpu*> gpu) mutable {
        if (!gpu.ok()) return self->Reply(probe.pair, gpu.status());
        const cuda::ImportKey key = {self->peer_.peer.incarnation, probe.memory.buffer_id};
        auto shared = std::make_shared<CudaIpcProbe>(std::move(probe));
        const absl::Status started = self->cache_of_(**gpu).Open(
            key, shared->memory, std::move(fd), SteadyClock().Now() + kOpenTimeout,
            [self, gpu = *gpu, shared](absl::StatusOr<ImportedMemory> memory) {
              if (!memory.ok()) return self->Reply(shared->pair, memory.status());
              self->AnswerProbe(*gpu, *shared, *memory);
            });
        if (!started.ok()) self->Reply(shared->pair, started);
      });
  return absl::OkStatus();
}

// On the side executor, which may wait for its device.
void CudaIpcInlet::AnswerProbe(Gpu& gpu, const CudaIpcProbe& probe, const ImportedMemory& memory) {
  const auto try_it = [&]() -> absl::Status {
    if (probe.memory.offset + probe.memory.bytes > memory.bytes()) {
      return absl::InvalidArgumentError("the probe lies outside its memory");
    }
    FERRY_ASSIGN_OR_RETURN(std::unique_ptr<cuda::ImportedEvents> events,
                           cuda::ImportedEvents::Open(gpu.device, probe.events));
    FERRY_ASSIGN_OR_RETURN(std::unique_ptr<cuda::CudaStream> stream,
                           cuda::CudaStream::Create(gpu.device));
    std::string bytes(kCudaIpcProbeBytes, '\0');
    {
      const ScopedCurrent current(*gpu.device);
      const cuda::CudaTable& table = gpu.device->table();
      FERRY_RETURN_IF_ERROR(gpu.device->Check(
          table.copy_to_host_async(bytes.data(), memory.base() + probe.memory.offset, bytes.size(),
                                   stream->get()),
          "cuMemcpyDtoHAsync"));
      FERRY_RETURN_IF_ERROR(
          gpu.device->Check(table.stream_synchronize(stream->get()), "cuStreamSynchronize"));
    }
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (static_cast<unsigned char>(bytes[i]) == CudaIpcProbeByte(probe.seed, i)) continue;
      return absl::DataLossError(absl::StrCat("its memory can be mapped, but byte ", i,
                                              " of a probe is not what was sent"));
    }
    absl::MutexLock lock(&mu_);
    if (!aborted_.ok()) return aborted_;
    events_[probe.pair] = std::move(events);
    kept_.push_back(memory);
    return absl::OkStatus();
  };
  Reply(probe.pair, try_it());
}

void CudaIpcInlet::Reply(const GpuPair& pair, const absl::Status& status) {
  // A lane that has ended needs no answer.
  reply_(EncodeCudaIpcProbed({pair, std::string(status.message())}), {}).IgnoreError();
}

void CudaIpcInlet::Take(uint64_t id, const TensorHeader& header, absl::string_view body,
                        absl::Span<UniqueFd> descriptors, const Tensor& destination,
                        TakeCallback done) {
  const auto parse = [&]() -> absl::StatusOr<JobPtr> {
    if (environment_.gpus == nullptr) {
      return absl::InvalidArgumentError("a cuda_ipc ticket for a process that uses no GPUs");
    }
    auto job = std::make_shared<Job>();
    job->id = id;
    job->header = header;
    job->destination = destination;
    FERRY_ASSIGN_OR_RETURN(job->ticket, DecodeCudaIpcTicket(body));
    size_t bytes = 0;
    size_t owned = 0;
    for (const CudaIpcPiece& piece : job->ticket.pieces) {
      bytes += piece.memory.bytes;
      owned += piece.has_fd ? 1 : 0;
    }
    if (header.place.space != MemorySpace::kCuda || bytes != header.bytes ||
        owned != descriptors.size() ||
        header.place.ordinal != static_cast<int>(job->ticket.pair.destination)) {
      return absl::InvalidArgumentError("a cuda_ipc ticket for something else than was asked for");
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
  if (!status.ok()) return std::move(done)(std::move(status), false);
  environment_.gpus->Use(header.place.ordinal,
                         [self = shared_from_this(), job = *job](absl::StatusOr<Gpu*> gpu) {
                           if (!gpu.ok()) return self->End(job, gpu.status());
                           job->gpu = *gpu;
                           self->OpenNext(job);
                         });
}

void CudaIpcInlet::OpenNext(const JobPtr& job) {
  cuda::IpcImportCache& cache = cache_of_(*job->gpu);
  const auto take = [self = shared_from_this(), job](ImportedMemory memory) {
    const CudaIpcPiece& piece = job->ticket.pieces[job->held.memory.size()];
    job->held.memory.push_back(memory);
    absl::MutexLock lock(&self->mu_);
    if (!piece.is_kept) {
      job->held.foreign.push_back(piece.memory.buffer_id);
      ++self->foreign_users_[piece.memory.buffer_id];
    } else if (piece.has_fd && self->aborted_.ok()) {
      self->kept_.push_back(std::move(memory));
    }
  };
  while (job->held.memory.size() < job->ticket.pieces.size()) {
    const CudaIpcPiece& piece = job->ticket.pieces[job->held.memory.size()];
    const cuda::ImportKey key = {peer_.peer.incarnation, piece.memory.buffer_id};
    UniqueFd fd;
    if (piece.has_fd) fd = std::move(job->descriptors[job->next_descriptor++]);
    if (std::optional<ImportedMemory> found = cache.Find(key); found.has_value()) {
      take(*std::move(found));
      continue;
    }
    const absl::Status started =
        cache.Open(key, piece.memory, std::move(fd), SteadyClock().Now() + kOpenTimeout,
                   [self = shared_from_this(), job, take](absl::StatusOr<ImportedMemory> memory) {
                     if (!memory.ok()) return self->End(job, memory.status());
                     take(*std::move(memory));
                     self->OpenNext(job);
                   });
    if (!started.ok()) End(job, started);
    return;
  }
  const absl::Status posted = job->gpu->executor->Post(
      [self = shared_from_this(), job] { self->End(job, self->Deliver(*job)); });
  if (!posted.ok()) End(job, posted);
}

absl::StatusOr<Tensor> CudaIpcInlet::Deliver(Job& job) {
  const cuda::CudaDevice& device = *job.gpu->device;
  const cuda::Stream stream = job.gpu->copies->get();
  const ScopedCurrent current(device);
  for (size_t i = 0; i < job.held.memory.size(); ++i) {
    const cuda::IpcDescriptor& piece = job.ticket.pieces[i].memory;
    if (piece.offset + piece.bytes > job.held.memory[i].bytes()) {
      return absl::InvalidArgumentError("a cuda_ipc ticket beyond the end of its memory");
    }
  }
  const bool has_event = job.ticket.ready.sequence != 0;
  if (has_event) {
    std::shared_ptr<cuda::ImportedEvents> events;
    {
      absl::MutexLock lock(&mu_);
      const auto found = events_.find(job.ticket.pair);
      if (found != events_.end()) events = found->second;
    }
    if (events == nullptr) {
      return absl::InvalidArgumentError("a cuda_ipc ticket with an event before its probe");
    }
    FERRY_RETURN_IF_ERROR(events->MakeWait(job.ticket.ready, stream));
  }
  const bool is_same_device =
      job.ticket.pieces.size() == 1 &&
      std::memcmp(&job.ticket.pieces[0].memory.device, &device.uuid(), sizeof(cuda::Uuid)) == 0;
  if (!is_same_device || job.destination.is_valid()) return Copy(job);
  std::shared_ptr<const ReadyEvent> ready;
  if (has_event) {
    FERRY_ASSIGN_OR_RETURN(ready, ReadyEvent::Record(*job.gpu->events, stream));
  }
  return View(job, std::move(ready));
}

absl::StatusOr<Tensor> CudaIpcInlet::View(Job& job, std::shared_ptr<const ReadyEvent> ready) {
  const cuda::IpcDescriptor& piece = job.ticket.pieces[0].memory;
  const cuda::DevicePointer pointer = job.held.memory[0].base() + piece.offset;
  // The producer's record is out until our wait for it is over.
  auto buffer = std::make_shared<cuda::DeviceBuffer>(
      pointer, piece.bytes, job.gpu->device->ordinal(),
      [self = shared_from_this(), gpu = job.gpu, held = std::exchange(job.held, {}), id = job.id,
       ready](cuda::DeviceBuffer::Uses uses) mutable {
        if (ready != nullptr) uses.push_back(std::move(ready));
        if (uses.empty()) return self->LetGo(*gpu, std::move(held), id);
        const std::shared_ptr<GpuLink> link = self->link_;
        absl::ReaderMutexLock lock(&link->mu);
        // This process is leaving, and the lane has ended.
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

absl::StatusOr<Tensor> CudaIpcInlet::Copy(Job& job) {
  Gpu& gpu = *job.gpu;
  Tensor into = job.destination;
  if (!into.is_valid()) {
    FERRY_ASSIGN_OR_RETURN(std::shared_ptr<cuda::DeviceBuffer> buffer,
                           gpu.arena->Allocate(job.header.bytes));
    FERRY_ASSIGN_OR_RETURN(into,
                           Tensor::Create(job.header.dtype, job.header.shape, std::move(buffer)));
  }
  {
    absl::MutexLock lock(&mu_);
    if (job.is_over) return absl::CancelledError("cancelled");
    // The event follows; whoever cancels in between waits for it.
    cuda::DevicePointer to = cuda::AsDevicePointer(into.data());
    for (size_t i = 0; i < job.held.memory.size(); ++i) {
      const cuda::IpcDescriptor& piece = job.ticket.pieces[i].memory;
      FERRY_RETURN_IF_ERROR(gpu.device->Check(
          gpu.device->table().copy_async(to, job.held.memory[i].base() + piece.offset, piece.bytes,
                                         gpu.copies->get()),
          "cuMemcpyAsync"));
      to += piece.bytes;
    }
    FERRY_ASSIGN_OR_RETURN(job.writes_destination,
                           ReadyEvent::Record(*gpu.events, gpu.copies->get()));
  }
  auto held = std::make_shared<Held>(std::exchange(job.held, {}));
  FERRY_RETURN_IF_ERROR(gpu.executor->Watch(
      {.event = job.writes_destination,
       .what = "a copy from another process's GPU memory",
       .keep = std::make_shared<std::pair<std::shared_ptr<Held>, Tensor>>(held, into)},
      [self = shared_from_this(), &gpu, held, id = job.id](absl::Status) {
        self->LetGo(gpu, std::move(*held), id);
      }));
  return cuda::WithReady(into, job.writes_destination);
}

void CudaIpcInlet::End(const JobPtr& job, absl::StatusOr<Tensor> tensor) {
  TakeCallback done;
  bool was_over = false;
  {
    absl::MutexLock lock(&mu_);
    was_over = std::exchange(job->is_over, true);
    if (!was_over) {
      done = std::move(job->done);
      jobs_.erase(job->id);
    }
  }
  if (was_over) {
    // Whoever called it off has been told; a tensor that was made all the same tells by its end.
    if (tensor.ok()) return;
    if (job->held.memory.empty()) return release_(job->id);
    return LetGo(*job->gpu, std::exchange(job->held, {}), job->id);
  }
  job->destination = Tensor();
  if (tensor.ok()) return std::move(done)(std::move(tensor), /*release_later=*/true);
  std::move(done)(std::move(tensor), /*release_later=*/!job->held.memory.empty());
  // Nothing reads it, and it is closed before the producer hears so.
  if (!job->held.memory.empty()) LetGo(*job->gpu, std::exchange(job->held, {}), job->id);
}

}  // namespace ferry
