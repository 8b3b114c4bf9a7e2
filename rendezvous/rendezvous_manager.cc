// SPDX-License-Identifier: Apache-2.0
// Open and finished steps.
#include "rendezvous/rendezvous_manager.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/bounded_text.h"
#include "base/logging.h"
#include "base/text.h"
#include "rendezvous/blocking_recv.h"
#include "rendezvous/value.h"

namespace ferry {

RendezvousManager::RendezvousManager(const Clock& clock, RemoteFetcher& fetcher,
                                     RendezvousManagerOptions options,
                                     OutstandingOperations::Wake wake)
    : clock_(clock), fetcher_(fetcher), options_(options), wake_(std::move(wake)) {}

RendezvousManager::~RendezvousManager() { CleanupAll(); }

absl::StatusOr<std::shared_ptr<RemoteRendezvous>> RendezvousManager::Find(int64_t step_id) {
  SpinLockHolder lock(&mu_);
  const auto found = steps_.find(step_id);
  if (found != steps_.end()) return found->second;
  if (finished_.contains(step_id)) {
    return absl::AbortedError(absl::StrCat("step ", step_id, " is over"));
  }
  if (steps_.size() >= options_.max_steps) {
    return absl::ResourceExhaustedError(
        absl::StrCat(steps_.size(), " steps are open, the limit (--max-steps); step ", step_id,
                     " cannot begin. Are finished steps closed?"));
  }
  FERRY_LOG_TRACE(kRendezvous, "step opened: step={}", step_id);
  return steps_
      .emplace(step_id, std::make_shared<RemoteRendezvous>(step_id, clock_, options_.limits,
                                                           fetcher_, wake_ ? &wake_ : nullptr))
      .first->second;
}

void RendezvousManager::RecvLocalAsync(int64_t step_id, const RendezvousKey& key, RecvArgs args,
                                       RecvCallback done) {
  absl::StatusOr<StepPtr> step = Find(step_id);
  if (!step.ok()) {
    // The end of the step here is a consequence of another error, which its own worker reports.
    return std::move(done)(
        absl::IsAborted(step.status()) ? MakeDerived(step.status()) : step.status(), {});
  }
  (*step)->RecvLocalAsync(key, std::move(args), std::move(done));
}

absl::StatusOr<Received> RendezvousManager::RecvLocal(int64_t step_id, const RendezvousKey& key,
                                                      absl::Duration timeout, RecvArgs args) {
  return RecvBlocking(
      std::move(args), timeout, /*loop=*/nullptr,
      [&](RecvArgs own, RecvCallback done) {
        RecvLocalAsync(step_id, key, std::move(own), std::move(done));
      },
      [&] {
        return absl::StrCat(" in step ", step_id, " for ", BoundedName(key.text()),
                            ", which no node has sent");
      });
}

void RendezvousManager::RememberFinishedLocked(int64_t step_id) {
  if (!finished_.insert(step_id).second) return;
  finished_order_.push_back(step_id);
  if (finished_order_.size() > options_.max_finished_steps) {
    finished_.erase(finished_order_.front());
    finished_order_.pop_front();
  }
}

void RendezvousManager::Cleanup(int64_t step_id) {
  StepPtr step;
  {
    SpinLockHolder lock(&mu_);
    RememberFinishedLocked(step_id);
    const auto found = steps_.find(step_id);
    if (found == steps_.end()) return;
    step = std::move(found->second);
    steps_.erase(found);
  }
  FERRY_LOG_DEBUG(kRendezvous, "step closed: step={}", step_id);
  step->StartAbort(absl::AbortedError(absl::StrCat("Cleanup ", step_id)));
}

void RendezvousManager::ForgetIfUnused(int64_t step_id) {
  StepPtr step;
  {
    SpinLockHolder lock(&mu_);
    const auto found = steps_.find(step_id);
    // References are handed out under mu_, so the count cannot grow here.
    if (found == steps_.end() || found->second.use_count() != 1 || !found->second->is_unused()) {
      return;
    }
    step = std::move(found->second);
    steps_.erase(found);
  }
  FERRY_LOG_DEBUG(kRendezvous, "unused step removed: step={}", step_id);
  step->Discard();
}

void RendezvousManager::CleanupAll() {
  absl::flat_hash_map<int64_t, StepPtr> steps;
  {
    SpinLockHolder lock(&mu_);
    steps.swap(steps_);
    for (const auto& [step_id, step] : steps) RememberFinishedLocked(step_id);
  }
  for (const auto& [step_id, step] : steps) step->StartAbort(absl::AbortedError("Shutdown"));
}

std::vector<RendezvousManager::StepPtr> RendezvousManager::Steps() const {
  std::vector<StepPtr> steps;
  SpinLockHolder lock(&mu_);
  steps.reserve(steps_.size());
  for (const auto& [step_id, step] : steps_) steps.push_back(step);
  return steps;
}

size_t RendezvousManager::FailTask(const TaskName& task, const absl::Status& why) {
  size_t count = 0;
  for (const StepPtr& step : Steps()) count += step->FailTask(task, why);
  return count;
}

void RendezvousManager::RecordSendFailure(int64_t step_id, const RendezvousKey& key,
                                          const absl::Status& why) {
  if (const StepPtr step = FindOpen(step_id); step != nullptr) step->RecordSendFailure(key, why);
}

StepOperation RendezvousManager::BeginOperation(int64_t step_id) {
  const StepPtr step = FindOpen(step_id);
  return step == nullptr ? StepOperation() : StepOperation(step->operations());
}

RendezvousManager::StepPtr RendezvousManager::FindOpen(int64_t step_id) const {
  SpinLockHolder lock(&mu_);
  const auto found = steps_.find(step_id);
  return found == steps_.end() ? nullptr : found->second;
}

void RendezvousManager::Expire() {
  for (const StepPtr& step : Steps()) step->Expire();
}

absl::Time RendezvousManager::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const StepPtr& step : Steps()) next = std::min(next, step->NextDeadline());
  return next;
}

void RendezvousManager::ForEachPending(absl::Duration min_age,
                                       absl::FunctionRef<void(const PendingStepOp&)> visit) const {
  for (const StepPtr& step : Steps()) step->ForEachPending(min_age, visit);
}

size_t RendezvousManager::step_count() const {
  SpinLockHolder lock(&mu_);
  return steps_.size();
}

TableSizes RendezvousManager::InnerTableSizes() const {
  TableSizes sizes;
  for (const StepPtr& step : Steps()) {
    for (const auto& [name, size] : step->InnerTableSizes()) sizes[name] += size;
  }
  SpinLockHolder lock(&mu_);
  sizes["manager.steps"] = steps_.size();
  sizes["manager.finished"] = finished_.size();
  sizes["manager.finished_order"] = finished_order_.size();
  return sizes;
}

}  // namespace ferry
