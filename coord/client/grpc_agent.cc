// SPDX-License-Identifier: Apache-2.0
// Joining, leaving, and the agent's calls that concern the other nodes.
#include <unistd.h>

#include <utility>

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "absl/synchronization/notification.h"

#include "base/clock.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "coord/client/agent_impl.h"
#include "coord/client/agent_status.h"
#include "coord/wire/callback_threads.h"
#include "coord/wire/error_report.h"
#include "topology/topology_proto.h"

namespace ferry::coord {

void Agent::Impl::Fail(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(has_failed_, true)) return;
  }
  if (options_.on_error) options_.on_error(why);
}

absl::Status Agent::Impl::Open() {
  if (options_.coordinator.find(':') == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the coordinator's address ", Quoted(options_.coordinator), " is not HOST:PORT"));
  }
  if (options_.incarnation == 0) options_.incarnation = RandomId();
  AgentLinkOptions link;
  link.coordinator = options_.coordinator;
  link.connect_timeout = options_.connect_timeout;
  link.reconnect_timeout = options_.reconnect_timeout;
  link.idle_timeout = options_.idle_timeout;
  link.connect_attempt_timeout = options_.connect_attempt_timeout;
  link.on_attempt_failed = options_.on_attempt_failed;
  link.on_lost = [this](absl::Status why) { Fail(why); };
  link.on_event = [this](const v1::Event& event) {
    Fail(absl::Status(static_cast<absl::StatusCode>(event.code()), event.message()));
  };
  std::string error_address;
  if (!options_.error_listen.empty()) {
    FERRY_RETURN_IF_ERROR(CheckServerRoom());
    KeepCallbackThreads();
    error_service_ = MakeErrorReportService([this](absl::Status error) { Fail(error); });
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(options_.error_listen, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(error_service_.get());
    error_server_ = builder.BuildAndStart();
    if (error_server_ == nullptr || port == 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", options_.error_listen, " for error reports"));
    }
    // With the actual port, if any port was allowed.
    error_address =
        absl::StrCat(options_.error_listen.substr(0, options_.error_listen.rfind(':')), ":", port);
  }
  if (options_.node_id.has_value()) {
    v1::Node& node = *link.hello.mutable_node();
    node.set_node_id(*options_.node_id);
    node.set_incarnation(options_.incarnation);
    node.set_host_name(options_.host_name);
    node.set_boot_id(options_.boot_id);
    node.set_process_id(getpid());
    for (const std::string& uuid : options_.gpu_uuids) node.add_gpu_uuids(uuid);
    node.set_recoverable(options_.recoverable);
    node.set_error_address(error_address);
  }
  join_deadline_ = SteadyClock().Now() + options_.connect_timeout;
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<SocketLoop> loop, SocketLoop::OfClients());
  link_ = std::make_unique<AgentLink>(std::move(link), std::move(loop));
  return absl::OkStatus();
}

void Agent::Impl::GiveUp(const absl::Status& why) {
  if (options_.node_id.has_value() && link_->is_attached()) {
    // Rejected if it has not been counted in, and not needed then.
    Report(why).IgnoreError();
    Part().IgnoreError();
  }
  link_->GiveUp(why);
}

absl::Status Agent::Impl::Part() {
  // A callback cannot leave: see Begin.
  if (!link_->IsOnThread()) link_->StopHeartbeats();
  v1::Request request;
  request.mutable_leave();
  return Ask(std::move(request), kPartingTimeout, "leaving to be confirmed", /*keeps_time=*/true)
      .status();
}

absl::Status Agent::Impl::Join() {
  if (absl::StatusOr<v1::Welcome> welcome = link_->WaitUntilAttached(); welcome.ok()) {
    welcome_ = *std::move(welcome);
  } else {
    // Another process has the node id or GPU; or there is no such node.
    is_refused_ = options_.node_id.has_value() && (absl::IsAlreadyExists(welcome.status()) ||
                                                   absl::IsInvalidArgument(welcome.status()));
    return welcome.status();
  }
  if (!options_.cannot_join.ok()) return FailJoining();
  if (!options_.node_id.has_value()) return absl::OkStatus();
  if (options_.num_nodes.has_value() && *options_.num_nodes != welcome_.num_nodes()) {
    is_refused_ = true;
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator at ", options_.coordinator, " serves a job of ",
                     welcome_.num_nodes(), " nodes, but this is node ", *options_.node_id, " of ",
                     *options_.num_nodes, ": it belongs to another job"));
  }
  link_->StartJoining();
  const absl::Duration left = std::max(join_deadline_ - SteadyClock().Now(), absl::Milliseconds(1));
  v1::Request request;
  request.mutable_register_()->set_timeout_ms(Milliseconds(left));
  const auto joined = Begin(std::move(request), left, "all nodes to join");
  // Sent immediately, without waiting for the answer.
  std::shared_ptr<Answer> enumerated;
  if (options_.devices.has_value()) {
    v1::Request enumerate;
    enumerate.mutable_enumerate()->set_local_topology(SerializeTopology(*options_.devices));
    enumerate.mutable_enumerate()->set_timeout_ms(Milliseconds(options_.enumerate_timeout));
    enumerated =
        Begin(std::move(enumerate), left + options_.enumerate_timeout, "the devices of all nodes");
  }
  FERRY_RETURN_IF_ERROR(joined->Wait().status());
  link_->StopJoining();
  link_->StartHeartbeats();
  if (enumerated == nullptr) return absl::OkStatus();
  absl::StatusOr<GlobalTopology> topology = absl::UnknownError("no answer");
  if (absl::StatusOr<v1::Reply> reply = enumerated->Wait(); reply.ok()) {
    topology = ParseGlobalTopology(reply->message());
  } else {
    topology = reply.status();
  }
  if (!topology.ok()) {
    // The others cannot start without this node; they learn why at once, not after a timeout. They
    // already know of the job's own error, but the next job starts only when all have left this
    // one.
    const bool is_jobs_error = has_failed();
    if (!is_jobs_error &&
        (absl::IsUnavailable(topology.status()) || absl::IsAborted(topology.status()))) {
      return topology.status();
    }
    if (is_jobs_error || Report(topology.status()).ok()) Part().IgnoreError();
    return topology.status();
  }
  topology_ = std::make_shared<const GlobalTopology>(*std::move(topology));
  return absl::OkStatus();
}

absl::Status Agent::Impl::FailJoining() {
  link_->StartJoining();
  const absl::Duration left = std::max(join_deadline_ - SteadyClock().Now(), absl::Milliseconds(1));
  v1::Request request;
  v1::FailJoining& fail = *request.mutable_fail_joining();
  fail.set_code(static_cast<int>(options_.cannot_join.code()));
  fail.set_message(std::string(options_.cannot_join.message()));
  fail.set_timeout_ms(Milliseconds(left));
  return Ask(std::move(request), left, "a node that joins, to tell it why this one cannot")
      .status();
}

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Agent::~Agent() = default;

absl::StatusOr<std::unique_ptr<Agent>> Agent::Connect(AgentOptions options) {
  const std::shared_ptr<CancellationToken> stop = options.connect_stop;
  const auto on_refused = options.recoverable ? nullptr : options.on_refused;
  auto agent = std::unique_ptr<Agent>(new Agent(std::make_unique<Impl>(std::move(options))));
  FERRY_RETURN_IF_ERROR(agent->impl_->Open());
  absl::Notification has_given_up;
  const CancellationToken::CallbackId callback =
      stop->Register([&has_given_up, &stop, impl = agent->impl_.get()] {
        impl->GiveUp(stop->status());
        has_given_up.Notify();
      });
  if (callback == CancellationToken::kNoCallback) return stop->status();
  const absl::Status status = agent->impl_->Join();
  if (!stop->Deregister(callback)) {
    // The agent stays until the coordinator has been notified, which takes seconds at most.
    has_given_up.WaitForNotification();
    return stop->status();
  }
  if (status.ok()) return agent;
  if (agent->impl_->is_refused() && on_refused) {
    // Destroyed now, so that it does not hold another process's node id meanwhile.
    agent = nullptr;
    on_refused(status);
  }
  return status;
}

int Agent::num_nodes() const { return impl_->welcome().num_nodes(); }
const std::string& Agent::observed_address() const { return impl_->welcome().observed_address(); }
uint64_t Agent::incarnation() const { return impl_->incarnation(); }

namespace {

v1::Request BarrierRequest(const std::string& name, int64_t counter, absl::Duration timeout,
                           const std::vector<int>& nodes) {
  v1::Request request;
  v1::Barrier& barrier = *request.mutable_barrier();
  barrier.set_id(name);
  barrier.set_timeout_ms(Milliseconds(timeout));
  barrier.set_counter(counter);
  for (const int node : nodes) barrier.add_nodes(node);
  return request;
}

}  // namespace

absl::Status Agent::Barrier(absl::string_view id, absl::Duration timeout, std::vector<int> nodes) {
  const std::string name(id);
  FERRY_ASSIGN_OR_RETURN(const int64_t counter, impl_->BeginBarrier(name));
  const auto answer = impl_->Begin(BarrierRequest(name, counter, timeout, nodes), timeout,
                                   absl::StrCat("barrier ", Quoted(name)));
  absl::StatusOr<v1::Reply> reply = answer->WaitForAny();
  impl_->EndBarrier(name, reply);
  return Checked(std::move(reply)).status();
}

void Agent::BarrierAsync(absl::string_view id, absl::Duration timeout, std::vector<int> nodes,
                         StatusCallback done) {
  const std::string name(id);
  const absl::StatusOr<int64_t> counter = impl_->BeginBarrier(name);
  if (!counter.ok())
    return impl_->link().Defer([done = std::move(done), why = counter.status()]() mutable {
      std::move(done)(std::move(why));
    });
  impl_->link().CallAsync(
      BarrierRequest(name, *counter, timeout, nodes), std::min(timeout, kLongestWait),
      absl::StrCat("barrier ", Quoted(name)),
      [impl = impl_.get(), name, done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
        impl->EndBarrier(name, reply);
        std::move(done)(Checked(std::move(reply)).status());
      });
}

absl::Status Agent::CancelBarrier(absl::string_view id) {
  FERRY_ASSIGN_OR_RETURN(const int64_t counter, impl_->WaitingUse(std::string(id)));
  v1::Request request;
  request.mutable_cancel_barrier()->set_id(std::string(id));
  request.mutable_cancel_barrier()->set_counter(counter);
  return impl_->AskQuickly(std::move(request), "a cancellation to be confirmed").status();
}

absl::StatusOr<std::vector<std::pair<int, uint64_t>>> Agent::AliveNodes(std::vector<int> nodes,
                                                                        absl::Duration timeout) {
  v1::Request request;
  for (const int node : nodes) request.mutable_get_alive()->add_nodes(node);
  FERRY_ASSIGN_OR_RETURN(const v1::Reply reply,
                         impl_->Ask(std::move(request), timeout, "the nodes that are alive to ask",
                                    /*keeps_time=*/true));
  std::vector<std::pair<int, uint64_t>> alive;
  for (const v1::TaskInfo& task : reply.tasks()) {
    alive.emplace_back(task.node_id(), task.incarnation());
  }
  return alive;
}

absl::StatusOr<GlobalTopology> Agent::Enumerate(const LocalTopology& local,
                                                absl::Duration timeout) {
  v1::Request request;
  request.mutable_enumerate()->set_local_topology(SerializeTopology(local));
  request.mutable_enumerate()->set_timeout_ms(Milliseconds(timeout));
  FERRY_ASSIGN_OR_RETURN(const v1::Reply reply,
                         impl_->Ask(std::move(request), timeout, "the devices of all nodes"));
  return ParseGlobalTopology(reply.message());
}

absl::StatusOr<GlobalTopology> Agent::Topology() {
  if (impl_->topology() != nullptr) return *impl_->topology();
  v1::Request request;
  request.mutable_get_topology();
  FERRY_ASSIGN_OR_RETURN(const v1::Reply reply,
                         impl_->AskQuickly(std::move(request), "the topology"));
  return ParseGlobalTopology(reply.message());
}

absl::StatusOr<JobStatus> Agent::Status() {
  v1::Request request;
  request.mutable_get_job_status();
  FERRY_ASSIGN_OR_RETURN(const v1::Reply reply,
                         impl_->AskQuickly(std::move(request), "the job's status"));
  return ReadJobStatus(reply.job_status());
}

void Agent::WatchTasksAsync(int64_t version, Callback<NodeTable> done) {
  v1::Request request;
  request.mutable_watch_tasks()->set_version(version);
  request.mutable_watch_tasks()->set_only_changed(true);
  impl_->link().CallAsync(std::move(request), kLongestWait, "a change of the job's nodes",
                          [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                            reply = Checked(std::move(reply));
                            if (!reply.ok()) return std::move(done)(reply.status());
                            NodeTable table;
                            table.version = reply->version();
                            for (const v1::TaskInfo& task : reply->tasks()) {
                              table.tasks.push_back(ReadTaskStatus(task));
                            }
                            std::move(done)(std::move(table));
                          });
}

void Agent::WatchJoiningAsync(StatusCallback done) {
  v1::Request request;
  request.mutable_watch_joining();
  impl_->link().CallAsync(std::move(request), kLongestWait, "a node that cannot join",
                          [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                            std::move(done)(Checked(std::move(reply)).status());
                          });
}

void Agent::SetProgress(uint64_t progress) { impl_->link().SetProgress(progress); }

absl::Status Agent::ReportError(const absl::Status& error) { return impl_->Report(error); }

absl::Status Agent::Shutdown() {
  v1::Request request;
  request.mutable_shutdown();
  absl::Status status =
      impl_->Ask(std::move(request), kLongestWait, "all nodes to shut down").status();
  if (status.ok()) impl_->link().StopHeartbeats();
  return status;
}

absl::Status Agent::Leave() { return impl_->Part(); }

absl::Status Agent::EndJob(absl::string_view why, bool force, absl::string_view proof) {
  v1::Request request;
  request.mutable_end_job()->set_reason(std::string(why));
  request.mutable_end_job()->set_force(force);
  request.mutable_end_job()->set_proof(std::string(proof));
  return impl_->AskQuickly(std::move(request), "the job to be ended").status();
}

}  // namespace ferry::coord
