// SPDX-License-Identifier: Apache-2.0
// Entries are added before a step is opened, so that a concurrent cleanup finds them.
#include "tensorflow/worker/step_table.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry::worker {

absl::Status StepTable::Enter(int64_t step_id, absl::string_view session, absl::string_view graph,
                              Piece* piece) {
  absl::MutexLock lock(&mu_);
  const bool is_new = !steps_.contains(step_id);
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
  if (piece != nullptr) {
    const auto found = step.partial.find(graph);
    if (found != step.partial.end()) {
      piece->run = found->second;
      return absl::OkStatus();
    }
  }
  if (!step.graphs.insert(std::string(graph)).second) {
    return absl::AbortedError(
        absl::StrCat("graph ", graph, " has been run in step ", step_id, " before"));
  }
  if (piece != nullptr) {
    piece->run = std::make_shared<PartialRun>();
    piece->is_first = true;
    step.partial.emplace(graph, piece->run);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<StepTransfers>> StepTable::Open(int64_t step_id,
                                                               absl::string_view graph,
                                                               IsAlive is_alive) {
  absl::StatusOr<std::shared_ptr<StepTransfers>> transfers = worker_steps_.Open(step_id);
  if (!transfers.ok()) {
    absl::MutexLock lock(&mu_);
    const auto found = steps_.find(step_id);
    if (found == steps_.end()) return transfers;
    found->second.graphs.erase(graph);
    found->second.partial.erase(graph);
    if (found->second.graphs.empty()) steps_.erase(found);
    return transfers;
  }
  // Ending a session removes it first and then its steps, so a later entry is cleaned up there.
  if (is_alive()) return transfers;
  Cleanup(step_id);
  return absl::AbortedError(absl::StrCat("step ", step_id, " is over: its session has ended"));
}

absl::StatusOr<std::shared_ptr<StepTransfers>> StepTable::Begin(int64_t step_id,
                                                                absl::string_view session,
                                                                absl::string_view graph,
                                                                IsAlive is_alive) {
  FERRY_RETURN_IF_ERROR(Enter(step_id, session, graph, nullptr));
  return Open(step_id, graph, is_alive);
}

absl::StatusOr<StepTable::Piece> StepTable::BeginPiece(int64_t step_id, absl::string_view session,
                                                       absl::string_view graph, IsAlive is_alive) {
  Piece piece;
  FERRY_RETURN_IF_ERROR(Enter(step_id, session, graph, &piece));
  absl::StatusOr<std::shared_ptr<StepTransfers>> transfers = Open(step_id, graph, is_alive);
  if (!transfers.ok()) {
    // Other pieces wait for this run, which will not start.
    if (piece.is_first) piece.run->EndRun(transfers.status());
    return transfers.status();
  }
  piece.transfers = *std::move(transfers);
  return piece;
}

void StepTable::Keep(int64_t step_id, Budget::Share feeds) {
  absl::MutexLock lock(&mu_);
  const auto found = steps_.find(step_id);
  if (found != steps_.end()) found->second.feeds.Add(std::move(feeds));
}

void StepTable::AddRun(int64_t step_id, std::shared_ptr<GraphRun> run) {
  absl::MutexLock lock(&mu_);
  const auto found = steps_.find(step_id);
  // The step is over: the run learns that from the step's transfers.
  if (found == steps_.end()) return;
  const GraphRun* const key = run.get();
  found->second.runs.emplace(key, std::move(run));
}

void StepTable::RemoveRun(int64_t step_id, const GraphRun* run) {
  absl::MutexLock lock(&mu_);
  const auto found = steps_.find(step_id);
  if (found != steps_.end()) found->second.runs.erase(run);
}

void StepTable::Cleanup(int64_t step_id) {
  worker_steps_.Cleanup(step_id);
  Step step;
  {
    absl::MutexLock lock(&mu_);
    const auto found = steps_.find(step_id);
    if (found == steps_.end()) return;
    step = std::move(found->second);
    steps_.erase(found);
  }
  // A run without pending receives would otherwise continue to its end.
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
