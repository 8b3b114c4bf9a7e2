// SPDX-License-Identifier: Apache-2.0
// CudaIpcReceiver: fetches tensors from the GPU memory of one other process on this machine.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_RECEIVER_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_RECEIVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "gpu/gpus.h"
#include "transport/cuda_ipc/cuda_ipc_fetches.h"
#include "transport/cuda_ipc/cuda_ipc_mappings.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/cuda_ipc/cuda_ipc_probe_responder.h"
#include "transport/cuda_ipc/cuda_ipc_slice_receiver.h"
#include "transport/transport.h"

namespace ferry {

// A tensor on the same GPU becomes a view of the producer's memory; one on another GPU, or for a
// destination, is copied by this process's copy engine; a staged one is assembled from slices. Each
// is delivered with the event after which it may be read, and before that has completed: no thread
// waits for a device. CUDA is called only on the destination devices' executors. Thread-safe.
//
// This class fetches tensors in memory that can be mapped, and passes the peer's messages to the
// parts that have a task of their own:
//
//   CudaIpcFetches         what is being fetched, and which thread ends it
//   CudaIpcMappings        how long the peer's allocations stay open
//   CudaIpcProbeResponder  answers probes; keeps the peer's events
//   CudaIpcSliceReceiver   staged tensors
class CudaIpcReceiver final : public TransportReceiver,
                              public std::enable_shared_from_this<CudaIpcReceiver> {
 public:
  // environment.gpus is not null. The callbacks are valid while link->gpus is not null.
  CudaIpcReceiver(TransportEnvironment environment, Endpoint peer,
                  CudaIpcMappings::CacheOf cache_of, CudaIpcMappings::ClosePeer close_peer,
                  std::shared_ptr<GpuLink> link, ReleaseCallback release);
  ~CudaIpcReceiver() override;

  void SetControlChannel(ControlMessageSender channel) override;
  // A probe without its descriptor is refused, not an error.
  absl::Status OnControlMessage(absl::string_view body, absl::Span<UniqueFd> descriptors) override;
  void Fetch(uint64_t id, const TensorHeader& header, absl::string_view body,
             absl::Span<UniqueFd> descriptors, const Tensor& destination,
             FetchCallback done) override;
  void Cancel(uint64_t id) override;
  void Discard(uint64_t id, const TensorHeader& header, absl::string_view body,
               absl::Span<UniqueFd> descriptors) override;
  void Abort(const absl::Status& why) override;

  absl::string_view PathOf(const TensorHeader& header, absl::string_view body,
                           const Tensor& destination) const override;

  // Human-readable: the path of the last tensor fetched between the pair, and why. Empty: none yet.
  std::string LastOf(const GpuPair& pair) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using FetchPtr = std::shared_ptr<CudaIpcFetch>;

  absl::Status OnSlice(const CudaIpcSlice& slice, absl::Span<UniqueFd> descriptors);
  absl::Status OnFailed(const CudaIpcFailed& failed);

  // Opens the pieces one after the other, then delivers.
  void OpenNext(const FetchPtr& fetch);
  // The next piece cannot be opened: requests the tensor in slices if it can, or ends the fetch.
  void OnCannotOpen(const FetchPtr& fetch, const absl::Status& why);

  // The following run on the destination device's executor.
  void Deliver(const FetchPtr& fetch);
  absl::StatusOr<Tensor> View(CudaIpcFetch& fetch, std::shared_ptr<const cuda::ReadyEvent> ready);
  // `to_wait_for`: the transfer descriptor's events, waited for before the copy; null: it is ready.
  absl::StatusOr<Tensor> Copy(CudaIpcFetch& fetch, cuda::Stream stream,
                              cuda::ImportedEvents* to_wait_for);

  // For a tensor that is not staged.
  void End(const FetchPtr& fetch, absl::StatusOr<Tensor> tensor);
  void EndStaged(const CudaIpcFetch& fetch, absl::StatusOr<Tensor> tensor);
  // The memory is no longer read here: closes what must be closed, then notifies the producer.
  void ReleaseHeld(Gpu& gpu, CudaIpcMappings::Held held, uint64_t id);
  // Sets what LastOf returns.
  void Note(const CudaIpcFetch& fetch, absl::string_view what) ABSL_LOCKS_EXCLUDED(mu_);

  const TransportEnvironment environment_;
  const Endpoint peer_;
  // The peer handles memory that may stay open, and refusals.
  const bool peer_may_keep_;
  const std::shared_ptr<GpuLink> link_;
  const ReleaseCallback release_;
  // Shared with their callbacks.
  const std::shared_ptr<CudaIpcFetches> fetches_;
  const std::shared_ptr<CudaIpcMappings> mappings_;
  const std::shared_ptr<CudaIpcProbeResponder> probes_;
  const std::shared_ptr<CudaIpcSliceReceiver> slices_;
  ControlMessageSender control_channel_;

  mutable absl::Mutex mu_;
  absl::flat_hash_map<GpuPair, std::string> last_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_RECEIVER_H_
