// SPDX-License-Identifier: Apache-2.0
// CudaIpcRemoteMappings: registered memory of the program that one peer may have mapped.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_REMOTE_MAPPINGS_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_REMOTE_MAPPINGS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "gpu/cuda/export_registry.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/transport.h"

namespace ferry {

// Registered memory that the peer may have mapped is held until the peer reports that it has closed
// it (kReclaimed) or, if the control channel ends before, until the peer has closed everything of
// this process, or has died (PeerLifeline). The peer is asked to close it (kReclaim) when the
// program has unregistered it and no transfer of it is under way. Thread-safe. Owned by the sender,
// and by transfers under way.
class CudaIpcRemoteMappings final : public cuda::RegistrationListener,
                                    public std::enable_shared_from_this<CudaIpcRemoteMappings> {
 public:
  //   peer: its name, for errors.
  CudaIpcRemoteMappings(std::shared_ptr<const cuda::ExportRegistry> registry, std::string peer)
      : registry_(std::move(registry)), peer_(std::move(peer)) {}

  CudaIpcRemoteMappings(const CudaIpcRemoteMappings&) = delete;
  CudaIpcRemoteMappings& operator=(const CudaIpcRemoteMappings&) = delete;

  // Call before the first Acquire.
  void SetControlChannel(ControlMessageSender channel) { control_channel_ = std::move(channel); }

  // Counts a transfer of the allocation, which keeps the result until the peer has released it. The
  // peer may leave the memory mapped behind the transfer. Null: it may not, as the
  // allocation is not registered, or is being reclaimed.
  std::shared_ptr<const void> Acquire(const GpuPair& pair, uint64_t allocation_id)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The peer has closed it.
  //   Errors: INVALID_ARGUMENT it had not been asked to.
  absl::Status OnReclaimed(const CudaIpcReclaim& reclaimed) ABSL_LOCKS_EXCLUDED(mu_);
  // The control channel has ended. Returns references to what the peer may still have mapped.
  std::vector<std::shared_ptr<const void>> Abort() ABSL_LOCKS_EXCLUDED(mu_);

  void OnRetired(const cuda::RegisteredMemory& memory) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The peer's device, and the allocation.
  using Key = std::pair<uint16_t, uint64_t>;
  struct Mapping {
    GpuPair pair;
    std::shared_ptr<const cuda::RegisteredMemory> memory;
    // The reference that is named in errors.
    std::shared_ptr<const void> held;
    int transfers = 0;           // under way
    bool is_reclaiming = false;  // the peer has been asked to close it
  };

  void EndTransfer(const Key& key) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns true, and marks it, if the peer must be asked to close it: its memory is retired, and
  // no transfer is under way.
  static bool MustReclaim(Mapping& mapping);
  void SendReclaim(const std::vector<CudaIpcReclaim>& to_reclaim) ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<const cuda::ExportRegistry> registry_;
  const std::string peer_;
  ControlMessageSender control_channel_;

  absl::Mutex mu_;
  bool is_aborted_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<Key, Mapping> mappings_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_REMOTE_MAPPINGS_H_
