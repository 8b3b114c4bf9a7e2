// SPDX-License-Identifier: Apache-2.0
// WorkerLink: a master's calls to one worker.
#ifndef FERRY_TENSORFLOW_MASTER_WORKER_LINK_H_
#define FERRY_TENSORFLOW_MASTER_WORKER_LINK_H_

#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/cancellation_token.h"
#include "proto/ferry_trace.pb.h"
#include "proto/tf_worker.pb.h"

namespace ferry::master {

struct CallLimits {
  // The call fails with DEADLINE_EXCEEDED after this.
  absl::Duration timeout = absl::InfiniteDuration();
  // Cancels the call (CANCELLED); null: not cancellable.
  std::shared_ptr<CancellationToken> cancellation;
};

// One incarnation of one worker. Thread-safe. Requests need not outlive the method. `done` runs
// exactly once, on any thread and possibly before the method returns, with none of the link's locks
// held; promptly after `limits` end the call.
// Errors are the worker's own, or the call's: UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED.
class WorkerLink {
 public:
  template <typename Response>
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>) &&>;

  virtual ~WorkerLink() = default;

  virtual void CreateWorkerSession(const tensorflow::CreateWorkerSessionRequest& request,
                                   CallLimits limits,
                                   Done<tensorflow::CreateWorkerSessionResponse> done) = 0;
  virtual void DeleteWorkerSession(const tensorflow::DeleteWorkerSessionRequest& request,
                                   CallLimits limits,
                                   Done<tensorflow::DeleteWorkerSessionResponse> done) = 0;
  virtual void RegisterGraph(const tensorflow::RegisterGraphRequest& request, CallLimits limits,
                             Done<tensorflow::RegisterGraphResponse> done) = 0;
  virtual void DeregisterGraph(const tensorflow::DeregisterGraphRequest& request, CallLimits limits,
                               Done<tensorflow::DeregisterGraphResponse> done) = 0;
  virtual void RunGraph(const tensorflow::RunGraphRequest& request, CallLimits limits,
                        Done<tensorflow::RunGraphResponse> done) = 0;
  virtual void CleanupGraph(const tensorflow::CleanupGraphRequest& request, CallLimits limits,
                            Done<tensorflow::CleanupGraphResponse> done) = 0;
  virtual void CleanupAll(const tensorflow::CleanupAllRequest& request, CallLimits limits,
                          Done<tensorflow::CleanupAllResponse> done) = 0;
  // Ferry's extension; TensorFlow's workers lack it.
  virtual void GetSteps(const ferry::v1::GetStepsRequest&, CallLimits,
                        Done<ferry::v1::GetStepsResponse> done) {
    std::move(done)(absl::UnimplementedError("it keeps no steps"));
  }
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_WORKER_LINK_H_
