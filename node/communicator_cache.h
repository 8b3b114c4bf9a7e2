// SPDX-License-Identifier: Apache-2.0
// CommunicatorCache: communicators of a program that are lent, and kept for the next who asks.
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
#include "absl/time/time.h"

#include "base/thread_group.h"
#include "gpu/clique/communicator.h"
#include "gpu/clique/communicator_refcount.h"

namespace ferry {

// Whoever asks while somebody has one gets the same. When the last has let go of it, it is kept if
// it is settled, and otherwise aborted, which ends it for all ranks. Beyond the budget those that
// were used longest ago go, unless another rank uses them (CommunicatorRefcount). Thread-safe.
class CommunicatorCache final : public std::enable_shared_from_this<CommunicatorCache> {
 public:
  //   budget_bytes: of each GPU. What is lent counts, and always has room. 0: none are kept.
  //   free_bytes: what a GPU has, by its ordinal; 0: not known.
  // `ledger` outlives it until Stop.
  CommunicatorCache(CommunicatorRegistry& ledger, uint64_t budget_bytes,
                    std::function<uint64_t(int ordinal)> free_bytes);
  // Ends those that nobody has; what is lent ends when it is given back. Blocks.
  //   Errors: UNAVAILABLE: one has not ended within `timeout`, and what it uses must stay, as this
  //   does.
  absl::Status Stop(absl::Duration timeout);

  using Make = absl::FunctionRef<absl::StatusOr<std::shared_ptr<NcclCommunicator>>()>;
  // Blocks.
  //   Errors: DEADLINE_EXCEEDED; as CheckAlive, `make` and the store.
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> Acquire(const CliqueKey& key, int rank,
                                                            int ordinal, absl::Duration timeout,
                                                            Make make);
  // A member for which `is_dead` holds is gone, because of `why`: what is kept with it goes soon.
  // Does not block.
  void Forget(std::function<bool(const CliqueMember&)> is_dead, absl::Status why);
  // Why a member of the clique is gone, if one is.
  absl::Status CheckAlive(const CliqueKey& key) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    CliqueKey key;
    int rank = 0;
    int ordinal = 0;
    uint64_t bytes = 0;
    std::shared_ptr<NcclCommunicator> communicator;
    // To whoever has it, and which loan that is.
    std::weak_ptr<NcclCommunicator> loan;
    uint64_t loan_number = 0;
    // Nobody has it, and the store knows that.
    bool is_idle = false;
    uint64_t idle_since = 0;
  };

  absl::Status Enter(const std::string& name, absl::Duration timeout);
  void Exit(const std::string& name);
  CommunicatorRefcount LeaseOf(const CliqueKey& key, int rank);
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> AcquireEntered(
      const std::string& name, const CliqueKey& key, int rank, int ordinal, absl::Time deadline,
      Make make, std::shared_ptr<NcclCommunicator>& loan);
  absl::Status CheckAliveLocked(const CliqueKey& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<NcclCommunicator> Lend(const std::string& name, Entry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeBack(const std::string& name, uint64_t loan_number,
                std::shared_ptr<NcclCommunicator> communicator);
  // REQUIRES: entered. What is returned may block when it ends.
  std::shared_ptr<NcclCommunicator> TakeOut(const std::string& name);
  // Ends idle ones of the GPU until there is room for `bytes` more.
  void MakeRoom(int ordinal, uint64_t bytes);
  // Waits no longer for that; who needs its memory does not wait for NCCL for ever.
  void EndWithin(absl::Duration timeout, std::shared_ptr<NcclCommunicator> communicator);
  void ScheduleSweep();
  // Ends idle ones that are over for other reasons.
  void Sweep();

  CommunicatorRegistry& ledger_;
  const uint64_t budget_bytes_;
  const std::function<uint64_t(int)> free_bytes_;
  ThreadGroup threads_;
  std::atomic<bool> is_sweep_scheduled_{false};

  absl::Mutex mu_;
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t count_ ABSL_GUARDED_BY(mu_) = 0;
  // By the clique's place in the store and the rank.
  absl::btree_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
  // Somebody is at work on them: one at a time, since a second presence of one rank would make
  // both begin anew.
  absl::flat_hash_set<std::string> entered_ ABSL_GUARDED_BY(mu_);
  // Members whose processes are gone, and why.
  struct Dead {
    std::function<bool(const CliqueMember&)> is_dead;
    absl::Status why;
  };
  std::vector<Dead> dead_ ABSL_GUARDED_BY(mu_);
  // This, where a thread has not ended.
  std::shared_ptr<CommunicatorCache> stays_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_NODE_COMMUNICATOR_CACHE_H_
