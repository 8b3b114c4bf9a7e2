// SPDX-License-Identifier: Apache-2.0
// Staged tensors: slots of the ring are filled, announced, and returned.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/cuda/ready_tensor.h"
#include "transport/cuda_ipc/cuda_ipc_sender.h"

namespace ferry {

using cuda::ReadyEvent;
using cuda::ScopedCurrent;

void CudaIpcSender::NextSlice(const StagedPtr& staged) {
  staged->gpu->ring->Take(
      [self = shared_from_this(), staged](absl::StatusOr<cuda::StagingRing::Slot> slot) {
        if (slot.ok()) return self->FillSlot(staged, *std::move(slot));
        // No slot can be allocated, so this is the first: the tensor may take another path.
        self->FailStaged(staged, slot.status());
      });
}

void CudaIpcSender::FillSlot(const StagedPtr& staged, cuda::StagingRing::Slot slot) {
  Gpu& gpu = *staged->gpu;
  if (const absl::Status wanted = CheckWanted(staged->id); !wanted.ok()) {
    gpu.ring->Give(std::move(slot), nullptr);
    return FailStaged(staged, wanted);
  }
  if (staged->done != nullptr) {
    CudaIpcDescriptor descriptor;
    descriptor.pair = staged->pair;
    descriptor.why_staged = staged->why;
    std::exchange(staged->done,
                  nullptr)(TransferDescriptor{EncodeCudaIpcDescriptor(descriptor), {}});
  }
  // Shared with the callback below, which the executor may refuse.
  const auto slice = std::make_shared<Slice>();
  slice->slot = std::move(slot);
  slice->ring = gpu.ring;
  slice->pair = staged->pair;
  slice->bytes = std::min(gpu.ring->slot_bytes(), staged->tensor.bytes() - staged->sent);
  absl::Status status = CopyIntoSlot(*staged, *slice);
  if (status.ok()) {
    const absl::StatusOr<cuda::EventTicket> mark = Record(staged->pair, gpu.copies->get());
    if (mark.ok()) {
      slice->ready = *mark;
      return AnnounceSlice(staged, std::move(*slice));
    }
    status = mark.status();
  }
  if (absl::IsResourceExhausted(status) && slice->copied != nullptr) {
    // All events of the pair are in use: the slice is announced when it needs none.
    status = gpu.executor->Watch({.event = slice->copied, .what = "a copy into the staging ring"},
                                 [self = shared_from_this(), staged, slice](absl::Status copied) {
                                   if (copied.ok())
                                     return self->AnnounceSlice(staged, std::move(*slice));
                                   slice->ring->Give(std::move(slice->slot), nullptr);
                                   self->FailStaged(staged, copied);
                                 });
    if (status.ok()) return;
  }
  gpu.ring->Give(std::move(slice->slot), std::move(slice->copied));
  FailStaged(staged, status);
}

absl::Status CudaIpcSender::CopyIntoSlot(const Staged& staged, Slice& slice) {
  Gpu& gpu = *staged.gpu;
  const ScopedCurrent current(*gpu.device);
  const cuda::Stream stream = gpu.copies->get();
  FERRY_RETURN_IF_ERROR(gpu.device->Check(
      gpu.device->table().copy_async(slice.slot->pointer(),
                                     cuda::AsDevicePointer(staged.tensor.data()) + staged.sent,
                                     slice.bytes, stream),
      "cuMemcpyAsync"));
  FERRY_ASSIGN_OR_RETURN(slice.copied, ReadyEvent::RecordOrWait(*gpu.events, stream));
  // The sender's memory is released when the last of these copies completes.
  return gpu.executor->Watch({.event = slice.copied,
                              .what = "a copy into the staging ring",
                              .keep = std::make_shared<Tensor>(staged.tensor)},
                             [](absl::Status) {});
}

void CudaIpcSender::AnnounceSlice(const StagedPtr& staged, Slice slice) {
  CudaIpcSlice message;
  message.id = staged->id;
  message.pair = staged->pair;
  message.offset = staged->sent;
  message.ready = slice.ready;
  const size_t bytes = slice.bytes;
  std::vector<UniqueFd> descriptors;
  absl::StatusOr<CudaIpcPiece> piece =
      KeptPiece(*slice.ring->arena(), *slice.slot, staged->pair, descriptors);
  if (!piece.ok()) {
    Unmark(slice.pair, slice.ready);
    slice.ring->Give(std::move(slice.slot), std::move(slice.copied));
    return FailStaged(staged, piece.status());
  }
  message.piece = *piece;
  message.piece.memory.bytes = bytes;
  absl::Status aborted;
  {
    absl::MutexLock lock(&mu_);
    aborted = aborted_;
    if (aborted.ok()) slices_.emplace(std::pair(staged->id, message.offset), std::move(slice));
  }
  if (!aborted.ok()) {
    // Moved only if it is OK. NOLINTNEXTLINE(bugprone-use-after-move)
    slice.ring->Give(std::move(slice.slot), std::move(slice.copied));
    return;
  }
  std::vector<int> raw;
  for (const UniqueFd& each : descriptors) raw.push_back(each.get());
  // If the control channel has closed, that releases what was announced on it.
  if (!control_channel_(EncodeCudaIpcSlice(message), raw).ok()) return;
  staged->sent += bytes;
  if (staged->sent == staged->tensor.bytes()) {
    staged->tensor = Tensor();
    return;
  }
  // Take turns with other tensors. Code running on the executor may always post.
  staged->gpu->executor->Post([self = shared_from_this(), staged] { self->NextSlice(staged); })
      .IgnoreError();
}

void CudaIpcSender::FailStaged(const StagedPtr& staged, const absl::Status& why) {
  staged->tensor = Tensor();
  if (staged->done != nullptr) return std::exchange(staged->done, nullptr)(why);
  // Slices may have been sent, so tell the receiver, unless it has cancelled.
  if (CheckWanted(staged->id).ok()) {
    control_channel_(EncodeCudaIpcFailed({staged->id, std::string(why.message())}), {})
        .IgnoreError();
  }
}

absl::Status CudaIpcSender::CheckWanted(uint64_t id) const {
  absl::MutexLock lock(&mu_);
  return CheckWantedLocked(id);
}

absl::Status CudaIpcSender::CheckWantedLocked(uint64_t id) const {
  if (!aborted_.ok()) return aborted_;
  if (offering_.contains(id)) return absl::OkStatus();
  return absl::CancelledError("the receiver has given it back before it had it");
}

absl::Status CudaIpcSender::OnTaken(const CudaIpcTaken& taken) {
  Slice slice;
  {
    absl::MutexLock lock(&mu_);
    const auto found = slices_.find({taken.id, taken.offset});
    if (found == slices_.end()) {
      return absl::InvalidArgumentError("the receipt of a slice that is not out");
    }
    slice = std::move(found->second);
    slices_.erase(found);
    UnmarkLocked(slice.pair, slice.ready);
  }
  slice.ring->Give(std::move(slice.slot), std::move(slice.copied));
  return absl::OkStatus();
}

}  // namespace ferry
