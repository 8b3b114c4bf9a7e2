// SPDX-License-Identifier: Apache-2.0
// CudaIpcTransport: maps GPU memory between processes of one machine instead of sending it.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_TRANSPORT_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_TRANSPORT_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "gpu/cuda/ipc_import_cache.h"
#include "transport/cuda_ipc/cuda_ipc_receiver.h"
#include "transport/cuda_ipc/cuda_ipc_sender.h"
#include "transport/transport.h"

namespace ferry {

// The producer exports the memory that holds the tensor; the consumer maps it once, and either uses
// it in place (on the same GPU) or copies it with its copy engine. Memory that no other process can
// map is staged through a few slots that can be mapped. Thread-safe.
class CudaIpcTransport final : public Transport {
 public:
  static constexpr TransportInfo kInfo = {
      .name = kCudaIpcName,
      .summary = "GPU memory of processes of one machine, mapped",
      .capabilities = {.moves_gpu_memory = true, .fd_optional = true, .shares_memory = true}};

  explicit CudaIpcTransport(TransportEnvironment environment);
  ~CudaIpcTransport() override;

  absl::StatusOr<PathCost> Cost(const PathQuery& query) const override ABSL_LOCKS_EXCLUDED(mu_);
  std::string local_descriptor() const override { return EncodeCudaIpcPeer(); }
  std::shared_ptr<TransportSender> CreateSender(const Endpoint& peer) override
      ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint& peer,
                                                    ReleaseCallback release) override;

 private:
  cuda::IpcImportCache& CacheOf(Gpu& gpu) ABSL_LOCKS_EXCLUDED(mu_);
  void ClosePeer(uint64_t incarnation) ABSL_LOCKS_EXCLUDED(mu_);
  // Closes idle mappings, now and again later, until this is destroyed.
  void CloseIdle() ABSL_LOCKS_EXCLUDED(mu_);

  const TransportEnvironment environment_;
  // Shared with senders; stopped with this.
  const std::shared_ptr<DeferredReleaseQueue> grace_;
  const std::shared_ptr<GpuLink> link_ = std::make_shared<GpuLink>();
  mutable absl::Mutex mu_;
  // By node and incarnation.
  absl::flat_hash_map<std::pair<int32_t, uint64_t>, std::weak_ptr<CudaIpcSender>> senders_
      ABSL_GUARDED_BY(mu_);
  // By incarnation of the peer.
  absl::flat_hash_map<uint64_t, std::weak_ptr<CudaIpcReceiver>> receivers_ ABSL_GUARDED_BY(mu_);
  bool is_closing_idle_ ABSL_GUARDED_BY(mu_) = false;
  // By ordinal of the local device.
  absl::flat_hash_map<int, std::unique_ptr<cuda::IpcImportCache>> caches_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_TRANSPORT_H_
