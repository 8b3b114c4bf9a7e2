// SPDX-License-Identifier: Apache-2.0
// Joining a job, step by step.
#include "node/node.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/file_limit.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "node/communicator_cache.h"
#include "node/node_watch.h"

namespace ferry {
namespace {

// File descriptors of a process that transfers tensors: some 25 for the agent's socket, the
// listeners and the wakeup descriptors of their threads, gRPC's included, and those of a control
// channel to the first peer. More peers, and GPUs, need more.
constexpr int kNodeFiles = 48;

std::string DescribePlace(const NodeIdentity& place, const NodeOptions& options,
                          const Identity& identity) {
  std::string text = absl::StrCat("node ", place.node_id);
  if (place.num_nodes) absl::StrAppend(&text, " of ", *place.num_nodes);
  std::string sources;
  if (!options.node_id && identity.node_id) sources = identity.node_id->source;
  if (!options.num_nodes && identity.num_nodes) {
    absl::StrAppend(&sources, sources.empty() ? "" : ", ", identity.num_nodes->source);
  }
  if (!sources.empty()) absl::StrAppend(&text, " (", sources, ")");
  return text;
}

bool IsSet(GetEnv get_env, const char* name) {
  const std::optional<std::string> value = get_env(name);
  return value && !value->empty();
}

// IPv6 addresses need brackets before a port.
std::string HostPort(const std::string& host, int port) {
  const bool is_bare_ipv6 = absl::StrContains(host, ':') && !absl::StartsWith(host, "[");
  return is_bare_ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

// REQUIRES: identity.first_host.
std::string DerivedCoordinator(const Identity& identity) {
  return HostPort(identity.first_host->value,
                  identity.port_hint ? identity.port_hint->value : kDefaultCoordinatorPort);
}

}  // namespace

absl::StatusOr<NodeIdentity> ResolveNodeIdentity(const NodeOptions& options, GetEnv get_env) {
  // With an explicit node id and coordinator the launchers' variables are not needed: they may
  // contradict each other or belong to another job. The count of nodes comes with the coordinator.
  Identity identity;
  if (!options.node_id || (options.coordinator.empty() && !IsSet(get_env, "FERRY_COORDINATOR"))) {
    FERRY_ASSIGN_OR_RETURN(identity, ReadIdentity(get_env));
  } else if (options.coordinator.empty()) {
    FERRY_ASSIGN_OR_RETURN(identity, ReadCoordinatorVariables(get_env));
  }
  NodeIdentity place;
  place.num_nodes = options.num_nodes;
  if (!place.num_nodes && identity.num_nodes) place.num_nodes = identity.num_nodes->value;
  if (options.node_id) {
    place.node_id = *options.node_id;
  } else if (identity.node_id) {
    place.node_id = identity.node_id->value;
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "which node is this? Say --node-id=I (in programs NodeOptions::rank), set FERRY_NODE_ID, "
        "or "
        "start it with ferry run, srun or mpirun",
        IsSet(get_env, "SLURM_JOB_ID") ? " (this is inside a Slurm job, but not a task of srun)"
                                       : ""));
  }
  if (place.node_id < 0 || (place.num_nodes && place.node_id >= *place.num_nodes)) {
    return absl::InvalidArgumentError(absl::StrCat("node id ", place.node_id, " is not below ",
                                                   place.num_nodes.value_or(0),
                                                   ", the number of nodes"));
  }
  if (!options.coordinator.empty()) {
    place.coordinator = options.coordinator;
  } else if (identity.coordinator) {
    place.coordinator = identity.coordinator->value;
  } else if (identity.first_host && place.num_nodes) {
    place.coordinator = DerivedCoordinator(identity);
    place.is_derived = true;
  } else {
    return absl::InvalidArgumentError(
        "where is the coordinator? Say --coordinator=HOST:PORT (in programs "
        "NodeOptions::coordinator_address) or set FERRY_COORDINATOR; `ferry coordinator --nodes=N` "
        "starts one");
  }
  place.description = DescribePlace(place, options, identity);
  return place;
}

absl::Status CannotTakePart(const absl::Status& why) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  // Not INVALID_ARGUMENT: the processes that receive it have no invalid arguments.
  return absl::FailedPreconditionError(
      absl::StrCat("the process on ", host, " cannot take part: ", why.message()));
}

void ReportCannotJoin(const std::string& coordinator, const absl::Status& why,
                      absl::Duration timeout, std::shared_ptr<CancellationToken> stop) {
  coord::AgentOptions agent;
  agent.coordinator = coordinator;
  agent.connect_timeout = timeout;
  if (stop != nullptr) agent.connect_stop = std::move(stop);
  agent.cannot_join = CannotTakePart(why);
  coord::Agent::Connect(std::move(agent)).IgnoreError();
}

std::optional<RefusedNode> FindRefusedNode(const NodeOptions& options, GetEnv get_env) {
  const std::optional<RefusedIdentity> refused = ReadRefusedIdentity(get_env);
  if (!options.node_id && !refused) return std::nullopt;
  RefusedNode place;
  place.coordinator = options.coordinator;
  if (place.coordinator.empty() && refused && refused->coordinator) {
    place.coordinator = refused->coordinator->value;
  } else if (place.coordinator.empty() && refused && refused->first_host) {
    place.coordinator = DerivedCoordinator(*refused);
    place.is_derived = true;
  } else if (place.coordinator.empty()) {
    const absl::StatusOr<Identity> own = ReadCoordinatorVariables(get_env);
    if (!own.ok() || !own->coordinator) return std::nullopt;
    place.coordinator = own->coordinator->value;
  }
  place.node_id = options.node_id;
  if (!place.node_id && refused && refused->node_id) place.node_id = refused->node_id->value;
  place.may_be_first =
      options.node_id ? *options.node_id == 0 : !place.node_id || refused->may_be_first;
  place.num_nodes = options.num_nodes;
  if (!place.num_nodes && refused && refused->num_nodes) {
    place.num_nodes = refused->num_nodes->value;
  }
  return place;
}

absl::StatusOr<NodeIdentity> FindPlaceOrReport(const NodeOptions& options, GetEnv get_env,
                                               absl::Duration timeout) {
  absl::StatusOr<NodeIdentity> place = ResolveNodeIdentity(options, get_env);
  if (place.ok()) return place;
  if (const auto refused = FindRefusedNode(options, get_env)) {
    ReportCannotJoin(refused->coordinator, place.status(), timeout, options.connect_stop);
  }
  return place;
}

absl::StatusOr<std::unique_ptr<Node>> Node::Join(NodeOptions options) {
  auto node = std::unique_ptr<Node>(new Node());
  const absl::Time called = SteadyClock().Now();
  // How long the others may be told, within the time that the caller gives.
  const auto report_timeout = [&options, called] {
    return std::clamp(called + options.connect_timeout - SteadyClock().Now(), absl::ZeroDuration(),
                      kReportTimeout);
  };
  FERRY_ASSIGN_OR_RETURN(node->place_, FindPlaceOrReport(options, ProcessEnv, report_timeout()));
  const NodeIdentity& place = node->place_;
  if (options.exchanges_tensors) FERRY_RETURN_IF_ERROR(CheckFileRoom(kNodeFiles));
  node->discovery_ = DiscoverLocal();
  LocalTopology& local = node->discovery_.topology;
  local.node_id = place.node_id;

  coord::AgentOptions agent;
  agent.coordinator = place.coordinator;
  agent.node_id = place.node_id;
  agent.host_name = local.host_name;
  agent.boot_id = local.boot_id;
  agent.devices = local;
  for (Device& device : agent.devices->devices) {
    if (options.share_gpus) device.uuid.clear();
    if (!device.uuid.empty()) agent.gpu_uuids.push_back(device.uuid);
  }
  agent.recoverable = options.recoverable;
  agent.connect_timeout = options.connect_timeout;
  agent.answer_timeout = options.answer_timeout;
  agent.reconnect_timeout = options.reconnect_timeout;
  agent.on_error = std::move(options.on_error);
  agent.connect_stop = options.connect_stop;
  agent.on_refused = [&place, &options, &report_timeout](const absl::Status& why) {
    ReportCannotJoin(place.coordinator, why, report_timeout(), options.connect_stop);
  };
  agent.num_nodes = place.num_nodes;
  agent.enumerate_timeout = options.enumerate_timeout;
  const absl::Time start = SteadyClock().Now();
  FERRY_LOG_INFO(kNode, "joining: {} coordinator={} host={} devices={}", place.description,
                 place.coordinator, Quoted(local.host_name), local.devices.size());
  FERRY_ASSIGN_OR_RETURN(node->agent_, coord::Agent::Connect(std::move(agent)));
  node->join_time_ = SteadyClock().Now() - start;
  LogNodeJoined(place.node_id);
  FERRY_ASSIGN_OR_RETURN(node->topology_, node->agent_->Topology());
  FERRY_LOG_INFO(kNode, "joined: nodes={} devices={} incarnation={} address={} after {}",
                 node->num_nodes(), node->topology_.devices().size(), node->agent_->incarnation(),
                 node->agent_->observed_address(), ShortDuration(node->join_time_));
  if (!options.exchanges_tensors) return node;
  absl::Status status;
  try {
    status = node->StartExchange(options);
  } catch (const std::system_error& error) {
    // A thread could not be created.
    status = absl::ResourceExhaustedError(error.what());
  }
  if (status.ok()) return node;
  node->FailJob(status);
  return status;
}

void Node::FailJob(const absl::Status& why) {
  FERRY_LOG_INFO(kNode, "reporting an error to the job: {}", why);
  // If the report gets no answer, Leave will get none either.
  if (agent_->ReportError(why).ok()) agent_->Leave().IgnoreError();
}

// Ending a NCCL communicator writes to the store, which needs the agent; the agent's callbacks need
// the exchange.
Node::~Node() {
  // Log lines during shutdown still name the node.
  const absl::Cleanup left = [node_id = place_.node_id, has_joined = agent_ != nullptr] {
    if (!has_joined) return;
    FERRY_LOG_INFO(kNode, "left");
    LogNodeLeft(node_id);
  };
  if (exchange_ == nullptr) return;
  const absl::Status ended = kept_->Stop(abort_timeout_);
  absl::Status stopped = exchange_->Stop();
  stopped.Update(ended);
  // An agent that is left behind would continue to report node changes.
  if (node_watch_ != nullptr) node_watch_->Stop();
  if (stopped.ok()) return;
  // The hung operation may return and write to the store.
  std::fprintf(stderr, "ferry: node %d leaves although %s\n", node_id(),
               std::string(stopped.message()).c_str());
  (void)agent_.release();
  if (ended.ok()) return;
  (void)ledger_.release();
  (void)exchange_.release();
}

}  // namespace ferry
