// SPDX-License-Identifier: Apache-2.0
// CudaIpcLoans: registered memory of the program that one peer may have mapped.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_LOANS_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_LOANS_H_

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

// Registered memory that was lent to the peer is held until the peer has said that it has closed it
// (kReclaimed), or, if the control channel ends before, until the peer has closed everything of
// this process, or has died (PeerLifeline). It is asked for (kReclaim) when the program has
// unregistered it and no transfer of it is under way. Thread-safe. Owned by the sender, and by
// transfers under way.
class CudaIpcLoans final : public cuda::RegistrationListener,
                           public std::enable_shared_from_this<CudaIpcLoans> {
 public:
  //   peer: its name, for errors.
  CudaIpcLoans(std::shared_ptr<const cuda::ExportRegistry> registry, std::string peer)
      : registry_(std::move(registry)), peer_(std::move(peer)) {}

  CudaIpcLoans(const CudaIpcLoans&) = delete;
  CudaIpcLoans& operator=(const CudaIpcLoans&) = delete;

  // Call before the first Lend.
  void SetControlChannel(ControlMessageSender channel) { control_channel_ = std::move(channel); }

  // Lends an allocation to a transfer, which keeps the result until the peer has released it. Null:
  // the allocation is not registered, and must be closed before that.
  std::shared_ptr<const void> Lend(const GpuPair& pair, uint64_t buffer_id)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The peer has closed it.
  //   Errors: INVALID_ARGUMENT it was not asked to.
  absl::Status OnReclaimed(const CudaIpcReclaim& reclaimed) ABSL_LOCKS_EXCLUDED(mu_);
  // The control channel has ended. Returns references to what the peer may still have mapped.
  std::vector<std::shared_ptr<const void>> Abort() ABSL_LOCKS_EXCLUDED(mu_);

  void OnRetired(const cuda::RegisteredMemory& memory) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The peer's device, and the allocation.
  using Key = std::pair<uint16_t, uint64_t>;
  struct Loan {
    GpuPair pair;
    std::shared_ptr<const cuda::RegisteredMemory> memory;
    // The reference that is named in errors.
    std::shared_ptr<const void> held;
    int transfers = 0;  // under way
    bool is_asked_for = false;
  };

  void EndTransfer(const Key& key) ABSL_LOCKS_EXCLUDED(mu_);
  // Marks it as asked for if it must be: its memory is retired, and no transfer is under way.
  static bool MustAskFor(Loan& loan);
  void AskFor(const std::vector<CudaIpcReclaim>& loans) ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<const cuda::ExportRegistry> registry_;
  const std::string peer_;
  ControlMessageSender control_channel_;

  absl::Mutex mu_;
  bool is_aborted_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<Key, Loan> loans_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_LOANS_H_
