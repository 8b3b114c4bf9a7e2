// SPDX-License-Identifier: Apache-2.0
// Questions about communicators, and their ends.
#include "tests/support/strict_cuda/nccl_comm.h"

#include <unistd.h>

#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "tests/support/strict_cuda/memory.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

constexpr std::chrono::microseconds kCommPoll(200);

std::set<Comm*>& Comms() {
  static auto* const comms = new std::set<Comm*>;
  return *comms;
}

std::atomic<bool>& FinalizeHangs() {
  static auto* const hangs = new std::atomic<bool>(
      FromEnvironment("STRICT_CUDA_NCCL_FINALIZE", "ends") == std::string("hang"));
  return *hangs;
}

void CloseLinks(Comm& comm) {
  for (Link& link : comm.links) {
    if (link.fd >= 0) close(link.fd);
    link.fd = -1;
  }
  ForgetWindows(comm);
  if (const size_t bytes = std::exchange(comm.memory_bytes, 0); bytes > 0) {
    const MachineLock lock;
    GiveMemory(comm.context->physical, bytes);
  }
  comm.is_gone = true;
}

}  // namespace

std::atomic<int>& LingerMs() {
  static auto* const ms = new std::atomic<int>(
      static_cast<int>(NumberFromEnvironment("STRICT_CUDA_NCCL_ABORT_LINGER_MS", 0)));
  return *ms;
}

void RegisterComm(Comm* comm) {
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  Comms().insert(comm);
}

ncclResult_t FailComm(Comm* comm, ncclResult_t result, const std::string& text) {
  {
    const std::lock_guard<std::mutex> lock(comm->mu);
    comm->last_error = text;
  }
  comm->state = result;
  return result;
}

ncclResult_t CheckComm(Comm* comm, const char* call) {
  {
    const std::lock_guard<std::mutex> lock(ProcessMutex());
    if (Comms().count(comm) == 0) return ncclInvalidArgument;
  }
  CheckFork(call);
  if (!comm->is_gone) return ncclSuccess;
  Violation(Rule::kNcclAfterAbort, call, "communicator %p was %s", static_cast<void*>(comm),
            comm->is_aborted ? "aborted" : "destroyed");
  return ncclInvalidArgument;
}

ncclResult_t CheckReady(Comm* comm, const char* call) {
  if (const ncclResult_t result = CheckComm(comm, call); result != 0) return result;
  const ncclResult_t state = comm->state;
  if (state != ncclInProgress) return state;
  Violation(Rule::kNcclNotReady, call, "communicator %p is in progress", static_cast<void*>(comm));
  return ncclInvalidArgument;
}

ncclResult_t CheckUsable(Comm* comm, const char* call) {
  if (const ncclResult_t result = CheckReady(comm, call); result != 0) return result;
  if (!comm->is_finalized && !comm->is_revoked) return ncclSuccess;
  Violation(Rule::kNcclAfterFinalize, call, "communicator %p was %s", static_cast<void*>(comm),
            comm->is_revoked ? "revoked" : "finalized");
  return ncclInvalidUsage;
}

// Its kernel may read memory that the abort frees.
void CheckPeersOfAborted(const Comm& comm, const char* call) {
  if (!GetConfig().nccl_abort_is_watched || !comm.is_initialized) return;
  for (int rank = 0; rank < comm.count; ++rank) {
    int32_t reader = 0;
    {
      const MachineLock lock;
      const ControlChannel& channel = TheMachine().channels[comm.record->channels[rank]];
      const uint64_t peers = channel.send_mask | channel.recv_mask;
      const bool reads = rank != comm.rank && channel.comm == comm.token && channel.rank == rank &&
                         (peers >> comm.rank & 1) != 0 && IsAlive(channel.process);
      if (reads) reader = channel.process.pid;
    }
    if (reader == 0) continue;
    Violation(Rule::kNcclAbortUnderPeer, call,
              "an operation of rank %d (process %d) with rank %d is running", rank, reader,
              comm.rank);
  }
}

ncclResult_t FinishAborts(const std::vector<Comm*>& comms, const char* call) {
  for (Comm* comm : comms) {
    const int64_t deadline_ms = NowMs() + GetConfig().deadlock_ms;
    // Returns before the kernels have left, as for one of several ranks of a process.
    const bool is_early = LingerMs() > 0;
    while (comm->helpers > 0 ||
           (!is_early && (comm->in_flight > 0 || comm->device->in_flight > 0))) {
      if (NowMs() > deadline_ms) {
        Violation(Rule::kNcclAbortOrder, call,
                  "operations of other communicators of device %d are still in flight",
                  comm->context->physical);
        return ncclInternalError;
      }
      std::this_thread::sleep_for(kCommPoll);
    }
    CheckPeersOfAborted(*comm, call);
    comm->is_gone = true;
    if (comm->in_flight == 0) {
      CloseLinks(*comm);
      continue;
    }
    std::thread([comm] {
      while (comm->in_flight > 0) std::this_thread::sleep_for(kCommPoll);
      CloseLinks(*comm);
    }).detach();
  }
  return ncclSuccess;
}

extern "C" {

STRICT_CUDA_EXPORT void strict_cuda_nccl_hang_finalize(int hangs) { FinalizeHangs() = hangs != 0; }

STRICT_CUDA_EXPORT void strict_cuda_nccl_linger(int ms) { LingerMs() = ms; }

STRICT_CUDA_EXPORT ncclResult_t ncclGetVersion(int* version) {
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  if (version == nullptr) return ncclInvalidArgument;
  *version = GetConfig().nccl_version;
  return ncclSuccess;
}

STRICT_CUDA_EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

STRICT_CUDA_EXPORT const char* ncclGetLastError(ncclComm_t comm) {
  static thread_local std::string text;
  text.clear();
  if (comm != nullptr && CheckComm(comm, __func__) == ncclSuccess) {
    const std::lock_guard<std::mutex> lock(comm->mu);
    text = comm->last_error;
  }
  return text.c_str();
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (error == nullptr) return ncclInvalidArgument;
  if (const ncclResult_t result = CheckComm(comm, __func__); result != 0) return result;
  if (const int fault = TakeFault(__func__); fault != 0) FailComm(comm, fault, "asked to fail");
  *error = comm->state;
  return ncclSuccess;
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  if (count == nullptr) return ncclInvalidArgument;
  if (const ncclResult_t result = CheckReady(comm, __func__); result != 0) return result;
  *count = comm->count;
  return ncclSuccess;
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  if (device == nullptr) return ncclInvalidArgument;
  if (const ncclResult_t result = CheckReady(comm, __func__); result != 0) return result;
  *device = comm->context->ordinal;
  return ncclSuccess;
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  if (rank == nullptr) return ncclInvalidArgument;
  if (const ncclResult_t result = CheckReady(comm, __func__); result != 0) return result;
  *rank = comm->rank;
  return ncclSuccess;
}

// Flushes issued operations. A non-blocking one is in progress until then.
STRICT_CUDA_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const ncclResult_t result = CheckUsable(comm, __func__); result != 0) return result;
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  comm->is_finalized = true;
  const CallOn call(*comm);
  if (comm->is_blocking) {
    while (comm->in_flight > 0) std::this_thread::sleep_for(kCommPoll);
    return comm->state;
  }
  comm->state = ncclInProgress;
  ++comm->helpers;
  std::thread([comm] {
    while ((FinalizeHangs() || comm->in_flight > 0) && !comm->is_aborted) {
      std::this_thread::sleep_for(kCommPoll);
    }
    ncclResult_t in_progress = ncclInProgress;
    comm->state.compare_exchange_strong(in_progress, ncclSuccess);
    --comm->helpers;
  }).detach();
  return ncclInProgress;
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  if (const ncclResult_t result = CheckComm(comm, __func__); result != 0) return result;
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  if (comm->state == ncclInProgress) {
    Violation(Rule::kNcclNotReady, __func__, "communicator %p is in progress: abort it instead",
              static_cast<void*>(comm));
  }
  if (comm->in_flight > 0) {
    Violation(Rule::kNcclDestroyBusy, __func__, "%d groups are in flight", comm->in_flight.load());
  }
  CheckImplicitSync(__func__);
  const CallOn call(*comm);
  while (comm->in_flight > 0 || comm->helpers > 0) std::this_thread::sleep_for(kCommPoll);
  CloseLinks(*comm);
  return ncclSuccess;
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  if (const ncclResult_t result = CheckComm(comm, __func__); result != 0) return result;
  if (const int error = TakeFault(__func__); error != 0) return error;
  if (const int calls = comm->calls; calls > 0) {
    Violation(Rule::kNcclAbortInCall, __func__, "%d threads are in calls on communicator %p", calls,
              static_cast<void*>(comm));
  }
  comm->is_aborted = true;
  return AddAbort(comm);
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  if (flags != 0) return ncclInvalidArgument;
  if (const ncclResult_t result = CheckComm(comm, __func__); result != 0) return result;
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  if (comm->is_finalized || comm->is_revoked.exchange(true)) {
    Violation(Rule::kNcclAfterFinalize, __func__, "communicator %p was %s",
              static_cast<void*>(comm), comm->is_finalized ? "finalized" : "revoked");
    return ncclInvalidArgument;
  }
  const CallOn call(*comm);
  // Operations that are being launched: the call waits for those threads.
  while (comm->helpers > 0) std::this_thread::sleep_for(kCommPoll);
  if (comm->is_blocking) {
    while (comm->in_flight > 0) std::this_thread::sleep_for(kCommPoll);
    return ncclSuccess;
  }
  comm->state = ncclInProgress;
  ++comm->helpers;
  std::thread([comm] {
    while (comm->in_flight > 0 && !comm->is_aborted) std::this_thread::sleep_for(kCommPoll);
    ncclResult_t in_progress = ncclInProgress;
    comm->state.compare_exchange_strong(in_progress, ncclSuccess);
    --comm->helpers;
  }).detach();
  return ncclInProgress;
}

}  // extern "C"

}  // namespace strict_cuda
