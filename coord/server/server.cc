// SPDX-License-Identifier: Apache-2.0
// Setting up the gRPC server.
#include "coord/server/server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "coord/server/coordination_service.h"
#include "coord/server/runtime_service.h"
#include "coord/wire/callback_threads.h"
#include "coord/wire/channel.h"
#include "coord/wire/error_report.h"
#include "net/socket_address.h"

namespace ferry::coord {
namespace {

// These plugins apply to every server of the process, and may be installed once only.
void EnableHealthAndReflection() {
  static absl::once_flag once;
  absl::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

// Requests that were sent before a connection ended may still be in flight within gRPC.
constexpr absl::Duration kSettleTime = absl::Milliseconds(200);

struct Keepalive {
  absl::Duration time;
  absl::Duration timeout;
};

// A process that is stopped, or on a machine that has vanished, keeps its connection until a probe
// times out. That must happen well within the heartbeat timeout; but a busy process may take a
// second to answer.
Keepalive KeepaliveOf(const ServerOptions& options) {
  const absl::Duration heartbeat = options.coordinator.heartbeat_timeout;
  Keepalive keepalive{options.keepalive_time, options.keepalive_timeout};
  if (keepalive.time + keepalive.timeout <= heartbeat / 2) return keepalive;
  keepalive.time = std::min(keepalive.time, std::max(heartbeat / 6, absl::Milliseconds(100)));
  keepalive.timeout = std::min(keepalive.timeout, std::max(heartbeat / 3, absl::Seconds(1)));
  return keepalive;
}

// Requests are in memory as a whole, those of all connections at once, so that the flags can only
// lower the limits.
TcpStoreLimits LimitsOfRequests(const CoordinatorOptions& options) {
  TcpStoreLimits limits;
  limits.max_key_bytes = std::min(limits.max_key_bytes, options.max_key_bytes);
  limits.max_value_bytes = std::min(limits.max_value_bytes, options.max_value_bytes);
  return limits;
}

// A torchft job lives on when its lighthouse is started again. Its groups make new connections when
// the id of the quorum changes, through keys in their stores that contain the id; so an id of an
// earlier lighthouse must not return. The time in milliseconds is beyond those, unless ids have
// changed more often than that.
LighthouseOptions WithFirstQuorumId(LighthouseOptions options) {
  options.first_quorum_id = absl::ToUnixMillis(absl::Now());
  return options;
}

// Opens or takes over the coordinator's port. `addresses` become those on which the ports of scopes
// are opened.
absl::StatusOr<std::unique_ptr<Listener>> OpenListener(const ServerOptions& options,
                                                       std::vector<SocketAddress>& addresses) {
  if (options.predecessor.has_value()) {
    std::vector<UniqueFd> sockets;
    for (const int socket : options.predecessor->listeners) {
      sockets.emplace_back(socket);
      addresses.push_back(LocalAddress(socket));
    }
    return Listener::Adopt(std::move(sockets), options.predecessor->address);
  }
  return Listener::OpenTcp(options.listen, [&addresses](const HostPort& parts) {
    absl::StatusOr<std::vector<SocketAddress>> found = ResolveHost(parts, {.is_passive = true});
    if (found.ok()) addresses = *found;
    return found;
  });
}

absl::StatusOr<std::unique_ptr<TcpStoreServer>> CreateStores(const TcpStoreServerOptions& stores,
                                                             ServerOptions& options) {
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<TcpStoreServer> server, TcpStoreServer::Create(stores));
  if (!options.predecessor.has_value()) return server;
  const absl::Status restored = server->Restore(std::move(options.predecessor->scopes));
  if (restored.ok()) return server;
  // Their clients have to start again, as after a restart without a hand-over.
  if (options.on_stores_lost) options.on_stores_lost(restored);
  server = nullptr;
  return TcpStoreServer::Create(stores);
}

// "1 task", "2 tasks".
std::string Counted(size_t count, absl::string_view one, absl::string_view of) {
  return absl::StrCat(count, " ", one, count == 1 ? "" : "s", of);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Create(
    ServerOptions options) {
  FERRY_RETURN_IF_ERROR(CheckServerRoom());
  std::vector<SocketAddress> addresses;
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, OpenListener(options, addresses));
  TcpStoreServerOptions tcp_store{.limits = options.coordinator,
                                  .request_limits = LimitsOfRequests(options.coordinator),
                                  .keepalive_time = options.keepalive_time,
                                  .keepalive_timeout = options.keepalive_timeout,
                                  .idle_timeout = options.tcp_store_idle_timeout,
                                  .max_client_bytes = options.max_tcp_store_client_bytes,
                                  .threads = options.tcp_store_threads};
  FERRY_ASSIGN_OR_RETURN(
      std::unique_ptr<Coordinator> coordinator,
      Coordinator::Create(std::move(options.coordinator), SteadyClock(), RandomId()));
  KeepCallbackThreads();
  EnableHealthAndReflection();
  auto self =
      std::unique_ptr<CoordinatorServer>(new CoordinatorServer(std::move(coordinator), options));

  grpc::ServerBuilder builder;
  // The listener owns the port; connections are gRPC's, except the agents'. gRPC's own listener
  // stops permanently when accept fails once, as it does without descriptors.
  self->acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  DirectControlOptions direct{.keepalive_time = options.keepalive_time,
                              .keepalive_timeout = options.keepalive_timeout,
                              .hello_timeout = options.hello_timeout,
                              .max_silent_connections = options.max_silent_connections};
  FERRY_ASSIGN_OR_RETURN(self->tcp_store_, CreateStores(tcp_store, options));
  // At the host of the coordinator's own port, which is not resolved again: a name server that is
  // slow would delay all agents.
  const size_t host_bytes = std::min(options.listen.rfind(':'), options.listen.size());
  const TcpStorePorts stores{
      .server = self->tcp_store_.get(),
      .open = [address = absl::StrCat(options.listen.substr(0, host_bytes), ":0"),
               addresses = std::move(addresses)] {
        return Listener::OpenTcp(address, [&addresses](const HostPort&) {
          return absl::StatusOr<std::vector<SocketAddress>>(addresses);
        });
      }};
  self->sessions_.ServeTcpStore(*stores.server, stores.open);
  self->sessions_.ReportLighthouse(self->lighthouse_);
  direct.tcp_store = [tcp_store = self->tcp_store_.get()](UniqueFd connection) {
    tcp_store->Take(std::move(connection));
  };
  direct.elastic = [server = self.get()](UniqueFd connection) {
    server->elastic_->Take(std::move(connection));
  };
  // For gRPC, a stopped client is gone when an HTTP/2 ping times out. A client that does not read
  // outgoing data gets the same time, instead of gRPC's default of 20 s: pings queue behind that
  // data, and only the kernel can detect it.
  const Keepalive keepalive = KeepaliveOf(options);
  const unsigned patience_ms =
      static_cast<unsigned>(Milliseconds(keepalive.time + keepalive.timeout));
  direct.others = [server = self.get(), acceptor = self->acceptor_.get(),
                   patience_ms](UniqueFd connection) {
    const std::string peer = PeerName(connection.get());
    server->frontend_.NoteConnection(peer);
    server->watch_->Add(connection.get(), peer);
    setsockopt(connection.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof(patience_ms));
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    parameters.fd = connection.Release();
    acceptor->HandleNewConnection(&parameters);
  };
  FERRY_ASSIGN_OR_RETURN(self->direct_, DirectControl::Create(self->sessions_, std::move(direct)));
  self->lighthouse_.Serve(self->frontend_, self->generic_method_table_, self->direct_->loop());
  self->elastic_ = std::make_unique<ElasticServer>(
      self->direct_->loop(), stores,
      ElasticServerOptions{.elastic = options.elastic,
                           .keepalive_time = options.keepalive_time,
                           .keepalive_timeout = options.keepalive_timeout,
                           .hello_timeout = options.hello_timeout});
  self->sessions_.ServeElastic(*self->elastic_);
  FERRY_ASSIGN_OR_RETURN(self->accept_loop_, SocketLoop::Create("ferry-accept"));
  self->watch_ = std::make_unique<ConnectionWatch>(
      self->direct_->loop(),
      [frontend = &self->frontend_,
       loop = std::weak_ptr<Loop>(self->direct_->loop())](const std::string& peer) {
        std::vector<Frontend::LostPoll> lost = frontend->TakeLostPolls(peer);
        const std::shared_ptr<Loop> alive = loop.lock();
        if (lost.empty() || alive == nullptr) return;
        alive->PostAfter(kSettleTime,
                         [frontend, lost = std::move(lost)] { frontend->TellLost(lost); });
      });
  self->executor_.SetReaderLag([direct = self->direct_.get()] { return direct->Lag(); });
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(keepalive.time));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(keepalive.timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Clients may ping as often as they like; by default gRPC would disconnect them.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  DisableBandwidthProbes(builder);
  self->services_.push_back(MakeRuntimeService(self->frontend_, self->generic_method_table_));
  for (const CoordinationPath path : {CoordinationPath::kTensorflow, CoordinationPath::kXla}) {
    self->services_.push_back(MakeCoordinationService(path, self->frontend_, self->devices_,
                                                      self->generic_method_table_));
  }
  self->services_.push_back(MakeControlService(self->sessions_));
  if (options.more_services) {
    for (auto& service : options.more_services(self->executor_, self->generic_method_table_)) {
      self->services_.push_back(std::move(service));
    }
  }
  for (const auto& service : self->services_) builder.RegisterService(service.get());
  builder.RegisterCallbackGenericService(&self->generic_method_table_);
  self->server_ = builder.BuildAndStart();
  if (self->server_ == nullptr) {
    return absl::InternalError("gRPC does not start a server; GRPC_VERBOSITY=info tells more");
  }
  self->port_ = listener->port();
  self->address_ = listener->address();
  FERRY_LOG_INFO(kCoord, "coordinator is listening: address={}", self->address_);
  self->executor_.Run([](Coordinator& c) { c.SetErrorReport(ReportErrorToTask); });
  self->listener_ = std::move(listener);
  ListenerCallbacks callbacks = {
      .on_connection = [direct = self->direct_.get()](
                           UniqueFd connection) { direct->Take(std::move(connection)); },
      .on_trouble =
          [](const std::string& trouble) {
            std::fprintf(stderr, "ferry coordinator: %s\n", trouble.c_str());
          }};
  if (options.predecessor.has_value()) {
    for (const int silent : options.predecessor->silent) self->direct_->Take(UniqueFd(silent));
  }
  FERRY_RETURN_IF_ERROR(self->listener_->Start(*self->accept_loop_, std::move(callbacks)));
  return self;
}

CoordinatorServer::CoordinatorServer(std::unique_ptr<Coordinator> coordinator,
                                     const ServerOptions& options)
    : stop_grace_(options.stop_grace),
      executor_(std::move(coordinator)),
      frontend_(executor_),
      generic_method_table_(frontend_),
      lighthouse_(WithFirstQuorumId(options.lighthouse)),
      sessions_(frontend_, options.check_end_job) {}

CoordinatorServer::~CoordinatorServer() { Stop(); }

std::vector<std::string> CoordinatorServer::ClientsThatPreventHandover() {
  std::vector<std::string> clients;
  const auto add = [&clients](size_t count, absl::string_view one, absl::string_view of) {
    if (count > 0) clients.push_back(Counted(count, one, of));
  };
  const auto [tasks, waits] = executor_.Run([](const Coordinator& coordinator) {
    return std::pair(static_cast<size_t>(coordinator.membership().connected_count()) +
                         coordinator.JoiningTasks().size(),
                     coordinator.Waits().size());
  });
  // Tasks of both kinds of clients.
  add(tasks, "task", " of a job");
  if (tasks == 0) add(waits, "pending call", " of a job");
  add(std::max(sessions_.attached_count(), static_cast<size_t>(direct_->stream_count())),
      "connection", " of Ferry's agents or tools");
  const size_t runs = elastic_->Report().size();
  add(runs, "run", " of torchrun or ferry://");
  if (tasks == 0 && runs == 0) add(tcp_store_->port_count(), "store", " with a port of its own");
  add(lighthouse_.Run([](const Lighthouse& lighthouse) { return lighthouse.wait_count(); }),
      "replica", " of torchft in a quorum call");
  return clients;
}

std::unique_ptr<PausedServer> CoordinatorServer::Pause() {
  auto paused = std::make_unique<PausedServer>();
  // In the order in which connections are passed on.
  paused->loops.emplace_back(*accept_loop_);
  paused->loops.emplace_back(*direct_->loop());
  for (PausedLoop& loop : tcp_store_->Pause()) paused->loops.push_back(std::move(loop));
  paused->state.address = address_;
  paused->state.listeners = listener_->descriptors();
  paused->state.silent = direct_->UndecidedDescriptors();
  paused->state.scopes = tcp_store_->Export();
  return paused;
}

void CoordinatorServer::Stop() {
  if (server_ == nullptr) return;
  FERRY_LOG_INFO(kCoord, "coordinator is stopping: address={}", address_);
  executor_.Run([](Coordinator& coordinator) { coordinator.Stop(); });
  lighthouse_.Stop();
  sessions_.CloseAll(absl::UnavailableError("the coordinator is stopping"));
  // Closes the port; no connection is passed on after this.
  accept_loop_->End();
  const absl::Time deadline = absl::Now() + stop_grace_;
  elastic_->Stop();
  direct_->Stop(stop_grace_);
  tcp_store_->Stop();
  server_->Shutdown(absl::ToChronoTime(deadline));
  server_->Wait();
  server_ = nullptr;
}

}  // namespace ferry::coord
