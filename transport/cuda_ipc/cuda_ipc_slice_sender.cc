// SPDX-License-Identifier: Apache-2.0
// Slots of the ring are filled, announced, and returned.
#include "transport/cuda_ipc/cuda_ipc_slice_sender.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "gpu/cuda/ready_tensor.h"

namespace ferry {

using cuda::ReadyEvent;
using cuda::ScopedCurrent;

void CudaIpcSliceSender::Send(Gpu& gpu, const GpuPair& pair, Request request) {
  NextSlice(std::make_shared<Transfer>(
      Transfer{.gpu = &gpu, .pair = pair, .request = std::move(request)}));
}

void CudaIpcSliceSender::NextSlice(const TransferPtr& transfer) {
  transfer->gpu->ring->Take(
      [self = shared_from_this(), transfer](absl::StatusOr<cuda::StagingRing::Slot> slot) {
        if (slot.ok()) return self->FillSlot(transfer, *std::move(slot));
        // No slot can be allocated, so this is the first: the tensor may take another path.
        self->Fail(*transfer, slot.status());
      });
}

void CudaIpcSliceSender::FillSlot(const TransferPtr& transfer, cuda::StagingRing::Slot slot) {
  Gpu& gpu = *transfer->gpu;
  if (const absl::Status wanted = transfer->request.check_wanted(); !wanted.ok()) {
    gpu.ring->Give(std::move(slot), nullptr);
    return Fail(*transfer, wanted);
  }
  if (transfer->request.done != nullptr) {
    CudaIpcDescriptor descriptor;
    descriptor.pair = transfer->pair;
    descriptor.why_staged = transfer->request.why;
    std::exchange(transfer->request.done,
                  nullptr)(TransferDescriptor{EncodeCudaIpcDescriptor(descriptor), {}});
  }
  // Shared with the callback below, which the executor may refuse.
  const auto slice = std::make_shared<Slice>();
  slice->slot = std::move(slot);
  slice->ring = gpu.ring;
  slice->pair = transfer->pair;
  slice->bytes =
      std::min(gpu.ring->slot_bytes(), transfer->request.tensor.bytes() - transfer->sent);
  absl::Status status = CopyIntoSlot(*transfer, *slice);
  if (status.ok()) {
    const absl::StatusOr<cuda::EventTicket> mark =
        prober_->Record(transfer->pair, gpu.copies->get());
    if (mark.ok()) {
      slice->ready = *mark;
      return Announce(transfer, std::move(*slice));
    }
    status = mark.status();
  }
  if (absl::IsResourceExhausted(status) && slice->copied != nullptr) {
    // All events of the pair are in use: the slice is announced when it needs none.
    status = gpu.executor->Watch({.event = slice->copied, .what = "a copy into the staging ring"},
                                 [self = shared_from_this(), transfer, slice](absl::Status copied) {
                                   if (copied.ok())
                                     return self->Announce(transfer, std::move(*slice));
                                   slice->ring->Give(std::move(slice->slot), nullptr);
                                   self->Fail(*transfer, copied);
                                 });
    if (status.ok()) return;
  }
  gpu.ring->Give(std::move(slice->slot), std::move(slice->copied));
  Fail(*transfer, status);
}

absl::Status CudaIpcSliceSender::CopyIntoSlot(const Transfer& transfer, Slice& slice) {
  Gpu& gpu = *transfer.gpu;
  const ScopedCurrent current(*gpu.device);
  const cuda::Stream stream = gpu.copies->get();
  FERRY_RETURN_IF_ERROR(
      gpu.device->Check(gpu.device->table().copy_async(
                            slice.slot->pointer(),
                            cuda::AsDevicePointer(transfer.request.tensor.data()) + transfer.sent,
                            slice.bytes, stream),
                        "cuMemcpyAsync"));
  FERRY_ASSIGN_OR_RETURN(slice.copied, ReadyEvent::RecordOrWait(*gpu.events, stream));
  // The sender's memory is released when the last of these copies completes.
  return gpu.executor->Watch({.event = slice.copied,
                              .what = "a copy into the staging ring",
                              .keep = std::make_shared<Tensor>(transfer.request.tensor)},
                             [](absl::Status) {});
}

void CudaIpcSliceSender::Announce(const TransferPtr& transfer, Slice slice) {
  CudaIpcSlice message;
  message.id = transfer->request.id;
  message.pair = transfer->pair;
  message.offset = transfer->sent;
  message.ready = slice.ready;
  const size_t bytes = slice.bytes;
  std::vector<UniqueFd> descriptors;
  absl::StatusOr<CudaIpcPiece> piece =
      segments_->Piece(*slice.ring->arena(), *slice.slot, transfer->pair, descriptors);
  if (!piece.ok()) {
    prober_->ReleaseEvent(slice.pair, slice.ready);
    slice.ring->Give(std::move(slice.slot), std::move(slice.copied));
    return Fail(*transfer, piece.status());
  }
  message.piece = *piece;
  message.piece.memory.bytes = bytes;
  bool is_aborted = false;
  {
    absl::MutexLock lock(&mu_);
    is_aborted = is_aborted_;
    if (!is_aborted)
      slices_.emplace(std::pair(transfer->request.id, message.offset), std::move(slice));
  }
  if (is_aborted) {
    // Moved only if it is not. NOLINTNEXTLINE(bugprone-use-after-move)
    slice.ring->Give(std::move(slice.slot), std::move(slice.copied));
    return;
  }
  std::vector<int> raw;
  for (const UniqueFd& each : descriptors) raw.push_back(each.get());
  // If the control channel has closed, that releases what was announced on it.
  if (!control_channel_(EncodeCudaIpcSlice(message), raw).ok()) return;
  transfer->sent += bytes;
  if (transfer->sent == transfer->request.tensor.bytes()) {
    transfer->request.tensor = Tensor();
    return;
  }
  // Take turns with other tensors. Code running on the executor may always post.
  transfer->gpu->executor
      ->Post([self = shared_from_this(), transfer] { self->NextSlice(transfer); })
      .IgnoreError();
}

void CudaIpcSliceSender::Fail(Transfer& transfer, const absl::Status& why) {
  Request& request = transfer.request;
  request.tensor = Tensor();
  if (request.done != nullptr) return std::exchange(request.done, nullptr)(why);
  // Slices may have been sent, so tell the receiver, unless it has cancelled.
  if (request.check_wanted().ok()) {
    control_channel_(EncodeCudaIpcFailed({request.id, std::string(why.message())}), {})
        .IgnoreError();
  }
}

absl::Status CudaIpcSliceSender::OnTaken(const CudaIpcTaken& taken) {
  Slice slice;
  {
    absl::MutexLock lock(&mu_);
    const auto found = slices_.find({taken.id, taken.offset});
    if (found == slices_.end()) {
      return absl::InvalidArgumentError("the receipt of a slice that is not out");
    }
    slice = std::move(found->second);
    slices_.erase(found);
  }
  prober_->ReleaseEvent(slice.pair, slice.ready);
  slice.ring->Give(std::move(slice.slot), std::move(slice.copied));
  return absl::OkStatus();
}

void CudaIpcSliceSender::Abort(DeferredReleaseQueue& grace) {
  auto left = std::make_shared<Slices>();
  {
    absl::MutexLock lock(&mu_);
    is_aborted_ = true;
    left->swap(slices_);
  }
  if (left->empty()) return;
  grace.Keep([left = std::move(left)] {
    for (auto& [key, slice] : *left) {
      slice.ring->Give(std::move(slice.slot), std::move(slice.copied));
    }
  });
}

}  // namespace ferry
