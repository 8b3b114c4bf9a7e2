// SPDX-License-Identifier: Apache-2.0
// The stages of a RunGraph call.
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "tensorflow/worker/collectives/host_backend.h"
#include "tensorflow/worker/collectives/leader.h"
#include "tensorflow/worker/collectives/nccl_backend.h"
#include "tensorflow/worker/collectives/staged_backend.h"
#include "tensorflow/worker/collectives/step_collectives.h"
#include "tensorflow/worker/fetch.h"
#include "tensorflow/worker/partial_run.h"
#include "tensorflow/worker/step_stats.h"
#include "tensorflow/worker/worker.h"

namespace ferry::worker {

// Kept alive by the operation it waits for.
struct Worker::Call {
  RunRequest request;
  RunDone done;
  CancellationToken* cancellation = nullptr;
  CancellationToken::CallbackId token = CancellationToken::kNoCallback;

  std::shared_ptr<const RegisteredGraph> graph;
  std::vector<RendezvousKey> fetches;
  std::shared_ptr<StepTransfers> transfers;
  // For a piece of a partial run.
  std::shared_ptr<PartialRun> partial;
  // The run that it began.
  std::weak_ptr<GraphRun> run;
  // When it began, if it is to be traced.
  int64_t start_ns = 0;
  // Record tensors received from other workers.
  bool is_logged = false;
  RunResult result;
};

void Worker::RunGraph(RunRequest request, CancellationToken* cancellation, RunDone done) {
  auto call = std::make_shared<Call>();
  call->request = std::move(request);
  call->cancellation = cancellation;
  call->done = std::move(done);
  BeginWork();
  bool begins = true;
  if (absl::Status status = Prepare(*call, begins); !status.ok()) {
    return Complete(*call, std::move(status));
  }
  const std::shared_ptr<GraphRun> run = begins ? MakeRun(call) : nullptr;
  if (cancellation != nullptr) {
    const auto cancel = [transfers = call->transfers, run, step_id = call->request.step_id] {
      const absl::Status why = absl::CancelledError(
          absl::StrCat("Step ", step_id, " cancelled.  Cancelling rendezvous."));
      transfers->Abort(why);
      if (run != nullptr) run->Cancel(why);
    };
    call->token = cancellation->Register(cancel);
    if (call->token == CancellationToken::kNoCallback) cancel();
  }
  FERRY_LOG_DEBUG(kTensorflow, "graph run started: step={} graph={}", call->request.step_id,
                  Quoted(call->request.graph));
  if (run != nullptr) run->Start();
  // Other calls fetch when the run has ended.
  if (call->partial == nullptr) return;
  Fetch(call, [this, call](absl::Status status) {
    if (!call->request.is_last_partial) return Complete(*call, std::move(status));
    call->partial->EndLastCall(
        std::move(status), [this, call](absl::Status ended) { Complete(*call, std::move(ended)); });
  });
}

absl::Status Worker::Prepare(Call& call, bool& begins) {
  const RunRequest& request = call.request;
  FERRY_RETURN_IF_ERROR(recent_.TrackUnique(
      request.request_id, request.is_partial ? "PartialRunGraph (Worker)" : "RunGraph (Worker)"));
  FERRY_ASSIGN_OR_RETURN(const SessionPtr session, FindSession(request.session));
  FERRY_ASSIGN_OR_RETURN(call.graph, FindGraph(*session, request.graph));
  absl::flat_hash_set<absl::string_view> seen;
  for (const std::string& text : request.fetches) {
    if (!seen.insert(text).second) continue;
    const RendezvousKey* const key = call.graph->FindSend(text);
    if (key == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("graph ", request.graph, " sends nothing under ", Quoted(text)));
    }
    call.fetches.push_back(*key);
  }
  std::vector<RendezvousKey> feeds;
  for (const auto& [text, tensor] : request.feeds) {
    if (const RendezvousKey* const key = call.graph->FindRecv(text); key != nullptr) {
      feeds.push_back(*key);
    } else {
      FERRY_ASSIGN_OR_RETURN(RendezvousKey parsed, RendezvousKey::Parse(text));
      feeds.push_back(std::move(parsed));
    }
  }
  const std::string name = request.session.value_or(std::string());
  const auto is_alive = [&] {
    const absl::StatusOr<SessionPtr> now = FindSession(request.session);
    return now.ok() && *now == session;
  };
  if (request.is_partial) {
    FERRY_ASSIGN_OR_RETURN(StepTable::Piece piece,
                           steps_.BeginPiece(request.step_id, name, request.graph, is_alive));
    call.transfers = std::move(piece.transfers);
    call.partial = std::move(piece.run);
    begins = piece.is_first;
  } else {
    FERRY_ASSIGN_OR_RETURN(call.transfers,
                           steps_.Begin(request.step_id, name, request.graph, is_alive));
  }
  steps_.Keep(request.step_id, std::move(call.request.feed_share));
  absl::Status status;
  for (size_t i = 0; status.ok() && i < feeds.size(); ++i) {
    status = call.transfers->Send(feeds[i], std::move(call.request.feeds[i].second),
                                  /*is_dead=*/false);
  }
  // Other pieces wait for this run, which will not start.
  if (!status.ok() && begins && request.is_partial) {
    call.transfers->Abort(status);
    call.partial->EndRun(status);
  }
  return status;
}

std::shared_ptr<GraphRun> Worker::MakeRun(const std::shared_ptr<Call>& call) {
  BeginWork();
  GraphRunOptions options;
  options.executor = &executor_;
  options.now_ns = absl::GetCurrentTimeNanos;
  if (ring_.Takes(call->graph->plan()->node_count())) call->start_ns = options.now_ns();
  call->is_logged = transfer_log_.is_on();
  options.record_times = call->request.record_times || call->start_ns != 0 || call->is_logged;
  if (call->graph->has_collectives()) {
    options.collectives = std::make_shared<StepCollectives>(
        call->transfers, MakeCarrier(call->transfers), SteadyClock());
  }
  std::shared_ptr<GraphRun> run =
      GraphRun::Create(call->graph->plan(), call->transfers, std::move(options),
                       [this, call](absl::Status status) { EndRun(call, std::move(status)); });
  call->run = run;
  steps_.AddRun(call->request.step_id, run);
  if (const auto& devices = call->graph->led_devices(); devices != nullptr) {
    CollectiveLeader::Start(call->transfers, devices, SteadyClock());
  }
  return run;
}

std::unique_ptr<CollectiveBackend> Worker::MakeCarrier(
    const std::shared_ptr<StepTransfers>& transfers) {
  auto on_host = std::make_unique<HostBackend>(transfers, &executor_);
  Gpus* const gpus = options_.gpus;
  if (gpus == nullptr) return on_host;
  auto staged = std::make_unique<StagedBackend>(
      std::move(on_host),
      [gpus](MoveRequest request, Gpus::MoveCallback done) {
        gpus->Move(std::move(request), std::move(done));
      },
      &executor_);
  if (options_.collectives == nullptr) return staged;
  return std::make_unique<NcclBackend>(transfers, *options_.collectives, std::move(staged),
                                       &executor_);
}

void Worker::EndRun(const std::shared_ptr<Call>& call, absl::Status status) {
  // Keeps the run alive until this returns.
  const std::shared_ptr<GraphRun> run = call->run.lock();
  steps_.RemoveRun(call->request.step_id, run.get());
  if (call->start_ns != 0 && run != nullptr) {
    ring_.Add({.step_id = call->request.step_id,
               .start_ns = call->start_ns,
               .end_ns = absl::GetCurrentTimeNanos(),
               .code = status.code(),
               .labels = call->graph->labels(),
               .times = run->times()});
  }
  if (call->is_logged && run != nullptr) {
    tensorflow::StepStats rows;
    FillTransfers(*call->graph, run->times(), rows);
    transfer_log_.Add(call->request.step_id, std::move(rows));
  }
  if (call->partial != nullptr) {
    call->partial->EndRun(std::move(status));
  } else {
    if (run != nullptr && call->request.record_times) call->result.times = run->times();
    call->result.graph = call->graph;
    if (status.ok()) {
      Fetch(call, [this, call](absl::Status fetched) { Complete(*call, std::move(fetched)); });
    } else {
      Complete(*call, std::move(status));
    }
  }
  EndWork();
}

void Worker::Fetch(const std::shared_ptr<Call>& call,
                   absl::AnyInvocable<void(absl::Status) &&> done) {
  FetchAll(
      *call->transfers, call->fetches, /*cancellation=*/nullptr,
      [call, done = std::move(done)](absl::Status status, std::vector<Tensor> tensors) mutable {
        for (size_t i = 0; status.ok() && i < tensors.size(); ++i) {
          call->result.fetched.emplace_back(call->fetches[i].text(), std::move(tensors[i]));
        }
        std::move(done)(std::move(status));
      });
}

void Worker::Complete(Call& call, absl::Status status) {
  if (call.token != CancellationToken::kNoCallback) call.cancellation->Deregister(call.token);
  FERRY_LOG_DEBUG(kTensorflow, "graph run over: step={} graph={}: {}", call.request.step_id,
                  Quoted(call.request.graph), status);
  RunDone done = std::move(call.done);
  std::move(done)(std::move(status), std::move(call.result));
  EndWork();
}

void Worker::BeginWork() {
  absl::MutexLock lock(&busy_mu_);
  ++busy_;
}

void Worker::EndWork() {
  absl::MutexLock lock(&busy_mu_);
  --busy_;
}

}  // namespace ferry::worker
