// SPDX-License-Identifier: Apache-2.0
// Graphs, complete steps, and closing a session.
#include "tensorflow/master/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/graph/names.h"
#include "tensorflow/graph/place.h"
#include "tensorflow/master/step_result.h"

namespace ferry::master {

Session::Session(const MasterContext& context, std::shared_ptr<SessionWorkers> workers,
                 tensorflow::ConfigProto config, std::shared_ptr<const PlacedGraph> graph,
                 size_t graph_bytes, Budget::Share graph_share)
    : context_(context),
      workers_(std::move(workers)),
      config_(std::move(config)),
      cache_(context.options.max_step_graphs),
      graph_(std::move(graph)),
      graph_bytes_(graph_bytes),
      graph_share_(std::move(graph_share)),
      last_use_(context.timers.Now()) {}

absl::StatusOr<Session::Use> Session::BeginUse() {
  absl::MutexLock lock(&mu_);
  if (!closed_.ok()) return absl::FailedPreconditionError("Session is closed.");
  ++uses_;
  last_use_ = context_.timers.Now();
  return Use(shared_from_this());
}

void Session::EndUse() {
  {
    absl::MutexLock lock(&mu_);
    last_use_ = context_.timers.Now();
    if (--uses_ > 0 || closed_.ok()) return;
  }
  FinishClosing();
}

std::shared_ptr<const PlacedGraph> Session::graph() const {
  absl::MutexLock lock(&mu_);
  return graph_;
}

TableSizes Session::InnerTableSizes() const {
  absl::MutexLock lock(&mu_);
  size_t pieces = 0;
  size_t piece_calls = 0;
  for (const auto& [handle, partial] : partials_) {
    pieces += static_cast<size_t>(partial->pieces);
    piece_calls += partial->calls.size();
  }
  return {{"session.calls", calls_.size()},
          {"session.uses", static_cast<size_t>(uses_)},
          {"session.callables", callables_.size()},
          {"session.partials", partials_.size()},
          {"session.pieces", pieces},
          {"session.piece_calls", piece_calls}};
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
  absl::StatusOr<Use> use = BeginUse();
  if (!use.ok()) return std::move(done)(use.status());
  const size_t memory = GraphMemory(request->graph_def());
  context_.work.Add(memory, [this, memory, use = *std::move(use), request = std::move(request),
                             done = std::move(done)](absl::Status status) mutable {
    if (!status.ok()) return std::move(done)(std::move(status));
    const auto extend = [&]() -> absl::StatusOr<tensorflow::ExtendSessionResponse> {
      const auto check_version = [&request](int64_t version) {
        if (version == request->current_graph_version()) return absl::OkStatus();
        return absl::AbortedError(absl::StrCat("Current version is ", version,
                                               " but caller expected ",
                                               request->current_graph_version(), "."));
      };
      const std::shared_ptr<const PlacedGraph> before = graph();
      FERRY_RETURN_IF_ERROR(check_version(before->version));
      const size_t bytes = request->graph_def().ByteSizeLong();
      Budget::Share share;
      FERRY_RETURN_IF_ERROR(TakeGraphShare(context_, memory, share));
      auto after = std::make_shared<PlacedGraph>();
      FERRY_ASSIGN_OR_RETURN(*after, ReadGraph(std::move(*request->mutable_graph_def()),
                                               before.get(), context_.options));
      graph::PlaceOptions options;
      options.allow_soft_placement = config_.allow_soft_placement();
      FERRY_ASSIGN_OR_RETURN(after->placement, graph::Place(after->graph, workers_->devices().set,
                                                            options, before->placement));
      after->version = before->version + 1;
      absl::MutexLock lock(&mu_);
      // Another extension was faster.
      FERRY_RETURN_IF_ERROR(check_version(graph_->version));
      if (bytes > context_.options.max_graph_bytes - graph_bytes_) {
        return absl::ResourceExhaustedError(
            absl::StrCat("The session's graph would be larger than --max-graph-bytes (",
                         context_.options.max_graph_bytes, ")"));
      }
      graph_bytes_ += bytes;
      graph_share_.Add(std::move(share));
      graph_ = std::move(after);
      tensorflow::ExtendSessionResponse response;
      response.set_new_graph_version(graph_->version);
      return response;
    };
    std::move(done)(extend());
  });
}

absl::Status Session::CheckOptions(const tensorflow::RunOptions& options) const {
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

ClientLimits Session::LimitsOf(const tensorflow::RunOptions& options,
                               std::shared_ptr<CancellationToken> gone) const {
  const int64_t timeout_ms =
      options.timeout_in_ms() > 0 ? options.timeout_in_ms() : config_.operation_timeout_in_ms();
  ClientLimits limits;
  if (timeout_ms > 0) limits.timeout = absl::Milliseconds(timeout_ms);
  limits.gone = std::move(gone);
  return limits;
}

void Session::Prepare(graph::StepRequest request, std::shared_ptr<Use> use, StepCache::Done done) {
  const std::string key = KeyOf(request);
  if (std::shared_ptr<const RegisteredStep> ready = cache_.Find(key)) {
    return std::move(done)(std::move(ready));
  }
  if (!cache_.Await(key, std::move(done))) return;
  Make(std::move(request), [this, key, use = std::move(use)](StepCache::Result result) {
    cache_.Finish(key, std::move(result));
  });
}

void Session::Make(graph::StepRequest request, StepCache::Done done) {
  size_t bytes = 0;
  for (const auto* names : {&request.feeds, &request.fetches, &request.targets}) {
    for (const std::string& name : *names) bytes += sizeof(std::string) + name.size();
  }
  context_.work.Add(bytes, [this, request = std::move(request),
                            done = std::move(done)](absl::Status status) mutable {
    if (!status.ok()) return std::move(done)(std::move(status));
    absl::StatusOr<StepPlan> plan = PlanStep(*graph(), workers_->devices(), request);
    if (!plan.ok()) return std::move(done)(plan.status());
    RegisteredStep::Register(workers_, *std::move(plan), config_, std::move(done));
  });
}

std::shared_ptr<StepCall> Session::NewCall(ClientLimits limits, RunningStep::Done done) {
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

void Session::Launch(std::shared_ptr<const RegisteredStep> registered, RunSpec spec,
                     std::shared_ptr<StepCall> call, After after) {
  const bool is_one_too_many = context_.steps.fetch_add(1) >= context_.options.max_steps;
  auto end = [this, call, after = std::move(after)](absl::StatusOr<RunningStep::Result> result,
                                                    bool has_run) mutable {
    context_.steps.fetch_sub(1);
    const absl::Status status = result.status();
    call->Finish(std::move(result));
    {
      absl::MutexLock lock(&mu_);
      calls_.erase(call);
    }
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
    if (absl::Status status = workers_->CheckAlive(part.worker); !status.ok()) {
      return end(std::move(status), false);
    }
  }
  step->Run(
      std::move(spec), [this] { return static_cast<int64_t>(context_.random() | 1); },
      [end = std::move(end)](absl::StatusOr<RunningStep::Result> result) mutable {
        end(std::move(result), true);
      });
}

void Session::RunWhole(StepCache::Result registered, RunSpec spec, std::shared_ptr<StepCall> call,
                       std::shared_ptr<Use> use) {
  if (!registered.ok()) {
    call->Finish(registered.status());
    absl::MutexLock lock(&mu_);
    calls_.erase(call);
    return;
  }
  const int64_t step_id = spec.step_id;
  Launch(*registered, std::move(spec), std::move(call),
         [this, step_id, step = *registered, use = std::move(use)](const absl::Status&,
                                                                   bool has_run) mutable {
           if (!has_run) return;
           std::vector<int> workers = step->worker_indexes();
           workers_->Cleanup(step_id, std::move(workers),
                             [step = std::move(step), use = std::move(use)] {});
         });
}

void Session::RunStep(std::shared_ptr<tensorflow::RunStepRequest> request,
                      std::shared_ptr<CancellationToken> gone,
                      Done<tensorflow::RunStepResponse> done) {
  absl::StatusOr<Use> begun = BeginUse();
  if (!begun.ok()) return std::move(done)(begun.status());
  auto use = std::make_shared<Use>(*std::move(begun));
  if (absl::Status status = CheckOptions(request->options()); !status.ok()) {
    return std::move(done)(std::move(status));
  }
  absl::StatusOr<Budget::Share> feeds = TakeFeeds(*request, context_);
  if (!feeds.ok()) return std::move(done)(feeds.status());
  done = [feeds = *std::move(feeds),
          done = std::move(done)](absl::StatusOr<tensorflow::RunStepResponse> response) mutable {
    std::move(done)(std::move(response));
  };
  if (!request->partial_run_handle().empty()) {
    return RunPiece(std::move(request), std::move(gone), std::move(use), std::move(done));
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
  std::shared_ptr<StepCall> call = NewCall(
      LimitsOf(request->options(), std::move(gone)),
      [request, done = std::move(done)](absl::StatusOr<RunningStep::Result> result) mutable {
        if (!result.ok()) return std::move(done)(result.status());
        std::move(done)(MakeRunStepResponse(*request, *result));
      });
  Prepare(std::move(wanted), use,
          [this, request, call = std::move(call), use](StepCache::Result registered) mutable {
            RunSpec spec;
            spec.step_id = NewStepId();
            spec.options = ExecutorOptsOf(request->options());
            absl::Status feeds = registered.status();
            if (feeds.ok()) feeds = CheckFeeds(**registered, *request);
            if (feeds.ok()) {
              FillSpec(**registered, *request, spec);
            } else {
              registered = std::move(feeds);
            }
            RunWhole(std::move(registered), std::move(spec), std::move(call), std::move(use));
          });
}

void Session::NoteCluster(const Cluster& cluster) {
  for (const int worker : workers_->TakeLost(cluster)) {
    const absl::Status why = workers_->CheckAlive(worker);
    std::vector<std::shared_ptr<StepCall>> calls;
    {
      absl::MutexLock lock(&mu_);
      calls.assign(calls_.begin(), calls_.end());
    }
    for (const auto& call : calls) call->FailWorker(worker, why);
  }
}

void Session::Close(absl::Status why, absl::AnyInvocable<void() &&> done) {
  std::vector<std::shared_ptr<StepCall>> calls;
  {
    absl::MutexLock lock(&mu_);
    closed_ = why;
    when_closed_ = std::move(done);
    calls.assign(calls_.begin(), calls_.end());
    // Held by Close itself, so that FinishClosing cannot run before it returns.
    ++uses_;
  }
  const Use use(shared_from_this());
  for (const auto& call : calls) call->CallOff(why);
}

void Session::FinishClosing() {
  absl::AnyInvocable<void() &&> done;
  absl::flat_hash_map<std::string, std::shared_ptr<PartialStep>> partials;
  absl::flat_hash_map<int64_t, std::shared_ptr<const Callable>> callables;
  {
    absl::MutexLock lock(&mu_);
    done = std::move(when_closed_);
    partials = std::move(partials_);
    callables = std::move(callables_);
  }
  auto all = FanOut::Start([self = shared_from_this(), done = std::move(done), callables,
                            partials](const absl::Status&) mutable {
    self->workers_->Close([self, done = std::move(done), callables = std::move(callables),
                           partials = std::move(partials)](const absl::Status&) mutable {
      self->cache_.Clear();
      callables.clear();
      partials.clear();
      std::move(done)();
    });
  });
  for (const auto& [handle, partial] : partials) {
    if (!partial->has_begun) continue;
    all->Begin();
    workers_->Cleanup(partial->step_id, partial->registered->worker_indexes(),
                      [all] { all->End(); });
  }
  all->End();
}

}  // namespace ferry::master
