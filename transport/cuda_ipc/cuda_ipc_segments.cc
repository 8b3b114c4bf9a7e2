// SPDX-License-Identifier: Apache-2.0
// Exports each segment once, and holds it.
#include "transport/cuda_ipc/cuda_ipc_segments.h"

#include "base/status_macros.h"

namespace ferry {

absl::StatusOr<CudaIpcPiece> CudaIpcSegments::Piece(cuda::GpuArena& arena, const Buffer& buffer,
                                                    const GpuPair& pair,
                                                    std::vector<UniqueFd>& descriptors) {
  CudaIpcPiece piece;
  piece.memory = arena.Describe(buffer);
  piece.is_kept = true;
  const std::pair key(pair.destination, piece.memory.allocation_id);
  {
    absl::MutexLock lock(&mu_);
    if (sent_.contains(key)) return piece;
  }
  FERRY_ASSIGN_OR_RETURN(UniqueFd fd, arena.ExportSegment(buffer));
  piece.has_fd = fd.valid();
  if (fd.valid()) descriptors.push_back(std::move(fd));
  std::shared_ptr<const cuda::HeldSegment> hold = arena.HoldSegment(buffer);
  absl::MutexLock lock(&mu_);
  // Only this thread sends messages about the segment, and this one first. If it is not sent after
  // all, the peer requests it.
  sent_.emplace(key, std::move(hold));
  return piece;
}

void CudaIpcSegments::MarkSent(const GpuPair& pair,
                               std::shared_ptr<const cuda::HeldSegment> segment) {
  const uint64_t id = segment->descriptor().allocation_id;
  absl::MutexLock lock(&mu_);
  sent_.emplace(std::pair(pair.destination, id), std::move(segment));
}

std::shared_ptr<const cuda::HeldSegment> CudaIpcSegments::Find(const GpuPair& pair,
                                                               uint64_t allocation_id) const {
  absl::MutexLock lock(&mu_);
  const auto found = sent_.find({pair.destination, allocation_id});
  return found == sent_.end() ? nullptr : found->second;
}

void CudaIpcSegments::Abort(DeferredReleaseQueue& grace) {
  auto left = std::make_shared<Sent>();
  {
    absl::MutexLock lock(&mu_);
    left->swap(sent_);
  }
  if (!left->empty()) grace.Keep([left = std::move(left)] {});
}

}  // namespace ferry
