// SPDX-License-Identifier: Apache-2.0
// Staged tensors: each slice is copied to its place, and its slot is returned.
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/cuda/ready_tensor.h"
#include "transport/cuda_ipc/cuda_ipc_receiver.h"

namespace ferry {

using cuda::ImportedMemory;
using cuda::ReadyEvent;
using cuda::ScopedCurrent;

absl::Status CudaIpcReceiver::OnSlice(absl::string_view body, absl::Span<UniqueFd> descriptors) {
  FERRY_ASSIGN_OR_RETURN(const CudaIpcSlice slice, DecodeCudaIpcSlice(body));
  if (slice.piece.has_fd != !descriptors.empty()) {
    return absl::InvalidArgumentError("a slice whose descriptor is missing");
  }
  JobPtr job;
  {
    absl::MutexLock lock(&mu_);
    if (const auto found = jobs_.find(slice.id); found != jobs_.end()) job = found->second;
  }
  if (job == nullptr) {
    // Cancelled. A segment that is new here would be requested when it is needed.
    SayTaken(slice);
    return absl::OkStatus();
  }
  if (!job->descriptor.is_staged() || !(job->descriptor.pair == slice.pair) ||
      slice.offset != job->announced ||
      slice.piece.memory.bytes > job->header.bytes - job->announced) {
    return absl::InvalidArgumentError("a slice of something else than was offered");
  }
  job->announced += slice.piece.memory.bytes;
  UniqueFd fd;
  if (slice.piece.has_fd) fd = std::move(descriptors[0]);
  environment_.gpus->Use(
      slice.pair.destination, [self = shared_from_this(), job, slice,
                               fd = std::move(fd)](absl::StatusOr<Gpu*> gpu) mutable {
        if (!gpu.ok()) {
          self->SayTaken(slice);
          return self->End(job, gpu.status());
        }
        self->OpenPiece(**gpu, slice.pair, slice.piece, std::move(fd),
                        [self, job, slice, gpu = *gpu](absl::StatusOr<ImportedMemory> memory) {
                          absl::Status status = memory.status();
                          if (status.ok()) {
                            status = gpu->executor->Post([self, job, slice, gpu, memory = *memory] {
                              job->gpu = gpu;
                              self->CopySlice(job, slice, memory);
                            });
                          }
                          if (status.ok()) return;
                          self->SayTaken(slice);
                          self->End(job, std::move(status));
                        });
      });
  return absl::OkStatus();
}

void CudaIpcReceiver::CopySlice(const JobPtr& job, const CudaIpcSlice& slice,
                                const ImportedMemory& memory) {
  absl::StatusOr<Tensor> tensor = TryCopySlice(job, slice, memory);
  if (absl::IsUnavailable(tensor.status()) && !IsOver(*job)) {
    return Later(job, [self = shared_from_this(), job, slice, memory] {
      self->CopySlice(job, slice, memory);
    });
  }
  if (!tensor.ok()) SayTaken(slice);
  if (tensor.ok() && !tensor->is_valid()) return;
  if (tensor.ok()) Note(*job, absl::StrCat("staged: ", job->descriptor.why_staged));
  End(job, std::move(tensor));
}

absl::StatusOr<Tensor> CudaIpcReceiver::TryCopySlice(const JobPtr& job, const CudaIpcSlice& slice,
                                                     const ImportedMemory& memory) {
  Gpu& gpu = *job->gpu;
  const cuda::IpcDescriptor& piece = slice.piece.memory;
  if (piece.offset + piece.bytes > memory.bytes()) {
    return absl::InvalidArgumentError("a slice beyond the end of its memory");
  }
  if (IsOver(*job)) return absl::CancelledError("cancelled");
  FERRY_RETURN_IF_ERROR(MakeRoom(*job));
  const ScopedCurrent current(*gpu.device);
  const cuda::Stream stream = gpu.copies->get();
  std::shared_ptr<cuda::ImportedEvents> events;
  if (slice.ready.sequence != 0) {
    FERRY_ASSIGN_OR_RETURN(events, EventsOf(slice.pair));
  }
  std::shared_ptr<const ReadyEvent> copied;
  {
    absl::MutexLock lock(&mu_);
    if (job->is_over) return absl::CancelledError("cancelled");
    // The producer's copy that it waits for depends on nothing. Wait only when it is certain that
    // the slice is acknowledged after the device has passed this.
    if (events != nullptr) FERRY_RETURN_IF_ERROR(events->MakeWait(slice.ready, stream));
    FERRY_RETURN_IF_ERROR(gpu.device->Check(
        gpu.device->table().copy_async(cuda::AsDevicePointer(job->into.data()) + slice.offset,
                                       memory.base() + piece.offset, piece.bytes, stream),
        "cuMemcpyAsync"));
    FERRY_ASSIGN_OR_RETURN(copied, ReadyEvent::RecordOrWait(*gpu.events, stream));
  }
  FERRY_RETURN_IF_ERROR(gpu.executor->Watch(
      {.event = copied,
       .what = "a copy from another process's staging ring",
       .keep = std::make_shared<std::pair<ImportedMemory, Tensor>>(memory, job->into)},
      [self = shared_from_this(), slice](absl::Status) { self->SayTaken(slice); }));
  job->copied += piece.bytes;
  if (job->copied < job->header.bytes) return Tensor();
  // All copies are on one stream, so the last one's event covers all.
  return cuda::WithReady(std::exchange(job->into, Tensor()), std::move(copied));
}

void CudaIpcReceiver::SayTaken(const CudaIpcSlice& slice) {
  // No acknowledgement is needed if the control channel has closed.
  control_channel_(EncodeCudaIpcTaken({slice.id, slice.offset}), {}).IgnoreError();
}

absl::Status CudaIpcReceiver::OnFailed(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const CudaIpcFailed failed, DecodeCudaIpcFailed(body));
  JobPtr job;
  {
    absl::MutexLock lock(&mu_);
    if (const auto found = jobs_.find(failed.id); found != jobs_.end()) job = found->second;
  }
  if (job == nullptr) return absl::OkStatus();
  if (!job->descriptor.is_staged()) {
    return absl::InvalidArgumentError("the end of slices of a tensor that comes in none");
  }
  End(job, absl::InternalError(
               absl::StrCat(Describe(peer_.peer), " could not send all of it: ", failed.why)));
  return absl::OkStatus();
}

void CudaIpcReceiver::Note(const Job& job, absl::string_view what) {
  absl::MutexLock lock(&mu_);
  std::string& last = last_[job.descriptor.pair];
  last = std::string(what);
  if (const auto found = without_events_.find(job.descriptor.pair);
      found != without_events_.end()) {
    absl::StrAppend(&last,
                    "; the sender waits for what is not ready, since there are no events "
                    "between the two: ",
                    found->second);
  }
}

std::string CudaIpcReceiver::LastOf(const GpuPair& pair) const {
  absl::MutexLock lock(&mu_);
  const auto found = last_.find(pair);
  return found == last_.end() ? "" : found->second;
}

}  // namespace ferry
