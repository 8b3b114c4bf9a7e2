// SPDX-License-Identifier: Apache-2.0
// IpcImportCache: other processes' device memory, mapped once and kept for the next use.
#ifndef FERRY_GPU_CUDA_IPC_IMPORT_CACHE_H_
#define FERRY_GPU_CUDA_IPC_IMPORT_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/unique_fd.h"
#include "gpu/cuda/device_executor.h"
#include "gpu/cuda/ipc_descriptor.h"
#include "gpu/cuda/sync_gate.h"

namespace ferry::cuda {

// An allocation of one incarnation of a process. Addresses are reused, these are not.
struct ImportKey {
  uint64_t peer_incarnation = 0;
  uint64_t allocation_id = 0;

  bool operator==(const ImportKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H state, const ImportKey& key) {
    return H::combine(std::move(state), key.peer_incarnation, key.allocation_id);
  }
};

struct IpcImportCacheOptions {
  // This process's incarnation: its own memory cannot be opened, and need not be.
  uint64_t own_incarnation = 0;
  // Limit on the bytes of other processes that are mapped; above it, unused mappings are closed,
  // least recently used first. Mappings in use are never closed: then opening more fails.
  size_t cap_bytes = size_t{64} << 30;
  // How long a mapping stays open without a user. Zero: it is closed by its last user.
  absl::Duration idle_timeout = absl::InfiniteDuration();
  // Null: SteadyClock(). Outlives the cache and its leases.
  const Clock* clock = nullptr;
  // Maximum time for which one attempt waits for NCCL work to end before other requests get their
  // turn.
  absl::Duration timeout = absl::Milliseconds(100);
};

struct IpcImportCacheStats {
  size_t mapped_bytes = 0;
  int mapping_count = 0;  // open, used or not
  int used_count = 0;     // of those, used
  int closing_count = 0;  // of those, being closed
  int64_t opened = 0;     // ever
  int64_t found = 0;      // times that a mapping was open already
  int64_t closed = 0;     // ever
};

// A mapped allocation, kept mapped while this or a copy of it exists. Cheap to copy. May be
// released on any thread: the mapping is closed elsewhere.
class ImportedMemory final {
 public:
  DevicePointer base() const { return base_; }  // of the allocation's first byte
  size_t bytes() const { return bytes_; }       // of the allocation
  // The reference that keeps the mapping, for owners that keep references of several kinds.
  const std::shared_ptr<const void>& lease() const { return lease_; }

 private:
  friend class IpcImportCache;
  ImportedMemory(DevicePointer base, size_t bytes, std::shared_ptr<const void> lease)
      : base_(base), bytes_(bytes), lease_(std::move(lease)) {}

  DevicePointer base_;
  size_t bytes_;
  std::shared_ptr<const void> lease_;
};

// For one device. Opening and closing synchronize it, so both run on the side executor's thread,
// when the gate reports that no NCCL work is in flight. Thread-safe. The destructor closes unused
// mappings; those in use are closed when their last reference is released.
class IpcImportCache final {
 public:
  using OpenCallback = absl::AnyInvocable<void(absl::StatusOr<ImportedMemory>) &&>;
  using CloseCallback = absl::AnyInvocable<void() &&>;

  //   side: the device's, a thread without urgent work. Outlives the cache.
  IpcImportCache(DeviceExecutor& side, std::shared_ptr<SyncGate> gate,
                 IpcImportCacheOptions options);
  ~IpcImportCache();

  IpcImportCache(const IpcImportCache&) = delete;
  IpcImportCache& operator=(const IpcImportCache&) = delete;

  // Returns the mapping if it is open. Does not block, makes no CUDA call.
  //   keep: released once the mapping is closed; may be null.
  std::optional<ImportedMemory> Find(const ImportKey& key,
                                     const std::shared_ptr<const void>& keep = nullptr);

  // Opens the allocation of `descriptor`, or joins an open in progress. `done` runs on the side
  // executor's thread, with no lock held, never inline.
  //   fd: as for ExportedPiece; not needed for a mapping that is open.
  //   deadline: by the machine's steady clock.
  //   keep: as for Find; released at once if it is not opened.
  //   Errors, through `done`: FAILED_PRECONDITION for this process's own memory, or a kind that
  //   this device cannot open; RESOURCE_EXHAUSTED naming cap_bytes when all mapped memory is in
  //   use; DEADLINE_EXCEEDED if NCCL work was in flight all the time; UNAVAILABLE when the peer has
  //   died or its older memory at the same address is still in use here; INTERNAL.
  //   Errors of the call itself: as DeviceExecutor::Post; `done` is then not called.
  absl::Status Open(const ImportKey& key, const IpcDescriptor& descriptor, UniqueFd fd,
                    absl::Time deadline, OpenCallback done,
                    const std::shared_ptr<const void>& keep = nullptr);

  // Closes the allocation as soon as it is unused: its owner needs it back, and must send the file
  // descriptor again before the next use.
  //   done: called once no mapping of it is left, inline if there is none; may be null. On the side
  //   executor's thread, or, once the cache has been destroyed, on that of its last user.
  void Close(const ImportKey& key, CloseCallback done = nullptr);

  // Closes the mappings that have been without a user for `idle_timeout`. Call it now and then.
  void CloseIdle();

  // The peer has died: its memory can no longer be found; unused mappings are closed, the others
  // when they are released.
  void ClosePeer(uint64_t peer_incarnation);

  IpcImportCacheStats stats() const;

 private:
  struct State;
  struct Entry;
  struct Job;
  class Lease;

  DeviceExecutor& side_;
  // Shared with leases and with jobs of the side executor.
  const std::shared_ptr<State> state_;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_IPC_IMPORT_CACHE_H_
