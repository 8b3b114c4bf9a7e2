// SPDX-License-Identifier: Apache-2.0
// Each slice is copied to its place, and its slot is returned.
#include "transport/cuda_ipc/cuda_ipc_slice_receiver.h"

#include "base/status_macros.h"
#include "gpu/cuda/ready_tensor.h"
#include "net/event_loop.h"

namespace ferry {

using cuda::ImportedMemory;
using cuda::ReadyEvent;
using cuda::ScopedCurrent;

absl::Status CudaIpcSliceReceiver::OnSlice(const std::shared_ptr<CudaIpcFetch>& fetch,
                                           const CudaIpcSlice& slice, UniqueFd fd,
                                           EndCallback end) {
  if (fetch == nullptr) {
    // Cancelled. A segment that is new here would be requested when it is needed.
    ReturnSlot(slice);
    return absl::OkStatus();
  }
  if (!fetch->is_staged() || !(fetch->descriptor.pair == slice.pair) ||
      slice.offset != fetch->announced ||
      slice.piece.memory.bytes > fetch->header.bytes - fetch->announced) {
    return absl::InvalidArgumentError("a slice of something else than was offered");
  }
  fetch->announced += slice.piece.memory.bytes;
  environment_.gpus->Use(
      slice.pair.destination, [self = shared_from_this(), fetch, slice, end = std::move(end),
                               fd = std::move(fd)](absl::StatusOr<Gpu*> gpu) mutable {
        if (!gpu.ok()) {
          self->ReturnSlot(slice);
          return end(gpu.status());
        }
        self->mappings_->Open(
            **gpu, slice.pair, slice.piece, std::move(fd),
            [self, fetch, slice, end, gpu = *gpu](absl::StatusOr<ImportedMemory> memory) {
              absl::Status status = memory.status();
              if (status.ok()) {
                status = gpu->executor->Post([self, fetch, slice, end, gpu, memory = *memory] {
                  fetch->gpu = gpu;
                  self->Copy(fetch, slice, memory, end, /*is_ready=*/false);
                });
              }
              if (status.ok()) return;
              self->ReturnSlot(slice);
              end(std::move(status));
            });
      });
  return absl::OkStatus();
}

void CudaIpcSliceReceiver::Copy(const std::shared_ptr<CudaIpcFetch>& fetch,
                                const CudaIpcSlice& slice, const ImportedMemory& memory,
                                const EndCallback& end, bool is_ready) {
  std::shared_ptr<cuda::ImportedEvents> to_query;
  absl::StatusOr<Tensor> tensor = TryCopy(*fetch, slice, memory, is_ready, to_query);
  if (absl::IsUnavailable(tensor.status()) && !fetches_->IsOver(*fetch)) {
    if (to_query != nullptr) {
      return AwaitEvent(
          fetches_, fetch, std::move(to_query), slice.ready,
          [self = shared_from_this(), fetch, slice, memory, end](const absl::Status& completed) {
            if (completed.ok()) return self->Copy(fetch, slice, memory, end, /*is_ready=*/true);
            self->ReturnSlot(slice);
            end(completed);
          });
    }
    return fetch->RetryLater(
        *environment_.loop,
        [self = shared_from_this(), fetch, slice, memory, end, is_ready] {
          self->Copy(fetch, slice, memory, end, is_ready);
        },
        end);
  }
  if (!tensor.ok()) ReturnSlot(slice);
  if (tensor.ok() && !tensor->is_valid()) return;
  end(std::move(tensor));
}

absl::StatusOr<Tensor> CudaIpcSliceReceiver::TryCopy(
    CudaIpcFetch& fetch, const CudaIpcSlice& slice, const ImportedMemory& memory, bool& is_ready,
    std::shared_ptr<cuda::ImportedEvents>& to_query) {
  Gpu& gpu = *fetch.gpu;
  const cuda::IpcDescriptor& piece = slice.piece.memory;
  if (piece.offset + piece.bytes > memory.bytes()) {
    return absl::InvalidArgumentError("a slice beyond the end of its memory");
  }
  if (fetches_->IsOver(fetch)) return absl::CancelledError("cancelled");
  FERRY_RETURN_IF_ERROR(fetch.MakeRoom());
  const ScopedCurrent current(*gpu.device);
  const cuda::Stream stream = gpu.copies->get();
  std::shared_ptr<cuda::ImportedEvents> events;
  if (slice.ready.sequence != 0 && !is_ready) {
    FERRY_ASSIGN_OR_RETURN(events, events_->EventsOf(slice.pair));
    if (!environment_.gpus->options().waits_on_device) {
      FERRY_ASSIGN_OR_RETURN(is_ready, events->HasPassed(slice.ready));
      if (!is_ready) {
        to_query = std::move(events);
        return absl::UnavailableError("not ready");
      }
      events = nullptr;
    }
  }
  std::shared_ptr<const ReadyEvent> copied;
  // Before anything is enqueued: without an event the stream would have to be waited for, and an
  // end of the fetch waits for this.
  FERRY_ASSIGN_OR_RETURN(cuda::CudaEvent event, gpu.events->Take());
  FERRY_RETURN_IF_ERROR(fetches_->EnqueueUnlessOver(fetch, [&]() -> absl::Status {
    // The producer's copy that it waits for depends on nothing. Wait only when it is certain that
    // the slice is acknowledged after the device has passed this.
    if (events != nullptr) FERRY_RETURN_IF_ERROR(events->EnqueueWait(slice.ready, stream));
    FERRY_RETURN_IF_ERROR(gpu.device->Check(
        gpu.device->table().copy_async(cuda::AsDevicePointer(fetch.into.data()) + slice.offset,
                                       memory.base() + piece.offset, piece.bytes, stream),
        "cuMemcpyAsync"));
    // This fails only if the device has failed, which writes no more.
    FERRY_ASSIGN_OR_RETURN(copied, ReadyEvent::Record(std::move(event), stream));
    return absl::OkStatus();
  }));
  FERRY_RETURN_IF_ERROR(gpu.executor->Watch(
      {.event = copied,
       .what = "a copy from another process's staging ring",
       .keep = std::make_shared<std::pair<ImportedMemory, Tensor>>(memory, fetch.into)},
      [self = shared_from_this(), slice](absl::Status) { self->ReturnSlot(slice); }));
  fetch.copied += piece.bytes;
  if (fetch.copied < fetch.header.bytes) return Tensor();
  // All copies are on one stream, so the last one's event covers all.
  return cuda::WithReady(std::exchange(fetch.into, Tensor()), std::move(copied));
}

void CudaIpcSliceReceiver::ReturnSlot(const CudaIpcSlice& slice) {
  // No acknowledgement is needed if the control channel has closed.
  control_channel_(EncodeCudaIpcTaken({slice.id, slice.offset}), {}).IgnoreError();
}

}  // namespace ferry
