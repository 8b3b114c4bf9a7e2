// SPDX-License-Identifier: Apache-2.0
// CudaIpcSender: exposes memory of this process's GPUs to one other process on this machine.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SENDER_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SENDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"

#include "gpu/cuda/interprocess_events.h"
#include "gpu/gpus.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/cuda_ipc/cuda_ipc_prober.h"
#include "transport/cuda_ipc/cuda_ipc_remote_mappings.h"
#include "transport/cuda_ipc/cuda_ipc_segments.h"
#include "transport/cuda_ipc/cuda_ipc_slice_sender.h"
#include "transport/cuda_ipc/deferred_release_queue.h"
#include "transport/transport.h"

namespace ferry {

// The first Expose for each pair of devices sends a probe and waits, with those that follow, for
// the peer's reply. A tensor in memory that the peer can map is exposed in place; one in memory
// that no other process can map (pools that are not exportable, cuMemCreate without a handle type,
// managed memory), or that is not worth mapping, is sent through the device's StagingRing in
// slices. CUDA is called only on the source devices' executors. Thread-safe.
//
// This class decides how each tensor is exposed, and keeps those exposed in place. Parts with a
// task of their own:
//
//   CudaIpcProber       which pairs of devices work; their events
//   CudaIpcSegments     the arena segments that the peer keeps mapped
//   CudaIpcSliceSender  staged tensors
class CudaIpcSender final : public TransportSender,
                            public std::enable_shared_from_this<CudaIpcSender> {
 public:
  // environment.gpus is not null.
  CudaIpcSender(TransportEnvironment environment, const Endpoint& peer,
                std::shared_ptr<DeferredReleaseQueue> grace);
  ~CudaIpcSender() override;

  void SetControlChannel(ControlMessageSender channel) override;
  absl::Status OnControlMessage(absl::string_view body) override;
  void Expose(uint64_t id, const Tensor& tensor, const TensorLocation& to,
              ExposeCallback done) override ABSL_LOCKS_EXCLUDED(mu_);
  void Release(uint64_t id) override ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

  // As CudaIpcProber::Refusal.
  std::string Refusal(const GpuPair& pair) { return prober_->Refusal(pair); }

 private:
  struct Pending {
    uint64_t id = 0;
    Tensor tensor;
    ExposeCallback done;
  };
  // Memory that the peer may be reading, and the event that it waits for. A staged tensor is kept
  // by the copies out of it instead.
  struct Exposed {
    Tensor tensor;
    GpuPair pair;
    cuda::EventTicket ready;
    std::vector<CudaIpcPiece> pieces;
    // File descriptors of the transfer descriptor being sent.
    std::vector<UniqueFd> descriptors;
    // Keep registered memory, which the peer may leave mapped behind the transfer.
    std::vector<std::shared_ptr<const void>> remote_mappings;
  };
  using OfferedById = absl::flat_hash_map<uint64_t, Exposed>;
  // How a tensor is exposed; no pieces: it is staged, for the reason in `why_staged`.
  struct Plan {
    std::vector<CudaIpcPiece> pieces;
    std::vector<UniqueFd> descriptors;
    std::vector<std::shared_ptr<const void>> remote_mappings;
    std::string why_staged;
  };

  // Starts an Expose, or restarts it after a probe.
  void Begin(const GpuPair& pair, std::shared_ptr<Pending> pending);
  // The following run on the source device's executor.
  void ExposeOnDevice(Gpu& gpu, const GpuPair& pair, const std::shared_ptr<Pending>& pending);
  // `is_ready`: the tensor's bytes are known to be there.
  void Finish(Gpu& gpu, const GpuPair& pair, Pending pending, bool is_ready)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Plan> PlanFor(Gpu& gpu, const GpuPair& pair, const Tensor& tensor);
  // Records an event behind `ready`. RESOURCE_EXHAUSTED: all events, or all streams that could
  // wait, are in use.
  absl::StatusOr<cuda::EventTicket> Mark(Gpu& gpu, const GpuPair& pair,
                                         const cuda::ReadyEvent& ready);
  void FinishWhenReady(Gpu& gpu, const GpuPair& pair, Pending pending);
  // Calls `then` on the executor when the tensor's event has completed; or ends the Expose if that
  // fails, or if the request has been cancelled. The tensor has an event.
  void WhenReady(Gpu& gpu, const std::shared_ptr<Pending>& pending, std::function<void()> then);

  // On the source device's executor. `tensor` is ready.
  void Stage(Gpu& gpu, const GpuPair& pair, Pending pending, std::string why);

  absl::Status OnWanted(const CudaIpcWanted& wanted);
  // The peer cannot open the memory of a tensor, which is staged instead; others in the same memory
  // are, for a while, at once.
  void OnRefused(const CudaIpcRefused& refused) ABSL_LOCKS_EXCLUDED(mu_);
  // Why the peer could not open this memory lately; empty: it could, as far as known.
  std::string RefusalOf(const GpuPair& pair, const cuda::IpcDescriptor& memory)
      ABSL_LOCKS_EXCLUDED(mu_);
  //   Errors: CANCELLED the peer has released it before it was sent; the status given to Abort.
  absl::Status CheckWanted(uint64_t id) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckWantedLocked(uint64_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const TransportEnvironment environment_;
  const std::shared_ptr<DeferredReleaseQueue> grace_;
  // Shared with their callbacks.
  const std::shared_ptr<CudaIpcSegments> segments_;
  const std::shared_ptr<CudaIpcProber> prober_;
  const std::shared_ptr<CudaIpcSliceSender> slices_;
  const std::shared_ptr<CudaIpcRemoteMappings> remote_mappings_;
  // The peer handles memory that may stay open.
  const bool peer_may_keep_;
  // It also reports when it has closed registered memory, and its death is noticed.
  const bool peer_may_keep_registered_;
  ControlMessageSender control_channel_;

  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  // Ids between Expose and Release.
  absl::flat_hash_set<uint64_t> exposing_ ABSL_GUARDED_BY(mu_);
  OfferedById exposed_ ABSL_GUARDED_BY(mu_);
  // By the peer's device, and the pool, or the allocation.
  struct Refused {
    std::string why;
    absl::Time until;
  };
  absl::flat_hash_map<std::pair<uint16_t, uint64_t>, Refused> refused_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SENDER_H_
