// SPDX-License-Identifier: Apache-2.0
// The machine that the processes of a session share: exports and imports, and memory in use. A
// mapped file in the session's directory, or private memory without a session.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_MACHINE_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_MACHINE_H_

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tests/support/strict_cuda/config.h"

namespace strict_cuda {

// A live process is a pid with its start time: pids are reused.
struct ProcessId {
  int32_t pid;
  uint64_t start;
  bool operator==(const ProcessId& other) const { return pid == other.pid && start == other.start; }
};

ProcessId Self();
// False for one that has ended, even if its parent has not reaped it.
bool IsAlive(const ProcessId& process);

struct Importer {
  ProcessId process;
  int32_t count;
};

inline constexpr int kMaxImporters = 16;
inline constexpr int kMaxExports = 4096;
inline constexpr int kMaxEvents = 4096;
inline constexpr int kMaxProcesses = 128;
inline constexpr int kMaxChannels = 512;
inline constexpr int kMaxIds = 4096;
inline constexpr int kMaxRanks = 64;
inline constexpr int kMaxSplits = 64;
inline constexpr int kMaxPuts = 256;
inline constexpr int kMaxPutRanks = 8;
inline constexpr int kMaxPutWindows = 4;
inline constexpr int kMaxPutSteps = 16;

struct Importers {
  Importer entries[kMaxImporters];
  // Returns false when there is no room.
  bool Add(const ProcessId& process);
  void Remove(const ProcessId& process);
  // The first process other than `process` that is alive and has an import, or pid 0.
  int32_t OtherThan(const ProcessId& process) const;
};

enum class ExportKind : int32_t { kNone, kLegacy, kPoolPointer, kPool, kVmm };

// One allocation (or pool) that another process may open.
struct Export {
  uint64_t id;  // 0: free
  ExportKind kind;
  ProcessId owner;
  int32_t fd;       // in the owner
  int32_t device;   // physical
  uint64_t inode;   // of the memory file
  uint64_t offset;  // in the memory file
  uint64_t bytes;
  uint64_t backing_bytes;
  uint64_t buffer_id;
  uint64_t pool_id;
  int32_t handle_types;
  bool is_ready;  // for pool pointers: the allocation has run on its stream
  bool gone;      // freed by its owner
  Importers importers;
};

struct Waiter {
  ProcessId process;
  uint64_t sequence;  // of the record that it waits for
};

struct SharedEvent {
  uint64_t id;  // 0: free
  ProcessId owner;
  int32_t device;
  std::atomic<uint64_t> recorded;
  std::atomic<uint64_t> done;
  std::atomic<bool> gone;
  Importers importers;
  Waiter waiters[kMaxImporters];
};

struct ProcessSlot {
  ProcessId process;
  uint32_t contexts;  // mask of devices, physical, on which it has its context
  uint64_t used_bytes[kMaxDevices];
};

// The pending NCCL operation of one device of one process, for the deadlock search.
struct ControlChannel {
  ProcessId process;
  int32_t device;  // physical
  uint64_t comm;   // of the operation that runs, 0 when idle
  int32_t rank;
  uint64_t send_mask;  // ranks to which sends are pending
  uint64_t recv_mask;
  uint64_t progress;  // counts moved bytes: it does not change while the operation is stalled
  bool is_in_circle;  // another one has found a deadlock that includes this one
};

// A unique id, and the ranks that have joined with it.
struct IdRecord {
  uint64_t token;  // 0: free
  ProcessId minter;
  int32_t rank_count;
  uint64_t came;                   // mask of ranks
  int32_t channels[kMaxRanks];     // by rank, once it has come; an index of Machine::channels
  uint64_t hosts[kMaxRanks];       // NCCL_HOSTID, hashed
  uint64_t connecting[kMaxRanks];  // by rank: mask of peers with which it has begun to exchange
};

// One collective split of a communicator, until all ranks have passed their colour.
struct SplitRecord {
  uint64_t parent;  // 0: free
  uint64_t sequence;
  uint64_t came;
  uint64_t read;  // mask of ranks that have read it
  int32_t colors[kMaxRanks];
  int32_t keys[kMaxRanks];
};

// One rank's part of a window.
struct PutWindow {
  bool is_registered;
  int32_t fd;       // of its memory file, in its process
  uint64_t offset;  // in the memory file
  uint64_t bytes;
};

// The collective calls of windows and one-sided operations.
enum class PutStep : int32_t { kNone, kRegister, kMapped, kInitialize };

// The windows of a communicator, and the signals between its ranks.
struct PutRecord {
  uint64_t token;  // 0: free
  ProcessId owners[kMaxPutRanks];
  uint64_t gone;                 // mask of ranks that have ended it
  uint64_t steps[kMaxPutRanks];  // by rank: collective calls that it has made
  PutStep history[kMaxPutRanks][kMaxPutSteps];
  int32_t window_counts[kMaxPutRanks];
  PutWindow windows[kMaxPutRanks][kMaxPutWindows];
  uint64_t signals[kMaxPutRanks][kMaxPutRanks];  // by sender and receiver
};

struct Machine {
  uint64_t magic;
  pthread_mutex_t mu;
  uint64_t next_id;
  ProcessSlot processes[kMaxProcesses];
  Export exports[kMaxExports];
  SharedEvent events[kMaxEvents];
  ControlChannel channels[kMaxChannels];
  IdRecord ids[kMaxIds];
  SplitRecord splits[kMaxSplits];
  PutRecord puts[kMaxPuts];
};

// Mapped at the first call; never unmapped.
Machine& TheMachine();

// Holds the machine's lock, which survives the death of its holder. Taken after the process's own
// lock, and never while waiting.
class MachineLock final {
 public:
  MachineLock();
  ~MachineLock();
  MachineLock(const MachineLock&) = delete;
  MachineLock& operator=(const MachineLock&) = delete;
};

// The remaining functions REQUIRE the lock.

uint64_t NextId();
// A free entry with its id set, or null when the table is full.
Export* NewExport();
Export* FindExport(uint64_t id);
SharedEvent* NewSharedEvent();
SharedEvent* FindSharedEvent(uint64_t id);

// Whether another live process has a context on the device. From now on this process has one, or
// has none.
bool HasOtherContext(int physical);
void NoteContext(int physical, bool has);

// Reserves or returns device memory. Returns false if the device has not that much left.
bool TakeMemory(int physical, size_t bytes);
void GiveMemory(int physical, size_t bytes);
size_t FreeMemory(int physical);

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_MACHINE_H_
