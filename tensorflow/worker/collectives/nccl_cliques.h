// SPDX-License-Identifier: Apache-2.0
// NcclCliques: the communicators of one GPU that collectives of graphs use.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_NCCL_CLIQUES_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_NCCL_CLIQUES_H_

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
#include "gpu/clique/clique_key.h"
#include "gpu/clique/communicator.h"
#include "gpu/gpus.h"
#include "tensorflow/worker/collectives/collective_node.h"
#include "transport/nccl/nccl_context.h"

namespace ferry::worker {

// Thread-safe. Nothing but Make blocks. A communicator is kept until it is ended: by who has seen
// it fail, because another rank has given it up, or, if nothing is under way on it, to make room.
class NcclCliques final {
 public:
  static constexpr size_t kMaxCommunicators = 16;

  // One of them. Kept by whoever uses it, for as long as it likes.
  class Clique final {
   public:
    uint32_t generation() const { return generation_; }

   private:
    friend class NcclCliques;
    std::string name_;
    uint32_t generation_ = 0;
    // Guarded by the lock of NcclCliques. Null once it has been given away to be aborted.
    std::shared_ptr<NcclCommunicator> communicator_;
    int64_t last_use_ = 0;
    absl::Status ended_;
    int calls_ = 0;
    std::vector<Tensor> kept_;
  };

  // For calls on its communicator, which is not aborted meanwhile.
  class Use final {
   public:
    Use(NcclCliques& cliques, Clique& clique);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    // Null: it has ended.
    NcclCommunicator* get() const { return communicator_; }

   private:
    NcclCliques& cliques_;
    Clique& clique_;
    NcclCommunicator* communicator_ = nullptr;
  };

  // They outlive it.
  NcclCliques(Gpus& gpus, int ordinal, const NcclJob& job);
  // Ends all, and waits for that.
  ~NcclCliques();

  NcclCliques(const NcclCliques&) = delete;
  NcclCliques& operator=(const NcclCliques&) = delete;

  // Of a node's devices, by rank.
  absl::StatusOr<CliqueKey> KeyOf(const CollectiveNode& node,
                                  const std::vector<int>& members) const;
  // Null: there is none that all ranks still have, as far as is known.
  std::shared_ptr<Clique> Find(const CliqueKey& key) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until all ranks have come. REQUIRES: Find has none.
  //   keep_going: see CommunicatorOptions.
  //   Errors: as NcclCommunicator::Make.
  absl::StatusOr<std::shared_ptr<Clique>> Make(const CliqueKey& key, int rank,
                                               absl::Duration timeout,
                                               std::function<absl::Status()> keep_going)
      ABSL_LOCKS_EXCLUDED(mu_);

  // What is under way on it is thrown out, some time. The first one's `why` stays.
  void End(Clique& clique, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // OK, or why it has ended: ABORTED, derived.
  absl::Status StatusOf(const Clique& clique) const ABSL_LOCKS_EXCLUDED(mu_);
  // The device may be using them, until it has been aborted.
  void Keep(Clique& clique, std::vector<Tensor> tensors) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What the store calls, perhaps when this is not there any more.
  struct Ear {
    absl::Mutex mu;
    NcclCliques* cliques ABSL_GUARDED_BY(mu) = nullptr;
  };

  // False, and it is ended: another rank has given it up.
  bool Check(Clique& clique) ABSL_LOCKS_EXCLUDED(mu_);
  void Reap(Clique& clique) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Gpus& gpus_;
  const int ordinal_;
  const NcclJob& job_;
  const std::shared_ptr<Ear> ear_ = std::make_shared<Ear>();

  mutable absl::Mutex mu_;
  int64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, std::shared_ptr<Clique>> cliques_ ABSL_GUARDED_BY(mu_);
  // Last: it waits for what uses the rest.
  ThreadGroup threads_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_NCCL_CLIQUES_H_
