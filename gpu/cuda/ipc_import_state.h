// SPDX-License-Identifier: Apache-2.0
// State of an IpcImportCache, shared with its leases and with the jobs of its side executor.
#ifndef FERRY_GPU_CUDA_IPC_IMPORT_STATE_H_
#define FERRY_GPU_CUDA_IPC_IMPORT_STATE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "gpu/cuda/imported_pools.h"
#include "gpu/cuda/ipc_import_cache.h"
#include "gpu/cuda/ipc_mapping.h"

namespace ferry::cuda {

struct IpcImportCache::Entry {
  ImportKey key;
  uint64_t remote_base = 0;
  Uuid device = {};
  std::unique_ptr<IpcMapping> mapping;
  int users = 0;
  uint64_t last_use = 0;
  absl::Time unused_since;  // if users is 0
  // Released once it is closed.
  std::vector<std::shared_ptr<const void>> keep_until_closed;
  // Its peer has died, or newer memory is at its address: closed when unused.
  bool is_doomed = false;

  void Keep(const std::shared_ptr<const void>& keep) {
    if (keep == nullptr) return;
    if (std::find(keep_until_closed.begin(), keep_until_closed.end(), keep) ==
        keep_until_closed.end()) {
      keep_until_closed.push_back(keep);
    }
  }
  bool Overlaps(const IpcDescriptor& descriptor) const {
    return std::equal(std::begin(device.bytes), std::end(device.bytes),
                      std::begin(descriptor.device.bytes)) &&
           remote_base < descriptor.base + descriptor.allocation_bytes &&
           descriptor.base < remote_base + mapping->bytes();
  }
};

// One open in progress, and its waiters.
struct IpcImportCache::Job {
  ImportKey key;
  IpcDescriptor descriptor;
  UniqueFd fd;
  absl::Time deadline;
  // Guarded by the state's mutex.
  std::vector<OpenCallback> waiting;
  bool is_peer_gone = false;
  // Passed on to the entry.
  std::vector<std::shared_ptr<const void>> keep;
  // The file descriptor of a later request, in case the first one has none.
  UniqueFd later_fd;
};

struct IpcImportCache::State : std::enable_shared_from_this<IpcImportCache::State> {
  using EntryPtr = std::shared_ptr<Entry>;
  using JobPtr = std::shared_ptr<Job>;

  State(DeviceExecutor& executor, std::shared_ptr<SyncGate> sync_gate, IpcImportCacheOptions given)
      : device(executor.device()), gate(std::move(sync_gate)), options(given), side(&executor) {}

  absl::Time Now() const {
    return options.clock == nullptr ? SteadyClock().Now() : options.clock->Now();
  }

  // Returns a lease on an entry that is in the table or doomed.
  ImportedMemory Use(const EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void LetGo(const EntryPtr& entry) ABSL_LOCKS_EXCLUDED(mu);
  // Removes unused entries from the table until `wanted` more bytes fit under the cap.
  void MakeRoom(size_t wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void StartClosing() ABSL_LOCKS_EXCLUDED(mu);
  void Remove(const EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Runs on the side executor's thread.
  void Open(const JobPtr& job) ABSL_LOCKS_EXCLUDED(mu);
  // Opens, after closing conflicting mappings; the gate must be quiet.
  absl::StatusOr<std::unique_ptr<IpcMapping>> TryOpen(Job& job, std::vector<EntryPtr>& closed)
      ABSL_LOCKS_EXCLUDED(mu);
  void Finish(const JobPtr& job, absl::StatusOr<std::unique_ptr<IpcMapping>> mapping)
      ABSL_LOCKS_EXCLUDED(mu);
  void CloseSome() ABSL_LOCKS_EXCLUDED(mu);
  // Unmaps; the gate must be quiet. Returns the closed entries, for TellClosed.
  std::vector<EntryPtr> CloseNow() ABSL_LOCKS_EXCLUDED(mu);
  // Outside the gate.
  static void TellClosed(const std::vector<EntryPtr>& closed);
  bool is_nobody_closing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return closer_count == 0; }

  // Constant after construction.
  const std::shared_ptr<CudaDevice> device;
  const std::shared_ptr<SyncGate> gate;
  const IpcImportCacheOptions options;

  // Pools of the peers; used inside the gate only.
  ImportedPools pools;

  // Acquired before DeviceExecutor::mu_.
  mutable absl::Mutex mu;
  // Null once the cache has been destroyed.
  DeviceExecutor* side ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<ImportKey, EntryPtr> entries ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<ImportKey, JobPtr> opening ABSL_GUARDED_BY(mu);
  // No longer in `entries`, and not closed yet; those of `closing` are unused.
  std::vector<EntryPtr> removed ABSL_GUARDED_BY(mu);
  std::vector<EntryPtr> closing ABSL_GUARDED_BY(mu);
  bool is_close_posted ABSL_GUARDED_BY(mu) = false;
  // Threads that are closing entries taken from `closing`.
  int closer_count ABSL_GUARDED_BY(mu) = 0;
  uint64_t uses ABSL_GUARDED_BY(mu) = 0;
  IpcImportCacheStats stats ABSL_GUARDED_BY(mu);
};

// Shared by an ImportedMemory and its copies.
class IpcImportCache::Lease final {
 public:
  Lease(std::shared_ptr<State> state, State::EntryPtr entry)
      : state_(std::move(state)), entry_(std::move(entry)) {}
  ~Lease() { state_->LetGo(entry_); }

  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  const std::shared_ptr<State> state_;
  const State::EntryPtr entry_;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_IPC_IMPORT_STATE_H_
