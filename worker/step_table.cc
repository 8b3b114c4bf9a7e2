// SPDX-License-Identifier: Apache-2.0
// Entries are made before a step is opened, so that a cleanup that comes in between finds them.
#include "worker/step_table.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ferry::worker {

absl::StatusOr<std::shared_ptr<StepExchange>> StepTable::Begin(int64_t step_id,
                                                               absl::string_view session,
                                                               absl::string_view graph) {
  bool is_new = false;
  {
    absl::MutexLock lock(&mu_);
    is_new = !steps_.contains(step_id);
    if (is_new && steps_.size() >= max_steps_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(max_steps_,
                       " steps are open at this worker and were not cleaned up, the "
                       "limit (raise --max-graph-steps, or in programs "
                       "WorkerLimits::max_steps)"));
    }
    Step& step = steps_[step_id];
    if (is_new) {
      step.session = std::string(session);
    } else if (step.session != session) {
      return absl::AbortedError(absl::StrCat("step ", step_id, " is another session's"));
    }
    if (!step.graphs.insert(std::string(graph)).second) {
      return absl::AbortedError(
          absl::StrCat("graph ", graph, " has been run in step ", step_id, " before"));
    }
  }
  absl::StatusOr<std::shared_ptr<StepExchange>> exchange = exchanges_.Open(step_id);
  if (!exchange.ok() && is_new) {
    absl::MutexLock lock(&mu_);
    steps_.erase(step_id);
  }
  return exchange;
}

void StepTable::AddRun(int64_t step_id, std::shared_ptr<GraphRun> run) {
  absl::MutexLock lock(&mu_);
  const auto found = steps_.find(step_id);
  // Else it is over: the step's exchange tells the run so.
  if (found == steps_.end()) return;
  const GraphRun* const key = run.get();
  found->second.runs.emplace(key, std::move(run));
}

void StepTable::RemoveRun(int64_t step_id, const GraphRun* run) {
  absl::MutexLock lock(&mu_);
  const auto found = steps_.find(step_id);
  if (found != steps_.end()) found->second.runs.erase(run);
}

std::shared_ptr<PartialRun> StepTable::FindPartial(int64_t step_id, absl::string_view graph) const {
  absl::MutexLock lock(&mu_);
  const auto step = steps_.find(step_id);
  if (step == steps_.end()) return nullptr;
  const auto found = step->second.partial.find(graph);
  return found == step->second.partial.end() ? nullptr : found->second;
}

void StepTable::SetPartial(int64_t step_id, absl::string_view graph,
                           std::shared_ptr<PartialRun> run) {
  absl::MutexLock lock(&mu_);
  const auto found = steps_.find(step_id);
  if (found != steps_.end()) found->second.partial[std::string(graph)] = std::move(run);
}

void StepTable::Cleanup(int64_t step_id) {
  exchanges_.Cleanup(step_id);
  Step step;
  {
    absl::MutexLock lock(&mu_);
    const auto found = steps_.find(step_id);
    if (found == steps_.end()) return;
    step = std::move(found->second);
    steps_.erase(found);
  }
  // One that does not wait for anything would go on to its end.
  for (const auto& [key, run] : step.runs) {
    run->Cancel(MakeDerived(absl::AbortedError(absl::StrCat("step ", step_id, " is over"))));
  }
}

void StepTable::CleanupSession(absl::string_view session) {
  std::vector<int64_t> ids;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, step] : steps_) {
      if (step.session == session) ids.push_back(id);
    }
  }
  for (const int64_t id : ids) Cleanup(id);
}

void StepTable::CleanupAll() {
  std::vector<int64_t> ids;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, step] : steps_) ids.push_back(id);
  }
  for (const int64_t id : ids) Cleanup(id);
}

size_t StepTable::step_count() const {
  absl::MutexLock lock(&mu_);
  return steps_.size();
}

}  // namespace ferry::worker
