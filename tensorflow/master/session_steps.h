// SPDX-License-Identifier: Apache-2.0
// SessionSteps: plans the steps that a session's clients ask for, and registers them at its
// workers.
#ifndef FERRY_TENSORFLOW_MASTER_SESSION_STEPS_H_
#define FERRY_TENSORFLOW_MASTER_SESSION_STEPS_H_

#include <cstddef>
#include <memory>

#include "proto/tf_config.pb.h"
#include "tensorflow/master/master_options.h"
#include "tensorflow/master/session_graph.h"
#include "tensorflow/master/session_workers.h"
#include "tensorflow/master/step_cache.h"
#include "tensorflow/master/step_plan.h"

namespace ferry::master {

// Keeps a session from closing. Held during a call and until the workers have cleaned up after it.
using SessionUse = std::shared_ptr<const void>;

// A step is registered for the version of the graph that is current then, and reused by later
// requests for the same feeds, fetches and targets. Thread-safe. Callbacks run with no lock held,
// on whichever thread has registered the step, possibly before the method returns.
class SessionSteps final {
 public:
  // All references outlive it.
  SessionSteps(const MasterContext& context, std::shared_ptr<SessionWorkers> workers,
               const tensorflow::ConfigProto& config, const SessionGraph& graph);

  SessionSteps(const SessionSteps&) = delete;
  SessionSteps& operator=(const SessionSteps&) = delete;

  // Finds the request's step in the cache, or registers it.
  //   request: in canonical form.
  //   use: held until `done` is called.
  //   Errors: as PlanStep and RegisteredStep::Register; RESOURCE_EXHAUSTED naming the limit.
  void Prepare(graph::StepRequest request, SessionUse use, StepCache::Done done);
  // As Prepare, but the step is the caller's own and bypasses the cache.
  //   done: holds a SessionUse.
  void Register(graph::StepRequest request, StepCache::Done done);

  // Releases the cached steps.
  void Clear() { cache_.Clear(); }
  size_t size() const { return cache_.size(); }

 private:
  const MasterContext& context_;
  const std::shared_ptr<SessionWorkers> workers_;
  const tensorflow::ConfigProto& config_;
  const SessionGraph& graph_;
  StepCache cache_;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_SESSION_STEPS_H_
