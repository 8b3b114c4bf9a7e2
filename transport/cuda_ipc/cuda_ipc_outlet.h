// SPDX-License-Identifier: Apache-2.0
// CudaIpcOutlet: offers memory of this process's GPUs to one other process of this machine.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_OUTLET_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_OUTLET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "gpu/cuda/interprocess_events.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/transport.h"

namespace ferry {

// The first offer of each pair of devices sends a probe, and waits, with those that come meanwhile,
// for what the peer says of it. Device memory that no other process can map (of pools that are not
// exportable, of cuMemCreate without a handle type, managed) is copied into memory that can be.
// CUDA is called on the source devices' executors only. Thread-safe.
class CudaIpcOutlet final : public Outlet, public std::enable_shared_from_this<CudaIpcOutlet> {
 public:
  // environment.gpus is not null.
  CudaIpcOutlet(TransportEnvironment environment, Endpoint peer);
  ~CudaIpcOutlet() override;

  void SetAnnounce(Announce announce) override { announce_ = std::move(announce); }
  absl::Status OnReply(absl::string_view body) override ABSL_LOCKS_EXCLUDED(mu_);
  void Offer(uint64_t id, const Tensor& tensor, const MemoryPlace& to, OfferCallback done) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void Release(uint64_t id) override ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

  // Why the pair cannot, as its probe has shown; empty: it can, or it is not known yet.
  std::string Refusal(const GpuPair& pair) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Pending {
    uint64_t id = 0;
    Tensor tensor;
    OfferCallback done;
  };
  enum class Phase { kProbing, kOpen, kRefused };
  struct Pair {
    Phase phase = Phase::kProbing;
    std::string refusal;
    // Offers that wait for the probe.
    std::vector<Pending> pending;
    std::unique_ptr<cuda::InterprocessEventPool> events;
    // That the probe is about.
    std::shared_ptr<Buffer> memory;
  };
  // What the peer may be reading, and the record that it waits for.
  struct Offered {
    Tensor tensor;
    GpuPair pair;
    cuda::EventTicket ready;
    // Of the ticket that is being sent.
    std::vector<UniqueFd> descriptors;
    // A segment of an arena that the peer's device is told of, for the first time; 0: none.
    uint64_t new_segment = 0;
    std::shared_ptr<const void> hold;
  };

  // On the source device's executor, these.
  void OfferHere(Gpu& gpu, const GpuPair& pair, Pending pending) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status SendProbe(Gpu& gpu, const GpuPair& pair) ABSL_LOCKS_EXCLUDED(mu_);
  // `is_ready`: the tensor's bytes are known to be there.
  void Finish(Gpu& gpu, const GpuPair& pair, Pending pending, bool is_ready)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The tensor itself, or a copy of it in memory that can be mapped.
  absl::StatusOr<std::vector<CudaIpcPiece>> PiecesOf(Gpu& gpu, const GpuPair& pair,
                                                     Offered& offered) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Tensor> CopyToArena(Gpu& gpu, const Tensor& tensor);
  // A record behind the tensor's own. RESOURCE_EXHAUSTED: all are out.
  absl::StatusOr<cuda::EventTicket> Mark(Gpu& gpu, const GpuPair& pair, const Tensor& tensor)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the probe of `pair`, unless it has ended.
  void Settle(const GpuPair& pair, std::string refusal) ABSL_LOCKS_EXCLUDED(mu_);

  const TransportEnvironment environment_;
  const Endpoint peer_;
  Announce announce_;

  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<GpuPair, Pair> pairs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Offered> offered_ ABSL_GUARDED_BY(mu_);
  // Segments of our arenas that a device of the peer has been told of, by its ordinal and buffer
  // id; held, since it has them mapped until the lane ends.
  absl::flat_hash_map<std::pair<uint16_t, uint64_t>, std::shared_ptr<const void>> sent_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_OUTLET_H_
