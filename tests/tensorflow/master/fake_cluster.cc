// SPDX-License-Identifier: Apache-2.0
// An interpreter of a few ops, and the books of workers.
#include "tests/tensorflow/master/fake_cluster.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "tensorflow/graph/transfer.h"

namespace ferry::master {
namespace {

using Value = std::optional<tensorflow::TensorProto>;

// Evaluates nodes of one worker's graph, backwards from the fetches.
class Interpreter {
 public:
  Interpreter(const tensorflow::GraphDef& graph,
              const std::map<std::string, tensorflow::TensorProto>& fed,
              std::function<Value(const std::string&)> receive)
      : fed_(fed), receive_(std::move(receive)) {
    for (const tensorflow::NodeDef& node : graph.node()) nodes_[node.name()] = &node;
  }

  Value Evaluate(const std::string& input) {
    // Without its output, which is the only one. Nodes that were added have names of their own
    // kind.
    const tensorflow::NodeDef& node = *nodes_.at(input.substr(0, input.find(':')));
    if (node.op() == "Const") return node.attr().at("value").tensor();
    if (node.op() == "Identity") return Evaluate(node.input(0));
    if (node.op() == "_Recv" || node.op() == "_HostRecv") {
      const std::string key = *graph::KeyOf(node);
      const auto found = fed_.find(key);
      if (found != fed_.end()) return found->second;
      return receive_(key);
    }
    if (node.op() == "AddV2") {
      const Value a = Evaluate(node.input(0));
      const Value b = Evaluate(node.input(1));
      if (!a || !b) return std::nullopt;
      tensorflow::TensorProto sum = *a;
      sum.set_float_val(0, a->float_val(0) + b->float_val(0));
      return sum;
    }
    tensorflow::TensorProto nothing;
    nothing.set_dtype(tensorflow::DT_FLOAT);
    return nothing;
  }

  // By key; nothing if no node sends it.
  const tensorflow::NodeDef* FindSend(const std::string& key) const {
    for (const auto& [name, node] : nodes_) {
      if ((node->op() == "_Send" || node->op() == "_HostSend") && *graph::KeyOf(*node) == key) {
        return node;
      }
    }
    return nullptr;
  }

 private:
  std::map<std::string, const tensorflow::NodeDef*> nodes_;
  const std::map<std::string, tensorflow::TensorProto>& fed_;
  std::function<Value(const std::string&)> receive_;
};

absl::Status Dead() { return absl::UnavailableError("Socket closed"); }

}  // namespace

FakeWorker::FakeWorker(FakeCluster& cluster, int task, uint64_t incarnation, int gpus)
    : cluster_(cluster),
      task_(task),
      incarnation_(incarnation),
      gpus_(gpus),
      name_(absl::StrCat("/job:worker/replica:0/task:", task)) {}

ClusterWorker FakeWorker::Describe() {
  ClusterWorker worker;
  worker.task = {"worker", 0, task_};
  worker.name = name_;
  worker.incarnation = incarnation_;
  worker.link = shared_from_this();
  for (int i = -1; i < gpus_; ++i) {
    tensorflow::DeviceAttributes& device = worker.devices.emplace_back();
    device.set_name(absl::StrCat(name_, i < 0 ? "/device:CPU:0" : absl::StrCat("/device:GPU:", i)));
    device.set_device_type(i < 0 ? "CPU" : "GPU");
    device.set_incarnation(incarnation_);
  }
  return worker;
}

template <typename Response>
void FakeWorker::Queue(Done<Response> done,
                       absl::AnyInvocable<absl::StatusOr<Response>() &&> body) {
  cluster_.Post(
      [self = shared_from_this(), done = std::move(done), body = std::move(body)]() mutable {
        absl::StatusOr<Response> result = self->is_dead_ ? Dead() : std::move(body)();
        self->cluster_.Post([done = std::move(done), result = std::move(result)]() mutable {
          std::move(done)(std::move(result));
        });
      });
}

absl::Status FakeWorker::CheckSession(const std::string& handle) const {
  if (sessions.contains(handle)) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("Session handle is not found: ", handle));
}

void FakeWorker::Kill() {
  is_dead_ = true;
  while (!running_.empty()) End(running_.begin()->first, Dead());
}

void FakeWorker::CreateWorkerSession(const tensorflow::CreateWorkerSessionRequest& request,
                                     CallLimits limits,
                                     Done<tensorflow::CreateWorkerSessionResponse> done) {
  open_timeout = limits.timeout;
  Queue<tensorflow::CreateWorkerSessionResponse>(
      std::move(done),
      [this, request]() -> absl::StatusOr<tensorflow::CreateWorkerSessionResponse> {
        if (!open_error.ok()) return open_error;
        sessions.insert(request.session_handle());
        if (request.isolate_session_state()) isolated.insert(request.session_handle());
        return tensorflow::CreateWorkerSessionResponse();
      });
}

void FakeWorker::DeleteWorkerSession(const tensorflow::DeleteWorkerSessionRequest& request,
                                     CallLimits limits,
                                     Done<tensorflow::DeleteWorkerSessionResponse> done) {
  Queue<tensorflow::DeleteWorkerSessionResponse>(
      std::move(done),
      [this, handle = request.session_handle()]()
          -> absl::StatusOr<tensorflow::DeleteWorkerSessionResponse> {
        if (IsDeaf()) return deaf_error;
        sessions.erase(handle);
        std::erase_if(steps, [&](int64_t id) { return session_of_step_[id] == handle; });
        for (auto graph = session_of_graph.begin(); graph != session_of_graph.end();) {
          if (graph->second != handle) {
            ++graph;
            continue;
          }
          graphs.erase(graph->first);
          graph = session_of_graph.erase(graph);
        }
        return tensorflow::DeleteWorkerSessionResponse();
      });
}

void FakeWorker::RegisterGraph(const tensorflow::RegisterGraphRequest& request, CallLimits limits,
                               Done<tensorflow::RegisterGraphResponse> done) {
  Queue<tensorflow::RegisterGraphResponse>(
      std::move(done), [this, request]() -> absl::StatusOr<tensorflow::RegisterGraphResponse> {
        if (absl::Status status = CheckSession(request.session_handle()); !status.ok()) {
          return status;
        }
        if (!register_error.ok()) return register_error;
        tensorflow::RegisterGraphResponse response;
        response.set_graph_handle(absl::StrCat("graph", task_, "-", ++register_count));
        graphs[response.graph_handle()] = request.graph_def();
        session_of_graph[response.graph_handle()] = request.session_handle();
        last_registered = request;
        return response;
      });
}

void FakeWorker::DeregisterGraph(const tensorflow::DeregisterGraphRequest& request,
                                 CallLimits limits,
                                 Done<tensorflow::DeregisterGraphResponse> done) {
  Queue<tensorflow::DeregisterGraphResponse>(std::move(done),
                                             [this, handle = request.graph_handle()] {
                                               graphs.erase(handle);
                                               session_of_graph.erase(handle);
                                               return tensorflow::DeregisterGraphResponse();
                                             });
}

void FakeWorker::CleanupGraph(const tensorflow::CleanupGraphRequest& request, CallLimits limits,
                              Done<tensorflow::CleanupGraphResponse> done) {
  Queue<tensorflow::CleanupGraphResponse>(
      std::move(done),
      [this, id = request.step_id()]() -> absl::StatusOr<tensorflow::CleanupGraphResponse> {
        if (IsDeaf()) return deaf_error;
        cleaned.insert(id);
        steps.erase(id);
        fed_.erase(id);
        return tensorflow::CleanupGraphResponse();
      });
}

void FakeWorker::CleanupAll(const tensorflow::CleanupAllRequest& request, CallLimits limits,
                            Done<tensorflow::CleanupAllResponse> done) {
  Queue<tensorflow::CleanupAllResponse>(std::move(done), [this, request] {
    resets.push_back(request);
    return tensorflow::CleanupAllResponse();
  });
}

void FakeWorker::RunGraph(const tensorflow::RunGraphRequest& request, CallLimits limits,
                          Done<tensorflow::RunGraphResponse> done) {
  cluster_.Post([self = shared_from_this(), request, limits = std::move(limits),
                 done = std::move(done)]() mutable {
    self->Begin(request, std::move(limits), std::move(done));
  });
}

void FakeWorker::Begin(tensorflow::RunGraphRequest request, CallLimits limits,
                       Done<tensorflow::RunGraphResponse> done) {
  const int64_t run = ++last_run_;
  const int64_t step_id = request.step_id();
  running_.emplace(run, Running{request, limits, CancellationToken::kNoCallback, std::move(done)});
  const auto refuse = [&](absl::Status status) {
    tensorflow::RunGraphResponse response;
    response.set_status_code(static_cast<tensorflow::error::Code>(status.code()));
    response.set_status_error_message(std::string(status.message()));
    End(run, std::move(response));
  };
  if (is_dead_) return End(run, Dead());
  if (limits.cancellation->is_cancelled()) return End(run, absl::CancelledError("Cancelled"));
  runs.push_back(request);
  if (absl::Status status = CheckSession(request.session_handle()); !status.ok()) {
    return refuse(std::move(status));
  }
  if (!graphs.contains(request.graph_handle())) return refuse(absl::AbortedError("no such graph"));
  if (!request_ids_.insert(request.request_id()).second || request.request_id() == 0) {
    return refuse(absl::AbortedError("request twice"));
  }
  if (cleaned.contains(step_id)) return refuse(absl::AbortedError("the step is over"));
  steps.insert(step_id);
  session_of_step_[step_id] = request.session_handle();
  if (on_run) {
    if (absl::Status status = on_run(request); !status.ok()) return refuse(std::move(status));
  }
  for (const tensorflow::NamedTensorProto& feed : request.send()) {
    fed_[step_id][feed.name()] = feed.tensor();
  }
  const auto self = shared_from_this();
  const CancellationToken::CallbackId token = limits.cancellation->Register([self, run] {
    self->cluster_.Post([self, run] { self->End(run, absl::CancelledError("Cancelled")); });
  });
  running_.at(run).token = token;
  cluster_.Look(step_id);
}

void FakeWorker::End(int64_t run, absl::StatusOr<tensorflow::RunGraphResponse> response) {
  const auto found = running_.find(run);
  if (found == running_.end()) return;
  Running ended = std::move(found->second);
  running_.erase(found);
  if (ended.token != CancellationToken::kNoCallback)
    ended.limits.cancellation->Deregister(ended.token);
  cluster_.Post([ended = std::move(ended), response = std::move(response)]() mutable {
    std::move(ended.done)(std::move(response));
  });
}

std::optional<tensorflow::RunGraphResponse> FakeWorker::TryRun(const Running& run) {
  // Its session has been closed meanwhile.
  if (hangs || !graphs.contains(run.request.graph_handle())) return std::nullopt;
  const int64_t step_id = run.request.step_id();
  Interpreter interpreter(
      graphs.at(run.request.graph_handle()), fed_[step_id],
      [this, step_id](const std::string& key) { return cluster_.Received(step_id, key); });
  tensorflow::RunGraphResponse response;
  for (const std::string& key : run.request.recv_key()) {
    const tensorflow::NodeDef* send = interpreter.FindSend(key);
    if (send == nullptr) continue;
    const Value value = interpreter.Evaluate(send->input(0));
    if (!value) return std::nullopt;
    tensorflow::NamedTensorProto& received = *response.add_recv();
    received.set_name(key);
    *received.mutable_tensor() = *value;
  }
  // A node that needs a tensor of another worker is not done before it arrives.
  for (const tensorflow::NodeDef& node : graphs.at(run.request.graph_handle()).node()) {
    if (run.request.is_partial() && !run.request.is_last_partial_run()) break;
    if (node.op() == "_Recv" && !interpreter.Evaluate(node.name())) return std::nullopt;
  }
  if (run.request.exec_opts().record_timeline()) {
    response.mutable_step_stats()->add_dev_stats()->set_device(name_);
  }
  if (run.request.exec_opts().record_partition_graphs()) {
    *response.add_partition_graph() = graphs.at(run.request.graph_handle());
  }
  return response;
}

FakeCluster::FakeCluster(int workers, int gpus)
    : gpus_(gpus), is_listed_(static_cast<size_t>(workers), true) {
  for (int i = 0; i < workers; ++i) {
    workers_.push_back(std::make_shared<FakeWorker>(*this, i, ++last_incarnation_, gpus_));
  }
}

void FakeCluster::Restart(int task) {
  std::shared_ptr<FakeWorker>& worker = workers_[static_cast<size_t>(task)];
  worker->Kill();
  dead_.push_back(worker);
  worker = std::make_shared<FakeWorker>(*this, task, ++last_incarnation_, gpus_);
}

Cluster FakeCluster::Now() {
  Cluster cluster;
  for (size_t i = 0; i < workers_.size(); ++i) {
    ClusterWorker worker = workers_[i]->Describe();
    if (is_listed_[i]) {
      cluster.workers.push_back(std::move(worker));
    } else {
      cluster.missing.push_back({worker.task, worker.name, "has not joined"});
    }
  }
  return cluster;
}

void FakeCluster::Step(size_t index) {
  auto event = std::move(events_[index]);
  events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(index));
  std::move(event)();
}

void FakeCluster::Pump() {
  while (!events_.empty()) Step();
}

void FakeCluster::Look(int64_t step_id) {
  for (const auto& worker : workers_) {
    std::vector<int64_t> ids;
    for (const auto& [id, run] : worker->running_) {
      if (run.request.step_id() == step_id) ids.push_back(id);
    }
    for (const int64_t id : ids) {
      auto response = worker->TryRun(worker->running_.at(id));
      if (response) worker->End(id, *std::move(response));
    }
  }
}

std::optional<tensorflow::TensorProto> FakeCluster::Received(int64_t step_id,
                                                             const std::string& key) {
  for (const auto& worker : workers_) {
    if (!worker->steps.contains(step_id) || worker->hangs || worker->is_dead_) continue;
    for (const tensorflow::RunGraphRequest& run : worker->runs) {
      if (run.step_id() != step_id || !worker->graphs.contains(run.graph_handle())) continue;
      Interpreter interpreter(
          worker->graphs.at(run.graph_handle()), worker->fed_[step_id],
          [this, step_id](const std::string& other) { return Received(step_id, other); });
      if (const tensorflow::NodeDef* send = interpreter.FindSend(key)) {
        return interpreter.Evaluate(send->input(0));
      }
    }
  }
  return std::nullopt;
}

std::string FakeCluster::Leftovers() const {
  std::string text;
  for (const auto& worker : workers_) {
    if (worker->is_dead_) continue;
    if (!worker->sessions.empty()) absl::StrAppend(&text, worker->name(), " has sessions; ");
    if (!worker->graphs.empty()) absl::StrAppend(&text, worker->name(), " has graphs; ");
    if (!worker->steps.empty()) absl::StrAppend(&text, worker->name(), " has steps; ");
    if (!worker->running_.empty()) absl::StrAppend(&text, worker->name(), " runs; ");
  }
  return text;
}

}  // namespace ferry::master
