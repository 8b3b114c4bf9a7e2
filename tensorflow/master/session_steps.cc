// SPDX-License-Identifier: Apache-2.0
// SessionSteps: from a request to a registered step.
#include "tensorflow/master/session_steps.h"

#include <string>
#include <utility>

namespace ferry::master {

SessionSteps::SessionSteps(const MasterContext& context, std::shared_ptr<SessionWorkers> workers,
                           const tensorflow::ConfigProto& config, const SessionGraph& graph)
    : context_(context),
      workers_(std::move(workers)),
      config_(config),
      graph_(graph),
      cache_(context.options.max_step_graphs) {}

void SessionSteps::Prepare(graph::StepRequest request, SessionUse use, StepCache::Done done) {
  const std::string key = KeyOf(request);
  if (std::shared_ptr<const RegisteredStep> ready = cache_.Find(key)) {
    return std::move(done)(std::move(ready));
  }
  if (!cache_.Await(key, std::move(done))) return;
  Register(std::move(request), [this, key, use = std::move(use)](StepCache::Result result) {
    cache_.Finish(key, std::move(result));
  });
}

void SessionSteps::Register(graph::StepRequest request, StepCache::Done done) {
  size_t bytes = 0;
  for (const auto* names : {&request.feeds, &request.fetches, &request.targets}) {
    for (const std::string& name : *names) bytes += sizeof(std::string) + name.size();
  }
  context_.work.Add(bytes, [this, request = std::move(request),
                            done = std::move(done)](absl::Status status) mutable {
    if (!status.ok()) return std::move(done)(std::move(status));
    absl::StatusOr<StepPlan> plan = PlanStep(*graph_.Current(), workers_->devices(), request);
    if (!plan.ok()) return std::move(done)(plan.status());
    RegisteredStep::Register(workers_, *std::move(plan), config_, std::move(done));
  });
}

}  // namespace ferry::master
