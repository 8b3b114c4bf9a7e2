// SPDX-License-Identifier: Apache-2.0
// Registers a step at all its workers, or at none.
#include "tensorflow/master/registered_step.h"

#include <utility>

#include "base/status_macros.h"

namespace ferry::master {

RegisteredStep::RegisteredStep(std::shared_ptr<SessionWorkers> workers, StepPlan& plan)
    : workers_(std::move(workers)),
      feeds_(std::move(plan.feeds)),
      fetches_(std::move(plan.fetches)),
      step_(std::move(plan.step)) {
  for (const PlanTensor& feed : feeds_) feed_keys_.emplace(feed.name, feed.key);
  for (const PlanTensor& fetch : fetches_) fetch_keys_.emplace(fetch.name, fetch.key);
  for (const PlanPart& part : plan.parts) parts_.push_back({part.worker, ""});
}

RegisteredStep::~RegisteredStep() {
  if (workers_->is_closed()) return;
  for (const Part& part : parts_) {
    if (part.graph_handle.empty()) continue;
    tensorflow::DeregisterGraphRequest request;
    request.set_graph_handle(part.graph_handle);
    request.set_session_handle(workers_->handle());
    request.set_create_worker_session_called(true);
    // Not awaited: a worker that does not answer drops the graph with the session at the latest.
    workers_->worker(part.worker)
        .link->DeregisterGraph(request, {workers_->limits().close_timeout, nullptr},
                               [workers = workers_](const auto&) {});
  }
}

std::vector<int> RegisteredStep::worker_indexes() const {
  std::vector<int> indexes;
  for (const Part& part : parts_) indexes.push_back(part.worker);
  return indexes;
}

const std::string* RegisteredStep::FindFeedKey(const std::string& name) const {
  const auto found = feed_keys_.find(name);
  return found == feed_keys_.end() ? nullptr : &found->second;
}

const std::string* RegisteredStep::FindFetchKey(const std::string& name) const {
  const auto found = fetch_keys_.find(name);
  return found == fetch_keys_.end() ? nullptr : &found->second;
}

void RegisteredStep::Register(std::shared_ptr<SessionWorkers> workers, StepPlan plan,
                              const tensorflow::ConfigProto& config, Done done) {
  for (const PlanPart& part : plan.parts) {
    if (absl::Status status = workers->CheckAlive(part.worker); !status.ok()) {
      return std::move(done)(std::move(status));
    }
  }
  std::shared_ptr<RegisteredStep> self(new RegisteredStep(workers, plan));
  // On failure the last reference is released, which deregisters what was registered.
  auto all = FanOut::Start([self, done = std::move(done)](const absl::Status& status) mutable {
    if (!status.ok()) return std::move(done)(status);
    std::move(done)(std::shared_ptr<const RegisteredStep>(self));
  });
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    tensorflow::RegisterGraphRequest request;
    request.set_session_handle(workers->handle());
    request.set_create_worker_session_called(true);
    *request.mutable_graph_def() = std::move(plan.parts[i].graph);
    *request.mutable_graph_options() = config.graph_options();
    *request.mutable_config_proto() = config;
    const ClusterWorker& worker = workers->worker(plan.parts[i].worker);
    all->Begin();
    worker.link->RegisterGraph(
        request, {workers->limits().register_timeout, nullptr},
        [all, self, i, name = worker.name](auto response) {
          if (response.ok()) {
            self->parts_[i].graph_handle = std::move(*response->mutable_graph_handle());
          }
          all->End(FromWorker(name, "registering a graph", response.status()));
        });
  }
  all->End();
}

}  // namespace ferry::master
