// SPDX-License-Identifier: Apache-2.0
// CudaIpcSender: exposes memory of this process's GPUs to one other process on this machine.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SENDER_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SENDER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"

#include "gpu/cuda/interprocess_events.h"
#include "gpu/gpus.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/cuda_ipc/deferred_release_queue.h"
#include "transport/transport.h"

namespace ferry {

// The first Expose for each pair of devices sends a probe and waits, with those that follow, for
// the peer's reply. A tensor in memory that the peer can map is exposed in place; one in memory
// that no other process can map (pools that are not exportable, cuMemCreate without a handle type,
// managed memory), or that is not worth mapping, is sent through the device's StagingRing in
// slices. CUDA is called only on the source devices' executors. Thread-safe.
class CudaIpcSender final : public TransportSender,
                            public std::enable_shared_from_this<CudaIpcSender> {
 public:
  // environment.gpus is not null.
  CudaIpcSender(TransportEnvironment environment, Endpoint peer,
                std::shared_ptr<DeferredReleaseQueue> grace);
  ~CudaIpcSender() override;

  void SetControlChannel(ControlMessageSender channel) override {
    control_channel_ = std::move(channel);
  }
  absl::Status OnControlMessage(absl::string_view body) override ABSL_LOCKS_EXCLUDED(mu_);
  void Expose(uint64_t id, const Tensor& tensor, const TensorLocation& to,
              ExposeCallback done) override ABSL_LOCKS_EXCLUDED(mu_);
  void Release(uint64_t id) override ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

  // Why the pair does not work, as found by its probe; empty: it works, or that is unknown. After a
  // back-off that doubles with each failure, calling this probes the pair again.
  std::string Refusal(const GpuPair& pair) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Pending {
    uint64_t id = 0;
    Tensor tensor;
    ExposeCallback done;
  };
  enum class Phase { kProbing, kOpen, kRefused };
  struct Pair {
    Phase phase = Phase::kProbing;
    // True while a probe is pending; the last one's refusal may still be in force.
    bool is_probing = true;
    uint32_t seed = 0;
    // A probe was sent at least once.
    bool has_asked = false;
    std::string refusal;
    absl::Duration timeout;  // until the next probe
    absl::Time next_probe = absl::InfiniteFuture();
    // Calls of Expose waiting for the probe.
    std::vector<Pending> pending;
    // Null or not usable: this device or the peer has no interprocess events.
    std::unique_ptr<cuda::InterprocessEventPool> events;
    bool has_events = false;
    // From probes that were never answered: the peer may have them open.
    std::vector<std::unique_ptr<cuda::InterprocessEventPool>> retired;
    // The memory probed. The peer keeps it open if the probe succeeds.
    std::shared_ptr<Buffer> memory;
    std::shared_ptr<const cuda::HeldSegment> segment;
  };
  // Memory that the peer may be reading, and the event that it waits for. A staged tensor is kept
  // by the copies out of it instead.
  struct Offered {
    Tensor tensor;
    GpuPair pair;
    cuda::EventTicket ready;
    // File descriptors of the transfer descriptor being sent.
    std::vector<UniqueFd> descriptors;
  };
  // How a tensor is exposed; no pieces: it is staged, for the reason in `why_staged`.
  struct Plan {
    std::vector<CudaIpcPiece> pieces;
    std::vector<UniqueFd> descriptors;
    std::string why_staged;
  };
  // A tensor being sent through the ring. On the source device's executor.
  struct Staged {
    uint64_t id = 0;
    Gpu* gpu = nullptr;
    GpuPair pair;
    Tensor tensor;
    std::string why;
    size_t sent = 0;
    ExposeCallback done;  // null once its transfer descriptor has gone
  };
  using StagedPtr = std::shared_ptr<Staged>;
  // A slice that the peer has not acknowledged yet.
  struct Slice {
    cuda::StagingRing::Slot slot;
    std::shared_ptr<cuda::StagingRing> ring;
    std::shared_ptr<const cuda::ReadyEvent> copied;
    GpuPair pair;
    size_t bytes = 0;
    cuda::EventTicket ready;
  };

  // Starts an Expose, or restarts it after a probe.
  void Begin(const GpuPair& pair, Pending pending);
  // The following run on the source device's executor.
  void OfferHere(Gpu& gpu, const GpuPair& pair, Pending pending) ABSL_LOCKS_EXCLUDED(mu_);
  void Probe(Gpu& gpu, const GpuPair& pair) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status SendProbe(Gpu& gpu, const GpuPair& pair, uint32_t seed) ABSL_LOCKS_EXCLUDED(mu_);
  // `is_ready`: the tensor's bytes are known to be there.
  void Finish(Gpu& gpu, const GpuPair& pair, Pending pending, bool is_ready)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Plan> PlanFor(Gpu& gpu, const GpuPair& pair, const Tensor& tensor)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The piece for memory of our arena, whose segment the peer keeps open: with its file descriptor
  // if the peer does not have it yet.
  absl::StatusOr<CudaIpcPiece> KeptPiece(cuda::GpuArena& arena, const Buffer& buffer,
                                         const GpuPair& pair, std::vector<UniqueFd>& descriptors)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Records an event behind `ready`. RESOURCE_EXHAUSTED: all events, or all streams that could
  // wait, are in use.
  absl::StatusOr<cuda::EventTicket> Mark(Gpu& gpu, const GpuPair& pair,
                                         const cuda::ReadyEvent& ready) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<cuda::EventTicket> Record(const GpuPair& pair, cuda::Stream stream)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Releases an event that is no longer waited for.
  void Unmark(const GpuPair& pair, const cuda::EventTicket& ticket) ABSL_LOCKS_EXCLUDED(mu_);
  void UnmarkLocked(const GpuPair& pair, const cuda::EventTicket& ticket)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishWhenReady(Gpu& gpu, const GpuPair& pair, Pending pending) ABSL_LOCKS_EXCLUDED(mu_);
  // For tensors that are ready.
  void NextSlice(const StagedPtr& staged) ABSL_LOCKS_EXCLUDED(mu_);
  void FillSlot(const StagedPtr& staged, cuda::StagingRing::Slot slot) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CopyIntoSlot(const Staged& staged, Slice& slice);
  // Then continues with the next slice.
  void AnnounceSlice(const StagedPtr& staged, Slice slice) ABSL_LOCKS_EXCLUDED(mu_);
  void FailStaged(const StagedPtr& staged, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the probe of `pair` with that seed, if it is still pending.
  void Settle(const GpuPair& pair, uint32_t seed, std::string refusal) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnProbed(CudaIpcProbed probed) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnTaken(const CudaIpcTaken& taken) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnWanted(const CudaIpcWanted& wanted) ABSL_LOCKS_EXCLUDED(mu_);
  //   Errors: CANCELLED the peer has released it before it was sent; the status given to Abort.
  absl::Status CheckWanted(uint64_t id) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckWantedLocked(uint64_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const TransportEnvironment environment_;
  const Endpoint peer_;
  const std::shared_ptr<DeferredReleaseQueue> grace_;
  ControlMessageSender control_channel_;

  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<GpuPair, Pair> pairs_ ABSL_GUARDED_BY(mu_);
  // Ids between Expose and Release.
  absl::flat_hash_set<uint64_t> offering_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Offered> offered_ ABSL_GUARDED_BY(mu_);
  // By transfer and offset.
  std::map<std::pair<uint64_t, uint64_t>, Slice> slices_ ABSL_GUARDED_BY(mu_);
  // Segments of our arenas sent to a device of the peer, by its ordinal and buffer id; held, since
  // the peer has them mapped until the control channel closes.
  absl::flat_hash_map<std::pair<uint16_t, uint64_t>, std::shared_ptr<const cuda::HeldSegment>> sent_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SENDER_H_
