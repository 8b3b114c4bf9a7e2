// SPDX-License-Identifier: Apache-2.0
// PartialRuns: announcing a step, and the beginning and end of each piece.
#include "tensorflow/master/partial_runs.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "tensorflow/master/step_result.h"

namespace ferry::master {

void PartialRuns::Setup(std::shared_ptr<tensorflow::PartialRunSetupRequest> request, SessionUse use,
                        Done<tensorflow::PartialRunSetupResponse> done) {
  graph::StepRequest wanted;
  wanted.feeds.assign(request->feed().begin(), request->feed().end());
  wanted.fetches.assign(request->fetch().begin(), request->fetch().end());
  wanted.targets.assign(request->target().begin(), request->target().end());
  steps_.Prepare(Canonical(std::move(wanted)), use,
                 [this, use, done = std::move(done)](StepCache::Result registered) mutable {
                   if (!registered.ok()) return std::move(done)(registered.status());
                   auto partial = std::make_shared<PartialStep>(*registered, calls_.NewStepId());
                   tensorflow::PartialRunSetupResponse response;
                   {
                     absl::MutexLock lock(&mu_);
                     if (partials_.size() < context_.options.max_partial_runs) {
                       response.set_partial_run_handle(absl::StrCat(next_handle_++));
                       partials_.emplace(response.partial_run_handle(), std::move(partial));
                     }
                   }
                   if (response.partial_run_handle().empty()) {
                     return std::move(done)(absl::ResourceExhaustedError(absl::StrCat(
                         "The session has --max-partial-runs (", context_.options.max_partial_runs,
                         ") steps that were not run to their ends")));
                   }
                   std::move(done)(std::move(response));
                 });
}

void PartialRuns::RunPiece(std::shared_ptr<tensorflow::RunStepRequest> request,
                           std::shared_ptr<CancellationToken> gone, SessionUse use,
                           Done<tensorflow::RunStepResponse> done) {
  const std::string handle = request->partial_run_handle();
  std::vector<std::string> feeds;
  for (const auto& feed : request->feed()) feeds.push_back(feed.name());
  const std::vector<std::string> fetches(request->fetch().begin(), request->fetch().end());
  std::shared_ptr<PartialStep> partial;
  {
    absl::MutexLock lock(&mu_);
    const auto found = partials_.find(handle);
    if (found != partials_.end()) {
      partial = found->second;
      // Delays the step's cleanup until this piece has ended.
      ++partial->pieces;
    }
  }
  if (partial == nullptr) {
    return std::move(done)(
        absl::InvalidArgumentError("Must run PartialRunSetup before performing partial runs"));
  }
  bool is_last = false;
  // Checked before the piece is recorded, so that the client may retry with valid tensors.
  absl::Status status = CheckFeeds(*partial->registered, *request);
  if (status.ok()) {
    absl::MutexLock lock(&partial->mu);
    status = partial->run.Take(feeds, fetches);
    is_last = partial->run.is_done();
  }
  if (!status.ok()) {
    // The step's state is unchanged.
    LeavePiece(partial, std::move(use));
    return std::move(done)(std::move(status));
  }
  std::shared_ptr<StepCall> call = calls_.Begin(
      request->options(), std::move(gone),
      [request, done = std::move(done)](absl::StatusOr<RunningStep::Result> result) mutable {
        if (!result.ok()) return std::move(done)(result.status());
        std::move(done)(MakeRunStepResponse(*request, *result));
      });
  bool is_over = false;
  {
    absl::MutexLock lock(&mu_);
    is_over = partial->is_over;
    if (!is_over) {
      partial->has_begun = true;
      partial->calls.insert(call);
    }
  }
  if (is_over) {
    calls_.Fail(call, absl::AbortedError("Another piece of this step has failed"));
    return LeavePiece(partial, std::move(use));
  }
  RunSpec spec;
  spec.step_id = partial->step_id;
  spec.options = ExecutorOptsOf(request->options());
  spec.is_partial = true;
  spec.is_last_partial_run = is_last;
  FillSpec(*partial->registered, *request, spec);
  calls_.Run(partial->registered, std::move(spec), call,
             [this, handle, partial, call, is_last, use = std::move(use)](
                 const absl::Status& result, bool) mutable {
               EndPiece(handle, partial, call, is_last, result, std::move(use));
             });
}

void PartialRuns::EndPiece(const std::string& handle, const std::shared_ptr<PartialStep>& partial,
                           const std::shared_ptr<StepCall>& call, bool is_last,
                           const absl::Status& status, SessionUse use) {
  std::vector<std::shared_ptr<StepCall>> others;
  {
    absl::MutexLock lock(&mu_);
    partial->calls.erase(call);
    if (!status.ok() || is_last) {
      partial->is_over = true;
      partials_.erase(handle);
    }
    if (!status.ok()) others.assign(partial->calls.begin(), partial->calls.end());
  }
  for (const auto& other : others) other->CallOff(status);
  LeavePiece(partial, std::move(use));
}

void PartialRuns::LeavePiece(const std::shared_ptr<PartialStep>& partial, SessionUse use) {
  {
    absl::MutexLock lock(&mu_);
    --partial->pieces;
    // The last piece cleans up.
    if (!partial->is_over || partial->pieces > 0) return;
  }
  workers_.Cleanup(partial->step_id, partial->registered->worker_indexes(),
                   [partial, use = std::move(use)] {});
}

std::vector<PartialRuns::Unfinished> PartialRuns::TakeAll() {
  absl::MutexLock lock(&mu_);
  std::vector<Unfinished> all;
  all.reserve(partials_.size());
  for (const auto& [handle, partial] : partials_) {
    all.push_back({partial->step_id, partial->registered, partial->has_begun});
  }
  partials_.clear();
  return all;
}

TableSizes PartialRuns::InnerTableSizes() const {
  absl::MutexLock lock(&mu_);
  size_t pieces = 0;
  size_t piece_calls = 0;
  for (const auto& [handle, partial] : partials_) {
    pieces += static_cast<size_t>(partial->pieces);
    piece_calls += partial->calls.size();
  }
  return {{"session.partials", partials_.size()},
          {"session.pieces", pieces},
          {"session.piece_calls", piece_calls}};
}

}  // namespace ferry::master
