// SPDX-License-Identifier: Apache-2.0
// Communicators of the fake driver, and how their operations reach the streams.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_COMM_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_COMM_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/strict_cuda/context.h"
#include "tests/support/strict_cuda/entry.h"
#include "tests/support/strict_cuda/machine.h"
#include "tests/support/strict_cuda/nccl_abi.h"
#include "tests/support/strict_cuda/stream.h"

namespace strict_cuda {

enum class OpKind : uint32_t {
  kSend,
  kRecv,
  kAllReduce,
  kBroadcast,
  kAllGather,
  kPut,
  kSignal,
  kWaitSignal
};

struct Op {
  OpKind kind = OpKind::kSend;
  Comm* comm = nullptr;
  CUdeviceptr from = 0;
  CUdeviceptr to = 0;
  size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t reduction = ncclSum;
  int peer = 0;  // or the root
  StreamHandle* stream = nullptr;

  // One-sided operations only.
  Window* window = nullptr;
  size_t offset = 0;      // in the peer's part of the window
  int window_index = -1;  // set when it is launched
  uint64_t signals = 0;   // of a wait, since the communicator was made: set when it is launched
};

// Header of each payload, and the receiver's message when it is ready for it.
struct Header {
  enum Type : uint32_t { kReady = 0x52454144, kData = 0x44415441 };
  Type type;
  OpKind kind;
  uint64_t sequence;
  uint64_t count;
  int32_t data_type;
  // For a reduction; the root of a broadcast.
  int32_t how;
};

// The socket to a peer. Touched by one stream's thread at a time.
struct Link {
  int fd = -1;
  bool is_dead = false;
  uint64_t next_send = 0;
  uint64_t next_recv = 0;
  std::deque<Header> ready;  // the operations that the peer is ready for, in order
  std::string partial;       // the first bytes of a header
};

// One device of this process: NCCL's operations run on it one after the other, in launch order.
struct Device {
  int channel = 0;  // index of Machine::channels
  std::mutex mu;
  std::condition_variable changed;
  uint64_t next_ticket = 0;
  uint64_t current_ticket = 0;
  int issuing = 0;      // threads that are in an issuing call
  uint64_t issuer = 0;  // the last thread that issued
  std::atomic<int> in_flight = 0;
};

// Never deleted, so that a handle that outlives its communicator is recognised.
struct Comm {
  // Constant after the call that created it.
  int rank = 0;
  int count = 0;
  uint64_t token = 0;
  bool is_blocking = true;
  Context* context = nullptr;
  Device* device = nullptr;
  IdRecord* record = nullptr;

  std::vector<Link> links;               // by rank; set by the initialization
  uint64_t connected = 0;                // peers of earlier exchanges; issuing thread only
  size_t memory_bytes = 0;               // of the device; set by the initialization
  uint64_t child_count = 0;              // splits and shrinks; issuing thread only
  std::vector<uint64_t> awaited;         // signals by peer; issuing thread only
  bool has_puts = false;                 // its first one-sided operation was launched
  std::function<bool()> before_meeting;  // of children: settles rank, count and record
  std::function<void()> after_meeting;   // of children: publishes them
  const Comm* parent = nullptr;          // while it is made of another one
  bool has_grow_id = false;              // that has not been used; issuing thread only
  std::atomic<ncclResult_t> state = ncclInProgress;
  std::atomic<bool> is_initialized = false;
  std::atomic<bool> is_aborted = false;
  std::atomic<bool> is_revoked = false;
  std::atomic<bool> is_finalized = false;
  std::atomic<bool> is_shrunk = false;  // its operations were stopped for a child
  std::atomic<bool> is_gone = false;
  std::atomic<int> in_flight = 0;
  std::atomic<int> helpers = 0;  // threads that work for it
  std::atomic<int> calls = 0;    // threads of the program that are in a call on it

  std::mutex mu;
  std::string last_error;  // guarded by mu
};

// For the length of a call on it.
class CallOn final {
 public:
  explicit CallOn(Comm& comm) : comm_(comm) { ++comm_.calls; }
  ~CallOn() { --comm_.calls; }
  CallOn(const CallOn&) = delete;
  CallOn& operator=(const CallOn&) = delete;

 private:
  Comm& comm_;
};

size_t TypeBytes(ncclDataType_t type);

// The device of a context. Made once.
Device& DeviceOf(const Context& context);

// A communicator that may be used; otherwise the result of the call. `call` names it.
ncclResult_t CheckComm(Comm* comm, const char* call);
// Also that it is not in progress.
ncclResult_t CheckReady(Comm* comm, const char* call);
// Also that it was neither finalized nor revoked.
ncclResult_t CheckUsable(Comm* comm, const char* call);
// How long an aborted operation writes on, while the abort has returned.
std::atomic<int>& LingerMs();
// Whether its kernels leave.
inline bool IsStopped(const Comm& comm) {
  return comm.is_aborted || comm.is_revoked || comm.is_shrunk;
}
void RegisterComm(Comm* comm);
ncclResult_t FailComm(Comm* comm, ncclResult_t result, const std::string& text);

// Groups (nccl_group.cc). An operation outside of a group is a group of its own.
ncclResult_t AddOp(const Op& op, const char* call);
ncclResult_t AddInit(Comm* comm);
ncclResult_t AddAbort(Comm* comm);

// The record of a unique id, or null; a new one, or null when the table is full. REQUIRE: the
// machine's lock.
IdRecord* FindId(uint64_t token);
IdRecord* NewId(uint64_t token);
ncclUniqueId IdOf(uint64_t token);

// Does the meeting of all ranks; ends early when the communicator is aborted.
void Initialize(Comm& comm);
// Ends the operations of aborted communicators, then frees them.
ncclResult_t FinishAborts(const std::vector<Comm*>& comms, const char* call);

// One-sided operations (nccl_puts.cc). The first of a communicator is collective on the hosts:
// returns false if it is aborted meanwhile.
bool IsOneSided(const Op& op);
bool InitializePuts(Comm& comm);
// Checks those of a group that is launched, and completes what they wait for.
ncclResult_t CheckOneSided(Comm& comm, std::vector<Op>& ops);
// In the stream's thread.
void RunOneSided(Comm& comm, const std::vector<Op>& ops);
// The communicator has ended, and its windows with it.
void ForgetWindows(const Comm& comm);

// The turn of a ticket on its device.
void AwaitTicket(Device& device, uint64_t rts);
void EndTicket(Device& device);

// Moves the data of operations that were launched together; in the stream's thread.
void RunOps(Comm& comm, const std::vector<Op>& ops, uint64_t rts);

// The pending operation of the device in the machine's table (nccl_deadlock.cc).
void PublishHead(const Comm& comm, uint64_t send_mask, uint64_t recv_mask);
void ClearHead(const Comm& comm);
void CountProgress(const Comm& comm);
// Looks for a cycle of devices that wait for each other; a violation when it lasts.
class DeadlockWatch final {
 public:
  explicit DeadlockWatch(const Comm& comm) : comm_(comm) {}
  void Look();

 private:
  const Comm& comm_;
  std::string seen_;
  int64_t since_ms_ = 0;
  bool was_told_ = false;
};

int64_t NowMs();

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_COMM_H_
