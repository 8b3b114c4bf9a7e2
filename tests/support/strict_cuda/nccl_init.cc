// SPDX-License-Identifier: Apache-2.0
// Unique ids, and the meeting of the ranks.
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <set>
#include <thread>

#include "tests/support/strict_cuda/nccl_comm.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

constexpr uint64_t kIdMagic = 0x4e43434c53545249;
constexpr std::chrono::microseconds kInitPoll(200);

struct IdBytes {
  uint64_t magic;
  uint64_t token;
};

// The abstract name at which a rank listens.
socklen_t Address(uint64_t token, int rank, sockaddr_un* address) {
  *address = sockaddr_un{};
  address->sun_family = AF_UNIX;
  const int length =
      std::snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "strict-nccl-%016llx-%d",
                    static_cast<unsigned long long>(token), rank);  // NOLINT
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

int Listen(uint64_t token, int rank) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address;
  const socklen_t bytes = Address(token, rank, &address);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      listen(fd, kMaxRanks) != 0) {
    if (fd >= 0) close(fd);
    return -1;
  }
  return fd;
}

int Connect(uint64_t token, int rank, int own_rank) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t bytes = Address(token, rank, &address);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      send(fd, &own_rank, sizeof(own_rank), MSG_NOSIGNAL) != sizeof(own_rank)) {
    if (fd >= 0) close(fd);
    return -1;
  }
  return fd;
}

// One peer of a higher rank; false when none has connected yet.
bool Accept(int listener, std::vector<Link>& links) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return false;
  int rank = -1;
  if (recv(fd, &rank, sizeof(rank), MSG_WAITALL) != sizeof(rank) || rank < 0 ||
      static_cast<size_t>(rank) >= links.size()) {
    close(fd);
    return false;
  }
  links[static_cast<size_t>(rank)].fd = fd;
  return true;
}

uint64_t AllRanks(int count) { return count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

// Checks in. Empty, or why it cannot.
std::string CheckIn(Comm& comm) {
  const MachineLock lock;
  IdRecord& record = *comm.record;
  const uint64_t bit = uint64_t{1} << comm.rank;
  if ((record.came & bit) != 0 ||
      (record.came != 0 && record.came == AllRanks(record.rank_count))) {
    Violation(Rule::kNcclIdReuse, "ncclCommInitRank", "rank %d has come with this id before",
              comm.rank);
    return "unique id used twice";
  }
  if (record.came != 0 && record.rank_count != comm.count) {
    Violation(Rule::kNcclIdReuse, "ncclCommInitRank", "%d ranks, where others said %d", comm.count,
              record.rank_count);
    return "ranks disagree on their number";
  }
  if (!IsAlive(record.minter)) return "the process that minted the unique id is gone";
  record.rank_count = comm.count;
  record.channels[comm.rank] = comm.device->channel;
  record.hosts[comm.rank] = std::hash<std::string>()(FromEnvironment("NCCL_HOSTID", "host"));
  record.came |= bit;
  return "";
}

// Two ranks on one device of one host are refused, unless NCCL is new enough and configured to
// accept them.
std::string FindDuplicate(const Comm& comm) {
  if (GetConfig().nccl_version >= 23003 &&
      FromEnvironment("NCCL_MULTI_RANK_GPU_ENABLE", "0") == "1") {
    return "";
  }
  const MachineLock lock;
  std::set<std::pair<uint64_t, int>> seen;
  for (int rank = 0; rank < comm.count; ++rank) {
    const ControlChannel& channel = TheMachine().channels[comm.record->channels[rank]];
    if (!seen.insert({comm.record->hosts[rank], channel.device}).second) {
      return "Duplicate GPU detected: device " + std::to_string(channel.device) + ", rank " +
             std::to_string(rank);
    }
  }
  return "";
}

// Polls `done` until it holds. False when the communicator is aborted, or the creator of the id has
// ended.
bool Await(Comm& comm, const std::function<bool()>& done) {
  for (int polls = 1; !done(); ++polls) {
    if (comm.is_aborted || (comm.parent != nullptr && comm.parent->is_aborted)) return false;
    if (polls % 500 == 0 && !IsAlive(comm.record->minter)) {
      FailComm(&comm, ncclSystemError, "the process that minted the unique id is gone");
      return false;
    }
    std::this_thread::sleep_for(kInitPoll);
  }
  return true;
}

}  // namespace

IdRecord* FindId(uint64_t token) {
  for (IdRecord& record : TheMachine().ids) {
    if (record.token == token) return &record;
  }
  return nullptr;
}

IdRecord* NewId(uint64_t token) {
  IdRecord* const record = FindId(0);
  if (record == nullptr) return nullptr;
  *record = IdRecord{};
  record->token = token;
  record->minter = Self();
  return record;
}

ncclUniqueId IdOf(uint64_t token) {
  const IdBytes bytes = {kIdMagic, token};
  ncclUniqueId id = {};
  std::memcpy(id.internal, &bytes, sizeof(bytes));
  return id;
}

void Initialize(Comm& comm) {
  // False: the rank does not take part, and the state says why.
  if (comm.before_meeting != nullptr && !comm.before_meeting()) return;
  if (GetConfig().nccl_absent_rank == comm.rank) {
    Await(comm, [] { return false; });
    return;
  }
  const int listener = Listen(comm.token, comm.rank);
  if (const std::string text = CheckIn(comm); !text.empty()) {
    if (listener >= 0) close(listener);
    FailComm(&comm, ncclSystemError, text);
    return;
  }
  comm.links.resize(static_cast<size_t>(comm.count));
  bool ok = listener >= 0 && Await(comm, [&comm] {
              const MachineLock lock;
              return comm.record->came == AllRanks(comm.count);
            });
  for (int rank = 0; ok && rank < comm.rank; ++rank) {
    ok = Await(comm, [&comm, rank] {
      comm.links[static_cast<size_t>(rank)].fd = Connect(comm.token, rank, comm.rank);
      return comm.links[static_cast<size_t>(rank)].fd >= 0;
    });
  }
  for (int missing = comm.count - 1 - comm.rank; ok && missing > 0; --missing) {
    ok = Await(comm, [&comm, listener] { return Accept(listener, comm.links); });
  }
  if (listener >= 0) close(listener);
  if (!ok) {
    if (comm.state == ncclInProgress) FailComm(&comm, ncclInternalError, "aborted");
    return;
  }
  if (const std::string text = FindDuplicate(comm); !text.empty()) {
    FailComm(&comm, ncclInvalidUsage, text);
    return;
  }
  const auto memory = static_cast<size_t>(GetConfig().nccl_memory);
  const auto take = [&] {
    const MachineLock lock;
    return TakeMemory(comm.context->physical, memory);
  };
  if (memory > 0 && !take()) {
    FailComm(&comm, ncclUnhandledCudaError, "out of memory");
    return;
  }
  comm.memory_bytes = memory;
  comm.is_initialized = true;
  comm.state = ncclSuccess;
}

namespace {

// Null, with the result set, if the arguments are wrong.
Comm* NewComm(int count, const ncclUniqueId& id, int rank, const ncclConfig_t* config,
              const char* call, ncclResult_t* result) {
  *result = ncclInvalidArgument;
  IdBytes bytes = {};
  std::memcpy(&bytes, id.internal, sizeof(bytes));
  if (count < 1 || count > kMaxRanks || rank < 0 || rank >= count || bytes.magic != kIdMagic) {
    return nullptr;
  }
  if (config != nullptr && (config->magic != kNcclConfigMagic ||
                            config->size > sizeof(ncclConfig_t) || config->size < 24)) {
    return nullptr;
  }
  Context* context = nullptr;
  if (const CUresult found = RequireContext(&context); found != CUDA_SUCCESS) {
    if (context == nullptr) Violation(Rule::kNcclWrongDevice, call, "no context is current");
    *result = ncclUnhandledCudaError;
    return nullptr;
  }
  auto* const comm = new Comm;
  comm->rank = rank;
  comm->count = count;
  comm->token = bytes.token;
  comm->is_blocking = config == nullptr || config->blocking != 0;
  comm->context = context;
  comm->device = &DeviceOf(*context);
  const MachineLock lock;
  comm->record = FindId(bytes.token);
  if (comm->record != nullptr) {
    *result = ncclSuccess;
    return comm;
  }
  std::fprintf(stderr, "strict_cuda: the unique id is of another machine (STRICT_CUDA_SESSION)\n");
  delete comm;
  *result = ncclSystemError;
  return nullptr;
}

ncclResult_t Init(ncclComm_t* out, int count, const ncclUniqueId& id, int rank,
                  const ncclConfig_t* config, const char* call) {
  CheckFork(call);
  if (const int fault = TakeFault(call); fault != 0) return fault;
  if (out == nullptr) return ncclInvalidArgument;
  *out = nullptr;
  ncclResult_t result = ncclSuccess;
  Comm* const comm = NewComm(count, id, rank, config, call, &result);
  if (comm == nullptr) return result;
  RegisterComm(comm);
  *out = comm;
  return AddInit(comm);
}

}  // namespace

extern "C" {

STRICT_CUDA_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  if (id == nullptr) return ncclInvalidArgument;
  IdBytes bytes = {kIdMagic, 0};
  if (getrandom(&bytes.token, sizeof(bytes.token), 0) != sizeof(bytes.token)) {
    return ncclSystemError;
  }
  bytes.token |= 1;
  const MachineLock lock;
  if (NewId(bytes.token) == nullptr) return ncclInternalError;
  std::memset(id->internal, 0, sizeof(id->internal));
  std::memcpy(id->internal, &bytes, sizeof(bytes));
  return ncclSuccess;
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int count, ncclUniqueId id,
                                                 int rank) {
  return Init(comm, count, id, rank, nullptr, __func__);
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int count, ncclUniqueId id,
                                                       int rank, ncclConfig_t* config) {
  return Init(comm, count, id, rank, config, __func__);
}

// The first id alone would do for the meeting; all must be the same in every rank.
STRICT_CUDA_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int count, int rank,
                                                         int id_count, ncclUniqueId* ids,
                                                         ncclConfig_t* config) {
  if (ids == nullptr || id_count < 1 || id_count > count) return ncclInvalidArgument;
  return Init(comm, count, ids[0], rank, config, __func__);
}

}  // extern "C"

}  // namespace strict_cuda
