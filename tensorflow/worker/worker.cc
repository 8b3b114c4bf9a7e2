// SPDX-License-Identifier: Apache-2.0
// Sessions and graph registration.
#include "tensorflow/worker/worker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/usable_resources.h"
#include "tensor/bytes_of_proto.h"
#include "tensorflow/graph/constants.h"

namespace ferry::worker {
namespace {

int ThreadCount(int wanted) {
  if (wanted > 0) return wanted;
  // At least two, so that one long node does not block the others.
  return std::max(2, Usable().processors);
}

}  // namespace

Worker::Worker(WorkerSteps& worker_steps, WorkerOptions options)
    : worker_steps_(worker_steps),
      options_(std::move(options)),
      constants_(options_.limits.max_constant_bytes),
      feeds_(options_.limits.max_feed_bytes),
      devices_(std::make_shared<Devices>(options_.devices, options_.allocate, options_.gpus,
                                         options_.collectives.get())),
      common_session_(std::make_shared<Session>(SessionOptions(), devices_)),
      handle_prefix_(
          absl::StrFormat("%016x", options_.devices.empty() ? 0 : options_.devices[0].incarnation)),
      steps_(worker_steps, options_.limits.max_steps),
      ring_(options_.limits.trace_runs, options_.limits.max_trace_nodes),
      transfer_log_(options_.limits.max_log_steps, options_.limits.max_log_rows),
      pool_(std::make_unique<ThreadPool>("ferry-op-", ThreadCount(options_.thread_count))) {
  FERRY_CHECK(devices_->count() > 0);
  executor_ = [pool = pool_.get()](absl::AnyInvocable<void() &&> function) {
    pool->Run(std::move(function));
  };
}

Worker::~Worker() {
  steps_.CleanupAll();
  // Nothing is pending any more; wait for running kernels to finish.
  const auto is_idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(busy_mu_) { return busy_ == 0; };
  busy_mu_.LockWhen(absl::Condition(&is_idle));
  busy_mu_.Unlock();
  pool_.reset();
}

absl::Status Worker::CreateSession(SessionOptions session, bool is_isolated) {
  if (session.handle.empty()) return absl::InvalidArgumentError("Session must be non-empty.");
  std::vector<std::string> former;
  if (!session.master_task.empty()) {
    for (const SessionPtr& other : Sessions()) {
      if (other->options().master_task == session.master_task &&
          other->options().master_incarnation != session.master_incarnation) {
        former.push_back(other->handle());
      }
    }
  }
  for (const std::string& handle : former) DeleteSession(handle);
  absl::MutexLock lock(&mu_);
  if (sessions_.contains(session.handle)) return absl::OkStatus();
  if (sessions_.size() >= options_.limits.max_sessions) {
    return absl::ResourceExhaustedError(absl::StrCat(
        options_.limits.max_sessions,
        " sessions are open at this worker, the limit (raise --max-sessions, or in programs "
        "WorkerLimits::max_sessions)"));
  }
  const std::string handle = session.handle;
  sessions_.emplace(
      handle, std::make_shared<Session>(
                  std::move(session),
                  is_isolated ? std::make_shared<Devices>(options_.devices, options_.allocate,
                                                          options_.gpus, options_.collectives.get())
                              : devices_));
  return absl::OkStatus();
}

void Worker::DeleteSession(const std::string& handle) {
  SessionPtr session;
  {
    absl::MutexLock lock(&mu_);
    const auto found = sessions_.find(handle);
    if (found == sessions_.end()) return;
    session = std::move(found->second);
    sessions_.erase(found);
  }
  steps_.CleanupSession(handle);
}

absl::StatusOr<Worker::SessionPtr> Worker::FindSession(const SessionHandle& handle) const {
  if (!handle.has_value()) return common_session_;
  absl::MutexLock lock(&mu_);
  const auto found = sessions_.find(*handle);
  if (found != sessions_.end()) return found->second;
  return absl::AbortedError(absl::StrCat("Session handle is not found: ", Quoted(*handle),
                                         ". Possibly this worker (\"", ToString(options_.task),
                                         "\") just restarted."));
}

absl::StatusOr<std::shared_ptr<const RegisteredGraph>> Worker::FindGraph(
    const Session& session, const std::string& graph) const {
  if (auto registered = session.FindGraph(graph); registered != nullptr) return registered;
  return absl::AbortedError(absl::StrCat("Graph handle is not found: ", Quoted(graph),
                                         ". Possibly, this worker just restarted."));
}

std::vector<Worker::SessionPtr> Worker::Sessions() const {
  std::vector<SessionPtr> all = {common_session_};
  absl::MutexLock lock(&mu_);
  for (const auto& [handle, session] : sessions_) all.push_back(session);
  return all;
}

absl::StatusOr<std::string> Worker::RegisterGraph(const SessionHandle& session,
                                                  tensorflow::GraphDef def) {
  FERRY_ASSIGN_OR_RETURN(const SessionPtr found, FindSession(session));
  graph::GraphLimits limits;
  limits.max_nodes = options_.limits.max_nodes;
  limits.allow_internal_names = true;
  FERRY_ASSIGN_OR_RETURN(graph::Graph graph,
                         graph::Graph::Create(std::move(def), options_.host_name, limits));
  FERRY_ASSIGN_OR_RETURN(Budget::Share constants, ShareOfConstants(graph));
  // Contains the worker's incarnation: handles from an earlier incarnation must not match.
  std::string handle = absl::StrFormat("%s-%x", handle_prefix_, next_graph_.fetch_add(1) + 1);
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<const RegisteredGraph> registered,
                         RegisteredGraph::Create(handle, std::move(graph), options_.task, *found,
                                                 std::move(constants)));
  for (const TaskName& source : registered->sources()) {
    FERRY_RETURN_IF_ERROR(worker_steps_.Reach(source));
  }
  FERRY_RETURN_IF_ERROR(found->AddGraph(std::move(registered), options_.limits.max_graphs));
  FERRY_LOG_DEBUG(kTensorflow, "graph registered: session={} graph={}",
                  Quoted(session.value_or(std::string())), handle);
  return handle;
}

absl::StatusOr<Budget::Share> Worker::ShareOfConstants(const graph::Graph& graph) {
  size_t bytes = 0;
  for (int i = 0; i < graph.node_count(); ++i) {
    bytes = AddBytes(bytes, graph::ConstantBytes(graph.node(i).def));
  }
  Budget::Share share;
  if (constants_.Take(bytes, share)) return share;
  return absl::ResourceExhaustedError(absl::StrCat(
      "the constants of this graph take ", bytes, " bytes, and those of other graphs here ",
      constants_.used(), "; the limit is ", constants_.limit(),
      " (raise --max-constant-bytes, or in programs WorkerLimits::max_constant_bytes)"));
}

absl::StatusOr<Budget::Share> Worker::ShareOfFeeds(size_t bytes) {
  Budget::Share share;
  if (feeds_.Take(bytes, share)) return share;
  return absl::ResourceExhaustedError(absl::StrCat(
      "the tensors that are fed take ", bytes, " bytes, and those of steps that are open here ",
      feeds_.used(), "; the limit is ", feeds_.limit(),
      " (raise --max-feed-bytes, or in programs WorkerLimits::max_feed_bytes)"));
}

absl::Status Worker::DeregisterGraph(const SessionHandle& session, const std::string& graph) {
  FERRY_ASSIGN_OR_RETURN(const SessionPtr found, FindSession(session));
  if (found->RemoveGraph(graph)) return absl::OkStatus();
  return FindGraph(*found, graph).status();
}

void Worker::ClearContainers(absl::Span<const std::string> containers) {
  devices_->Clear(containers);
  for (const SessionPtr& session : Sessions()) {
    if (session->devices() != devices_) session->devices()->Clear(containers);
  }
}

size_t Worker::session_count() const {
  absl::MutexLock lock(&mu_);
  return sessions_.size();
}

size_t Worker::graph_count() const {
  size_t count = 0;
  for (const SessionPtr& session : Sessions()) count += session->graph_count();
  return count;
}

int Worker::variable_count() const {
  int count = 0;
  for (const SessionPtr& session : Sessions()) {
    if (session->devices() != devices_) count += session->devices()->variable_count();
  }
  return count + devices_->variable_count();
}

}  // namespace ferry::worker
