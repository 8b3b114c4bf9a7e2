// SPDX-License-Identifier: Apache-2.0
// RegisteredMemory: an allocation of the program, which is used while someone holds it.
#ifndef FERRY_GPU_CUDA_REGISTERED_MEMORY_H_
#define FERRY_GPU_CUDA_REGISTERED_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

#include "gpu/cuda/memory_holders.h"
#include "tensor/tensor.h"

namespace ferry::cuda {

class RegisteredMemory;

// Exposes registered memory to a peer, which may have it mapped.
class RegistrationListener {
 public:
  virtual ~RegistrationListener() = default;
  // The program wants the memory back: release the references to it soon. On any thread, with no
  // lock held.
  virtual void OnRetired(const RegisteredMemory& memory) = 0;
};

// A registered tensor, which keeps its allocation. Shared by the registration and all who use the
// memory: tensors that are sent or received, and mappings by peers. Thread-safe.
class RegisteredMemory final : public std::enable_shared_from_this<RegisteredMemory> {
 public:
  //   forget: called when the last reference has been released, before the tensor is dropped.
  RegisteredMemory(Tensor tensor, std::vector<uint64_t> allocation_ids,
                   std::shared_ptr<MemoryHolders> holders,
                   absl::AnyInvocable<void(const RegisteredMemory&)> forget);
  // Drops the tensor, and then ends the holders.
  ~RegisteredMemory();

  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  const std::vector<uint64_t>& allocation_ids() const { return allocation_ids_; }
  const std::shared_ptr<MemoryHolders>& holders() const { return holders_; }

  // Keeps the memory while the result exists.
  //   holder: see MemoryHolders::Add.
  std::shared_ptr<const void> Hold(std::string holder) const;

  bool is_retired() const ABSL_LOCKS_EXCLUDED(mu_);
  // The program wants it back. Called once.
  void Retire() const ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `listener` once when the memory is retired; not at all if it is already. One that listens
  // is not added again.
  void Listen(const std::weak_ptr<RegistrationListener>& listener) const ABSL_LOCKS_EXCLUDED(mu_);
  // For tests: those that listen, and still exist or have not been dropped yet.
  size_t listener_count() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Tensor tensor_;
  const std::vector<uint64_t> allocation_ids_;
  const std::shared_ptr<MemoryHolders> holders_;
  absl::AnyInvocable<void(const RegisteredMemory&)> forget_;

  mutable absl::Mutex mu_;
  mutable bool is_retired_ ABSL_GUARDED_BY(mu_) = false;
  mutable std::vector<std::weak_ptr<RegistrationListener>> listeners_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_REGISTERED_MEMORY_H_
