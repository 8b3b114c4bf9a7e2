// SPDX-License-Identifier: Apache-2.0
// Opens the producer's memory, waits until it is complete, and maps or copies.
#include "transport/cuda_ipc/cuda_ipc_receiver.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/cuda/ready_tensor.h"
#include "net/event_loop.h"
#include "transport/control/descriptors.h"

namespace ferry {
namespace {

using cuda::ReadyEvent;
using cuda::ScopedCurrent;

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
  // On its own thread it takes them however many wait.
  const auto watch = [&executor, uses = std::move(uses), count] {
    for (const auto& use : uses) {
      executor
          .Watch({.event = use, .what = "a reader of another process's tensor"},
                 [count](absl::Status) {
                   if (count->left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
                     std::move(count->release)();
                   }
                 })
          .IgnoreError();
    }
  };
  executor.PostAlways(watch).IgnoreError();
}

bool MayKeep(const Endpoint& peer) {
  const TransportDescription* const found = peer.FindTransport(kCudaIpcName);
  return found != nullptr && MayKeepForeignMemory(found->descriptor);
}

UniqueFd TakeFirst(absl::Span<UniqueFd> descriptors) {
  return descriptors.empty() ? UniqueFd() : std::move(descriptors[0]);
}

}  // namespace

CudaIpcReceiver::CudaIpcReceiver(TransportEnvironment environment, Endpoint peer,
                                 CudaIpcMappings::CacheOf cache_of,
                                 CudaIpcMappings::ClosePeer close_peer,
                                 std::shared_ptr<GpuLink> link, ReleaseCallback release)
    : environment_(std::move(environment)),
      peer_(std::move(peer)),
      peer_may_keep_(MayKeep(peer_)),
      link_(std::move(link)),
      release_(std::move(release)),
      fetches_(std::make_shared<CudaIpcFetches>()),
      mappings_(std::make_shared<CudaIpcMappings>(environment_, peer_, std::move(cache_of),
                                                  std::move(close_peer), link_)),
      probes_(std::make_shared<CudaIpcProbeResponder>(environment_.gpus, mappings_)),
      slices_(std::make_shared<CudaIpcSliceReceiver>(environment_, mappings_, probes_, fetches_)) {}

CudaIpcReceiver::~CudaIpcReceiver() = default;

void CudaIpcReceiver::SetControlChannel(ControlMessageSender channel) {
  mappings_->SetControlChannel(channel);
  probes_->SetControlChannel(channel);
  slices_->SetControlChannel(channel);
  control_channel_ = std::move(channel);
}

absl::Status CudaIpcReceiver::OnControlMessage(absl::string_view body,
                                               absl::Span<UniqueFd> descriptors) {
  FERRY_ASSIGN_OR_RETURN(const CudaIpcMessage kind, KindOfCudaIpc(body));
  if (environment_.gpus == nullptr) {
    return absl::InvalidArgumentError("GPU memory is announced to a process that uses no GPUs");
  }
  const absl::Status lost = CheckDescriptors(descriptors);
  if (kind == CudaIpcMessage::kProbe) {
    FERRY_ASSIGN_OR_RETURN(CudaIpcProbe probe, DecodeCudaIpcProbe(body));
    // A path that cannot be opened now does not close the control channel; it is probed again
    // later.
    if (lost.ok()) {
      const size_t of_memory = probe.memory.export_by == cuda::ExportBy::kPosixFd ? 1 : 0;
      // A peer of an earlier release sends none.
      if (descriptors.size() > of_memory) {
        mappings_->AddLifeline(std::move(descriptors[of_memory]));
      }
      probes_->OnProbe(std::move(probe),
                       TakeFirst(descriptors.first(std::min(of_memory, descriptors.size()))));
    } else {
      probes_->Refuse(probe, lost);
    }
    return absl::OkStatus();
  }
  // Transfer descriptors refer to these, so none may be missing.
  FERRY_RETURN_IF_ERROR(lost);
  switch (kind) {
    case CudaIpcMessage::kSegment: {
      FERRY_ASSIGN_OR_RETURN(const CudaIpcSegment segment, DecodeCudaIpcSegment(body));
      mappings_->OnSegment(segment, TakeFirst(descriptors));
      return absl::OkStatus();
    }
    case CudaIpcMessage::kSlice: {
      FERRY_ASSIGN_OR_RETURN(const CudaIpcSlice slice, DecodeCudaIpcSlice(body));
      return OnSlice(slice, descriptors);
    }
    case CudaIpcMessage::kFailed: {
      FERRY_ASSIGN_OR_RETURN(const CudaIpcFailed failed, DecodeCudaIpcFailed(body));
      return OnFailed(failed);
    }
    case CudaIpcMessage::kReclaim: {
      FERRY_ASSIGN_OR_RETURN(const CudaIpcReclaim reclaim, DecodeCudaIpcReclaim(body));
      mappings_->OnReclaim(reclaim);
      return absl::OkStatus();
    }
    default:
      return absl::InvalidArgumentError("a cuda_ipc announcement that only a reply can be");
  }
}

absl::Status CudaIpcReceiver::OnSlice(const CudaIpcSlice& slice, absl::Span<UniqueFd> descriptors) {
  if (slice.piece.has_fd != !descriptors.empty()) {
    return absl::InvalidArgumentError("a slice whose descriptor is missing");
  }
  const FetchPtr fetch = fetches_->Find(slice.id);
  return slices_->OnSlice(fetch, slice, TakeFirst(descriptors),
                          [self = shared_from_this(), fetch](absl::StatusOr<Tensor> tensor) {
                            self->EndStaged(*fetch, std::move(tensor));
                          });
}

absl::Status CudaIpcReceiver::OnFailed(const CudaIpcFailed& failed) {
  const FetchPtr fetch = fetches_->Find(failed.id);
  if (fetch == nullptr) return absl::OkStatus();
  if (!fetch->is_staged()) {
    return absl::InvalidArgumentError("the end of slices of a tensor that comes in none");
  }
  EndStaged(*fetch, absl::InternalError(absl::StrCat(Describe(peer_.peer),
                                                     " could not send all of it: ", failed.why)));
  return absl::OkStatus();
}

void CudaIpcReceiver::Fetch(uint64_t id, const TensorHeader& header, absl::string_view body,
                            absl::Span<UniqueFd> descriptors, const Tensor& destination,
                            FetchCallback done) {
  const auto parse = [&]() -> absl::StatusOr<FetchPtr> {
    if (environment_.gpus == nullptr) {
      return absl::InvalidArgumentError("a cuda_ipc descriptor for a process that uses no GPUs");
    }
    auto fetch = std::make_shared<CudaIpcFetch>();
    fetch->id = id;
    fetch->header = header;
    fetch->destination = destination;
    FERRY_ASSIGN_OR_RETURN(fetch->descriptor, DecodeCudaIpcDescriptor(body));
    size_t bytes = 0;
    size_t owned = 0;
    for (const CudaIpcPiece& piece : fetch->descriptor.pieces) {
      bytes += piece.memory.bytes;
      owned += piece.has_fd ? 1 : 0;
    }
    if (header.location.space != MemorySpace::kCuda || header.bytes == 0 ||
        (bytes != header.bytes && !fetch->descriptor.is_staged()) || owned != descriptors.size() ||
        header.location.ordinal != static_cast<int>(fetch->descriptor.pair.destination)) {
      return absl::InvalidArgumentError(
          "a cuda_ipc descriptor for something else than was asked for");
    }
    for (UniqueFd& each : descriptors) fetch->descriptors.push_back(std::move(each));
    return fetch;
  };
  absl::StatusOr<FetchPtr> parsed = parse();
  if (!parsed.ok()) return std::move(done)(parsed.status(), false);
  const FetchPtr fetch = *std::move(parsed);
  if (!fetches_->Add(fetch, std::move(done))) return;
  // The slices complete it.
  if (fetch->descriptor.is_staged()) return;
  environment_.gpus->Use(header.location.ordinal,
                         [self = shared_from_this(), fetch](absl::StatusOr<Gpu*> gpu) {
                           if (!gpu.ok()) return self->End(fetch, gpu.status());
                           fetch->gpu = *gpu;
                           self->OpenNext(fetch);
                         });
}

absl::string_view CudaIpcReceiver::PathOf(const TensorHeader& header, absl::string_view body,
                                          const Tensor& destination) const {
  const absl::StatusOr<CudaIpcDescriptor> descriptor = DecodeCudaIpcDescriptor(body);
  if (!descriptor.ok() || environment_.gpus == nullptr) return {};
  if (descriptor->is_staged()) return kCudaIpcStagedPath;
  const auto& uuids = environment_.gpus->uuids();
  const auto ordinal = static_cast<size_t>(header.location.ordinal);
  const bool is_view = !destination.is_valid() && descriptor->pieces.size() == 1 &&
                       ordinal < uuids.size() &&
                       uuids[ordinal] == cuda::UuidText(descriptor->pieces[0].memory.device);
  return is_view ? "cuda_ipc, view" : "cuda_ipc, copy";
}

void CudaIpcReceiver::OpenNext(const FetchPtr& fetch) {
  if (fetch->held.memory.size() == fetch->descriptor.pieces.size()) {
    const absl::Status posted =
        fetch->gpu->executor->Post([self = shared_from_this(), fetch] { self->Deliver(fetch); });
    if (!posted.ok()) End(fetch, posted);
    return;
  }
  const CudaIpcPiece& piece = fetch->descriptor.pieces[fetch->held.memory.size()];
  UniqueFd fd;
  if (piece.has_fd) fd = std::move(fetch->descriptors[fetch->next_descriptor++]);
  mappings_->OpenInto(fetch->held, *fetch->gpu, fetch->descriptor.pair, piece, std::move(fd),
                      [self = shared_from_this(), fetch](const absl::Status& opened) {
                        if (!opened.ok()) return self->OnCannotOpen(fetch, opened);
                        self->OpenNext(fetch);
                      });
}

void CudaIpcReceiver::OnCannotOpen(const FetchPtr& fetch, const absl::Status& why) {
  const CudaIpcPiece& piece = fetch->descriptor.pieces[fetch->held.memory.size()];
  // A segment of its arena can be opened later. A peer that knows of no memory that stays open
  // knows of no refusal.
  if (piece.is_kept || !peer_may_keep_ || !fetches_->Restage(*fetch, why.message())) {
    return End(fetch, why);
  }
  // Once it has heard of this, the peer may free the memory behind its own copy.
  mappings_->Release(
      *fetch->gpu, std::exchange(fetch->held, {}),
      [channel = control_channel_, id = fetch->id, why] {
        channel(EncodeCudaIpcRefused({id, std::string(why.message())}), {}).IgnoreError();
      });
}

void CudaIpcReceiver::Deliver(const FetchPtr& fetch) {
  const cuda::CudaDevice& device = *fetch->gpu->device;
  const ScopedCurrent current(device);
  const bool is_same_device = fetch->descriptor.pieces.size() == 1 &&
                              std::memcmp(&fetch->descriptor.pieces[0].memory.device,
                                          &device.uuid(), sizeof(cuda::Uuid)) == 0;
  const bool is_view = is_same_device && !fetch->destination.is_valid();
  std::shared_ptr<cuda::ImportedEvents> to_query;
  const auto try_it = [&]() -> absl::StatusOr<Tensor> {
    for (size_t i = 0; i < fetch->held.memory.size(); ++i) {
      const cuda::IpcDescriptor& piece = fetch->descriptor.pieces[i].memory;
      if (piece.offset + piece.bytes > fetch->held.memory[i].bytes()) {
        return absl::InvalidArgumentError("a cuda_ipc descriptor beyond the end of its memory");
      }
    }
    if (!is_view) FERRY_RETURN_IF_ERROR(fetch->MakeRoom());
    cuda::Stream stream = fetch->gpu->copies->get();
    std::shared_ptr<const ReadyEvent> ready;
    std::shared_ptr<cuda::ImportedEvents> to_wait_for;
    if (fetch->descriptor.ready.sequence != 0 && !fetch->is_ready) {
      FERRY_ASSIGN_OR_RETURN(auto events, probes_->EventsOf(fetch->descriptor.pair));
      FERRY_ASSIGN_OR_RETURN(fetch->is_ready, events->HasPassed(fetch->descriptor.ready));
      if (!fetch->is_ready) {
        stream =
            environment_.gpus->options().waits_on_device ? fetch->gpu->waits->TakeIdle() : nullptr;
        // The host polls.
        if (stream == nullptr) {
          to_query = std::move(events);
          return absl::UnavailableError("not ready");
        }
        if (is_view) {
          // The event first, as in Copy: the stream may wait for the producer's for ever.
          FERRY_ASSIGN_OR_RETURN(cuda::CudaEvent event, fetch->gpu->events->Take());
          FERRY_RETURN_IF_ERROR(events->EnqueueWait(fetch->descriptor.ready, stream));
          FERRY_ASSIGN_OR_RETURN(ready, ReadyEvent::Record(std::move(event), stream));
        } else {
          to_wait_for = std::move(events);
        }
      }
    }
    return is_view ? View(*fetch, std::move(ready)) : Copy(*fetch, stream, to_wait_for.get());
  };
  absl::StatusOr<Tensor> tensor = try_it();
  if (absl::IsUnavailable(tensor.status()) && !fetches_->IsOver(*fetch)) {
    const auto self = shared_from_this();
    if (to_query != nullptr) {
      return AwaitEvent(fetches_, fetch, std::move(to_query), fetch->descriptor.ready,
                        [self, fetch](const absl::Status& completed) {
                          if (!completed.ok()) return self->End(fetch, completed);
                          fetch->is_ready = true;
                          self->Deliver(fetch);
                        });
    }
    return fetch->RetryLater(
        *environment_.loop, [self, fetch] { self->Deliver(fetch); },
        [self, fetch](const absl::Status& refused) { self->End(fetch, refused); });
  }
  if (tensor.ok()) Note(*fetch, is_view ? "a view, since it is on the same GPU" : "a copy");
  End(fetch, std::move(tensor));
}

absl::StatusOr<Tensor> CudaIpcReceiver::View(CudaIpcFetch& fetch,
                                             std::shared_ptr<const ReadyEvent> ready) {
  const cuda::IpcDescriptor& piece = fetch.descriptor.pieces[0].memory;
  const cuda::DevicePointer pointer = fetch.held.memory[0].base() + piece.offset;
  // The producer's event is in use until our wait for it is over.
  auto buffer = std::make_shared<cuda::DeviceBuffer>(
      pointer, piece.bytes, fetch.gpu->device->ordinal(),
      [self = shared_from_this(), gpu = fetch.gpu, held = std::exchange(fetch.held, {}),
       id = fetch.id, ready](cuda::DeviceBuffer::Uses uses) mutable {
        if (ready != nullptr) uses.push_back(std::move(ready));
        if (uses.empty()) return self->ReleaseHeld(*gpu, std::move(held), id);
        const std::shared_ptr<GpuLink> link = self->link_;
        absl::ReaderMutexLock lock(&link->mu);
        // This process is leaving, and the control channel has closed.
        if (link->gpus == nullptr) return;
        ReleaseBehind(*gpu->executor, std::move(uses),
                      [self, gpu, held = std::move(held), id]() mutable {
                        self->ReleaseHeld(*gpu, std::move(held), id);
                      });
      });
  FERRY_ASSIGN_OR_RETURN(const Tensor view,
                         Tensor::Create(fetch.header.dtype, fetch.header.shape, std::move(buffer)));
  return cuda::WithReady(view, std::move(ready));
}

absl::StatusOr<Tensor> CudaIpcReceiver::Copy(CudaIpcFetch& fetch, cuda::Stream stream,
                                             cuda::ImportedEvents* to_wait_for) {
  Gpu& gpu = *fetch.gpu;
  std::shared_ptr<const ReadyEvent> copied;
  // Before anything is enqueued: without an event the stream would have to be waited for, and an
  // end of the fetch waits for this.
  FERRY_ASSIGN_OR_RETURN(cuda::CudaEvent event, gpu.events->Take());
  FERRY_RETURN_IF_ERROR(fetches_->EnqueueUnlessOver(fetch, [&]() -> absl::Status {
    // A cancelled fetch must not wait either: the producer would receive ACK, and record the event
    // again, before the device has passed the wait.
    if (to_wait_for != nullptr) {
      FERRY_RETURN_IF_ERROR(to_wait_for->EnqueueWait(fetch.descriptor.ready, stream));
    }
    cuda::DevicePointer to = cuda::AsDevicePointer(fetch.into.data());
    for (size_t i = 0; i < fetch.held.memory.size(); ++i) {
      const cuda::IpcDescriptor& piece = fetch.descriptor.pieces[i].memory;
      FERRY_RETURN_IF_ERROR(gpu.device->Check(
          gpu.device->table().copy_async(to, fetch.held.memory[i].base() + piece.offset,
                                         piece.bytes, stream),
          "cuMemcpyAsync"));
      to += piece.bytes;
    }
    // This fails only if the device has failed, which writes no more.
    FERRY_ASSIGN_OR_RETURN(copied, ReadyEvent::Record(std::move(event), stream));
    return absl::OkStatus();
  }));
  // Both memories are kept until the device has passed the copy, even if it is cancelled.
  auto held = std::make_shared<CudaIpcMappings::Held>(std::exchange(fetch.held, {}));
  FERRY_RETURN_IF_ERROR(gpu.executor->Watch(
      {.event = copied,
       .what = "a copy from another process's GPU memory",
       .keep = std::make_shared<std::pair<std::shared_ptr<CudaIpcMappings::Held>, Tensor>>(
           held, fetch.into)},
      [self = shared_from_this(), &gpu, held, id = fetch.id](absl::Status) {
        self->ReleaseHeld(gpu, std::move(*held), id);
      }));
  return cuda::WithReady(std::exchange(fetch.into, Tensor()), std::move(copied));
}

void CudaIpcReceiver::ReleaseHeld(Gpu& gpu, CudaIpcMappings::Held held, uint64_t id) {
  mappings_->Release(gpu, std::move(held), [release = release_, id] { release(id); });
}

void CudaIpcReceiver::End(const FetchPtr& fetch, absl::StatusOr<Tensor> tensor) {
  fetch->destination = Tensor();
  fetch->into = Tensor();
  const bool is_delivered = tensor.ok();
  const bool holds_memory = !fetch->held.memory.empty();
  const bool ended_here = fetches_->End(*fetch, std::move(tensor),
                                        /*release_later=*/is_delivered || holds_memory);
  // If it was cancelled before, destroying the tensor has released it.
  if (is_delivered) return;
  // Nothing reads the memory now; close it before notifying the producer.
  if (holds_memory) return ReleaseHeld(*fetch->gpu, std::exchange(fetch->held, {}), fetch->id);
  // Cancel has told its caller that it is released later.
  if (!ended_here) release_(fetch->id);
}

void CudaIpcReceiver::EndStaged(const CudaIpcFetch& fetch, absl::StatusOr<Tensor> tensor) {
  if (tensor.ok()) {
    Note(fetch, fetch.is_restaged
                    ? absl::StrCat("staged: its memory could not be opened: ", fetch.why_restaged)
                    : absl::StrCat("staged: ", fetch.descriptor.why_staged));
  }
  // The slices are copied into our own memory, and the slots are returned one by one. Slices may
  // still be copied if it failed; the last one drops the memory.
  fetches_->End(fetch, std::move(tensor), /*release_later=*/false);
}

void CudaIpcReceiver::Cancel(uint64_t id) { fetches_->Cancel(id); }

void CudaIpcReceiver::Discard(uint64_t id, const TensorHeader& header, absl::string_view body,
                              absl::Span<UniqueFd> descriptors) {
  // If this carried a kept segment, it is requested again when it is needed.
}

void CudaIpcReceiver::Abort(const absl::Status& why) {
  fetches_->Abort(why);
  probes_->Abort(why);
  mappings_->Abort(why);
}

void CudaIpcReceiver::Note(const CudaIpcFetch& fetch, absl::string_view what) {
  const std::string why = probes_->WhyWithoutEvents(fetch.descriptor.pair);
  absl::MutexLock lock(&mu_);
  std::string& last = last_[fetch.descriptor.pair];
  last = std::string(what);
  if (!why.empty()) {
    absl::StrAppend(&last,
                    "; the sender waits for what is not ready, since there are no events "
                    "between the two: ",
                    why);
  }
}

std::string CudaIpcReceiver::LastOf(const GpuPair& pair) const {
  absl::MutexLock lock(&mu_);
  const auto found = last_.find(pair);
  return found == last_.end() ? "" : found->second;
}

}  // namespace ferry
