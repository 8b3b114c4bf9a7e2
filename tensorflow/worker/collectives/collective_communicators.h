// SPDX-License-Identifier: Apache-2.0
// CollectiveCommunicators: the communicators of one GPU for collectives in graphs.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_COMMUNICATORS_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_COMMUNICATORS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/thread_group.h"
#include "gpu/communicator/communicator.h"
#include "gpu/communicator/communicator_key.h"
#include "gpu/gpus.h"
#include "tensorflow/worker/collectives/collective_node.h"
#include "transport/nccl/nccl_context.h"

namespace ferry::worker {

// Those of programs are in node/communicator_cache.h. Thread-safe. Only Make blocks. A communicator
// is cached until it is ended: by a user that saw it fail, because another rank has dropped it, or,
// if idle, to make room.
class CollectiveCommunicators final {
 public:
  static constexpr size_t kMaxCommunicators = 16;

  // A communicator. May be kept by its users for any time.
  class Entry final {
   public:
    uint32_t generation() const { return generation_; }

   private:
    friend class CollectiveCommunicators;
    std::string name_;
    uint32_t generation_ = 0;
    // Guarded by the mutex of CollectiveCommunicators. Null once handed over to be aborted.
    std::shared_ptr<NcclCommunicator> communicator_;
    int64_t last_use_ = 0;
    absl::Status ended_;
    int calls_ = 0;
    std::vector<Tensor> kept_;
  };

  // Pins the communicator during calls: it is not aborted meanwhile.
  class Use final {
   public:
    Use(CollectiveCommunicators& owner, Entry& entry);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    // Null if it has ended.
    NcclCommunicator* get() const { return communicator_; }

   private:
    CollectiveCommunicators& owner_;
    Entry& entry_;
    NcclCommunicator* communicator_ = nullptr;
  };

  // `stream`: the one on which their operations run. All must outlive it.
  CollectiveCommunicators(Gpus& gpus, Gpu& gpu, const NcclJob& job, cuda::Stream stream);
  // Ends all communicators, and blocks until they are gone.
  ~CollectiveCommunicators();

  CollectiveCommunicators(const CollectiveCommunicators&) = delete;
  CollectiveCommunicators& operator=(const CollectiveCommunicators&) = delete;

  // Returns the key for these of the node's devices, by rank.
  absl::StatusOr<CommunicatorKey> KeyOf(const CollectiveNode& node,
                                        const std::vector<int>& members) const;
  // Returns null if there is none, or another rank is known to have dropped it.
  std::shared_ptr<Entry> Find(const CommunicatorKey& key) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until all ranks have joined. REQUIRES: Find returned null.
  //   keep_going: see CommunicatorOptions.
  //   Errors: as NcclCommunicator::Make.
  absl::StatusOr<std::shared_ptr<Entry>> Make(const CommunicatorKey& key, int rank,
                                              absl::Duration timeout,
                                              std::function<absl::Status()> keep_going)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Aborts what is pending on the communicator, asynchronously. Only the first call's `why` is
  // kept.
  void End(Entry& entry, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns OK, or why it has ended: ABORTED, derived.
  absl::Status StatusOf(const Entry& entry) const ABSL_LOCKS_EXCLUDED(mu_);
  // Keeps tensors that the device may be using, until the communicator has ended and the stream has
  // passed its operations.
  void Keep(Entry& entry, std::vector<Tensor> tensors) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Target of the store's callbacks; may outlive this object.
  struct CallbackTarget {
    absl::Mutex mu;
    CollectiveCommunicators* owner ABSL_GUARDED_BY(mu) = nullptr;
  };

  // Returns false, and ends the communicator, if another rank has dropped it.
  bool Check(Entry& entry) ABSL_LOCKS_EXCLUDED(mu_);
  void Reap(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Gpus& gpus_;
  Gpu& gpu_;
  const NcclJob& job_;
  const cuda::Stream stream_;
  const std::shared_ptr<CallbackTarget> callback_target_ = std::make_shared<CallbackTarget>();

  mutable absl::Mutex mu_;
  int64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);
  // Declared last, so that its threads end while the rest still exists.
  ThreadGroup threads_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_COMMUNICATORS_H_
