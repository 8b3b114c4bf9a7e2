// SPDX-License-Identifier: Apache-2.0
// ImportedPools: memory pools of other processes, each imported once while it is in use.
#ifndef FERRY_GPU_CUDA_IMPORTED_POOLS_H_
#define FERRY_GPU_CUDA_IMPORTED_POOLS_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

#include "base/unique_fd.h"
#include "gpu/cuda/cuda_device.h"

namespace ferry::cuda {

// Shared by the mappings of its allocations. Destroying the last reference may synchronize the
// device.
class ImportedPool final {
 public:
  ImportedPool(std::shared_ptr<CudaDevice> device, MemoryPool pool)
      : device_(std::move(device)), pool_(pool) {}
  ~ImportedPool();

  ImportedPool(const ImportedPool&) = delete;
  ImportedPool& operator=(const ImportedPool&) = delete;

  MemoryPool get() const { return pool_; }

 private:
  const std::shared_ptr<CudaDevice> device_;
  const MemoryPool pool_;
};

// No documentation says whether a process may import a pool that it has imported already: so it
// does only if the driver refuses an allocation in the one that it has. Of one device. Not
// thread-safe.
class ImportedPools final {
 public:
  // Returns the pool if it is imported, or imports it, readable and writable by `device`.
  //   peer: the incarnation of its process.
  //   pool_id: as IpcDescriptor::pool_id; 0: it is imported anew.
  //   fd: the pool's.
  //   Errors: FAILED_PRECONDITION if this device has no pools; as CheckWithDescriptors.
  absl::StatusOr<std::shared_ptr<const ImportedPool>> Import(std::shared_ptr<CudaDevice> device,
                                                             uint64_t peer, uint64_t pool_id,
                                                             const UniqueFd& fd);
  // The next Import of it imports anew: the peer may have destroyed the pool, and its driver may
  // have given the same handle to another.
  void Forget(uint64_t peer, uint64_t pool_id) { pools_.erase({peer, pool_id}); }

 private:
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, std::weak_ptr<const ImportedPool>> pools_;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_IMPORTED_POOLS_H_
