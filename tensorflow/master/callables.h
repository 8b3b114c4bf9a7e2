// SPDX-License-Identifier: Apache-2.0
// Callables: steps with fixed feeds and fetches, which clients make once and run often.
#ifndef FERRY_TENSORFLOW_MASTER_CALLABLES_H_
#define FERRY_TENSORFLOW_MASTER_CALLABLES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "base/cancellation_token.h"
#include "proto/tf_master.pb.h"
#include "tensorflow/master/master_options.h"
#include "tensorflow/master/registered_step.h"
#include "tensorflow/master/session_calls.h"
#include "tensorflow/master/session_steps.h"

namespace ferry::master {

// A callable owns its registered step until it is released. Handles are numbered from 0 and never
// reused. Thread-safe. Callbacks run exactly once, with no lock held, on whichever thread completes
// the call, possibly before the method returns. Belongs to one session, whose uses (see SessionUse)
// keep it alive.
class Callables final {
 public:
  template <typename Response>
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>) &&>;

  // All references outlive it.
  Callables(const MasterContext& context, SessionSteps& steps, SessionCalls& calls)
      : context_(context), steps_(steps), calls_(calls) {}

  Callables(const Callables&) = delete;
  Callables& operator=(const Callables&) = delete;

  //   Errors: UNIMPLEMENTED and INVALID_ARGUMENT for options; as SessionSteps::Register;
  //   RESOURCE_EXHAUSTED naming the limit.
  void Make(std::shared_ptr<tensorflow::MakeCallableRequest> request, SessionUse use,
            Done<tensorflow::MakeCallableResponse> done) ABSL_LOCKS_EXCLUDED(mu_);
  // Consumes the request's feeds.
  //   Errors: INVALID_ARGUMENT for an unknown or released handle, or for the feeds;
  //   RESOURCE_EXHAUSTED; as the step.
  void Run(std::shared_ptr<tensorflow::RunCallableRequest> request,
           std::shared_ptr<CancellationToken> gone, SessionUse use,
           Done<tensorflow::RunCallableResponse> done) ABSL_LOCKS_EXCLUDED(mu_);
  // Unknown handles are ignored.
  void Release(int64_t handle) ABSL_LOCKS_EXCLUDED(mu_);

  // Removes all callables, and returns their steps, which are deregistered when released.
  std::vector<std::shared_ptr<const RegisteredStep>> TakeAll() ABSL_LOCKS_EXCLUDED(mu_);
  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Callable {
    std::shared_ptr<const RegisteredStep> registered;
    tensorflow::CallableOptions options;
  };

  const MasterContext& context_;
  SessionSteps& steps_;
  SessionCalls& calls_;

  mutable absl::Mutex mu_;
  int64_t next_handle_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<int64_t, std::shared_ptr<const Callable>> callables_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_CALLABLES_H_
