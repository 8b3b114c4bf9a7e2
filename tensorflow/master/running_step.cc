// SPDX-License-Identifier: Apache-2.0
// Calls all workers and waits for all of them.
#include "tensorflow/master/running_step.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ferry::master {
namespace {

// How long to wait for the root cause after a derived error: all peers notice a broken connection
// within milliseconds.
constexpr absl::Duration kCauseTimeout = absl::Seconds(1);

// Returns the error in the response, or that of the call.
absl::Status ResultOf(const absl::StatusOr<tensorflow::RunGraphResponse>& response) {
  if (!response.ok()) {
    // Clients retry UNAVAILABLE on their own, but this step may have started.
    if (!absl::IsUnavailable(response.status())) return response.status();
    return absl::AbortedError(
        absl::StrCat("The worker was lost in the middle of a step: ", response.status().message()));
  }
  return absl::Status(static_cast<absl::StatusCode>(response->status_code()),
                      response->status_error_message());
}

}  // namespace

void RunningStep::Run(RunSpec spec, absl::AnyInvocable<int64_t()> next_request_id, Done done) {
  SessionWorkers& workers = registered_->workers();
  const std::vector<RegisteredStep::Part>& parts = registered_->parts();
  {
    absl::MutexLock lock(&mu_);
    responses_.resize(parts.size());
    has_answered_.resize(parts.size(), false);
    // Plus one for this function, so that `done` cannot run before it finishes.
    pending_ = parts.size() + 1;
    done_ = std::move(done);
    if (log_ != nullptr) {
      times_.step_id = step_id_;
      times_.start = timers_.Now();
      for (const RegisteredStep::Part& part : parts) {
        times_.calls.push_back({workers.worker(part.worker).name, times_.start, times_.start});
      }
    }
  }
  const int client = workers.devices().client_worker();
  for (size_t i = 0; i < parts.size(); ++i) {
    tensorflow::RunGraphRequest request;
    request.set_session_handle(workers.handle());
    request.set_create_worker_session_called(true);
    request.set_graph_handle(parts[i].graph_handle);
    request.set_step_id(step_id_);
    request.set_request_id(next_request_id());
    request.set_store_errors_in_response_body(true);
    request.set_is_partial(spec.is_partial);
    request.set_is_last_partial_run(spec.is_last_partial_run);
    *request.mutable_exec_opts() = spec.options;
    if (parts[i].worker == client) {
      for (tensorflow::NamedTensorProto& feed : spec.feeds) *request.add_send() = std::move(feed);
      for (std::string& key : spec.fetch_keys) request.add_recv_key(std::move(key));
    }
    workers.worker(parts[i].worker)
        .link->RunGraph(request, {absl::InfiniteDuration(), cancellation_},
                        [self = shared_from_this(), i](auto response) {
                          self->WhenAnswered(i, std::move(response));
                        });
  }
  EndOne();
}

void RunningStep::WhenAnswered(size_t part, absl::StatusOr<tensorflow::RunGraphResponse> response) {
  const absl::Status status = ResultOf(response);
  bool is_cause = false;
  bool is_derived = false;
  {
    absl::MutexLock lock(&mu_);
    has_answered_[part] = true;
    if (log_ != nullptr) times_.calls[part].end = timers_.Now();
    if (status.ok()) {
      responses_[part] = *std::move(response);
    } else {
      const bool had_root = errors_.has_root();
      errors_.Add(registered_->workers().worker(registered_->parts()[part].worker).name, status);
      is_cause = !had_root && errors_.has_root();
      is_derived = !errors_.has_root();
    }
  }
  if (is_cause) cancellation_->Cancel();
  if (is_derived) AwaitCause();
  EndOne();
}

void RunningStep::AwaitCause() {
  const Timers::Id timer = timers_.AddAfter(kCauseTimeout, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    {
      absl::MutexLock lock(&self->mu_);
      self->errors_.GiveUpOnCause();
    }
    self->cancellation_->Cancel();
  });
  Timers::Id earlier = Timers::kNone;
  {
    absl::MutexLock lock(&mu_);
    earlier = std::exchange(cause_timer_, timer);
  }
  timers_.Remove(earlier);
}

void RunningStep::EndOne() {
  Done done;
  absl::StatusOr<Result> result;
  Timers::Id timer = Timers::kNone;
  LoggedStep times;
  {
    absl::MutexLock lock(&mu_);
    if (--pending_ > 0) return;
    times = std::move(times_);
    timer = cause_timer_;
    done = std::move(done_);
    if (errors_.empty()) {
      result = Result{registered_, std::move(responses_)};
    } else {
      result = errors_.Summary();
    }
  }
  timers_.Remove(timer);
  if (log_ != nullptr) {
    times.end = timers_.Now();
    times.code = result.status().code();
    log_->Add(std::move(times));
  }
  std::move(done)(std::move(result));
}

void RunningStep::Fail(absl::Status why) {
  {
    absl::MutexLock lock(&mu_);
    errors_.Cause(std::move(why));
  }
  cancellation_->Cancel();
}

void RunningStep::FailWorker(int worker, const absl::Status& why) {
  for (const RegisteredStep::Part& part : registered_->parts()) {
    if (part.worker == worker) return Fail(why);
  }
}

std::string RunningStep::WaitingFor() const {
  std::vector<absl::string_view> names;
  absl::MutexLock lock(&mu_);
  for (size_t i = 0; i < has_answered_.size(); ++i) {
    if (!has_answered_[i]) {
      names.push_back(registered_->workers().worker(registered_->parts()[i].worker).name);
    }
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace ferry::master
