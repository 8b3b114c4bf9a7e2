// SPDX-License-Identifier: Apache-2.0
// Node: joining a job step by step, and leaving it.
#include "node/node.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "base/clock.h"
#include "base/file_limit.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "node/agent_bootstrap_store.h"
#include "node/endpoint_record.h"
#include "node/failure_watch.h"
#include "node/host_addresses.h"
#include "node/node_communicators.h"
#include "node/pending_report.h"
#include "node/transfer_report.h"
#include "transport/control/auth_handshake.h"

namespace ferry {
namespace {

// File descriptors of a process that transfers tensors: some 25 for the agent's socket, the
// listeners and the wakeup descriptors of their threads, gRPC's included, and those of a control
// channel to the first peer. More peers, and GPUs, need more.
constexpr int kNodeFiles = 48;

std::string DescribeIdentity(const NodeIdentity& node_identity, const NodeOptions& options,
                             const Identity& identity) {
  std::string text = absl::StrCat("node ", node_identity.node_id);
  if (node_identity.num_nodes) absl::StrAppend(&text, " of ", *node_identity.num_nodes);
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

// "/job:worker/replica:0/task:3/device:CPU:0" of "host:0" of node 3.
absl::StatusOr<std::string> TaskDeviceName(int node, absl::string_view device) {
  int index = 0;
  absl::string_view number = device;
  const bool is_gpu = absl::ConsumePrefix(&number, "gpu:");
  if (!(is_gpu || absl::ConsumePrefix(&number, "host:")) || !absl::SimpleAtoi(number, &index) ||
      index < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(device), " is no device: \"host:0\" and \"gpu:1\" are two"));
  }
  return ToString(
      TaskDevice{{.job = "worker", .replica = 0, .task = node}, is_gpu ? "GPU" : "CPU", index});
}

// The token of the options or the environment; if neither has one, one that the first node to ask
// for it has drawn.
absl::StatusOr<std::string> JobToken(const TransferEngineOptions& options, coord::Agent& agent) {
  FERRY_ASSIGN_OR_RETURN(std::string token, FindToken(options, ProcessEnv));
  if (!token.empty()) return token;
  FERRY_ASSIGN_OR_RETURN(const coord::CompareAndSetResult stored,
                         agent.CompareAndSet(kJobTokenKey, std::nullopt, GenerateSecret()));
  if (stored.value.has_value()) return *stored.value;
  return absl::InternalError("the coordinator keeps no token of the job");
}

// Returns a function that finds a GPU's id in the job by its node and ordinal.
std::function<std::optional<DeviceId>(int32_t, int)> GpuFinder(const GlobalTopology& topology) {
  absl::flat_hash_map<std::pair<int32_t, int>, DeviceId> gpus;
  for (size_t id = 0; id < topology.devices().size(); ++id) {
    const Device& device = topology.device(static_cast<int>(id));
    if (device.kind != DeviceKind::kGpu) continue;
    const int index = topology.devices()[id].node_index;
    const int32_t node = topology.nodes()[static_cast<size_t>(index)].node_id;
    gpus[{node, device.ordinal}] = DeviceId(static_cast<int32_t>(id));
  }
  return [gpus = std::move(gpus)](int32_t node, int ordinal) -> std::optional<DeviceId> {
    const auto found = gpus.find({node, ordinal});
    if (found == gpus.end()) return std::nullopt;
    return found->second;
  };
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
  NodeIdentity node_identity;
  node_identity.num_nodes = options.num_nodes;
  if (!node_identity.num_nodes && identity.num_nodes)
    node_identity.num_nodes = identity.num_nodes->value;
  if (options.node_id) {
    node_identity.node_id = *options.node_id;
  } else if (identity.node_id) {
    node_identity.node_id = identity.node_id->value;
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "which node is this? Say --node-id=I (in programs NodeOptions::rank), set FERRY_NODE_ID, "
        "or start it with ferry run, srun or mpirun",
        IsSet(get_env, "SLURM_JOB_ID") ? " (this is inside a Slurm job, but not a task of srun)"
                                       : ""));
  }
  if (node_identity.node_id < 0 ||
      (node_identity.num_nodes && node_identity.node_id >= *node_identity.num_nodes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("node id ", node_identity.node_id, " is not below ",
                     node_identity.num_nodes.value_or(0), ", the number of nodes"));
  }
  if (!options.coordinator.empty()) {
    node_identity.coordinator = options.coordinator;
  } else if (identity.coordinator) {
    node_identity.coordinator = identity.coordinator->value;
  } else if (identity.first_host && node_identity.num_nodes) {
    node_identity.coordinator = DerivedCoordinator(identity);
    node_identity.is_derived = true;
  } else {
    return absl::InvalidArgumentError(
        "where is the coordinator? Say --coordinator=HOST:PORT (in programs "
        "NodeOptions::coordinator_address) or set FERRY_COORDINATOR; `ferry coordinator --nodes=N` "
        "starts one");
  }
  node_identity.description = DescribeIdentity(node_identity, options, identity);
  return node_identity;
}

absl::Status CannotJoinError(const absl::Status& why) {
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
  agent.cannot_join = CannotJoinError(why);
  coord::Agent::Connect(std::move(agent)).IgnoreError();
}

std::optional<RefusedNode> FindRefusedNode(const NodeOptions& options, GetEnv get_env) {
  const std::optional<RefusedIdentity> refused = ReadRefusedIdentity(get_env);
  if (!options.node_id && !refused) return std::nullopt;
  RefusedNode node_identity;
  node_identity.coordinator = options.coordinator;
  if (node_identity.coordinator.empty() && refused && refused->coordinator) {
    node_identity.coordinator = refused->coordinator->value;
  } else if (node_identity.coordinator.empty() && refused && refused->first_host) {
    node_identity.coordinator = DerivedCoordinator(*refused);
    node_identity.is_derived = true;
  } else if (node_identity.coordinator.empty()) {
    const absl::StatusOr<Identity> own = ReadCoordinatorVariables(get_env);
    if (!own.ok() || !own->coordinator) return std::nullopt;
    node_identity.coordinator = own->coordinator->value;
  }
  node_identity.node_id = options.node_id;
  if (!node_identity.node_id && refused && refused->node_id)
    node_identity.node_id = refused->node_id->value;
  node_identity.may_be_first =
      options.node_id ? *options.node_id == 0 : !node_identity.node_id || refused->may_be_first;
  node_identity.num_nodes = options.num_nodes;
  if (!node_identity.num_nodes && refused && refused->num_nodes) {
    node_identity.num_nodes = refused->num_nodes->value;
  }
  return node_identity;
}

absl::StatusOr<NodeIdentity> ResolveIdentityOrReport(const NodeOptions& options, GetEnv get_env,
                                                     absl::Duration timeout) {
  absl::StatusOr<NodeIdentity> node_identity = ResolveNodeIdentity(options, get_env);
  if (node_identity.ok()) return node_identity;
  if (const auto refused = FindRefusedNode(options, get_env)) {
    ReportCannotJoin(refused->coordinator, node_identity.status(), timeout, options.connect_stop);
  }
  return node_identity;
}

absl::StatusOr<std::unique_ptr<Node>> Node::Join(NodeOptions options) {
  auto node = std::unique_ptr<Node>(new Node());
  const absl::Time called = SteadyClock().Now();
  // How long the others may be told, within the time that the caller gives.
  const auto report_timeout = [&options, called] {
    return std::clamp(called + options.connect_timeout - SteadyClock().Now(), absl::ZeroDuration(),
                      kReportTimeout);
  };
  FERRY_ASSIGN_OR_RETURN(node->identity_,
                         ResolveIdentityOrReport(options, ProcessEnv, report_timeout()));
  const NodeIdentity& node_identity = node->identity_;
  if (options.transfers_tensors) FERRY_RETURN_IF_ERROR(CheckFileRoom(kNodeFiles));
  node->discovery_ = DiscoverLocal();
  for (const std::string& failure : node->discovery_.gpu_failures) {
    FERRY_LOG_WARN(kNode, "GPU left out: {}", failure);
  }
  LocalTopology& local = node->discovery_.topology;
  local.node_id = node_identity.node_id;

  coord::AgentOptions agent;
  agent.coordinator = node_identity.coordinator;
  agent.node_id = node_identity.node_id;
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
  agent.on_refused = [&node_identity, &options, &report_timeout](const absl::Status& why) {
    ReportCannotJoin(node_identity.coordinator, why, report_timeout(), options.connect_stop);
  };
  agent.num_nodes = node_identity.num_nodes;
  agent.enumerate_timeout = options.enumerate_timeout;
  const absl::Time start = SteadyClock().Now();
  FERRY_LOG_INFO(kNode, "joining: {} coordinator={} host={} devices={}", node_identity.description,
                 node_identity.coordinator, Quoted(local.host_name), local.devices.size());
  FERRY_ASSIGN_OR_RETURN(node->agent_, coord::Agent::Connect(std::move(agent)));
  node->join_time_ = SteadyClock().Now() - start;
  LogNodeJoined(node_identity.node_id);
  FERRY_ASSIGN_OR_RETURN(node->topology_, node->agent_->Topology());
  FERRY_LOG_INFO(kNode, "joined: nodes={} devices={} incarnation={} address={} after {}",
                 node->num_nodes(), node->topology_.devices().size(), node->agent_->incarnation(),
                 node->agent_->observed_address(), ShortDuration(node->join_time_));
  if (!options.transfers_tensors) return node;
  absl::Status status;
  try {
    status = node->StartTransferEngine(options);
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

absl::Status Node::StartTransferEngine(const NodeOptions& node) {
  TransferEngineOptions options = node.transfer;
  FERRY_ASSIGN_OR_RETURN(options.token, JobToken(options, *agent_));
  options.coordinator = identity_.coordinator;
  if (options.advertise.empty()) {
    const std::vector<InterfaceAddress> interfaces =
        ReadInterfaces().value_or(std::vector<InterfaceAddress>());
    options.local_end = FindLocalEnd(interfaces, agent_->observed_address(), identity_.coordinator);
  }
  peers_ = std::make_unique<PeerDirectory>(*agent_, node_id());
  keys_ = std::make_unique<KeyTable>();
  if (node.service != nullptr) {
    // Control channels look up endpoints themselves.
    std::function<absl::Status(int64_t)> find_node;
    if (options.protocol == WireProtocol::kGrpc) {
      find_node = [peers = peers_.get()](int64_t id) {
        if (id < 0 || id > INT32_MAX) return absl::NotFoundError("no such task");
        return peers->Lookup(static_cast<int>(id)).status();
      };
    }
    options.grpc_services =
        [this, make = node.service, find_node = std::move(find_node),
         auth = AuthPolicy{options.token, options.require_auth}](TransferEngine& engine) {
          service_ = make({engine, auth, discovery_.topology.devices, find_node});
          return std::vector<grpc::Service*>{&service_->service()};
        };
  }
  Endpoint self;
  self.peer = {node_id(), agent_->incarnation()};
  self.boot_id = discovery_.topology.boot_id;
  self.host_name = discovery_.topology.host_name;
  NcclJob nccl;
  nccl.store = [agent = agent_.get()](std::shared_ptr<BootstrapStoreListener> listener) {
    return std::make_unique<AgentBootstrapStore>(*agent, std::move(listener));
  };
  nccl.device_of = GpuFinder(topology_);
  FERRY_ASSIGN_OR_RETURN(
      engine_,
      TransferEngine::Start(
          std::move(options), std::move(self), peers_->Resolver(),
          [peers = peers_.get()](int32_t node) { return peers->Known(node); }, std::move(nccl)));
  communicators_ = std::make_unique<NodeCommunicators>(
      *agent_, *peers_, *engine_, topology_, discovery_,
      NodeCommunicatorsOptions{.budget_bytes = node.kept_communicator_bytes,
                               .abort_timeout = node.transfer.transports.nccl.abort_timeout});
  FERRY_LOG_INFO(kNode, "serving tensors: tcp={} unix={} grpc={} gpus={}",
                 absl::StrJoin(engine_->self().channels.tcp, ","),
                 Quoted(engine_->self().channels.unix_name), Quoted(engine_->self().grpc_address),
                 engine_->self().gpus.size());
  FERRY_RETURN_IF_ERROR(peers_->Publish(engine_->self()));
  FERRY_ASSIGN_OR_RETURN(
      pending_watch_,
      AnswerPendingRequests(*agent_, node_id(),
                            [engine = engine_.get()](absl::Duration min_age, PendingVisitor visit) {
                              engine->ForEachPending(min_age, visit);
                            }));
  FERRY_ASSIGN_OR_RETURN(report_watch_,
                         AnswerReportRequests(*agent_, node_id(), [engine = engine_.get()] {
                           return MakeTransferReport(*engine);
                         }));
  failure_watch_ =
      std::make_unique<FailureWatch>(*agent_, node_id(), *peers_, *communicators_, *engine_);
  return absl::OkStatus();
}

std::string Node::service_address() const {
  return service_ == nullptr ? std::string() : engine_->self().grpc_address;
}

absl::Status Node::CheckTransfersTensors() const {
  if (engine_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this node joined without TransferOptions::enabled, and moves no tensors");
}

absl::StatusOr<Gpus*> Node::UsableGpus() {
  FERRY_RETURN_IF_ERROR(CheckTransfersTensors());
  if (engine_->gpus() != nullptr) return engine_->gpus();
  return absl::FailedPreconditionError(
      absl::StrCat("this process uses no GPUs: ", engine_->why_no_gpus()));
}

absl::StatusOr<Tensor> Node::Allocate(absl::string_view device, DataType dtype,
                                      const Shape& shape) {
  FERRY_RETURN_IF_ERROR(CheckTransfersTensors());
  bool is_there = false;
  for (const Device& each : discovery_.topology.devices) is_there |= DeviceName(each) == device;
  if (!is_there) {
    std::vector<std::string> names;
    for (const Device& each : discovery_.topology.devices) names.push_back(DeviceName(each));
    std::string why_no_gpus = discovery_.cuda_reason;
    if (why_no_gpus.empty()) why_no_gpus = absl::StrJoin(discovery_.gpu_failures, "; ");
    const bool explains = absl::StartsWith(device, "gpu:") && !why_no_gpus.empty();
    return absl::InvalidArgumentError(absl::StrCat(
        "node ", node_id(), " has no device ", Quoted(device), "; it has ",
        absl::StrJoin(names, ", "), explains ? ": " : "", explains ? why_no_gpus : ""));
  }
  int ordinal = 0;
  if (absl::string_view number = device;
      absl::ConsumePrefix(&number, "gpu:") && absl::SimpleAtoi(number, &ordinal)) {
    FERRY_ASSIGN_OR_RETURN(Gpus* const gpus, UsableGpus());
    return gpus->Allocate(ordinal, dtype, shape);
  }
  FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(dtype, shape));
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, engine_->arena().Allocate(bytes));
  return Tensor::Create(dtype, shape, std::move(buffer));
}

absl::StatusOr<RendezvousKey> Node::Key(absl::string_view name, int from, int to,
                                        absl::string_view from_device, absl::string_view to_device,
                                        const AddressWait& wait) {
  const KeyParts parts = {name, from, to, from_device, to_device};
  if (peers_ != nullptr) {
    // 0: the source is not known, or not any more, or is not a node.
    const uint64_t incarnation = peers_->KnownIncarnation(from);
    if (incarnation != 0) {
      std::optional<RendezvousKey> key = keys_->Find(parts, incarnation);
      if (key.has_value()) return *std::move(key);
    }
  }
  FERRY_RETURN_IF_ERROR(RendezvousKey::CheckEdge(name));
  if (to < 0 || to >= num_nodes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no node ", to, "; the job has ", num_nodes()));
  }
  FERRY_RETURN_IF_ERROR(CheckTransfersTensors());
  FERRY_ASSIGN_OR_RETURN(const Endpoint source, peers_->Lookup(from, wait));
  FERRY_ASSIGN_OR_RETURN(const std::string src, TaskDeviceName(from, from_device));
  FERRY_ASSIGN_OR_RETURN(const std::string dst, TaskDeviceName(to, to_device));
  absl::StatusOr<RendezvousKey> key =
      RendezvousKey::Parse(RendezvousKey::Text(src, source.peer.incarnation, dst, name));
  if (key.ok()) keys_->Keep(parts, *key);
  return key;
}

absl::StatusOr<Step> Node::OpenStep(int64_t step_id) {
  FERRY_RETURN_IF_ERROR(CheckTransfersTensors());
  return engine_->OpenStep(step_id);
}

absl::StatusOr<PathExplanation> Node::PathFrom(int from, size_t bytes, bool is_in_arena,
                                               const TensorLocation& from_location,
                                               const TensorLocation& to) {
  FERRY_RETURN_IF_ERROR(CheckTransfersTensors());
  FERRY_ASSIGN_OR_RETURN(const Endpoint source, peers_->Lookup(from));
  return engine_->PathFrom(source, bytes, is_in_arena, from_location, to);
}

absl::StatusOr<std::shared_ptr<NcclCommunicator>> Node::Communicator(
    const std::vector<int>& devices, std::optional<int> own, CommunicatorOptions options) {
  FERRY_RETURN_IF_ERROR(CheckTransfersTensors());
  return communicators_->Acquire(devices, own, std::move(options));
}

// Ending a NCCL communicator writes to the store, which needs the agent; the agent's callbacks need
// the transfer engine.
Node::~Node() {
  // Log lines during shutdown still name the node.
  const absl::Cleanup left = [node_id = identity_.node_id, has_joined = agent_ != nullptr] {
    if (!has_joined) return;
    FERRY_LOG_INFO(kNode, "left");
    LogNodeLeft(node_id);
  };
  if (engine_ == nullptr) return;
  const absl::Status ended = communicators_->Stop();
  absl::Status stopped = engine_->Stop();
  stopped.Update(ended);
  // An agent that is left behind would continue to report node changes.
  if (failure_watch_ != nullptr) failure_watch_->Stop();
  if (stopped.ok()) return;
  // The hung operation may return and write to the store.
  std::fprintf(stderr, "ferry: node %d leaves although %s\n", node_id(),
               std::string(stopped.message()).c_str());
  (void)agent_.release();
  if (!ended.ok()) (void)engine_.release();
}

}  // namespace ferry
