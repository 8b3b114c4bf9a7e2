// SPDX-License-Identifier: Apache-2.0
// Windows, and one-sided operations on them: a put writes into the peer's memory, and counts one
// signal there. Source of what NCCL requires: its user guide (point-to-point communication), and
// rmaTaskAppend in src/enqueue.cc of 2.29 and 2.30.
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/strict_cuda/memory.h"
#include "tests/support/strict_cuda/nccl_comm.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

constexpr std::chrono::microseconds kPutPoll(100);
constexpr int kSymmetric = 1;
constexpr int kHasPuts = 22902;
constexpr int kHasHostRma = 22907;

// A window as this process knows it: its own part, and the parts of the other ranks, which it has
// mapped. Never deleted, so that a handle that outlives its window is recognised.
struct WindowEntry {
  Comm* comm = nullptr;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  int flags = 0;
  // Index in the shared record; negative: no other rank can reach it.
  int index = -1;
  bool is_gone = false;
  bool has_parts = false;  // of several pieces of physical memory
  std::vector<std::shared_ptr<Backing>> peers;
};

// Guarded by the process's lock.
std::map<Window*, WindowEntry>& Windows() {
  static auto* const windows = new std::map<Window*, WindowEntry>;
  return *windows;
}

// The communicator's record; made by its first rank. Null when the table is full. REQUIRES: the
// machine's lock.
PutRecord* RecordOf(const Comm& comm) {
  PutRecord* unused = nullptr;
  for (PutRecord& record : TheMachine().puts) {
    if (record.token == comm.token) return &record;
    if (record.token == 0 && unused == nullptr) unused = &record;
  }
  if (unused == nullptr || comm.count > kMaxPutRanks) return nullptr;
  std::memset(static_cast<void*>(unused), 0, sizeof(*unused));
  unused->token = comm.token;
  return unused;
}

// The host's part of a collective call: returns when all ranks have come to their own call, false
// if the communicator is aborted before. `publish` runs under the machine's lock. Every rank makes
// the same calls in the same order.
bool Meet(Comm& comm, PutStep step, const char* call,
          const std::function<void(PutRecord& record)>& publish) {
  uint64_t turn = 0;
  {
    const MachineLock lock;
    PutRecord* const record = RecordOf(comm);
    if (record == nullptr) {
      FailComm(&comm, ncclInternalError, "the fake driver has no room for more windows");
      return false;
    }
    record->owners[comm.rank] = Self();
    turn = record->steps[comm.rank]++;
    record->history[comm.rank][turn % kMaxPutSteps] = step;
    if (publish) publish(*record);
  }
  while (!comm.is_aborted && !comm.is_revoked) {
    {
      const MachineLock lock;
      PutRecord* const record = RecordOf(comm);
      bool all = record != nullptr;
      for (int rank = 0; all && rank < comm.count; ++rank) {
        all = record->steps[rank] > turn;
        if (!all || record->history[rank][turn % kMaxPutSteps] == step) continue;
        Violation(Rule::kNcclWindow, call, "rank %d makes another collective call at this point",
                  rank);
      }
      if (all) return true;
    }
    std::this_thread::sleep_for(kPutPoll);
  }
  return false;
}

// Maps the other ranks' parts of a window that all have registered.
bool MapPeers(const Comm& comm, int index, std::vector<std::shared_ptr<Backing>>& peers) {
  peers.resize(static_cast<size_t>(comm.count));
  for (int rank = 0; rank < comm.count; ++rank) {
    ProcessId owner = {};
    int fd = -1;
    {
      const MachineLock lock;
      const PutRecord* const record = RecordOf(comm);
      owner = record->owners[rank];
      fd = record->windows[rank][index].fd;
    }
    peers[static_cast<size_t>(rank)] = Backing::ImportFrom(owner.pid, fd);
    if (peers[static_cast<size_t>(rank)] == nullptr) return false;
  }
  return true;
}

// Runs `body` as NCCL does: here for a blocking communicator, in a thread of its own otherwise.
ncclResult_t InBackground(Comm& comm, const std::function<ncclResult_t()>& body) {
  if (comm.is_blocking) return body();
  ncclResult_t ready = ncclSuccess;
  comm.state.compare_exchange_strong(ready, ncclInProgress);
  ++comm.helpers;
  std::thread([&comm, body] {
    const ncclResult_t result = body();
    ncclResult_t in_progress = ncclInProgress;
    comm.state.compare_exchange_strong(in_progress, result);
    --comm.helpers;
  }).detach();
  return ncclInProgress;
}

// All ranks register their parts, and map the others'.
ncclResult_t Register(Comm& comm, WindowEntry& entry, const PutWindow& part) {
  const char* const call = "ncclCommWindowRegister";
  const bool all = Meet(comm, PutStep::kRegister, call, [&](PutRecord& record) {
    const int index = record.window_counts[comm.rank];
    if (index >= kMaxPutWindows) return;
    entry.index = index;
    ++record.window_counts[comm.rank];
    record.windows[comm.rank][index] = part;
  });
  if (!all) return comm.state == ncclInProgress ? ncclInternalError : comm.state.load();
  if (entry.index >= 0 && !MapPeers(comm, entry.index, entry.peers)) return ncclSystemError;
  // No rank is through before all have mapped all.
  if (!Meet(comm, PutStep::kMapped, call, nullptr)) return ncclInternalError;
  return ncclSuccess;
}

WindowEntry* FindWindow(Window* window) {
  const auto found = Windows().find(window);
  return found == Windows().end() ? nullptr : &found->second;
}

// The symmetric window that holds all of the memory, or null.
const WindowEntry* WindowOf(const Comm& comm, CUdeviceptr pointer, size_t bytes) {
  for (const auto& [handle, entry] : Windows()) {
    if (entry.comm == &comm && !entry.is_gone && (entry.flags & kSymmetric) != 0 &&
        entry.index >= 0 && pointer >= entry.base && pointer + bytes <= entry.base + entry.bytes) {
      return &entry;
    }
  }
  return nullptr;
}

// Whether the peer's part of the window is there and holds the range. REQUIRES: the machine's lock.
void CheckPeerPart(const Comm& comm, const Op& op, int index, const char* call) {
  const PutRecord* const record = RecordOf(comm);
  const PutWindow& part = record->windows[op.peer][index];
  if (!part.is_registered) {
    Violation(Rule::kNcclWindow, call, "rank %d has deregistered the window", op.peer);
  }
  if (op.offset + op.count * TypeBytes(op.type) > part.bytes) {
    Violation(Rule::kNcclWindow, call, "bytes %zu to %zu of a window of %zu of rank %d", op.offset,
              op.offset + op.count * TypeBytes(op.type), static_cast<size_t>(part.bytes), op.peer);
  }
}

ncclResult_t CheckPut(const Comm& comm, Op& op, const char* call) {
  const size_t bytes = op.count * TypeBytes(op.type);
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const WindowEntry* const window = FindWindow(op.window);
  if (window == nullptr || window->comm != &comm || window->is_gone) {
    Violation(Rule::kNcclWindow, call, "%p is no window (any more)", static_cast<void*>(op.window));
    return ncclInvalidArgument;
  }
  const WindowEntry* const source = WindowOf(comm, op.from, bytes);
  if (source == nullptr) {
    Violation(Rule::kNcclWindow, call, "0x%llx is in no symmetric window of the communicator",
              op.from);
    return ncclInvalidArgument;
  }
  if (source->has_parts || window->has_parts) return ncclInvalidArgument;
  const MachineLock machine;
  CheckPeerPart(comm, op, window->index, call);
  op.window_index = window->index;
  return ncclSuccess;
}

std::shared_ptr<Backing> PeerMemory(const Op& op) {
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const WindowEntry* const window = FindWindow(op.window);
  return window == nullptr ? nullptr : window->peers[static_cast<size_t>(op.peer)];
}

void RunPut(Comm& comm, const Op& op) {
  const size_t bytes = op.count * TypeBytes(op.type);
  std::unique_ptr<Use> use;
  if (bytes > 0) {
    const CUresult result =
        Touch(op.from, bytes, comm.context->physical, false, "ncclPutSignal", &use);
    if (result != 0) return FailContext(*comm.context, result);
  }
  const std::shared_ptr<Backing> memory = PeerMemory(op);
  if (memory == nullptr && op.kind == OpKind::kPut) return;
  size_t at = op.offset;
  {
    const MachineLock lock;
    if (op.kind == OpKind::kPut) {
      CheckPeerPart(comm, op, op.window_index, "ncclPutSignal");
      at += RecordOf(comm)->windows[op.peer][op.window_index].offset;
    }
  }
  if (use != nullptr) {
    for (const Piece& piece : use->pieces()) {
      std::memcpy(memory->host() + at, piece.host, piece.bytes);
      at += piece.bytes;
    }
  }
  const MachineLock lock;
  ++RecordOf(comm)->signals[comm.rank][op.peer];
}

uint64_t SignalsFrom(const Comm& comm, int peer) {
  const MachineLock lock;
  const PutRecord* const record = RecordOf(comm);
  return record == nullptr ? 0 : record->signals[peer][comm.rank];
}

// A stream's wait for a value in memory: neither the sender's death nor an abort ends it.
void RunWait(const Comm& comm, const Op& op) {
  while (SignalsFrom(comm, op.peer) < op.signals) {
    if (comm.is_aborted) {
      Violation(Rule::kNcclWaitSignal, "ncclWaitSignal", "rank %d has sent %llu signals, not %llu",
                op.peer, static_cast<unsigned long long>(SignalsFrom(comm, op.peer)),  // NOLINT
                static_cast<unsigned long long>(op.signals));                          // NOLINT
      return;
    }
    std::this_thread::sleep_for(kPutPoll);
  }
}

ncclResult_t Add(Op op, CUstream handle, int signal_index, int context, unsigned int flags,
                 const char* call) {
  if (const ncclResult_t result = CheckReady(op.comm, call); result != 0) return result;
  const bool is_wrong = op.peer < 0 || op.peer >= op.comm->count || signal_index != 0 ||
                        context != 0 || flags != 0 || TypeBytes(op.type) == 0;
  // A refused operation leaves a non-blocking communicator in error.
  if (is_wrong || !GetConfig().nccl_has_puts || GetConfig().nccl_version < kHasPuts) {
    const char* const why =
        is_wrong ? "invalid argument" : "host RMA is not supported in this communicator";
    return op.comm->is_blocking ? ncclInvalidArgument : FailComm(op.comm, ncclInvalidArgument, why);
  }
  if (FindStream(handle, call, &op.stream) != CUDA_SUCCESS) return ncclUnhandledCudaError;
  return AddOp(op, call);
}

}  // namespace

bool IsOneSided(const Op& op) {
  return op.kind == OpKind::kPut || op.kind == OpKind::kSignal || op.kind == OpKind::kWaitSignal;
}

bool InitializePuts(Comm& comm) {
  return Meet(comm, PutStep::kInitialize, "ncclGroupEnd", nullptr);
}

ncclResult_t CheckOneSided(Comm& comm, std::vector<Op>& ops) {
  comm.awaited.resize(static_cast<size_t>(comm.count));
  for (Op& op : ops) {
    if (op.kind == OpKind::kPut) {
      if (const ncclResult_t result = CheckPut(comm, op, "ncclPutSignal"); result != 0) {
        return result;
      }
    }
    if (op.kind != OpKind::kWaitSignal) continue;
    op.signals = comm.awaited[op.peer] += op.count;
    const uint64_t came = SignalsFrom(comm, op.peer);
    if (GetConfig().nccl_waits_early || came >= op.signals) continue;
    Violation(Rule::kNcclWaitSignal, "ncclWaitSignal",
              "rank %d has sent %llu signals so far, not %llu", op.peer,
              static_cast<unsigned long long>(came),         // NOLINT
              static_cast<unsigned long long>(op.signals));  // NOLINT
  }
  return ncclSuccess;
}

void RunOneSided(Comm& comm, const std::vector<Op>& ops) {
  for (const Op& op : ops) {
    if (op.kind == OpKind::kWaitSignal) {
      RunWait(comm, op);
    } else {
      RunPut(comm, op);
    }
  }
}

void ForgetWindows(const Comm& comm) {
  {
    const std::lock_guard<std::mutex> lock(ProcessMutex());
    for (auto& [handle, entry] : Windows()) {
      if (entry.comm != &comm || entry.is_gone) continue;
      if (Find(entry.base) == nullptr) {
        Violation(Rule::kUseAfterFree, "ncclCommAbort",
                  "the window's memory at 0x%llx was freed before its communicator", entry.base);
      }
      entry.is_gone = true;
      entry.peers.clear();
    }
  }
  const MachineLock lock;
  for (PutRecord& record : TheMachine().puts) {
    if (record.token != comm.token) continue;
    record.gone |= uint64_t{1} << comm.rank;
    // A put of a rank that has not ended it yet still goes there: it has the memory mapped.
    bool is_used = false;
    for (int rank = 0; rank < comm.count; ++rank) {
      is_used |= (record.gone >> rank & 1) == 0 && record.owners[rank].pid != 0 &&
                 IsAlive(record.owners[rank]);
    }
    if (!is_used) record.token = 0;
  }
}

extern "C" {

// Memory of something else than cuMemCreate has no window, and neither has a communicator that
// does not support them: that is no error.
STRICT_CUDA_EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t bytes,
                                                       ncclWindow_t* window, int flags) {
  if (buffer == nullptr || bytes == 0 || window == nullptr || flags < 0 || flags > 3) {
    return ncclInvalidArgument;
  }
  if (const ncclResult_t result = CheckUsable(comm, __func__); result != 0) return result;
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  const auto base = reinterpret_cast<CUdeviceptr>(buffer);
  *window = nullptr;
  if (!GetConfig().nccl_has_windows) return ncclSuccess;
  WindowEntry entry;
  PutWindow part = {};
  {
    const std::lock_guard<std::mutex> lock(ProcessMutex());
    std::vector<Piece> pieces;
    if (Resolve(base, bytes, comm->context->physical, true, __func__, &pieces) != CUDA_SUCCESS) {
      return ncclUnhandledCudaError;
    }
    const std::shared_ptr<Range> range = Find(base);
    if (range->kind != Kind::kVmm) return ncclSuccess;
    if ((base - range->base) % 4096 != 0) return ncclInvalidArgument;
    for (const auto& [handle, other] : Windows()) {
      const bool overlaps = other.comm == comm && !other.is_gone &&
                            base < other.base + other.bytes && other.base < base + bytes;
      if (overlaps) Violation(Rule::kNcclWindow, __func__, "0x%llx is in a window already", base);
    }
    entry = {.comm = comm, .base = base, .bytes = bytes, .flags = flags};
    entry.has_parts = pieces.size() > 1;
    part = {true, range->backing->fd(), range->offset + (base - range->base), bytes};
  }
  const CallOn call(*comm);
  auto* const handle = reinterpret_cast<Window*>(new char);
  // The ranks map each other's memory, for which the driver may wait for all earlier operations of
  // the device.
  uint64_t rts = 0;
  {
    const std::lock_guard<std::mutex> lock(comm->device->mu);
    rts = comm->device->next_ticket++;
  }
  return InBackground(*comm, [comm, entry, part, handle, window, rts]() mutable {
    AwaitTicket(*comm->device, rts);
    const ncclResult_t result = Register(*comm, entry, part);
    EndTicket(*comm->device);
    if (result != ncclSuccess) return result;
    const std::lock_guard<std::mutex> lock(ProcessMutex());
    Windows()[handle] = std::move(entry);
    *window = handle;
    return result;
  });
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  if (window == nullptr) return ncclSuccess;
  if (const ncclResult_t result = CheckUsable(comm, __func__); result != 0) return result;
  CheckImplicitSync(__func__);
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  WindowEntry* const entry = FindWindow(window);
  if (entry == nullptr || entry->comm != comm || entry->is_gone) {
    Violation(Rule::kDoubleFree, __func__, "%p is no window (any more)",
              static_cast<void*>(window));
    return ncclInvalidArgument;
  }
  if (Find(entry->base) == nullptr) {
    Violation(Rule::kUseAfterFree, __func__, "the window's memory at 0x%llx was freed before it",
              entry->base);
  }
  entry->is_gone = true;
  entry->peers.clear();
  if (entry->index < 0) return ncclSuccess;
  const MachineLock machine;
  if (PutRecord* const record = RecordOf(*comm); record != nullptr) {
    record->windows[comm->rank][entry->index].is_registered = false;
  }
  return ncclSuccess;
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommQueryProperties(ncclComm_t comm,
                                                        ncclCommProperties_t* properties) {
  if (properties == nullptr) return ncclInvalidArgument;
  if (const ncclResult_t result = CheckUsable(comm, __func__); result != 0) return result;
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  if (properties->magic != kNcclConfigMagic) return ncclInvalidUsage;
  if (static_cast<int>(properties->version) > GetConfig().nccl_version) return ncclInvalidUsage;
  properties->rank = comm->rank;
  properties->nRanks = comm->count;
  properties->cudaDev = comm->context->ordinal;
  properties->nvmlDev = comm->context->physical;
  properties->deviceApiSupport = GetConfig().nccl_has_windows;
  properties->multimemSupport = false;
  if (properties->version < kHasHostRma) return ncclSuccess;
  properties->nLsaTeams = 1;
  properties->hostRmaSupport = GetConfig().nccl_has_puts && GetConfig().nccl_has_windows;
  return ncclSuccess;
}

STRICT_CUDA_EXPORT ncclResult_t ncclPutSignal(const void* buffer, size_t count, ncclDataType_t type,
                                              int peer, ncclWindow_t window, size_t offset,
                                              int signal_index, int context, unsigned int flags,
                                              ncclComm_t comm, CUstream stream) {
  Op op;
  op.kind = OpKind::kPut;
  op.comm = comm;
  op.from = reinterpret_cast<CUdeviceptr>(buffer);
  op.count = count;
  op.type = type;
  op.peer = peer;
  op.window = window;
  op.offset = offset;
  return Add(op, stream, signal_index, context, flags, __func__);
}

STRICT_CUDA_EXPORT ncclResult_t ncclSignal(int peer, int signal_index, int context,
                                           unsigned int flags, ncclComm_t comm, CUstream stream) {
  Op op;
  op.kind = OpKind::kSignal;
  op.comm = comm;
  op.peer = peer;
  return Add(op, stream, signal_index, context, flags, __func__);
}

STRICT_CUDA_EXPORT ncclResult_t ncclWaitSignal(int count, ncclWaitSignalDesc_t* descriptors,
                                               ncclComm_t comm, CUstream stream) {
  if (count != 1 || descriptors == nullptr || descriptors->opCnt <= 0) return ncclInvalidArgument;
  Op op;
  op.kind = OpKind::kWaitSignal;
  op.comm = comm;
  op.peer = descriptors->peer;
  op.count = static_cast<size_t>(descriptors->opCnt);
  return Add(op, stream, descriptors->sigIdx, descriptors->ctx, 0, __func__);
}

}  // extern "C"

}  // namespace strict_cuda
