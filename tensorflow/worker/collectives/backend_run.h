// SPDX-License-Identifier: Apache-2.0
// BackendRun: one member's part of a collective while it is under way.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_BACKEND_RUN_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_BACKEND_RUN_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "base/cancellation_token.h"
#include "rendezvous/key.h"
#include "tensorflow/worker/collectives/collective_backend.h"
#include "tensorflow/worker/step_transfers.h"

namespace ferry::worker {

// What all carriers do alike: counts what is under way, and tells `done` once when nothing is; ends
// with the first error, or a better one. Whatever is under way keeps it. Thread-safe.
class BackendRun : public std::enable_shared_from_this<BackendRun> {
 public:
  virtual ~BackendRun() = default;

  // Once, after construction.
  void Start();

 protected:
  BackendRun(std::shared_ptr<StepTransfers> exchange, CollectiveWork work, RecvCallback done);

  // Begins all there is to do, unless it was called off before.
  virtual absl::Status Issue() = 0;
  // Of the first failure. Receives are cancelled by then.
  virtual void OnFailed(const absl::Status& why) {}
  // Nothing is under way any more; before `done`.
  virtual void OnEnd() {}

  // Whatever has begun with BeginOne ends with EndOne, once.
  void BeginOne() { under_way_.fetch_add(1, std::memory_order_relaxed); }
  void EndOne();
  void Fail(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  // result_ is whole: what is still waited for is called off, and cannot fail any more.
  void Finish();
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  // OK, or why it has failed.
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<RendezvousKey> KeyOf(int from, int to, absl::string_view what) const;
  const std::string& NameOf(int rank) const;
  // "instance 3 of group 1".
  std::string Instance() const;
  // A receive from that member has ended so; its time may have been up, or somebody else's, who
  // then says why.
  //   about: what to say of the former.
  absl::Status Explain(absl::Status status, absl::string_view about) const;

  const std::shared_ptr<StepTransfers> exchange_;
  const CollectiveWork work_;
  // Of receives.
  CancellationToken cancellation_;
  // What the member gets.
  Received result_;

 private:
  RecvCallback done_;
  CancellationToken::CallbackId token_ = CancellationToken::kNoCallback;
  // Start is the first.
  std::atomic<int> under_way_{1};
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> is_finished_{false};
  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_BACKEND_RUN_H_
