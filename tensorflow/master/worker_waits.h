// SPDX-License-Identifier: Apache-2.0
// WorkerWaits: calls that wait for workers to become available.
#ifndef FERRY_TENSORFLOW_MASTER_WORKER_WAITS_H_
#define FERRY_TENSORFLOW_MASTER_WORKER_WAITS_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/cancellation_token.h"
#include "tensorflow/master/cluster.h"
#include "tensorflow/master/session_devices.h"
#include "tensorflow/master/timers.h"

namespace ferry::master {

struct WorkerWaitLimits {
  // The workers to wait for.
  DeviceFilters filters;
  absl::Time deadline;
  // For error messages: the timeout, and the waiting call.
  absl::Duration timeout;
  std::string what;
  // Null: the client never disconnects.
  std::shared_ptr<CancellationToken> gone;
};

// Thread-safe. Callbacks run exactly once, with no lock held.
class WorkerWaits final {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<Cluster>) &&>;

  explicit WorkerWaits(Timers& timers) : timers_(timers) {}

  // Calls `done` with the first cluster, from `source` or from Look, in which none of these workers
  // is missing.
  //   Errors: DEADLINE_EXCEEDED naming the missing workers; CANCELLED.
  void Await(WorkerWaitLimits limits, ClusterSource& source, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  void Look(const Cluster& cluster) ABSL_LOCKS_EXCLUDED(mu_);
  // Fails all waits.
  void Fail(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  bool empty() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Wait {
    WorkerWaitLimits limits;
    Done done;
    std::string missing;
    Timers::Id timer = Timers::kNone;
    CancellationToken::CallbackId gone_token = CancellationToken::kNoCallback;
  };
  using Ref = std::shared_ptr<Wait>;

  void End(const Ref& wait, absl::StatusOr<Cluster> result) ABSL_LOCKS_EXCLUDED(mu_);

  Timers& timers_;
  mutable absl::Mutex mu_;
  // Pending waits; their fields are guarded by mu_ too.
  absl::flat_hash_set<Ref> waits_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_WORKER_WAITS_H_
