// SPDX-License-Identifier: Apache-2.0
// Groups: checks before operations are launched, and their launch.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "tests/support/strict_cuda/events.h"
#include "tests/support/strict_cuda/memory.h"
#include "tests/support/strict_cuda/nccl_comm.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

constexpr int kMaxOpsInGroup = 256;
constexpr const char* kCall = "ncclGroupEnd";

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<Op> ops;
  std::vector<Comm*> inits;
  std::vector<Comm*> aborts;
};

Group& MyGroup() {
  static thread_local Group group;
  return group;
}

// While a thread issues operations of a device, no other may.
class IssueGuard final {
 public:
  explicit IssueGuard(Device& device) : device_(device) {
    const uint64_t self = static_cast<uint64_t>(syscall(SYS_gettid));
    const std::lock_guard<std::mutex> lock(device.mu);
    const bool is_other = device.issuer != 0 && device.issuer != self;
    if (is_other && (device.issuing > 0 || device.in_flight > 0)) {
      Violation(Rule::kNcclThreads, kCall, "thread %d issues while %s of thread %d",
                static_cast<int>(self), device.issuing > 0 ? "a call" : "operations",
                static_cast<int>(device.issuer));
    }
    device.issuer = self;
    ++device.issuing;
  }
  ~IssueGuard() {
    const std::lock_guard<std::mutex> lock(device_.mu);
    --device_.issuing;
  }
  IssueGuard(const IssueGuard&) = delete;
  IssueGuard& operator=(const IssueGuard&) = delete;

 private:
  Device& device_;
};

bool IsPointToPoint(const Op& op) { return op.kind == OpKind::kSend || op.kind == OpKind::kRecv; }

ncclResult_t CheckBuffer(CUdeviceptr buffer, size_t bytes, bool is_write, const Comm& comm) {
  if (bytes == 0) return ncclSuccess;
  if (buffer == 0) return ncclInvalidArgument;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  std::vector<Piece> pieces;
  const CUresult result = Resolve(buffer, bytes, comm.context->physical, is_write, kCall, &pieces);
  if (result != 0) return ncclUnhandledCudaError;
  const Range* const range = pieces.front().range.get();
  if (range == nullptr) {
    Violation(Rule::kNoAccess, kCall, "0x%llx is pageable host memory", buffer);
    return ncclInvalidArgument;
  }
  if (range->kind == Kind::kDevice && range->physical != comm.context->physical) {
    Violation(Rule::kNcclWrongDevice, kCall, "0x%llx is of device %d, the communicator of %d",
              buffer, range->physical, comm.context->physical);
    return ncclInvalidArgument;
  }
  return ncclSuccess;
}

ncclResult_t CheckBuffers(const Comm& comm, const std::vector<Op>& ops) {
  for (const Op& op : ops) {
    const size_t bytes = op.count * TypeBytes(op.type);
    const size_t all = op.kind == OpKind::kAllGather ? bytes * comm.count : bytes;
    const bool reads =
        op.kind != OpKind::kRecv && (op.kind != OpKind::kBroadcast || op.peer == comm.rank);
    ncclResult_t result = reads ? CheckBuffer(op.from, bytes, false, comm) : ncclSuccess;
    if (result == 0 && op.kind != OpKind::kSend) result = CheckBuffer(op.to, all, true, comm);
    if (result != 0) return result;
  }
  return ncclSuccess;
}

// How often each peer is sent to and received from.
void CheckPeers(const Comm& comm, const std::vector<Op>& ops) {
  std::vector<int> sends(static_cast<size_t>(comm.count));
  std::vector<int> recvs(static_cast<size_t>(comm.count));
  for (const Op& op : ops) {
    if (IsPointToPoint(op)) ++(op.kind == OpKind::kSend ? sends : recvs)[op.peer];
  }
  if (sends[comm.rank] != recvs[comm.rank]) {
    Violation(Rule::kNcclSelf, kCall, "%d sends to itself, %d receives", sends[comm.rank],
              recvs[comm.rank]);
  }
  if (comm.count % 2 != 0) return;
  const int opposite = (comm.rank + comm.count / 2) % comm.count;
  const bool is_first = (comm.connected >> opposite & 1) == 0;
  if (is_first && (sends[opposite] == 0) != (recvs[opposite] == 0)) {
    Violation(Rule::kNcclFirstExchange, kCall, "the first exchange with rank %d of %d is only a %s",
              opposite, comm.count, sends[opposite] > 0 ? "send" : "receive");
  }
}

ncclResult_t Check(const Comm& comm, const std::vector<Op>& ops) {
  if (CurrentContext() != comm.context) {
    Violation(Rule::kNcclWrongDevice, kCall, "device %d is not current", comm.context->physical);
    return ncclInvalidUsage;
  }
  for (const Op& op : ops) {
    if (op.stream->context == comm.context) continue;
    Violation(Rule::kNcclWrongDevice, kCall, "the stream is of device %d, the communicator of %d",
              op.stream->context->physical, comm.context->physical);
    return ncclInvalidArgument;
  }
  if (ops.size() > kMaxOpsInGroup) {
    Violation(Rule::kNcclGroupTooLarge, kCall, "%zu operations", ops.size());
  }
  const auto count = std::count_if(ops.begin(), ops.end(), IsOneSided);
  if (count > 0 && static_cast<size_t>(count) < ops.size()) {
    Violation(Rule::kNcclGroup, kCall, "one-sided operations and others in one group");
    return ncclInvalidUsage;
  }
  if (count > 0) return ncclSuccess;
  CheckPeers(comm, ops);
  return CheckBuffers(comm, ops);
}

// The host waits until each new peer has reached its first exchange too. Returns when it has, or
// the communicator is aborted or revoked, or, over a socket, a peer has ended.
void AwaitConnections(Comm& comm, uint64_t peers) {
  for (int polls = 1; !IsStopped(comm); ++polls) {
    const bool looks = polls % 50 == 0 && GetConfig().nccl_peer_death_is_error;
    bool all = true;
    {
      const MachineLock lock;
      for (int peer = 0; peer < comm.count; ++peer) {
        if ((peers >> peer & 1) == 0) continue;
        const bool has_come = (comm.record->connecting[peer] >> comm.rank & 1) != 0;
        all &= has_come;
        if (!looks || has_come) continue;
        if (!IsAlive(TheMachine().channels[comm.record->channels[peer]].process)) {
          FailComm(&comm, ncclRemoteError, "rank " + std::to_string(peer) + " is gone");
          return;
        }
      }
    }
    if (all) return;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

// On the stream of the first operation; the others' streams wait for it, and it for them.
void EnqueueOps(Comm& comm, const std::vector<Op>& ops, uint64_t rts) {
  std::vector<StreamHandle*> streams;
  for (const Op& op : ops) {
    if (std::find(streams.begin(), streams.end(), op.stream) == streams.end()) {
      streams.push_back(op.stream);
    }
  }
  std::vector<std::shared_ptr<Marker>> before;
  auto after = std::make_shared<Marker>();
  for (size_t i = 1; i < streams.size(); ++i) {
    before.push_back(std::make_shared<Marker>());
    Enqueue(*streams[i], Task::kMark, [marker = before.back()] { marker->Set(); });
  }
  // A wait for a signal holds its hardware queue.
  const bool holds = ops.front().kind == OpKind::kWaitSignal;
  const auto run = [&comm, ops, rts, after] {
    RunOps(comm, ops, rts);
    after->Set();
  };
  Enqueue(
      *streams[0], Task::kKernel,
      [before, holds, run] {
        for (const std::shared_ptr<Marker>& marker : before) marker->Wait();
        if (holds) run();
      },
      [holds, run] {
        if (!holds) run();
      });
  // Behind the kernel: in a hardware queue that they share with it they would hold it.
  for (size_t i = 1; i < streams.size(); ++i) {
    Enqueue(*streams[i], Task::kWait, [after] { after->Wait(); });
  }
}

ncclResult_t Launch(Comm& comm, std::vector<Op> ops) {
  if (ProcessError() != CUDA_SUCCESS) {
    return FailComm(&comm, ncclUnhandledCudaError, "a driver call failed");
  }
  const CallOn call(comm);
  const IssueGuard guard(*comm.device);
  if (const ncclResult_t result = Check(comm, ops); result != 0) return result;
  const bool is_one_sided = IsOneSided(ops.front());
  if (is_one_sided) {
    if (const ncclResult_t result = CheckOneSided(comm, ops); result != 0) return result;
  }
  const bool is_first_put = is_one_sided && !std::exchange(comm.has_puts, true);
  uint64_t peers = 0;
  for (const Op& op : ops) {
    if (IsPointToPoint(op) && op.peer != comm.rank) peers |= uint64_t{1} << op.peer;
  }
  const uint64_t fresh = peers & ~comm.connected;
  comm.connected |= peers;
  ++nccl_in_flight;
  ++comm.in_flight;
  ++comm.device->in_flight;
  uint64_t rts = 0;
  {
    const std::lock_guard<std::mutex> lock(comm.device->mu);
    rts = comm.device->next_ticket++;
  }
  if (fresh != 0) {
    const MachineLock lock;
    comm.record->connecting[comm.rank] |= fresh;
  }
  // False: aborted before the ranks have met, and nothing is enqueued.
  const auto prepare = [&comm, fresh, is_first_put, rts] {
    if (fresh != 0) AwaitConnections(comm, fresh);
    if (!is_first_put || InitializePuts(comm)) return true;
    RunOps(comm, {}, rts);
    return false;
  };
  if (comm.is_blocking) {
    if (!prepare()) return ncclInternalError;
    EnqueueOps(comm, ops, rts);
    return fresh != 0 && comm.is_aborted ? ncclInternalError : ncclSuccess;
  }
  const int launch_us = GetConfig().nccl_launch_us;
  if (fresh == 0 && !is_first_put && launch_us == 0) {
    EnqueueOps(comm, ops, rts);
    return ncclSuccess;
  }
  ncclResult_t ready = ncclSuccess;  // an error of earlier operations stays
  comm.state.compare_exchange_strong(ready, ncclInProgress);
  for (const Op& op : ops) op.stream->nccl_pending = true;
  ++comm.helpers;
  // The library starts a thread for each group of such a communicator.
  std::thread([&comm, ops, rts, prepare, launch_us] {
    std::this_thread::sleep_for(std::chrono::microseconds(launch_us));
    if (prepare()) EnqueueOps(comm, ops, rts);
    for (const Op& op : ops) op.stream->nccl_pending = false;
    ncclResult_t in_progress = ncclInProgress;
    comm.state.compare_exchange_strong(in_progress, ncclSuccess);
    --comm.helpers;
  }).detach();
  return ncclInProgress;
}

ncclResult_t RunInits(const std::vector<Comm*>& inits) {
  std::vector<std::thread> blocking;
  ncclResult_t result = ncclSuccess;
  for (Comm* comm : inits) {
    ++comm->helpers;
    std::thread thread([comm] {
      Initialize(*comm);
      if (comm->after_meeting != nullptr) comm->after_meeting();
      --comm->helpers;
    });
    if (comm->is_blocking) {
      blocking.push_back(std::move(thread));
    } else {
      thread.detach();
      result = ncclInProgress;
    }
  }
  for (std::thread& thread : blocking) thread.join();
  for (const Comm* comm : inits) {
    if (comm->is_blocking && comm->state != ncclSuccess) return comm->state;
  }
  return result;
}

bool MixesBlocking(const Group& group) {
  bool seen[2] = {};
  for (const Op& op : group.ops) seen[op.comm->is_blocking ? 1 : 0] = true;
  for (const Comm* comm : group.inits) seen[comm->is_blocking ? 1 : 0] = true;
  if (!seen[0] || !seen[1]) return false;
  Violation(Rule::kNcclMixedBlocking, kCall, "both kinds in one group");
  return true;
}

ncclResult_t Run(const Group& group) {
  if (group.error != 0) return group.error;
  if (MixesBlocking(group)) return ncclInvalidArgument;
  ncclResult_t overall = RunInits(group.inits);
  if (overall != ncclSuccess && overall != ncclInProgress) return overall;
  if (!group.aborts.empty()) {
    const ncclResult_t result = FinishAborts(group.aborts, "ncclCommAbort");
    if (result != 0) return result;
  }
  std::vector<Comm*> comms;
  for (const Op& op : group.ops) {
    if (std::find(comms.begin(), comms.end(), op.comm) == comms.end()) comms.push_back(op.comm);
  }
  for (Comm* comm : comms) {
    std::vector<Op> ops;
    for (const Op& op : group.ops) {
      if (op.comm == comm) ops.push_back(op);
    }
    const ncclResult_t result = Launch(*comm, ops);
    if (result == ncclInProgress) overall = ncclInProgress;
    if (result != ncclSuccess && result != ncclInProgress) return result;
  }
  return overall;
}

// Adds to the group that is open, or runs it alone.
template <typename Add>
ncclResult_t InGroup(const Add& add) {
  Group& group = MyGroup();
  if (group.depth > 0) {
    add(group);
    return ncclSuccess;
  }
  Group alone;
  add(alone);
  return Run(alone);
}

}  // namespace

ncclResult_t AddOp(const Op& op, const char* call) {
  const int fault = TakeFault(call);
  if (fault != 0) MyGroup().error = MyGroup().depth > 0 ? fault : 0;
  if (fault != 0) return fault;
  return InGroup([&op](Group& group) { group.ops.push_back(op); });
}

ncclResult_t AddInit(Comm* comm) {
  const ncclResult_t result = InGroup([comm](Group& group) { group.inits.push_back(comm); });
  return MyGroup().depth > 0 && !comm->is_blocking ? ncclInProgress : result;
}

ncclResult_t AddAbort(Comm* comm) {
  return InGroup([comm](Group& group) { group.aborts.push_back(comm); });
}

extern "C" {

STRICT_CUDA_EXPORT ncclResult_t ncclGroupStart() {
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  ++MyGroup().depth;
  return ncclSuccess;
}

STRICT_CUDA_EXPORT ncclResult_t ncclGroupEnd() {
  Group& group = MyGroup();
  if (group.depth == 0) {
    Violation(Rule::kNcclGroup, __func__, "no group is open in this thread");
    return ncclInvalidUsage;
  }
  if (--group.depth > 0) return ncclSuccess;
  const Group whole = std::exchange(group, Group{});
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  return Run(whole);
}

}  // extern "C"

}  // namespace strict_cuda
