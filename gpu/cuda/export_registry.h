// SPDX-License-Identifier: Apache-2.0
// ExportRegistry: memory of the program that peers may keep mapped between transfers.
#ifndef FERRY_GPU_CUDA_EXPORT_REGISTRY_H_
#define FERRY_GPU_CUDA_EXPORT_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "gpu/cuda/cuda_device.h"
#include "tensor/tensor.h"

namespace ferry::cuda {

class RegisteredMemory;

// Lends registered memory to a peer.
class RegistrationListener {
 public:
  virtual ~RegistrationListener() = default;
  // The program wants the memory back: release the references to it soon. On any thread, with no
  // lock held.
  virtual void OnRetired(const RegisteredMemory& memory) = 0;
};

// A registered tensor, which keeps its allocation. Shared by those who lend it. Thread-safe.
class RegisteredMemory final {
 public:
  RegisteredMemory(Tensor tensor, std::vector<uint64_t> allocation_ids,
                   std::shared_ptr<absl::Notification> is_released);
  // Drops the tensor.
  ~RegisteredMemory();

  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  const std::vector<uint64_t>& allocation_ids() const { return allocation_ids_; }
  bool is_retired() const ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `listener` once when the memory is retired; not at all if it is already.
  void Listen(std::weak_ptr<RegistrationListener> listener) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class ExportRegistration;
  void Retire() const ABSL_LOCKS_EXCLUDED(mu_);

  Tensor tensor_;
  const std::vector<uint64_t> allocation_ids_;
  const std::shared_ptr<absl::Notification> is_released_;

  mutable absl::Mutex mu_;
  mutable bool is_retired_ ABSL_GUARDED_BY(mu_) = false;
  mutable std::vector<std::weak_ptr<RegistrationListener>> listeners_ ABSL_GUARDED_BY(mu_);
};

class ExportRegistry;

// Keeps memory registered while it exists. Thread-safe.
class ExportRegistration final {
 public:
  // Asks the peers to close the memory, and does not wait: the tensor is dropped when all have.
  ~ExportRegistration();

  ExportRegistration(const ExportRegistration&) = delete;
  ExportRegistration& operator=(const ExportRegistration&) = delete;

  // As the destructor, and blocks until the peers have closed what was lent to them, or their
  // control channels have ended and the grace period has passed. Transfers without a loan are not
  // waited for. Can be called again.
  //   Errors: DEADLINE_EXCEEDED: it must not be freed yet.
  absl::Status Release(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class ExportRegistry;
  ExportRegistration(std::shared_ptr<ExportRegistry> registry,
                     std::shared_ptr<const RegisteredMemory> memory,
                     std::shared_ptr<const absl::Notification> is_released, std::string what);
  void Retire() ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<ExportRegistry> registry_;
  const std::shared_ptr<const absl::Notification> is_released_;
  const std::string what_;
  absl::Mutex mu_;
  std::shared_ptr<const RegisteredMemory> memory_ ABSL_GUARDED_BY(mu_);
};

// Freeing memory that another process has mapped is undefined in CUDA, and a program frees its own
// when it likes. So a peer closes the program's memory before it acknowledges a transfer, unless
// the program has registered the allocation here. Thread-safe.
class ExportRegistry final : public std::enable_shared_from_this<ExportRegistry> {
 public:
  // Registers the allocation that holds the tensor; other tensors in it profit too.
  //   device: the memory's.
  //   Errors: FAILED_PRECONDITION with the reason if no other process can map memory of its kind;
  //   as Classify.
  absl::StatusOr<std::unique_ptr<ExportRegistration>> Register(const CudaDevice& device,
                                                               Tensor tensor)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Null: the allocation (IpcDescriptor::buffer_id) is not registered.
  std::shared_ptr<const RegisteredMemory> Find(uint64_t allocation_id) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class ExportRegistration;
  void Remove(const RegisteredMemory& memory) ABSL_LOCKS_EXCLUDED(mu_);

  mutable absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, std::vector<std::shared_ptr<const RegisteredMemory>>> by_id_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_EXPORT_REGISTRY_H_
