// SPDX-License-Identifier: Apache-2.0
// TransferList: values that calls are sending to other workers.
#ifndef FERRY_RENDEZVOUS_TRANSFER_LIST_H_
#define FERRY_RENDEZVOUS_TRANSFER_LIST_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "rendezvous/key.h"
#include "rendezvous/remote_rendezvous.h"

namespace ferry {

// Thread-safe.
class TransferList final {
 public:
  struct Transfer {
    Transfer(int64_t step_id, RendezvousKey key, size_t bytes, bool is_kept, absl::Time since,
             StepOperation operation)
        : step_id(step_id),
          key(std::move(key)),
          bytes(bytes),
          is_kept(is_kept),
          since(since),
          operation(std::move(operation)) {}

    const int64_t step_id;
    const RendezvousKey key;
    const size_t bytes;
    // True if it can be requested again.
    const bool is_kept;
    const absl::Time since;
    // No longer needed: the call that carries it may stop.
    std::atomic<bool> is_step_over{false};
    // Removed from the list, though a call may still carry it.
    std::atomic<bool> is_given_up{false};
    // Ends when it is removed from the list.
    StepOperation operation;
  };

  // `clock` must outlive it.
  explicit TransferList(const Clock& clock) : clock_(clock) {}
  // The lock orders this after the last call on gRPC's threads, which ThreadSanitizer cannot see
  // otherwise.
  ~TransferList() { absl::MutexLock lock(&mu_); }

  // A value has left the rendezvous and is in transit until Remove.
  std::shared_ptr<Transfer> Add(int64_t step_id, const RendezvousKey& key, size_t bytes,
                                bool is_kept, StepOperation operation = {})
      ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const std::shared_ptr<Transfer>& transfer) ABSL_LOCKS_EXCLUDED(mu_);
  void EndStep(int64_t step_id) ABSL_LOCKS_EXCLUDED(mu_);
  // Those in transit to that task.
  std::vector<std::shared_ptr<Transfer>> To(const TaskName& task) const ABSL_LOCKS_EXCLUDED(mu_);

  // Visits those in transit for at least `min_age`.
  void ForEach(absl::Duration min_age, PendingVisitor visit) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const Clock& clock_;
  // Never held while calling out.
  mutable absl::Mutex mu_;
  absl::flat_hash_set<std::shared_ptr<Transfer>> transfers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_TRANSFER_LIST_H_
