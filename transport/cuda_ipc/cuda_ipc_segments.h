// SPDX-License-Identifier: Apache-2.0
// CudaIpcSegments: the arena segments that one peer keeps mapped.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SEGMENTS_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SEGMENTS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "base/unique_fd.h"
#include "gpu/cuda/gpu_arena.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/cuda_ipc/deferred_release_queue.h"

namespace ferry {

// The file descriptor of a segment is sent once to each device of the peer, which keeps the segment
// mapped until the control channel closes; so the segment is held here for as long. Thread-safe.
// Shared by the sender and its parts.
class CudaIpcSegments final {
 public:
  CudaIpcSegments() = default;
  CudaIpcSegments(const CudaIpcSegments&) = delete;
  CudaIpcSegments& operator=(const CudaIpcSegments&) = delete;

  // The piece for memory of an arena of ours, to be sent next. If the peer does not have its
  // segment yet, the segment's file descriptor is appended to `descriptors`. On the source device's
  // executor, the only thread that sends messages about it.
  //   Errors: as GpuArena::ExportSegment.
  absl::StatusOr<CudaIpcPiece> Piece(cuda::GpuArena& arena, const Buffer& buffer,
                                     const GpuPair& pair, std::vector<UniqueFd>& descriptors)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The peer has the segment, from a probe.
  void MarkSent(const GpuPair& pair, std::shared_ptr<const cuda::HeldSegment> segment)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Null: it was not sent to that device.
  std::shared_ptr<const cuda::HeldSegment> Find(const GpuPair& pair, uint64_t allocation_id) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // The control channel has ended: `grace` holds the segments for as long as the peer may need.
  void Abort(DeferredReleaseQueue& grace) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // By the peer's device and the allocation id.
  using Sent =
      absl::flat_hash_map<std::pair<uint16_t, uint64_t>, std::shared_ptr<const cuda::HeldSegment>>;

  mutable absl::Mutex mu_;
  Sent sent_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SEGMENTS_H_
