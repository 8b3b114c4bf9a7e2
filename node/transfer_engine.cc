// SPDX-License-Identifier: Apache-2.0
// TransferEngine: startup, and shutdown in order.
#include "node/transfer_engine.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "gpu/cuda/enumerate.h"
#include "node/endpoint_record.h"
#include "node/host_addresses.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/peer/eager_peers.h"
#include "transport/inline_threshold.h"

namespace ferry {
namespace {

// kMaxTokenBytes limits the job token file. kCloseTimeout is the maximum time for control channels
// to close at shutdown, which needs no answer from peers.
constexpr size_t kMaxTokenBytes = 4096;
constexpr absl::Duration kCloseTimeout = absl::Seconds(5);

// Returns the addresses published to peers for the listener on `listen`, whose port is `port`.
//   is_tensor_protocol: whether TransferEngineOptions::advertise's port, if any, is this
//   listener's. knows_peer: whether a connecting peer notices when another process answers.
absl::StatusOr<std::vector<std::string>> Advertised(const TransferEngineOptions& options,
                                                    const std::string& listen, int port,
                                                    bool is_tensor_protocol, bool knows_peer) {
  if (port == 0) return std::vector<std::string>();
  if (!options.advertise.empty()) {
    FERRY_ASSIGN_OR_RETURN(std::string address, CompleteAddress(options.advertise, port));
    if (!is_tensor_protocol)
      address = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
    return std::vector<std::string>{std::move(address)};
  }
  // The listen address, unless it is the wildcard address.
  const std::string host = listen.substr(0, listen.rfind(':'));
  if (!host.empty() && host != "[::]" && host != "0.0.0.0") {
    return std::vector<std::string>{absl::StrCat(host, ":", port)};
  }
  // A container may not be allowed to list its interfaces, but can still use them.
  std::vector<InterfaceAddress> all = ReadInterfaces().value_or(std::vector<InterfaceAddress>());
  if (host == "0.0.0.0") std::erase_if(all, [](const auto& each) { return each.is_ipv6; });
  std::vector<OfferedAddress> offered = OrderAddresses(all, options.local_end);
  if (offered.empty() && !options.local_end.empty()) {
    offered.push_back({.address = options.local_end,
                       .rank = AddressRank::kToCoordinator,
                       .is_ipv6 = absl::StrContains(options.local_end, ':')});
  }
  return WithPort(knows_peer ? offered : LikelyReachable(offered), port);
}

// Returns the duration of a local send and receive: the best of a few batches. Takes microseconds.
absl::Duration MeasureLocalLatency() {
  constexpr int kBatches = 4;
  constexpr int kPairs = 64;
  const absl::StatusOr<RendezvousKey> key = RendezvousKey::Parse(
      RendezvousKey::Text("/job:worker/replica:0/task:0/device:CPU:0", 1,
                          "/job:worker/replica:0/task:0/device:CPU:0", "start"));
  FERRY_CHECK(key.ok());
  LocalRendezvous table(SteadyClock());
  const absl::StatusOr<Tensor> tensor = Tensor::Allocate(DataType::kUint8, Shape());
  if (!tensor.ok()) return absl::ZeroDuration();
  absl::Duration best = absl::InfiniteDuration();
  for (int batch = 0; batch < kBatches; ++batch) {
    const absl::Time start = SteadyClock().Now();
    for (int i = 0; i < kPairs; ++i) {
      table.Send(*key, *tensor).IgnoreError();
      table.RecvAsync(*key, {}, [](const absl::Status&, const Received&) {});
    }
    best = std::min(best, (SteadyClock().Now() - start) / kPairs);
  }
  return best;
}

}  // namespace

std::vector<TransportFactory> AllTransports(const TransferEngineOptions& options,
                                            const NcclJob& nccl) {
  std::vector<TransportFactory> factories = BuiltinTransports(options.transports, nccl);
  factories.insert(factories.end(), options.extra_transports.begin(),
                   options.extra_transports.end());
  return factories;
}

absl::StatusOr<std::string> FindToken(const TransferEngineOptions& options, GetEnv get_env) {
  if (!options.token.empty()) return options.token;
  if (const auto token = get_env("FERRY_JOB_TOKEN"); token.has_value() && !token->empty()) {
    return *token;
  }
  const std::string path = get_env("FERRY_JOB_TOKEN_FILE").value_or("");
  if (path.empty()) return std::string();
  std::ifstream file(path);
  std::string content(kMaxTokenBytes + 1, '\0');
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  content.resize(static_cast<size_t>(file.gcount()));
  const std::string token(absl::StripAsciiWhitespace(content));
  std::string why;
  if (!file.is_open() || file.bad()) {
    why = absl::StrCat("cannot be read: ", std::strerror(errno));
  } else if (content.size() > kMaxTokenBytes) {
    why = absl::StrCat("it has more than ", kMaxTokenBytes, " bytes, and is no token");
  } else if (token.empty()) {
    why = "it holds no token";
  }
  if (why.empty()) return token;
  return absl::InvalidArgumentError(absl::StrCat("FERRY_JOB_TOKEN_FILE=", path, ": ", why));
}

absl::StatusOr<std::unique_ptr<TransferEngine>> TransferEngine::Start(TransferEngineOptions options,
                                                                      Endpoint self,
                                                                      EndpointResolver resolver,
                                                                      KnownEndpoint known,
                                                                      NcclJob nccl) {
  if (options.require_auth && options.token.empty()) {
    return absl::InvalidArgumentError("authentication cannot be required without a token");
  }
  if (options.gpus.ipc_idle_timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory of other processes cannot stay mapped for ",
                     absl::FormatDuration(options.gpus.ipc_idle_timeout),
                     " without being used: --gpu-ipc-idle-timeout, in programs "
                     "TransferOptions::gpu_mapping_idle_timeout, is 0 or more"));
  }
  auto engine = std::unique_ptr<TransferEngine>(new TransferEngine());
  FERRY_ASSIGN_OR_RETURN(engine->arena_, HostArena::Create(options.arena));
  engine->arena_budget_bytes_ = options.arena.budget_bytes;
  engine->flush_timeout_ = options.flush_timeout;
  FERRY_ASSIGN_OR_RETURN(engine->loop_, EventLoop::Create({.spin = options.spin}));
  engine->copier_ = std::make_unique<CopyPool>();

  if (options.use_gpus) {
    engine->FindGpus(options);
  } else {
    engine->why_no_gpus_ =
        "GPUs are switched off (--no-gpus, in programs TransferOptions::use_gpus)";
  }
  engine->nccl_ = std::move(nccl);
  engine->FindNccl();

  TransferContext& common = engine->transfer_context_;
  common.self = std::move(self);
  common.gpus = engine->gpus();
  if (common.gpus != nullptr) {
    common.self.gpus = common.gpus->uuids();
    common.self.has_gpu_kernels = !options.kernel_image.empty();
  }
  const std::vector<TransportFactory> factories = AllTransports(options, engine->nccl_);
  FERRY_ASSIGN_OR_RETURN(common.policy, MakePolicy(factories, options.require_transport));
  common.checksum = options.checksum;
  common.connect_timeout = options.connect_timeout;
  const bool is_grpc = options.protocol == WireProtocol::kGrpc;
  // A node that receives over gRPC would not find what arrives.
  if (options.eager && !options.checksum && !is_grpc) {
    FERRY_RETURN_IF_ERROR(CheckEagerLimits(options.eager_limits));
    engine->eager_ = std::make_unique<EagerPeers>(common, options.eager_limits);
    engine->eager_->set_max_backlog(std::min(kEagerBacklog, options.peer_queue_bytes / 4));
    common.eager = engine->eager_.get();
  }
  engine->fetcher_ = std::make_unique<PeerFetcher>(common, std::move(resolver));
  RemoteFetcher* fetcher = engine->fetcher_.get();
  if (is_grpc || options.grpc_services) {
    FERRY_CHECK(known != nullptr || !is_grpc);
    engine->grpc_ = std::make_unique<GrpcBackend>(
        std::move(known), engine->arena_,
        GrpcBackendOptions{.checksum = options.checksum,
                           .auth = {options.token, options.require_auth},
                           .coordinator = options.coordinator});
    if (is_grpc) fetcher = &engine->grpc_->fetcher();
  }
  engine->manager_ = std::make_unique<RendezvousManager>(
      SteadyClock(), *fetcher, options.rendezvous, [loop = engine->loop_.get()] { loop->Wake(); });
  common.manager = engine->manager_.get();
  common.transports = &engine->transports_;

  ConnectionManagerOptions connections;
  connections.handshake.self = common.self.peer;
  connections.handshake.token = options.token;
  connections.tcp_listen = options.listen;
  // A control channel's rings are shared memory.
  const absl::Status shares_memory = MemorySegment::CheckSupport();
  common.shared_memory_unavailable_reason = std::string(shares_memory.message());
  connections.unix_listen =
      options.unix_socket && !common.policy.required.moves_over_tcp && shares_memory.ok();
  connections.handshake_timeout = options.connect_timeout;
  connections.peer_queue_bytes = options.peer_queue_bytes;
  // Listens now; accepts once the transports exist.
  FERRY_ASSIGN_OR_RETURN(
      engine->connection_manager_,
      ConnectionManager::Create(
          *engine->loop_, std::move(connections),
          [raw = engine.get()](const PeerId& peer) { return raw->fetcher_->Serve(peer); },
          [raw = engine.get()](DataConnection connection) {
            for (const auto& transport : raw->transports_) {
              if (transport->capabilities().uses_data_connections &&
                  transport->OnDataConnection(connection)) {
                return;
              }
            }
          }));
  engine->fetcher_->set_connector(engine->connection_manager_.get());
  const TransportEnvironment environment = {.loop = engine->loop_.get(),
                                            .connection_manager = engine->connection_manager_.get(),
                                            .arena = engine->arena_,
                                            .copier = engine->copier_.get(),
                                            .gpus = engine->gpus(),
                                            .node_id = common.self.peer.node_id,
                                            .incarnation = common.self.peer.incarnation};
  engine->local_latency_ = MeasureLocalLatency();
  FERRY_ASSIGN_OR_RETURN(engine->transports_, MakeTransports(environment, factories));
  common.self.transports = DescribeTransports(engine->transports_);
  common.self.channels.unix_name = engine->connection_manager_->unix_name();
  FERRY_ASSIGN_OR_RETURN(
      common.self.channels.tcp,
      Advertised(options, options.listen, engine->connection_manager_->tcp_port(),
                 /*is_tensor_protocol=*/!is_grpc, /*knows_peer=*/true));
  if (engine->grpc_ != nullptr) {
    std::vector<grpc::Service*> services;
    if (options.grpc_services) services = options.grpc_services(*engine);
    FERRY_RETURN_IF_ERROR(engine->grpc_->Serve(*engine->manager_, common.self.peer,
                                               options.grpc_listen, engine->gpus(), services));
    FERRY_ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                           Advertised(options, options.grpc_listen, engine->grpc_->port(),
                                      /*is_tensor_protocol=*/is_grpc, /*knows_peer=*/false));
    common.self.grpc_address = absl::StrJoin(addresses, ",");
  }
  // Everything that peers need has been set up.
  FERRY_RETURN_IF_ERROR(engine->connection_manager_->Start());
  return engine;
}

void TransferEngine::FindGpus(const TransferEngineOptions& options) {
  const auto find = [&]() -> absl::StatusOr<std::unique_ptr<Gpus>> {
    FERRY_ASSIGN_OR_RETURN(std::shared_ptr<const cuda::CudaApi> api, cuda::CudaApi::Load());
    return Gpus::Create(
        std::move(api),
        [arena = arena_](size_t bytes) {
          absl::StatusOr<std::shared_ptr<Buffer>> buffer = arena->Allocate(bytes);
          // A full arena is not an error: tensors elsewhere are copied once more.
          return buffer.ok() ? std::move(buffer) : AllocateHeapBuffer(bytes);
        },
        copier_.get(), options.gpus, options.kernel_image);
  };
  absl::StatusOr<std::unique_ptr<Gpus>> found = find();
  if (found.ok() && (*found)->count() == 0) {
    found = absl::NotFoundError("the CUDA driver shows no GPU");
  }
  if (found.ok()) {
    gpus_ = *std::move(found);
  } else {
    why_no_gpus_ = std::string(cuda::WithVisibility(found.status()).message());
  }
}

void TransferEngine::FindNccl() {
  if (gpus_ == nullptr) {
    nccl_.library = nullptr;
    nccl_.library_unavailable_reason = absl::StrCat("this process uses no GPUs: ", why_no_gpus_);
    return;
  }
  if (nccl_.library != nullptr) return;
  absl::StatusOr<std::unique_ptr<nccl::NcclApi>> found = nccl::NcclApi::Load();
  if (found.ok()) {
    nccl_.library = *std::move(found);
  } else {
    nccl_.library_unavailable_reason = std::string(found.status().message());
  }
}

TransferEngine::~TransferEngine() {
  if (!Stop().ok()) {
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): without memory the process ends anyway.
    (void)new TransportList(std::move(transports_));
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
    (void)new std::shared_ptr<HostArena>(std::move(arena_));
    (void)loop_.release();
    (void)copier_.release();
    (void)gpus_.release();
    (void)connection_manager_.release();
    (void)fetcher_.release();
    (void)manager_.release();
    (void)eager_.release();
    return;
  }
  // Copies in progress complete into control channels that are closed.
  copier_.reset();
  transports_.clear();
  gpus_.reset();
  connection_manager_.reset();
  loop_.reset();
}

absl::Status TransferEngine::Stop() {
  if (std::exchange(is_stopped_, true)) return stop_status_;
  const absl::Status leaving = absl::CancelledError("this process is leaving");
  if (connection_manager_ != nullptr) connection_manager_->Close();
  if (manager_ != nullptr) manager_->CleanupAll();
  if (grpc_ != nullptr) grpc_->Stop();
  if (fetcher_ != nullptr) {
    fetcher_->Close(leaving);
    loop_->WaitUntil([this] { return fetcher_->connection_count() == 0; },
                     SteadyClock().Now() + kCloseTimeout);
  }
  for (const auto& transport : transports_) stop_status_.Update(transport->Stop(leaving));
  // Work on the devices still uses the other members.
  if (gpus_ != nullptr) {
    gpus_->WaitIdle(SteadyClock().Now() + kCloseTimeout);
    gpus_->Stop();
  }
  if (loop_ != nullptr) loop_->Stop();
  return stop_status_;
}

TaskName TransferEngine::task() const {
  return {.job = "worker", .replica = 0, .task = transfer_context_.self.peer.node_id};
}

absl::StatusOr<Step> TransferEngine::OpenStep(int64_t step_id) {
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<RemoteRendezvous> rendezvous, manager_->Find(step_id));
  FERRY_RETURN_IF_ERROR(rendezvous->Initialize(task()));
  return Step(*this, std::move(rendezvous));
}

void TransferEngine::Cleanup(int64_t step_id) {
  manager_->Cleanup(step_id);
  if (grpc_ != nullptr) grpc_->CleanupStep(step_id);
}

void TransferEngine::ForEachPending(absl::Duration min_age, PendingVisitor visit) const {
  manager_->ForEachPending(min_age, visit);
  ForEachTransfer(min_age, visit);
}

void TransferEngine::ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const {
  fetcher_->ForEachTransfer(min_age, visit);
  if (grpc_ != nullptr) grpc_->ForEachTransfer(min_age, visit);
}

void TransferEngine::AwaitAcknowledgements(RemoteRendezvous& step, absl::Time deadline) {
  // The loop's thread receives the peers' messages, so it must not wait for them.
  if (loop_->IsOnLoop()) return;
  std::vector<std::pair<std::shared_ptr<TensorResponder>, uint64_t>> flushes;
  for (auto& responder : fetcher_->Responders()) {
    if (const auto flush =
            responder->StartFlush(step.step_id(), StepOperation(step.operations()))) {
      flushes.emplace_back(std::move(responder), *flush);
    }
  }
  if (flushes.empty()) return;
  const absl::Time enough = SteadyClock().Now() + flush_timeout_;
  const bool have_heard = loop_->WaitUntil([&step] { return step.operations().count() == 0; },
                                           std::min(deadline, enough));
  if (have_heard || SteadyClock().Now() < enough) return;
  for (const auto& [responder, flush] : flushes) responder->GiveUpFlush(flush);
}

void TransferEngine::NoteDeadline(absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return;
  const int64_t nanos = absl::ToUnixNanos(deadline);
  int64_t known = next_expiry_ns_.load(std::memory_order_relaxed);
  while (nanos < known) {
    if (next_expiry_ns_.compare_exchange_weak(known, nanos)) return ScheduleExpiry(deadline);
  }
}

void TransferEngine::ScheduleExpiry(absl::Time at) {
  loop_->PostAt(at, [this] {
    next_expiry_ns_.store(INT64_MAX);
    manager_->Expire();
    NoteDeadline(manager_->NextDeadline());
  });
}

absl::StatusOr<PathExplanation> TransferEngine::PathFrom(const Endpoint& source, size_t bytes,
                                                         bool is_in_arena,
                                                         const TensorLocation& from,
                                                         const TensorLocation& to) const {
  PathQuery query;
  query.source = &source;
  query.destination = &transfer_context_.self;
  query.bytes = bytes;
  query.is_in_arena = is_in_arena;
  query.source_location = from;
  query.destination_location = to;
  // Measured costs of earlier transfers, if there is a control channel.
  const std::shared_ptr<TensorRequester> requester = fetcher_->RequesterOf(source.peer);
  if (requester != nullptr) query.estimates = requester->costs().get();
  query.now = SteadyClock().Now();
  query.local_latency = local_latency_;
  PeerConnectionPool::ControlPath path = fetcher_->ControlPathTo(source);
  query.channel_passes_descriptors = path.passes_descriptors();
  query.descriptors_unavailable_reason = std::move(path.descriptors_unavailable_reason);
  query.common = CommonTransports(transports_, source, transfer_context_.self);
  return ExplainPath(transports_, query, transfer_context_.policy);
}

void TransferEngine::FailNode(int32_t node_id, const absl::Status& why,
                              uint64_t alive_incarnation) {
  TaskName dead = task();
  dead.task = node_id;
  manager_->FailTask(dead, why);
  fetcher_->Forget(node_id, why, alive_incarnation);
  if (grpc_ == nullptr) return;
  grpc_->Forget(node_id);
  // gRPC calls do not identify the peer's incarnation; with a live successor gRPC reports the
  // failure.
  if (alive_incarnation == 0) grpc_->FailTransfers(node_id, why);
}

}  // namespace ferry
