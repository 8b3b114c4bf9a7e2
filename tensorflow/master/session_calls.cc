// SPDX-License-Identifier: Apache-2.0
// SessionCalls: running a step for a call, and cancelling calls.
#include "tensorflow/master/session_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ferry::master {

SessionCalls::SessionCalls(const MasterContext& context, SessionWorkers& workers,
                           const tensorflow::ConfigProto& config)
    : context_(context), workers_(workers), config_(config) {}

absl::Status SessionCalls::CheckOptions(const tensorflow::RunOptions& options) const {
  if (options.output_partition_graphs() &&
      config_.experimental().disable_output_partition_graphs()) {
    return absl::InvalidArgumentError(
        "RunOptions.output_partition_graphs() is not supported when "
        "disable_output_partition_graphs is true.");
  }
  if (options.debug_options().debug_tensor_watch_opts_size() > 0) {
    return absl::UnimplementedError("RunOptions.debug_options: there is no debugger here");
  }
  return absl::OkStatus();
}

std::shared_ptr<StepCall> SessionCalls::Begin(const tensorflow::RunOptions& options,
                                              std::shared_ptr<CancellationToken> gone,
                                              RunningStep::Done done) {
  const int64_t timeout_ms =
      options.timeout_in_ms() > 0 ? options.timeout_in_ms() : config_.operation_timeout_in_ms();
  ClientLimits limits;
  if (timeout_ms > 0) limits.timeout = absl::Milliseconds(timeout_ms);
  limits.gone = std::move(gone);
  auto call = std::make_shared<StepCall>(context_.timers, std::move(done));
  absl::Status closed;
  {
    absl::MutexLock lock(&mu_);
    closed = closed_;
    calls_.insert(call);
  }
  call->Watch(std::move(limits));
  if (!closed.ok()) call->CallOff(closed);
  return call;
}

void SessionCalls::Fail(const std::shared_ptr<StepCall>& call, absl::Status why) {
  call->Finish(std::move(why));
  Remove(call);
}

void SessionCalls::Remove(const std::shared_ptr<StepCall>& call) {
  absl::MutexLock lock(&mu_);
  calls_.erase(call);
}

void SessionCalls::Run(std::shared_ptr<const RegisteredStep> registered, RunSpec spec,
                       std::shared_ptr<StepCall> call, After after) {
  const bool is_one_too_many = context_.steps.fetch_add(1) >= context_.options.max_steps;
  auto end = [this, call, after = std::move(after)](absl::StatusOr<RunningStep::Result> result,
                                                    bool has_run) mutable {
    context_.steps.fetch_sub(1);
    const absl::Status status = result.status();
    call->Finish(std::move(result));
    Remove(call);
    std::move(after)(status, has_run);
  };
  if (is_one_too_many) {
    return end(absl::ResourceExhaustedError(absl::StrCat("The master runs --max-steps (",
                                                         context_.options.max_steps, ") steps")),
               false);
  }
  auto step =
      std::make_shared<RunningStep>(registered, spec.step_id, context_.timers, context_.log);
  if (!call->SetStep(step)) return end(absl::CancelledError("the call is over already"), false);
  // Check after SetStep: workers lost later than this find the step by themselves.
  for (const RegisteredStep::Part& part : registered->parts()) {
    if (absl::Status status = workers_.CheckAlive(part.worker); !status.ok()) {
      return end(std::move(status), false);
    }
  }
  step->Run(
      std::move(spec), [this] { return static_cast<int64_t>(context_.random() | 1); },
      [end = std::move(end)](absl::StatusOr<RunningStep::Result> result) mutable {
        end(std::move(result), true);
      });
}

void SessionCalls::RunWhole(StepCache::Result registered, RunSpec spec,
                            std::shared_ptr<StepCall> call, SessionUse use) {
  if (!registered.ok()) return Fail(call, registered.status());
  const int64_t step_id = spec.step_id;
  Run(*registered, std::move(spec), std::move(call),
      [this, step_id, step = *registered, use = std::move(use)](const absl::Status&,
                                                                bool has_run) mutable {
        if (!has_run) return;
        std::vector<int> workers = step->worker_indexes();
        workers_.Cleanup(step_id, std::move(workers),
                         [step = std::move(step), use = std::move(use)] {});
      });
}

std::vector<std::shared_ptr<StepCall>> SessionCalls::All() const {
  absl::MutexLock lock(&mu_);
  return {calls_.begin(), calls_.end()};
}

void SessionCalls::FailWorker(int worker, const absl::Status& why) {
  for (const auto& call : All()) call->FailWorker(worker, why);
}

void SessionCalls::Close(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    closed_ = why;
  }
  for (const auto& call : All()) call->CallOff(why);
}

size_t SessionCalls::size() const {
  absl::MutexLock lock(&mu_);
  return calls_.size();
}

}  // namespace ferry::master
