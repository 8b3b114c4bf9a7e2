// SPDX-License-Identifier: Apache-2.0
// Callables: making, running and releasing them.
#include "tensorflow/master/callables.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/master/step_result.h"

namespace ferry::master {
namespace {

absl::Status CheckCallable(const tensorflow::CallableOptions& options) {
  if (!options.feed_devices().empty() || !options.fetch_devices().empty()) {
    return absl::UnimplementedError(
        "CallableOptions.feed_devices and fetch_devices to configure feed/fetch devices are not "
        "supported in a distributed session: tensors go through the client's device.");
  }
  if (!options.tensor_connection().empty()) {
    return absl::UnimplementedError("CallableOptions.tensor_connection is not supported.");
  }
  return absl::OkStatus();
}

absl::StatusOr<tensorflow::RunCallableResponse> MakeResponse(
    const tensorflow::CallableOptions& options, RunningStep::Result& result) {
  tensorflow::RunCallableResponse response;
  FERRY_ASSIGN_OR_RETURN(Fetched fetched, Fetched::Create(result, options.fetch()));
  for (const std::string& name : options.fetch()) {
    FERRY_RETURN_IF_ERROR(fetched.Take(name, *response.add_fetch()));
  }
  FillMetadata(options.run_options(), result, *response.mutable_metadata());
  return response;
}

// Feeds are matched by position, fetches by name.
absl::Status FillSpec(const RegisteredStep& registered, const tensorflow::CallableOptions& options,
                      tensorflow::RunCallableRequest& request, RunSpec& spec) {
  tensorflow::RunStepRequest named;
  for (int i = 0; i < options.feed_size(); ++i) {
    tensorflow::NamedTensorProto& feed = *named.add_feed();
    feed.set_name(options.feed(i));
    *feed.mutable_tensor() = std::move(*request.mutable_feed(i));
  }
  *named.mutable_fetch() = options.fetch();
  FERRY_RETURN_IF_ERROR(CheckFeeds(registered, named));
  FillSpec(registered, named, spec);
  return absl::OkStatus();
}

}  // namespace

void Callables::Make(std::shared_ptr<tensorflow::MakeCallableRequest> request, SessionUse use,
                     Done<tensorflow::MakeCallableResponse> done) {
  const tensorflow::CallableOptions& options = request->options();
  absl::Status status = CheckCallable(options);
  status.Update(calls_.CheckOptions(options.run_options()));
  if (!status.ok()) return std::move(done)(std::move(status));
  graph::StepRequest wanted;
  wanted.feeds.assign(options.feed().begin(), options.feed().end());
  wanted.fetches.assign(options.fetch().begin(), options.fetch().end());
  wanted.targets.assign(options.target().begin(), options.target().end());
  // Bypasses the cache: the callable owns the step until it is released.
  steps_.Register(Canonical(std::move(wanted)), [this, request, use, done = std::move(done)](
                                                    StepCache::Result registered) mutable {
    if (!registered.ok()) return std::move(done)(registered.status());
    auto callable = std::make_shared<const Callable>(
        Callable{*std::move(registered), std::move(*request->mutable_options())});
    tensorflow::MakeCallableResponse response;
    bool is_full = false;
    {
      absl::MutexLock lock(&mu_);
      is_full = callables_.size() >= context_.options.max_callables;
      if (!is_full) {
        response.set_handle(next_handle_++);
        callables_.emplace(response.handle(), std::move(callable));
      }
    }
    if (is_full) {
      return std::move(done)(absl::ResourceExhaustedError(
          absl::StrCat("The session has --max-callables (", context_.options.max_callables,
                       ") callables: release some")));
    }
    std::move(done)(std::move(response));
  });
}

void Callables::Run(std::shared_ptr<tensorflow::RunCallableRequest> request,
                    std::shared_ptr<CancellationToken> gone, SessionUse use,
                    Done<tensorflow::RunCallableResponse> done) {
  std::shared_ptr<const Callable> callable;
  bool was_issued = false;
  {
    absl::MutexLock lock(&mu_);
    was_issued = request->handle() >= 0 && request->handle() < next_handle_;
    const auto found = callables_.find(request->handle());
    if (found != callables_.end()) callable = found->second;
  }
  if (callable == nullptr) {
    return std::move(done)(absl::InvalidArgumentError(
        absl::StrCat(was_issued ? "Attempted to run callable after handle was released: "
                                : "No such callable handle: ",
                     request->handle())));
  }
  const tensorflow::CallableOptions& options = callable->options;
  if (request->feed_size() != options.feed_size()) {
    return std::move(done)(
        absl::InvalidArgumentError(absl::StrCat("The callable takes ", options.feed_size(),
                                                " tensors, and ", request->feed_size(), " came.")));
  }
  absl::StatusOr<Budget::Share> feeds = TakeFeeds(*request, context_);
  if (!feeds.ok()) return std::move(done)(feeds.status());
  std::shared_ptr<StepCall> call =
      calls_.Begin(options.run_options(), std::move(gone),
                   [callable, feeds = *std::move(feeds),
                    done = std::move(done)](absl::StatusOr<RunningStep::Result> result) mutable {
                     if (!result.ok()) return std::move(done)(result.status());
                     std::move(done)(MakeResponse(callable->options, *result));
                   });
  RunSpec spec;
  spec.step_id = calls_.NewStepId();
  spec.options = ExecutorOptsOf(options.run_options());
  StepCache::Result registered = callable->registered;
  if (absl::Status status = FillSpec(*callable->registered, options, *request, spec);
      !status.ok()) {
    registered = std::move(status);
  }
  calls_.RunWhole(std::move(registered), std::move(spec), std::move(call), std::move(use));
}

void Callables::Release(int64_t handle) {
  // Destroyed after the lock is released, because it calls workers.
  std::shared_ptr<const Callable> released;
  absl::MutexLock lock(&mu_);
  const auto found = callables_.find(handle);
  if (found == callables_.end()) return;
  released = std::move(found->second);
  callables_.erase(found);
}

std::vector<std::shared_ptr<const RegisteredStep>> Callables::TakeAll() {
  absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<const RegisteredStep>> steps;
  steps.reserve(callables_.size());
  for (const auto& [handle, callable] : callables_) steps.push_back(callable->registered);
  callables_.clear();
  return steps;
}

size_t Callables::size() const {
  absl::MutexLock lock(&mu_);
  return callables_.size();
}

}  // namespace ferry::master
