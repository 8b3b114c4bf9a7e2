// SPDX-License-Identifier: Apache-2.0
// CudaIpcMappings: the allocations of one peer that a receiver has mapped.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_MAPPINGS_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_MAPPINGS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "base/unique_fd.h"
#include "gpu/cuda/ipc_import_cache.h"
#include "gpu/gpus.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/cuda_ipc/peer_lifeline.h"
#include "transport/transport.h"

namespace ferry {

// How views reach this process's GPUs when they are released, possibly after everything else is
// gone.
struct GpuLink {
  absl::Mutex mu;
  Gpus* gpus ABSL_GUARDED_BY(mu) = nullptr;
};

// How long each allocation of the peer stays open in the devices' import caches. Segments of the
// peer's arenas stay open until Abort, since their descriptors are sent only once. Other memory
// (foreign) is closed behind the last tensor that uses it, since its owner may free it as soon as
// it is released; or, if the owner lets it stay open, when the owner asks for it, or when the cache
// closes it. Thread-safe. Owned by the receiver, and by callbacks under way.
class CudaIpcMappings final : public std::enable_shared_from_this<CudaIpcMappings> {
 public:
  // The import cache of a device in use.
  using CacheOf = std::function<cuda::IpcImportCache&(Gpu& gpu)>;
  // Closes all of the peer's memory, on all devices.
  using ClosePeer = std::function<void()>;
  using OpenCallback = std::function<void(absl::StatusOr<cuda::ImportedMemory>)>;

  // The memory that a tensor uses while it may be read here.
  struct Held {
    std::vector<cuda::ImportedMemory> memory;
    struct Foreign {
      uint64_t allocation_id = 0;
      bool may_stay_open = false;
    };
    // Memory outside the peer's arenas.
    std::vector<Foreign> foreign;
  };

  // The callbacks are valid while link->gpus is not null.
  CudaIpcMappings(const TransportEnvironment& environment, Endpoint peer, CacheOf cache_of,
                  ClosePeer close_peer, std::shared_ptr<GpuLink> link);

  CudaIpcMappings(const CudaIpcMappings&) = delete;
  CudaIpcMappings& operator=(const CudaIpcMappings&) = delete;

  // Call before the first Open.
  void SetControlChannel(ControlMessageSender channel) { control_channel_ = std::move(channel); }

  // Kept until all memory that was opened here is closed.
  void AddLifeline(UniqueFd end) { lifelines_->Add(std::move(end)); }

  // Opens memory for a probe. `done` runs on the side executor, or inline with its error.
  void OpenForProbe(Gpu& gpu, const cuda::IpcDescriptor& memory, UniqueFd fd, OpenCallback done);
  // Keeps memory open until Abort.
  void Keep(const cuda::ImportedMemory& memory) ABSL_LOCKS_EXCLUDED(mu_);

  // Opens a piece; `done` runs inline or on the side executor. A segment that should be open and is
  // not, because opening it failed when its descriptor came, is requested once more.
  void Open(Gpu& gpu, const GpuPair& pair, const CudaIpcPiece& piece, UniqueFd fd,
            OpenCallback done) ABSL_LOCKS_EXCLUDED(mu_);
  // Opens a piece as Open does, and adds it to `held`, which lives until `done` is called. On
  // failure `held` is as before.
  void OpenInto(Held& held, Gpu& gpu, const GpuPair& pair, const CudaIpcPiece& piece, UniqueFd fd,
                std::function<void(const absl::Status&)> done) ABSL_LOCKS_EXCLUDED(mu_);
  // The memory is no longer read here: closes what must be closed, then calls `closed`, inline if
  // that is nothing. It is not called if this process is leaving, nor if the control channel ends
  // before.
  void Release(Gpu& gpu, Held held, std::function<void()> closed) ABSL_LOCKS_EXCLUDED(mu_);

  // The peer has sent the descriptor of a segment again.
  void OnSegment(const CudaIpcSegment& segment, UniqueFd fd) ABSL_LOCKS_EXCLUDED(mu_);
  // The peer wants this memory back: closes it, and replies.
  void OnReclaim(const CudaIpcReclaim& reclaim) ABSL_LOCKS_EXCLUDED(mu_);
  // The control channel has ended: the peer's memory is closed where it is unused, and elsewhere
  // behind its last user.
  void Abort(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Receiving device and allocation id.
  using SegmentKey = std::pair<uint16_t, uint64_t>;

  cuda::ImportKey KeyOf(uint64_t allocation_id) const {
    return {peer_.peer.incarnation, allocation_id};
  }
  void RequestSegment(const GpuPair& pair, uint64_t allocation_id, OpenCallback done)
      ABSL_LOCKS_EXCLUDED(mu_);
  void EndRequest(const GpuPair& pair, uint64_t allocation_id,
                  const absl::StatusOr<cuda::ImportedMemory>& memory) ABSL_LOCKS_EXCLUDED(mu_);
  // Memory outside the peer's arenas that tensors use or open.
  struct ForeignState {
    int users = 0;
    // To call when the last user has left, and it is closed.
    std::vector<std::function<void()>> reclaimed;
  };
  // Foreign memory to be closed, and what to call then.
  struct ToClose {
    uint64_t allocation_id = 0;
    std::vector<std::function<void()>> then;
  };

  // One user has left. Nothing: it need not be closed.
  std::optional<ToClose> RemoveUser(uint16_t device, const Held::Foreign& use)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Calls back if the control channel has not ended by then. Returns what must be called without
  // link_->mu: what it calls back may send, and a send may end the control channel, and all that
  // waits for the lock. REQUIRES: link_->mu; link_->gpus is not null.
  [[nodiscard]] std::function<void()> Close(Gpu& gpu, ToClose to_close) ABSL_LOCKS_EXCLUDED(mu_);
  // The same, and calls it; nothing if this process is leaving.
  void CloseUnlessLeaving(Gpu& gpu, ToClose to_close) ABSL_LOCKS_EXCLUDED(mu_);

  const TransportEnvironment environment_;
  const Endpoint peer_;
  const CacheOf cache_of_;
  const ClosePeer close_peer_;
  const std::shared_ptr<GpuLink> link_;
  // Also kept by the mappings, which may outlive this.
  const std::shared_ptr<ReceivedLifelines> lifelines_ = std::make_shared<ReceivedLifelines>();
  ControlMessageSender control_channel_;

  absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<SegmentKey, ForeignState> foreign_ ABSL_GUARDED_BY(mu_);
  // Segments requested once more.
  absl::flat_hash_map<SegmentKey, std::vector<OpenCallback>> requested_ ABSL_GUARDED_BY(mu_);
  // Segments of the peer's arenas.
  std::vector<cuda::ImportedMemory> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_MAPPINGS_H_
