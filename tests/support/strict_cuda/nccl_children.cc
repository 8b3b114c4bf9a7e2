// SPDX-License-Identifier: Apache-2.0
// Communicators made of others: split by all ranks, or shrunk by those that survive.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <tuple>
#include <utility>

#include "tests/support/strict_cuda/nccl_comm.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

// In place of a part of the parent.
constexpr uint64_t kGrown = 0x67726f77;

// The same in each member, and different for each child.
uint64_t ChildToken(const Comm& parent, uint64_t sequence, uint64_t part) {
  uint64_t token = parent.token;
  for (const uint64_t value : {sequence, part}) {
    token = (token ^ value) * 0x9E3779B97F4A7C15;
    token ^= token >> 29;
  }
  return token | 1;
}

// `made` is null, and the parent in progress, until the child is complete; `made` null: its caller
// has the child already.
Comm* NewChild(Comm& parent, const ncclConfig_t* config, ncclComm_t* made) {
  auto* const child = new Comm;
  child->parent = &parent;
  ++parent.helpers;
  if (made != nullptr) parent.state = ncclInProgress;
  child->after_meeting = [child, parent = &parent, made] {
    if (made != nullptr) {
      const ncclResult_t result = child->state;
      if (result == ncclSuccess) __atomic_store_n(made, child, __ATOMIC_RELEASE);
      ncclResult_t in_progress = ncclInProgress;
      parent->state.compare_exchange_strong(in_progress, result);
    }
    child->parent = nullptr;
    --parent->helpers;
  };
  const bool inherits = config == nullptr || config->blocking == NCCL_CONFIG_UNDEF_INT;
  child->is_blocking = inherits ? parent.is_blocking : config->blocking != 0;
  child->context = parent.context;
  child->device = parent.device;
  return child;
}

// Gives the child its rank among `members`, ranks of the parent in the child's order.
bool Settle(Comm& child, int parent_rank, const std::vector<int>& members, uint64_t token) {
  const auto place = std::find(members.begin(), members.end(), parent_rank);
  child.rank = static_cast<int>(place - members.begin());
  child.count = static_cast<int>(members.size());
  child.token = token;
  const MachineLock lock;
  child.record = FindId(token);
  if (child.record == nullptr) child.record = NewId(token);
  if (child.record != nullptr) return true;
  FailComm(&child, ncclInternalError, "too many communicators");
  return false;
}

// REQUIRES: the machine's lock.
SplitRecord* FindSplit(uint64_t parent, uint64_t sequence) {
  SplitRecord* free_record = nullptr;
  for (SplitRecord& record : TheMachine().splits) {
    if (record.parent == parent && record.sequence == sequence) return &record;
    if (record.parent == 0) free_record = &record;
  }
  if (free_record == nullptr) return nullptr;
  *free_record = SplitRecord{};
  free_record->parent = parent;
  free_record->sequence = sequence;
  return free_record;
}

// Publishes this rank's colour, and waits until all have. False when that cannot happen.
bool Agree(Comm& child, const Comm& parent, uint64_t sequence, int color, int key,
           SplitRecord* agreed) {
  const uint64_t own = uint64_t{1} << parent.rank;
  const uint64_t all = parent.count == 64 ? ~uint64_t{0} : (uint64_t{1} << parent.count) - 1;
  while (!child.is_aborted && !parent.is_aborted) {
    {
      const MachineLock lock;
      SplitRecord* const record = FindSplit(parent.token, sequence);
      if (record == nullptr) break;
      record->colors[parent.rank] = color;
      record->keys[parent.rank] = key;
      record->came |= own;
      if (record->came == all) {
        *agreed = *record;
        record->read |= own;
        if (record->read == all) record->parent = 0;
        return true;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  FailComm(&child, ncclInternalError, "the split was aborted");
  return false;
}

std::vector<int> MembersOf(const SplitRecord& record, int count, int color) {
  std::vector<std::pair<int, int>> order;
  for (int rank = 0; rank < count; ++rank) {
    if (record.colors[rank] == color) order.emplace_back(record.keys[rank], rank);
  }
  std::sort(order.begin(), order.end());
  std::vector<int> members;
  for (const auto& [key, rank] : order) members.push_back(rank);
  return members;
}

}  // namespace

extern "C" {

STRICT_CUDA_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                                              ncclConfig_t* config) {
  if (made == nullptr || color < NCCL_SPLIT_NOCOLOR) return ncclInvalidArgument;
  *made = nullptr;
  if (const ncclResult_t result = CheckReady(comm, __func__); result != 0) return result;
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  const uint64_t sequence = comm->child_count++;
  ncclComm_t* const published = color == NCCL_SPLIT_NOCOLOR ? new ncclComm_t : made;
  Comm* const child = NewChild(*comm, config, published);
  child->before_meeting = [child, comm, sequence, color, key] {
    SplitRecord agreed = {};
    if (!Agree(*child, *comm, sequence, color, key, &agreed)) return false;
    if (color == NCCL_SPLIT_NOCOLOR) {
      child->state = ncclSuccess;
      return false;
    }
    return Settle(*child, comm->rank, MembersOf(agreed, comm->count, color),
                  ChildToken(*comm, sequence, static_cast<uint64_t>(color)));
  };
  RegisterComm(child);
  return AddInit(child);
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count,
                                               ncclComm_t* made, ncclConfig_t* config, int flags) {
  if (made == nullptr || excluded == nullptr || excluded_count < 1 ||
      (flags & ~NCCL_SHRINK_ABORT) != 0) {
    return ncclInvalidArgument;
  }
  *made = nullptr;
  if (const ncclResult_t result = CheckComm(comm, __func__); result != 0) return result;
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  if (comm->state == ncclInProgress) {
    Violation(Rule::kNcclNotReady, __func__, "communicator %p is in progress",
              static_cast<void*>(comm));
  }
  if ((flags & NCCL_SHRINK_ABORT) != 0) {
    comm->is_shrunk = true;
    while (comm->in_flight > 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  } else if (comm->in_flight > 0) {
    Violation(Rule::kNcclDestroyBusy, __func__, "%d groups are in flight", comm->in_flight.load());
  }
  std::vector<int> members;
  uint64_t gone = 0;
  for (int rank = 0; rank < comm->count; ++rank) {
    if (std::find(excluded, excluded + excluded_count, rank) == excluded + excluded_count) {
      members.push_back(rank);
    } else {
      gone |= uint64_t{1} << rank;
    }
  }
  if ((gone >> comm->rank & 1) != 0) return ncclInvalidArgument;
  const uint64_t token = ChildToken(*comm, comm->child_count++, ~gone);
  Comm* const child = NewChild(*comm, config, made);
  child->before_meeting = [child, rank = comm->rank, members, token] {
    return Settle(*child, rank, members, token);
  };
  RegisterComm(child);
  return AddInit(child);
}

// The next child's. Each is used once, and there is one at a time.
STRICT_CUDA_EXPORT ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id) {
  if (id == nullptr) return ncclInvalidArgument;
  if (const ncclResult_t result = CheckUsable(comm, __func__); result != 0) return result;
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  if (std::exchange(comm->has_grow_id, true)) {
    Violation(Rule::kNcclIdReuse, __func__, "communicator %p has one that is not used yet",
              static_cast<void*>(comm));
    return ncclInvalidUsage;
  }
  const uint64_t token = ChildToken(*comm, comm->child_count, kGrown);
  const MachineLock lock;
  if (NewId(token) == nullptr) return ncclInternalError;
  *id = IdOf(token);
  return ncclSuccess;
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommGrow(ncclComm_t comm, int count, const ncclUniqueId* id,
                                             int rank, ncclComm_t* made, ncclConfig_t* config) {
  if (made == nullptr || count < 1 || count > kMaxRanks) return ncclInvalidArgument;
  *made = nullptr;
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  // A new rank.
  if (comm == nullptr) {
    if (id == nullptr) return ncclInvalidArgument;
    return ncclCommInitRankConfig(made, count, *id, rank, config);
  }
  if (const ncclResult_t result = CheckUsable(comm, __func__); result != 0) return result;
  if (rank != -1 || count <= comm->count) return ncclInvalidArgument;
  const uint64_t token = ChildToken(*comm, comm->child_count, kGrown);
  if (id != nullptr && std::memcmp(IdOf(token).internal, id->internal, sizeof(*id)) != 0) {
    Violation(Rule::kNcclIdReuse, __func__, "the id is not the next of communicator %p",
              static_cast<void*>(comm));
    return ncclInvalidArgument;
  }
  ++comm->child_count;
  comm->has_grow_id = false;
  Comm* const child = NewChild(*comm, config, nullptr);
  child->before_meeting = [child, rank = comm->rank, count, token] {
    child->rank = rank;
    child->count = count;
    child->token = token;
    // The first rank creates it.
    while (!child->is_aborted && !child->parent->is_aborted) {
      {
        const MachineLock lock;
        child->record = FindId(token);
      }
      if (child->record != nullptr) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    FailComm(child, ncclInternalError, "the growth was aborted");
    return false;
  };
  RegisterComm(child);
  *made = child;
  return AddInit(child);
}

}  // extern "C"

}  // namespace strict_cuda
