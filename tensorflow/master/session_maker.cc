// SPDX-License-Identifier: Apache-2.0
// Runs the stages of session creation in sequence.
#include "tensorflow/master/session_maker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "tensorflow/graph/place.h"
#include "tensorflow/master/read_graph.h"

namespace ferry::master {
namespace {

// Delay before retrying a worker that cannot be reached.
constexpr absl::Duration kRetryPause = absl::Milliseconds(200);

}  // namespace

SessionMaker::SessionMaker(const Context& context,
                           std::shared_ptr<tensorflow::CreateSessionRequest> request,
                           std::shared_ptr<CancellationToken> gone, Done done)
    : context_(context),
      request_(std::move(request)),
      gone_(std::move(gone)),
      done_(std::move(done)) {}

void SessionMaker::Start() {
  const size_t memory = GraphMemory(request_->graph_def());
  context_.master.work.Add(memory, [self = shared_from_this(), memory](absl::Status status) {
    if (status.ok()) status = self->ReadOptions();
    if (status.ok()) status = TakeGraphShare(self->context_.master, memory, self->graph_share_);
    if (!status.ok()) return std::move(self->done_)(std::move(status));
    self->graph_bytes_ = self->request_->graph_def().ByteSizeLong();
    absl::StatusOr<PlacedGraph> graph = ReadGraph(std::move(*self->request_->mutable_graph_def()),
                                                  nullptr, self->context_.master.options);
    if (!graph.ok()) return std::move(self->done_)(graph.status());
    self->graph_ = *std::move(graph);
    self->AwaitWorkers();
  });
}

absl::Status SessionMaker::ReadOptions() {
  const tensorflow::ConfigProto& config = request_->config();
  if (config.use_per_session_threads() || config.session_inter_op_thread_pool_size() > 0) {
    return absl::InvalidArgumentError(
        "Distributed session does not support session thread pool options.");
  }
  if (config.cluster_def().job_size() > 0) {
    return absl::UnimplementedError(
        "ConfigProto.cluster_def: the workers of a session are those of the job here");
  }
  FERRY_ASSIGN_OR_RETURN(filters_, DeviceFilters::Create(config.device_filters()));
  timeout_ = config.operation_timeout_in_ms() > 0
                 ? absl::Milliseconds(config.operation_timeout_in_ms())
                 : context_.master.options.worker_timeout;
  deadline_ = context_.master.timers.Now() + timeout_;
  return absl::OkStatus();
}

void SessionMaker::AwaitWorkers() {
  context_.waits.Await(
      {filters_, deadline_, timeout_, "CreateSession", gone_}, context_.cluster,
      [self = shared_from_this()](absl::StatusOr<Cluster> cluster) {
        if (!cluster.ok()) return std::move(self->done_)(cluster.status());
        self->context_.master.work.GoOn(
            [self, cluster = *std::move(cluster)]() mutable { self->Place(std::move(cluster)); });
      });
}

void SessionMaker::Place(Cluster cluster) {
  const auto place = [&]() -> absl::Status {
    FERRY_ASSIGN_OR_RETURN(SessionDevices devices, SelectDevices(cluster, filters_));
    graph::PlaceOptions options;
    options.allow_soft_placement = request_->config().allow_soft_placement();
    auto placed = std::make_shared<PlacedGraph>(graph_);
    FERRY_ASSIGN_OR_RETURN(placed->placement, graph::Place(graph_.graph, devices.set, options));
    Open(std::make_shared<SessionWorkers>(absl::StrFormat("%016x", context_.master.random()),
                                          std::move(devices), context_.master.options.calls,
                                          context_.master.timers),
         std::move(placed));
    return absl::OkStatus();
  };
  if (absl::Status status = place(); !status.ok()) std::move(done_)(std::move(status));
}

void SessionMaker::Open(std::shared_ptr<SessionWorkers> workers,
                        std::shared_ptr<const PlacedGraph> graph) {
  tensorflow::CreateWorkerSessionRequest request;
  request.set_isolate_session_state(request_->config().isolate_session_state());
  request.set_master_task(context_.master_task);
  request.set_master_incarnation(context_.incarnation);
  const absl::Duration left =
      std::max(deadline_ - context_.master.timers.Now(), absl::Milliseconds(1));
  workers->Open(std::move(request), left,
                [self = shared_from_this(), workers, graph](const absl::Status& status) {
                  self->WhenOpened(workers, graph, status);
                });
}

void SessionMaker::WhenOpened(const std::shared_ptr<SessionWorkers>& workers,
                              std::shared_ptr<const PlacedGraph> graph,
                              const absl::Status& status) {
  const MasterContext& master = context_.master;
  FERRY_LOG_INFO(kTensorflow, "session opened on its workers: task={}: {}", context_.master_task,
                 status);
  if (status.ok()) {
    return std::move(done_)(std::make_shared<Session>(master, workers, request_->config(),
                                                      std::move(graph), graph_bytes_,
                                                      std::move(graph_share_)));
  }
  if (!absl::IsUnavailable(status)) return std::move(done_)(status);
  if (gone_ != nullptr && gone_->is_cancelled()) {
    return std::move(done_)(absl::CancelledError("The client has gone."));
  }
  if (master.timers.Now() + kRetryPause >= deadline_) {
    return std::move(done_)(absl::DeadlineExceededError(
        absl::StrCat("CreateSession tried for ", ShortDuration(timeout_),
                     " to reach all workers. The last error: ", status.message())));
  }
  master.timers.AddAfter(kRetryPause, [self = shared_from_this()] { self->AwaitWorkers(); });
}

}  // namespace ferry::master
