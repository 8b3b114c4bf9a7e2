// SPDX-License-Identifier: Apache-2.0
// CommunicatorCache: shares a program's communicators among its callers and caches idle ones.
#ifndef FERRY_NODE_COMMUNICATOR_CACHE_H_
#define FERRY_NODE_COMMUNICATOR_CACHE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "base/thread_group.h"
#include "gpu/communicator/communicator.h"
#include "gpu/communicator/communicator_use_record.h"

namespace ferry {

// The NCCL communicators of a program (Node::Communicator). Those of the NCCL transport are kept by
// NcclDevice (transport/nccl/communicator_lru.h), those of graphs' collectives by
// CollectiveCommunicators. Callers that name the same devices share a communicator while any of
// them holds it. When the last has released it, it is cached if no operation is in flight on it,
// and otherwise aborted, which invalidates it on all ranks. Beyond the budget the least recently
// used are evicted, unless another rank uses them (CommunicatorUseRecord). Thread-safe.
class CommunicatorCache final : public std::enable_shared_from_this<CommunicatorCache> {
 public:
  //   budget_bytes: per GPU. Communicators in use count, but are never evicted. 0: none are cached.
  //   free_bytes: returns the free memory of a GPU, by its ordinal; 0: unknown.
  //   use_record_store: outlives this until Stop.
  CommunicatorCache(UseRecordStore& use_record_store, uint64_t budget_bytes,
                    std::function<uint64_t(int ordinal)> free_bytes);
  // Ends idle communicators; those in use end when they are released. Acquire fails from now on,
  // also where it is in progress. Blocks.
  //   Errors: UNAVAILABLE: a communicator, or a call, has not ended within `timeout`; the objects
  //   that it uses, and this one, must stay alive.
  absl::Status Stop(absl::Duration timeout);

  using Make = absl::FunctionRef<absl::StatusOr<std::shared_ptr<NcclCommunicator>>()>;
  // Blocks.
  //   Errors: DEADLINE_EXCEEDED; as CheckAlive, `make` and the store.
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> Acquire(const CommunicatorKey& key, int rank,
                                                            int ordinal, absl::Duration timeout,
                                                            Make make);
  // Members for which `is_dead` returns true have died, because of `why`; cached communicators with
  // such a member are ended soon. Does not block.
  void Forget(std::function<bool(const CommunicatorMember&)> is_dead, absl::Status why);
  // Returns why a member of the communicator has died, if one has, or that Stop was called.
  absl::Status CheckAlive(const CommunicatorKey& key) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasDied(const CommunicatorMember& member) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    CommunicatorKey key;
    int rank = 0;
    int ordinal = 0;
    uint64_t bytes = 0;
    std::shared_ptr<NcclCommunicator> communicator;
    // The users' shared reference, and its number.
    std::weak_ptr<NcclCommunicator> handle;
    uint64_t handle_number = 0;
    // True if it has no user and the store has recorded that.
    bool is_idle = false;
    uint64_t idle_since = 0;
  };

  absl::Status Enter(const std::string& name, absl::Duration timeout);
  void Exit(const std::string& name);
  CommunicatorUseRecord UseRecordOf(const CommunicatorKey& key, int rank);
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> AcquireEntered(
      const std::string& name, const CommunicatorKey& key, int rank, int ordinal,
      absl::Time deadline, Make make, std::shared_ptr<NcclCommunicator>& handle);
  absl::Status CheckAliveLocked(const CommunicatorKey& key) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<NcclCommunicator> Share(const std::string& name, Entry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnLastReference(const std::string& name, uint64_t handle_number,
                       std::shared_ptr<NcclCommunicator> communicator);
  // REQUIRES: entered. Destroying the returned communicator may block.
  std::shared_ptr<NcclCommunicator> Extract(const std::string& name);
  // Ends idle communicators of the GPU until `bytes` more fit.
  void MakeRoom(int ordinal, uint64_t bytes);
  // Destroys it on a thread of its own.
  std::shared_ptr<const absl::Notification> BeginEnd(
      std::shared_ptr<NcclCommunicator> communicator);
  // Destroys the communicator, waiting `timeout` at most: a caller that needs its memory does not
  // wait for NCCL indefinitely.
  void EndWithin(absl::Duration timeout, std::shared_ptr<NcclCommunicator> communicator);
  void ScheduleSweep();
  // Ends idle communicators that have become invalid.
  void Sweep();

  UseRecordStore& use_record_store_;
  const uint64_t budget_bytes_;
  const std::function<uint64_t(int)> free_bytes_;
  ThreadGroup threads_;
  std::atomic<bool> is_sweep_scheduled_{false};

  absl::Mutex mu_;
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t count_ ABSL_GUARDED_BY(mu_) = 0;
  // Keyed by the communicator's key in the store and the rank.
  absl::btree_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
  // Keys that a thread is working on: one thread at a time, since registering one rank twice would
  // make both start over.
  absl::flat_hash_set<std::string> entered_ ABSL_GUARDED_BY(mu_);
  // Those among them that a sweep has passed over: the next one begins when they are left.
  absl::flat_hash_set<std::string> missed_ ABSL_GUARDED_BY(mu_);
  // Members whose processes have died, and why.
  struct Dead {
    std::function<bool(const CommunicatorMember&)> is_dead;
    absl::Status why;
  };
  std::vector<Dead> dead_ ABSL_GUARDED_BY(mu_);
  // A reference to itself, held while a thread has not ended.
  std::shared_ptr<CommunicatorCache> self_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_NODE_COMMUNICATOR_CACHE_H_
