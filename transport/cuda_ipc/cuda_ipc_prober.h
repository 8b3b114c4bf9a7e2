// SPDX-License-Identifier: Apache-2.0
// CudaIpcProber: which pairs of devices work between this process and one peer.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_PROBER_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_PROBER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "gpu/cuda/interprocess_events.h"
#include "gpu/gpus.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/cuda_ipc/cuda_ipc_segments.h"
#include "transport/cuda_ipc/deferred_release_queue.h"
#include "transport/cuda_ipc/peer_lifeline.h"
#include "transport/transport.h"

namespace ferry {

// The sender's part of a probe (CudaIpcProbeResponder has the receiver's): sends memory with known
// bytes and the pair's events before the first tensor, and again after a refusal, with back-off. A
// pair that has passed uses those events to tell the peer when tensors are ready. CUDA is called on
// the source devices' executors. Thread-safe. Owned by the sender, and by probes under way.
class CudaIpcProber final : public std::enable_shared_from_this<CudaIpcProber> {
 public:
  using OpenCallback = absl::AnyInvocable<void(const absl::Status&) &&>;

  //   environment.gpus is not null.
  CudaIpcProber(const TransportEnvironment& environment, Endpoint peer,
                std::shared_ptr<CudaIpcSegments> segments);

  CudaIpcProber(const CudaIpcProber&) = delete;
  CudaIpcProber& operator=(const CudaIpcProber&) = delete;

  // Call before the first AwaitOpen.
  void SetControlChannel(ControlMessageSender channel) { control_channel_ = std::move(channel); }

  // Returns whether the pair has passed its probe, and Abort was not called.
  bool IsOpen(const GpuPair& pair) const ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `done` when the first probe of the pair has ended, and sends that if it was not sent yet:
  // inline if it has ended, else on any thread. On the source device's executor.
  //   Errors, through `done`: FAILED_PRECONDITION: the pair does not work, and why; the status
  //   given to Abort.
  void AwaitOpen(Gpu& gpu, const GpuPair& pair, OpenCallback done) ABSL_LOCKS_EXCLUDED(mu_);
  // Why the pair does not work; empty: it works, or that is unknown. After a back-off that doubles
  // with each failure, calling this probes the pair again.
  std::string Refusal(const GpuPair& pair) ABSL_LOCKS_EXCLUDED(mu_);

  // Records one of the pair's events. On the source device's executor.
  //   Errors: RESOURCE_EXHAUSTED: the pair has no events, or all are in use; INTERNAL; the status
  //   given to Abort.
  absl::StatusOr<cuda::EventTicket> Record(const GpuPair& pair, cuda::Stream stream)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The peer no longer waits for the event. Sequence 0: there is none.
  void ReleaseEvent(const GpuPair& pair, const cuda::EventTicket& ticket) ABSL_LOCKS_EXCLUDED(mu_);

  // The peer has replied.
  //   Errors: INVALID_ARGUMENT: it was not asked.
  absl::Status OnProbed(CudaIpcProbed probed) ABSL_LOCKS_EXCLUDED(mu_);
  // The control channel has ended: `grace` keeps the events and memory for as long as the peer may
  // need. Pending calls of AwaitOpen end with `why`.
  void Abort(const absl::Status& why, DeferredReleaseQueue& grace) ABSL_LOCKS_EXCLUDED(mu_);
  // After Abort: those that were sent with probes. Each of them ends when the peer has closed what
  // it was told of over this control channel, or has died.
  std::vector<PeerLifeline> TakeLifelines() ABSL_LOCKS_EXCLUDED(mu_);

 private:
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
    std::vector<OpenCallback> waiting;
    // Null or not usable: this device or the peer has no interprocess events.
    std::unique_ptr<cuda::InterprocessEventPool> events;
    bool has_events = false;
    // From probes that were never answered: the peer may have them open.
    std::vector<std::unique_ptr<cuda::InterprocessEventPool>> retired;
    // The memory probed. The peer keeps it open if the probe succeeds.
    std::shared_ptr<Buffer> memory;
    std::shared_ptr<const cuda::HeldSegment> segment;
  };

  // On the source device's executor.
  void Probe(Gpu& gpu, const GpuPair& pair) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status SendProbe(Gpu& gpu, const GpuPair& pair, uint32_t seed) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the probe of `pair` with that seed, if it is still pending.
  void Settle(const GpuPair& pair, uint32_t seed, std::string refusal) ABSL_LOCKS_EXCLUDED(mu_);

  const TransportEnvironment environment_;
  const Endpoint peer_;
  const std::shared_ptr<CudaIpcSegments> segments_;
  ControlMessageSender control_channel_;

  // Before CudaIpcSegments' lock.
  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<GpuPair, Pair> pairs_ ABSL_GUARDED_BY(mu_);
  std::vector<PeerLifeline> lifelines_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_PROBER_H_
