// SPDX-License-Identifier: Apache-2.0
// WorkerLink: what a master asks of one worker.
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
  // DEADLINE_EXCEEDED after this.
  absl::Duration timeout = absl::InfiniteDuration();
  // Ends the call with CANCELLED; null: nobody will.
  std::shared_ptr<CancellationToken> cancellation;
};

// One life of one worker. Thread-safe. The requests are not needed after a method has returned.
// `done` runs exactly once, on any thread and perhaps before the method returns, with no lock of
// the link's held; soon after `limits` say that the call is over.
// Errors are the worker's own, or those of the way there: UNAVAILABLE, DEADLINE_EXCEEDED,
// CANCELLED.
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
  // Ours: TensorFlow's workers do not have it.
  virtual void GetSteps(const ferry::v1::GetStepsRequest&, CallLimits,
                        Done<ferry::v1::GetStepsResponse> done) {
    std::move(done)(absl::UnimplementedError("it keeps no steps"));
  }
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_WORKER_LINK_H_
