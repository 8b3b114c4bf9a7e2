// SPDX-License-Identifier: Apache-2.0
// Node: transfer engine, peers' endpoints, keys and steps.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "node/agent_clique_store.h"
#include "node/agent_communicator_registry.h"
#include "node/communicator_cache.h"
#include "node/endpoint_record.h"
#include "node/host_addresses.h"
#include "node/node.h"
#include "node/node_failure.h"
#include "node/pending_report.h"
#include "node/transfer_report.h"
#include "transport/control/handshake.h"

namespace ferry {
namespace {

// How often a wait for an address checks whether its node has died.
constexpr absl::Duration kAddressLook = absl::Milliseconds(50);
// This long before such a wait times out, the coordinator is queried for the node's status.
constexpr absl::Duration kAskBefore = absl::Seconds(1);

// An address that is being waited for; shared with callbacks that may outlive the wait.
struct AwaitedAddress {
  absl::Mutex mu;
  std::optional<absl::StatusOr<std::string>> record ABSL_GUARDED_BY(mu);
  // The node's status according to the coordinator.
  std::string situation ABSL_GUARDED_BY(mu);

  bool is_there() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return record.has_value(); }
};

// "it has joined, and was last heard of 3s ago".
std::string SituationOf(const coord::TaskStatus& task) {
  if (task.is_joining) return "it is still joining";
  const std::string heard =
      task.heartbeat_age == absl::InfiniteDuration()
          ? ""
          : absl::StrCat(", and was last heard of ", ShortDuration(task.heartbeat_age), " ago");
  switch (task.state) {
    case coord::TaskState::kConnected:
      return absl::StrCat("it has joined", heard);
    case coord::TaskState::kError:
      return absl::StrCat("it has failed: ", task.error.message());
    case coord::TaskState::kDisconnected:
      break;
  }
  return task.incarnation != 0 ? "it has left the job" : "it has not joined";
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

}  // namespace

absl::Status Node::StartExchange(const NodeOptions& node) {
  TransferEngineOptions options = node.exchange;
  abort_timeout_ = options.transports.nccl.abort_timeout;
  FERRY_ASSIGN_OR_RETURN(options.token, FindToken(options, ProcessEnv));
  if (options.token.empty()) {
    FERRY_ASSIGN_OR_RETURN(const coord::CompareAndSetResult stored,
                           agent_->CompareAndSet(kExchangeTokenKey, std::nullopt, DrawSecret()));
    if (!stored.value.has_value()) {
      return absl::InternalError("the coordinator keeps no token of the job");
    }
    options.token = *stored.value;
  }
  options.coordinator = place_.coordinator;
  if (options.advertise.empty()) {
    const std::vector<InterfaceAddress> interfaces =
        ReadInterfaces().value_or(std::vector<InterfaceAddress>());
    options.local_end = FindLocalEnd(interfaces, agent_->observed_address(), place_.coordinator);
  }
  if (node.service != nullptr) {
    // Control channels look up endpoints themselves.
    std::function<absl::Status(int64_t)> find_node;
    if (options.protocol == WireProtocol::kGrpc) {
      find_node = [this](int64_t id) {
        if (id < 0 || id > INT32_MAX) return absl::NotFoundError("no such task");
        return EndpointOf(static_cast<int>(id)).status();
      };
    }
    options.grpc_services =
        [this, make = node.service, find_node = std::move(find_node),
         proof = ProofPolicy{options.token, options.require_auth}](TransferEngine& exchange) {
          service_ = make({exchange, proof, discovery_.topology.devices, find_node});
          return std::vector<grpc::Service*>{&service_->service()};
        };
  }
  Endpoint self;
  self.peer = {node_id(), agent_->incarnation()};
  self.boot_id = discovery_.topology.boot_id;
  self.host_name = discovery_.topology.host_name;
  absl::flat_hash_map<std::pair<int32_t, int>, DeviceId> gpus;
  for (size_t id = 0; id < topology_.devices().size(); ++id) {
    const Device& device = topology_.device(static_cast<int>(id));
    if (device.kind != DeviceKind::kGpu) continue;
    const int index = topology_.devices()[id].node_index;
    const int32_t node = topology_.nodes()[static_cast<size_t>(index)].node_id;
    gpus[{node, device.ordinal}] = DeviceId(static_cast<int32_t>(id));
  }
  coord::Agent* const agent = agent_.get();
  ledger_ = std::make_unique<AgentCommunicatorRegistry>(*agent);
  kept_ = std::make_shared<CommunicatorCache>(
      *ledger_, node.kept_communicator_bytes, [this](int ordinal) -> uint64_t {
        Gpus* const gpus_here = exchange_ == nullptr ? nullptr : exchange_->gpus();
        if (gpus_here == nullptr) return 0;
        const absl::StatusOr<Gpu*> gpu = gpus_here->Get(ordinal);
        return gpu.ok() ? FreeBytesBesideArena(**gpu) : 0;
      });
  FERRY_ASSIGN_OR_RETURN(
      exchange_,
      TransferEngine::Start(
          std::move(options), std::move(self),
          [agent](int32_t node, ResolveCallback done) {
            agent->GetAllAsync(
                {EndpointKey(node)}, kAddressTimeout,
                [node,
                 done = std::move(done)](absl::StatusOr<std::vector<std::string>> values) mutable {
                  if (!values.ok()) {
                    return std::move(done)(absl::Status(
                        values.status().code(), absl::StrCat("no address of node ", node, ": ",
                                                             values.status().message())));
                  }
                  std::move(done)(DecodeEndpoint(values->front(), node));
                });
          },
          [this](int32_t node) -> absl::StatusOr<Endpoint> {
            absl::MutexLock lock(&mu_);
            if (const auto found = endpoints_.find(node); found != endpoints_.end()) {
              return found->second;
            }
            return absl::FailedPreconditionError(absl::StrCat(
                "the address of node ", node, " has not been looked up: make keys with Node::Key"));
          },
          NcclJob{.store =
                      [agent](std::shared_ptr<CliqueListener> listener) {
                        return std::make_unique<AgentCliqueStore>(*agent, std::move(listener));
                      },
                  .device_of = [gpus = std::move(gpus)](int32_t node,
                                                        int ordinal) -> std::optional<DeviceId> {
                    const auto found = gpus.find({node, ordinal});
                    if (found == gpus.end()) return std::nullopt;
                    return found->second;
                  }}));
  FERRY_LOG_INFO(kNode, "serving tensors: tcp={} unix={} grpc={} gpus={}",
                 absl::StrJoin(exchange_->self().channels.tcp, ","),
                 Quoted(exchange_->self().channels.unix_name),
                 Quoted(exchange_->self().grpc_address), exchange_->self().gpus.size());
  FERRY_RETURN_IF_ERROR(agent_->Set(EndpointKey(node_id()), EncodeEndpoint(exchange_->self()),
                                    /*overwrite=*/true));
  FERRY_ASSIGN_OR_RETURN(pending_watch_,
                         AnswerPendingRequests(*agent_, node_id(),
                                               [exchange = exchange_.get()](absl::Duration min_age,
                                                                            PendingVisitor visit) {
                                                 exchange->ForEachPending(min_age, visit);
                                               }));
  FERRY_ASSIGN_OR_RETURN(report_watch_,
                         AnswerReportRequests(*agent_, node_id(), [exchange = exchange_.get()] {
                           return MakeExchangeReport(*exchange);
                         }));
  WatchNodes();
  return absl::OkStatus();
}

std::string Node::service_address() const {
  return service_ == nullptr ? std::string() : exchange_->self().grpc_address;
}

absl::Status Node::CheckExchange() const {
  if (exchange_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this node joined without TransferOptions::enabled, and moves no tensors");
}

absl::StatusOr<Tensor> Node::Allocate(absl::string_view device, DataType dtype,
                                      const Shape& shape) {
  FERRY_RETURN_IF_ERROR(CheckExchange());
  bool is_there = false;
  for (const Device& each : discovery_.topology.devices) is_there |= DeviceName(each) == device;
  if (!is_there) {
    std::vector<std::string> names;
    for (const Device& each : discovery_.topology.devices) names.push_back(DeviceName(each));
    const std::string& why_no_gpus = discovery_.cuda_reason;
    const bool explains = absl::StartsWith(device, "gpu:") && !why_no_gpus.empty();
    return absl::InvalidArgumentError(absl::StrCat(
        "node ", node_id(), " has no device ", Quoted(device), "; it has ",
        absl::StrJoin(names, ", "), explains ? ": " : "", explains ? why_no_gpus : ""));
  }
  int ordinal = 0;
  if (absl::string_view number = device;
      absl::ConsumePrefix(&number, "gpu:") && absl::SimpleAtoi(number, &ordinal)) {
    if (exchange_->gpus() != nullptr) return exchange_->gpus()->Allocate(ordinal, dtype, shape);
    return absl::FailedPreconditionError(
        absl::StrCat("this process uses no GPUs: ", exchange_->why_no_gpus()));
  }
  FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(dtype, shape));
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, exchange_->arena().Allocate(bytes));
  return Tensor::Create(dtype, shape, std::move(buffer));
}

absl::StatusOr<std::string> Node::WaitForAddress(int node, const AddressWait& wait) {
  const auto awaited = std::make_shared<AwaitedAddress>();
  const absl::Time start = SteadyClock().Now();
  const absl::Time deadline = start + wait.timeout;
  agent_->GetAllAsync({EndpointKey(node)}, wait.timeout,
                      [awaited](absl::StatusOr<std::vector<std::string>> values) {
                        absl::MutexLock lock(&awaited->mu);
                        if (values.ok()) {
                          awaited->record = std::move(values->front());
                        } else {
                          awaited->record = values.status();
                        }
                      });
  bool has_asked = false;
  while (true) {
    const absl::Time now = SteadyClock().Now();
    std::string situation;
    {
      absl::MutexLock lock(&awaited->mu);
      awaited->mu.AwaitWithTimeout(absl::Condition(awaited.get(), &AwaitedAddress::is_there),
                                   std::clamp(deadline - now, absl::ZeroDuration(), kAddressLook));
      // A timeout is reported below, with more detail than the store's.
      if (awaited->is_there() && absl::IsDeadlineExceeded(awaited->record->status())) {
        awaited->record.reset();
      }
      if (awaited->is_there()) return *std::move(awaited->record);
      situation = awaited->situation;
    }
    const std::string what = absl::StrCat("the endpoint record of node ", node);
    {
      absl::MutexLock lock(&mu_);
      if (const auto dead = failed_.find(node); dead != failed_.end()) {
        return absl::UnavailableError(
            absl::StrCat("node ", node, " ", FailedOrDied(dead->second),
                         " before it published its endpoint record: ", dead->second.message()));
      }
    }
    if (wait.cancellation != nullptr && wait.cancellation->is_cancelled()) {
      return absl::CancelledError(absl::StrCat("the wait for ", what, " was cancelled"));
    }
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "waited ", ShortDuration(wait.timeout), " for ", what, " (", EndpointKey(node),
          " in the store), which node ", node, " has not published: ",
          situation.empty() ? "the coordinator has not reported its state either" : situation));
    }
    if (!has_asked && deadline - now <= std::max(kAskBefore, wait.timeout / 2)) {
      has_asked = true;
      agent_->WatchTasksAsync(-1, [awaited, node](absl::StatusOr<coord::NodeTable> table) {
        if (!table.ok()) return;
        for (const coord::TaskStatus& task : table->tasks) {
          if (task.node_id != node) continue;
          absl::MutexLock lock(&awaited->mu);
          awaited->situation = SituationOf(task);
        }
      });
    }
  }
}

absl::StatusOr<Endpoint> Node::EndpointOf(int node, const AddressWait& wait) {
  FERRY_RETURN_IF_ERROR(CheckExchange());
  if (node == node_id()) return exchange_->self();
  if (node < 0 || node >= num_nodes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no node ", node, "; the job has ", num_nodes()));
  }
  {
    absl::MutexLock lock(&mu_);
    if (const auto found = endpoints_.find(node); found != endpoints_.end()) return found->second;
  }
  const absl::Time deadline = SteadyClock().Now() + wait.timeout;
  const auto late = [&] {
    return absl::DeadlineExceededError(
        absl::StrCat("waited ", ShortDuration(wait.timeout), " for the endpoint record of node ",
                     node, ", which was restarted (", EndpointKey(node), " in the store)"));
  };
  bool has_former_record = false;
  while (true) {
    const absl::Time now = SteadyClock().Now();
    const absl::StatusOr<std::string> record =
        WaitForAddress(node, {.timeout = std::max(deadline - now, absl::ZeroDuration()),
                              .cancellation = wait.cancellation});
    if (!record.ok()) {
      // The time has ended while the former record was read once more.
      if (has_former_record && absl::IsDeadlineExceeded(record.status())) return late();
      return record.status();
    }
    FERRY_ASSIGN_OR_RETURN(Endpoint endpoint, DecodeEndpoint(*record, node));
    {
      absl::MutexLock lock(&mu_);
      if (const auto dead = failed_.find(node); dead != failed_.end()) {
        return absl::UnavailableError(absl::StrCat("node ", node, " ", FailedOrDied(dead->second),
                                                   ": ", dead->second.message()));
      }
      // A former incarnation's record stays in the store until the next one overwrites it.
      const auto alive = incarnations_.find(node);
      if (alive == incarnations_.end() || alive->second == endpoint.peer.incarnation) {
        FERRY_LOG_DEBUG(kNode, "address of a peer: peer={} host={} tcp={}", node,
                        Quoted(endpoint.host_name), absl::StrJoin(endpoint.channels.tcp, ","));
        return endpoints_.emplace(node, std::move(endpoint)).first->second;
      }
    }
    if (wait.cancellation != nullptr && wait.cancellation->is_cancelled()) {
      return absl::CancelledError(
          absl::StrCat("the wait for the endpoint record of node ", node, " was cancelled"));
    }
    if (now >= deadline) return late();
    has_former_record = true;
    absl::SleepFor(kAddressLook);
  }
}

absl::StatusOr<RendezvousKey> Node::Key(absl::string_view name, int from, int to,
                                        absl::string_view from_device, absl::string_view to_device,
                                        const AddressWait& wait) {
  FERRY_RETURN_IF_ERROR(RendezvousKey::CheckEdge(name));
  if (to < 0 || to >= num_nodes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no node ", to, "; the job has ", num_nodes()));
  }
  FERRY_ASSIGN_OR_RETURN(const Endpoint source, EndpointOf(from, wait));
  FERRY_ASSIGN_OR_RETURN(const std::string src, TaskDeviceName(from, from_device));
  FERRY_ASSIGN_OR_RETURN(const std::string dst, TaskDeviceName(to, to_device));
  return RendezvousKey::Parse(RendezvousKey::Text(src, source.peer.incarnation, dst, name));
}

absl::StatusOr<Step> Node::OpenStep(int64_t step_id) {
  FERRY_RETURN_IF_ERROR(CheckExchange());
  return exchange_->OpenStep(step_id);
}

absl::StatusOr<PathExplanation> Node::PathFrom(int from, size_t bytes, bool is_in_arena,
                                               const TensorLocation& from_place,
                                               const TensorLocation& to) {
  FERRY_ASSIGN_OR_RETURN(const Endpoint source, EndpointOf(from));
  return exchange_->PathFrom(source, bytes, is_in_arena, from_place, to);
}

}  // namespace ferry
