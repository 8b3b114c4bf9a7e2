// SPDX-License-Identifier: Apache-2.0
// PeerLookup: makes the keys of receives without blocking their callers.
#ifndef FERRY_API_PEER_LOOKUP_H_
#define FERRY_API_PEER_LOOKUP_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include <ferry/tensor_id.h>

#include "api/request_impl.h"
#include "base/cancellation_token.h"
#include "base/thread.h"
#include "node/node.h"

namespace ferry::v0 {

// The key of a tensor contains the incarnation of its sender, which is looked up in the store once
// for each sender; a sender that has just joined may not have published it yet. Such lookups run on
// a thread of this object, "ferry-lookup", which is started by the first. Thread-safe.
class PeerLookup final {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<RendezvousKey>) &&>;

  // `node` is used until Stop returns.
  explicit PeerLookup(ferry::Node& node)
      : node_(node), is_known_(new std::atomic<bool>[static_cast<size_t>(node.num_nodes())]()) {}
  ~PeerLookup() { Stop(); }

  // Lookups that are waiting, and later ones, end with CANCELLED. The callbacks of receives that
  // the node ends afterwards may still come here.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  PeerLookup(const PeerLookup&) = delete;
  PeerLookup& operator=(const PeerLookup&) = delete;

  // Returns the key of `id`, or the error, if the sender's address is known or the id is invalid.
  // Otherwise nullopt: MakeKey waits for the address.
  //   Errors: as ferry::Node::Key.
  std::optional<absl::StatusOr<RendezvousKey>> KeyIfKnown(const TensorId& id)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `done` with the key of `id`: at once if the sender's address is known or the id is
  // invalid, otherwise on the thread. Keys of one sender are given out in the order of the calls.
  //   step_id: see EndStep.
  //   request: once it is done, `done` may be dropped.
  //   deadline: of SteadyClock.
  //   Errors: as ferry::Node::Key.
  // Returns false if `done` was called.
  bool MakeKey(int64_t step_id, const TensorId& id, std::shared_ptr<RequestImpl> request,
               absl::Time deadline, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the lookups of a step that are waiting with `why`.
  void EndStep(int64_t step_id, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Waiting {
    int64_t step_id;
    TensorId id;
    std::shared_ptr<RequestImpl> request;
    absl::Time since;
    absl::Time deadline;
    Done done;
  };

  absl::StatusOr<RendezvousKey> KeyOf(const TensorId& id, const AddressWait& wait) const;
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Takes out of `ranks_` the one whose turn it is: the first, unless another one has a lookup
  // whose deadline has passed, which ends in that turn.
  int NextRankLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for the address of `rank`, for a slice of time at most, and ends its lookups if it is
  // known or cannot be had. Returns whether some are left.
  bool LookUp(int rank) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends those whose deadline has passed, or that are not needed any more.
  void Expire(int rank, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasRank(int rank) const { return rank >= 0 && rank < node_.num_nodes(); }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return is_stopping_ || !ranks_.empty();
  }

  ferry::Node& node_;
  absl::Mutex mu_;
  std::atomic<bool> is_stopping_{false};
  // The turn of the thread: what ends it early, and when it ends by itself.
  std::shared_ptr<ferry::CancellationToken> turn_ ABSL_GUARDED_BY(mu_);
  absl::Time turn_end_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  // By rank, of a node of the job: its lookups were answered. Written with the lock held.
  const std::unique_ptr<std::atomic<bool>[]> is_known_;
  // Those to try next, in that order; `pending_` also has the one that is being tried.
  std::deque<int> ranks_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<int> pending_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<int, std::vector<Waiting>> waiting_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Thread> thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::v0

#endif  // FERRY_API_PEER_LOOKUP_H_
