// SPDX-License-Identifier: Apache-2.0
// Joining the job, leaving it, and reports of errors.
#include "coord/client/agent_impl.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "base/clock.h"
#include "base/random_id.h"
#include "base/status_macros.h"
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
    Detach().IgnoreError();
  }
  link_->GiveUp(why);
}

absl::Status Agent::Impl::Detach() {
  // A callback cannot leave: see Begin.
  if (!link_->IsOnThread()) link_->StopHeartbeats();
  v1::Request request;
  request.mutable_leave();
  return Ask(std::move(request), kLeaveTimeout, "leaving to be confirmed", /*keeps_time=*/true)
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
    if (is_jobs_error || Report(topology.status()).ok()) Detach().IgnoreError();
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

}  // namespace ferry::coord
