// SPDX-License-Identifier: Apache-2.0
// IpcImportCache: other processes' device memory, mapped once and kept while it is used.
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

#include "base/unique_fd.h"
#include "gpu/cuda/device_executor.h"
#include "gpu/cuda/ipc_descriptor.h"
#include "gpu/cuda/sync_gate.h"

namespace ferry::cuda {

// An allocation of one life of a process. Addresses come again, these do not.
struct ImportKey {
  uint64_t peer_incarnation = 0;
  uint64_t buffer_id = 0;

  bool operator==(const ImportKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H state, const ImportKey& key) {
    return H::combine(std::move(state), key.peer_incarnation, key.buffer_id);
  }
};

struct IpcImportCacheOptions {
  // Of this process: its own memory cannot be opened, and need not be.
  uint64_t own_incarnation = 0;
  // Bytes of other processes that are mapped; above it, those that nobody uses are closed, the
  // longest unused first. What is used is never closed: then opening more fails.
  size_t cap_bytes = size_t{64} << 30;
  // How long one attempt waits for NCCL work to end before others get their turn.
  absl::Duration timeout = absl::Milliseconds(100);
};

struct IpcImportCacheStats {
  size_t mapped_bytes = 0;
  int mapping_count = 0;  // open, used or not
  int used_count = 0;     // of those, used
  int closing_count = 0;  // of those, on their way out
  int64_t opened = 0;     // ever
  int64_t found = 0;      // times that a mapping was there already
  int64_t closed = 0;     // ever
};

// A mapped allocation, kept mapped while this or a copy of it lives. Cheap to copy. Anyone may let
// go of it, anywhere: closing happens elsewhere.
class ImportedMemory final {
 public:
  DevicePointer base() const { return base_; }  // of the allocation's first byte
  size_t bytes() const { return bytes_; }       // of the allocation
  // The mapping's part in keeping it; for whoever keeps references of many kinds.
  const std::shared_ptr<const void>& lease() const { return lease_; }

 private:
  friend class IpcImportCache;
  ImportedMemory(DevicePointer base, size_t bytes, std::shared_ptr<const void> lease)
      : base_(base), bytes_(bytes), lease_(std::move(lease)) {}

  DevicePointer base_;
  size_t bytes_;
  std::shared_ptr<const void> lease_;
};

// For one device. Opening and closing synchronise it, so both run on the side executor's thread,
// when the gate says that no NCCL work is in flight. Thread-safe. The destructor closes what nobody
// uses; what is used then is closed by whoever lets go of it last.
class IpcImportCache final {
 public:
  using OpenCallback = absl::AnyInvocable<void(absl::StatusOr<ImportedMemory>) &&>;
  // This process has closed the allocation: its owner may free it, and must send the descriptor
  // again before the next use. Not called for peers that have gone. On the side executor's thread.
  using ReleaseCallback = std::function<void(const ImportKey&)>;

  //   side: of the device; a thread that has nothing urgent to do. Outlives the cache.
  IpcImportCache(DeviceExecutor& side, std::shared_ptr<SyncGate> gate, ReleaseCallback on_release,
                 IpcImportCacheOptions options);
  ~IpcImportCache();

  IpcImportCache(const IpcImportCache&) = delete;
  IpcImportCache& operator=(const IpcImportCache&) = delete;

  // The mapping, if it is open. Does not block, makes no CUDA call.
  std::optional<ImportedMemory> Find(const ImportKey& key);

  // Opens the allocation of `descriptor`, or joins whoever is opening it. `done` runs on the side
  // executor's thread, with no lock held, never inside.
  //   fd: as ExportedPiece says; not needed for a mapping that is open.
  //   deadline: by the machine's steady clock.
  //   Errors, through `done`: FAILED_PRECONDITION for this process's own memory, or a kind that
  //   this device cannot open; RESOURCE_EXHAUSTED naming cap_bytes when all that is mapped is used;
  //   DEADLINE_EXCEEDED if NCCL work was in flight all the time; UNAVAILABLE when the peer has gone
  //   or older memory of its is still used here in the same place; INTERNAL.
  //   Errors of the call itself: as DeviceExecutor::Post; `done` is then not called.
  absl::Status Open(const ImportKey& key, const IpcDescriptor& descriptor, UniqueFd fd,
                    absl::Time deadline, OpenCallback done);

  // Closes the allocation as soon as nobody uses it, and says so: its owner wants it back. Memory
  // that is freed while it is mapped here would be undefined behaviour, so whoever exports memory
  // that it does not own for long has it closed after each use. A key that is not open is none of
  // an error.
  void Close(const ImportKey& key);

  // The peer has gone: none of its memory can be found any more; what nobody uses is closed, the
  // rest when it is let go of.
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
