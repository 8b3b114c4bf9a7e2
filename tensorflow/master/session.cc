// SPDX-License-Identifier: Apache-2.0
// Session: complete steps, and closing a session.
#include "tensorflow/master/session.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tensorflow/graph/names.h"
#include "tensorflow/master/read_graph.h"
#include "tensorflow/master/step_result.h"

namespace ferry::master {

// A SessionUse.
class Session::Use final {
 public:
  explicit Use(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  ~Use() { session_->EndUse(); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  const std::shared_ptr<Session> session_;
};

Session::Session(const MasterContext& context, std::shared_ptr<SessionWorkers> workers,
                 tensorflow::ConfigProto config, std::shared_ptr<const PlacedGraph> graph,
                 size_t graph_bytes, Budget::Share graph_share)
    : context_(context),
      workers_(std::move(workers)),
      config_(std::move(config)),
      graph_(context, *workers_, config_, std::move(graph), graph_bytes, std::move(graph_share)),
      steps_(context, workers_, config_, graph_),
      calls_(context, *workers_, config_),
      callables_(context, steps_, calls_),
      partial_runs_(context, *workers_, steps_, calls_),
      last_use_(context.timers.Now()) {}

absl::StatusOr<SessionUse> Session::BeginUse() {
  {
    absl::MutexLock lock(&mu_);
    if (is_closed_) return absl::FailedPreconditionError("Session is closed.");
    ++uses_;
    last_use_ = context_.timers.Now();
  }
  return std::make_shared<const Use>(shared_from_this());
}

void Session::EndUse() {
  {
    absl::MutexLock lock(&mu_);
    last_use_ = context_.timers.Now();
    if (--uses_ > 0 || !is_closed_) return;
  }
  FinishClosing();
}

TableSizes Session::InnerTableSizes() const {
  TableSizes sizes = partial_runs_.InnerTableSizes();
  sizes["session.calls"] = calls_.size();
  sizes["session.callables"] = callables_.size();
  absl::MutexLock lock(&mu_);
  sizes["session.uses"] = static_cast<size_t>(uses_);
  return sizes;
}

std::optional<absl::Time> Session::idle_since() const {
  absl::MutexLock lock(&mu_);
  if (uses_ > 0) return std::nullopt;
  return last_use_;
}

tensorflow::ListDevicesResponse Session::ListDevices() const {
  tensorflow::ListDevicesResponse response;
  for (const ClusterWorker& worker : workers_->devices().workers) {
    for (const tensorflow::DeviceAttributes& device : worker.devices) {
      *response.add_local_device() = device;
    }
  }
  return response;
}

void Session::Extend(std::shared_ptr<tensorflow::ExtendSessionRequest> request,
                     Done<tensorflow::ExtendSessionResponse> done) {
  absl::StatusOr<SessionUse> use = BeginUse();
  if (!use.ok()) return std::move(done)(use.status());
  const size_t memory = GraphMemory(request->graph_def());
  context_.work.Add(memory, [this, memory, use = *std::move(use), request = std::move(request),
                             done = std::move(done)](absl::Status status) mutable {
    if (!status.ok()) return std::move(done)(std::move(status));
    std::move(done)(graph_.Extend(*request, memory));
  });
}

void Session::RunStep(std::shared_ptr<tensorflow::RunStepRequest> request,
                      std::shared_ptr<CancellationToken> gone,
                      Done<tensorflow::RunStepResponse> done) {
  absl::StatusOr<SessionUse> begun = BeginUse();
  if (!begun.ok()) return std::move(done)(begun.status());
  SessionUse use = *std::move(begun);
  if (absl::Status status = calls_.CheckOptions(request->options()); !status.ok()) {
    return std::move(done)(std::move(status));
  }
  absl::StatusOr<Budget::Share> feeds = TakeFeeds(*request, context_);
  if (!feeds.ok()) return std::move(done)(feeds.status());
  done = [feeds = *std::move(feeds),
          done = std::move(done)](absl::StatusOr<tensorflow::RunStepResponse> response) mutable {
    std::move(done)(std::move(response));
  };
  if (!request->partial_run_handle().empty()) {
    return partial_runs_.RunPiece(std::move(request), std::move(gone), std::move(use),
                                  std::move(done));
  }
  graph::StepRequest wanted;
  for (const auto& feed : request->feed()) wanted.feeds.push_back(feed.name());
  wanted.fetches.assign(request->fetch().begin(), request->fetch().end());
  wanted.targets.assign(request->target().begin(), request->target().end());
  wanted = Canonical(std::move(wanted));
  const auto twice = std::adjacent_find(wanted.feeds.begin(), wanted.feeds.end());
  if (twice != wanted.feeds.end()) {
    return std::move(done)(
        absl::InvalidArgumentError(absl::StrCat("Duplicated feeds: ", graph::Shown(*twice))));
  }
  std::shared_ptr<StepCall> call = calls_.Begin(
      request->options(), std::move(gone),
      [request, done = std::move(done)](absl::StatusOr<RunningStep::Result> result) mutable {
        if (!result.ok()) return std::move(done)(result.status());
        std::move(done)(MakeRunStepResponse(*request, *result));
      });
  steps_.Prepare(
      std::move(wanted), use,
      [this, request, call = std::move(call), use](StepCache::Result registered) mutable {
        RunSpec spec;
        spec.step_id = calls_.NewStepId();
        spec.options = ExecutorOptsOf(request->options());
        absl::Status feeds = registered.status();
        if (feeds.ok()) feeds = CheckFeeds(**registered, *request);
        if (feeds.ok()) {
          FillSpec(**registered, *request, spec);
        } else {
          registered = std::move(feeds);
        }
        calls_.RunWhole(std::move(registered), std::move(spec), std::move(call), std::move(use));
      });
}

void Session::PartialRunSetup(std::shared_ptr<tensorflow::PartialRunSetupRequest> request,
                              Done<tensorflow::PartialRunSetupResponse> done) {
  absl::StatusOr<SessionUse> use = BeginUse();
  if (!use.ok()) return std::move(done)(use.status());
  partial_runs_.Setup(std::move(request), *std::move(use), std::move(done));
}

void Session::MakeCallable(std::shared_ptr<tensorflow::MakeCallableRequest> request,
                           Done<tensorflow::MakeCallableResponse> done) {
  absl::StatusOr<SessionUse> use = BeginUse();
  if (!use.ok()) return std::move(done)(use.status());
  callables_.Make(std::move(request), *std::move(use), std::move(done));
}

void Session::RunCallable(std::shared_ptr<tensorflow::RunCallableRequest> request,
                          std::shared_ptr<CancellationToken> gone,
                          Done<tensorflow::RunCallableResponse> done) {
  absl::StatusOr<SessionUse> use = BeginUse();
  if (!use.ok()) return std::move(done)(use.status());
  callables_.Run(std::move(request), std::move(gone), *std::move(use), std::move(done));
}

void Session::ReleaseCallable(int64_t callable) {
  {
    absl::MutexLock lock(&mu_);
    last_use_ = context_.timers.Now();
  }
  callables_.Release(callable);
}

void Session::NoteCluster(const Cluster& cluster) {
  for (const int worker : workers_->TakeLost(cluster)) {
    calls_.FailWorker(worker, workers_->CheckAlive(worker));
  }
}

void Session::Close(absl::Status why, absl::AnyInvocable<void() &&> done) {
  {
    absl::MutexLock lock(&mu_);
    is_closed_ = true;
    when_closed_ = std::move(done);
    // Held by Close itself, so that FinishClosing cannot run before it returns.
    ++uses_;
  }
  const Use use(shared_from_this());
  calls_.Close(why);
}

void Session::FinishClosing() {
  absl::AnyInvocable<void() &&> done;
  {
    absl::MutexLock lock(&mu_);
    done = std::move(when_closed_);
  }
  std::vector<PartialRuns::Unfinished> partial_runs = partial_runs_.TakeAll();
  // Registered steps are released after the workers have closed the session, and so need not be
  // deregistered.
  auto all = FanOut::Start([self = shared_from_this(), done = std::move(done),
                            callables = callables_.TakeAll(),
                            partial_runs](const absl::Status&) mutable {
    self->workers_->Close([self, done = std::move(done), callables = std::move(callables),
                           partial_runs = std::move(partial_runs)](const absl::Status&) mutable {
      self->steps_.Clear();
      callables.clear();
      partial_runs.clear();
      std::move(done)();
    });
  });
  for (const PartialRuns::Unfinished& each : partial_runs) {
    if (!each.has_begun) continue;
    all->Begin();
    workers_->Cleanup(each.step_id, each.registered->worker_indexes(), [all] { all->End(); });
  }
  all->End();
}

}  // namespace ferry::master
