// SPDX-License-Identifier: Apache-2.0
// ExportRegistry: memory of the program that peers may keep mapped between transfers.
#ifndef FERRY_GPU_CUDA_EXPORT_REGISTRY_H_
#define FERRY_GPU_CUDA_EXPORT_REGISTRY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/registered_memory.h"
#include "tensor/tensor.h"

namespace ferry::cuda {

class ExportRegistry;

// Keeps memory registered while it exists. Thread-safe.
class ExportRegistration final {
 public:
  // Asks the peers to close the memory, and does not wait: the tensor is dropped when all have, and
  // no transfer uses the memory.
  ~ExportRegistration();

  ExportRegistration(const ExportRegistration&) = delete;
  ExportRegistration& operator=(const ExportRegistration&) = delete;

  // As the destructor, and blocks until then, and until the same is true of all registrations of
  // the same allocations that have ended before. Can be called again.
  //   Errors: DEADLINE_EXCEEDED naming those who use it: it must not be freed yet.
  absl::Status Release(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class ExportRegistry;
  ExportRegistration(std::shared_ptr<ExportRegistry> registry,
                     std::shared_ptr<const RegisteredMemory> memory, std::string what);
  void Retire() ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<ExportRegistry> registry_;
  const std::shared_ptr<const MemoryHolders> holders_;
  const std::vector<uint64_t> allocation_ids_;
  const std::string what_;
  absl::Mutex mu_;
  std::shared_ptr<const RegisteredMemory> memory_ ABSL_GUARDED_BY(mu_);
};

// Freeing memory that another process has mapped is undefined in CUDA, and a program frees its own
// when it likes. So a peer closes the program's memory before it acknowledges a transfer, unless
// the program has registered the allocation here. And whatever uses registered memory holds it, by
// whichever path it is sent, so that the end of a registration can wait for that. Memory is found
// here until nothing holds it. Thread-safe.
class ExportRegistry final : public std::enable_shared_from_this<ExportRegistry> {
 public:
  // Registers the allocation that holds the tensor; that covers the other tensors in it.
  //   device: the memory's.
  //   Errors: FAILED_PRECONDITION with the reason if no other process can map memory of its kind;
  //   as Classify.
  absl::StatusOr<std::unique_ptr<ExportRegistration>> Register(const CudaDevice& device,
                                                               Tensor tensor)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The newest registration of the allocation (IpcDescriptor::allocation_id), unless the program
  // wants it back. Null: there is none.
  std::shared_ptr<const RegisteredMemory> Find(uint64_t allocation_id) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns true if the allocation is registered, or was and is still in use.
  bool IsKnown(uint64_t allocation_id) const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns a tensor with the same elements in the same memory, which holds what is registered of
  // it, also if the program wants it back. The tensor itself if nothing is, and for memory of
  // Ferry's own, which is not freed while a tensor has it. Calls no driver.
  //   holder: the name of who holds it.
  Tensor Hold(Tensor tensor, absl::FunctionRef<std::string()> holder) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class ExportRegistration;
  struct Piece {
    size_t bytes = 0;
    const RegisteredMemory* identity = nullptr;
    std::weak_ptr<const RegisteredMemory> memory;
  };

  struct Registered {
    const RegisteredMemory* identity = nullptr;
    std::weak_ptr<const RegisteredMemory> memory;
    std::shared_ptr<const MemoryHolders> holders;
  };

  bool is_empty() const { return count_.load(std::memory_order_acquire) == 0; }
  // Those of the allocation, in the order of their registration.
  std::vector<std::shared_ptr<const RegisteredMemory>> AllOf(uint64_t allocation_id) const
      ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(const RegisteredMemory& memory) ABSL_LOCKS_EXCLUDED(mu_);
  // Those of registrations of these allocations that have ended.
  std::vector<std::shared_ptr<const MemoryHolders>> HoldersOfRetired(
      const std::vector<uint64_t>& allocation_ids) const ABSL_LOCKS_EXCLUDED(mu_);

  // Most programs register nothing.
  std::atomic<size_t> count_{0};
  mutable absl::Mutex mu_;
  // By the address of the allocation; those of one address in the order of their registration.
  std::multimap<uintptr_t, Piece> pieces_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::vector<Registered>> by_id_ ABSL_GUARDED_BY(mu_);
  // By allocation: those that are in neither of the above, and whose tensors may not be dropped
  // yet.
  std::multimap<uint64_t, std::shared_ptr<const MemoryHolders>> ending_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_EXPORT_REGISTRY_H_
