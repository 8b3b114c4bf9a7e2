// SPDX-License-Identifier: Apache-2.0
// Connections, and ports of scopes.
#include "coord/server/tcp_store_server.h"

#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/usable_resources.h"
#include "coord/server/tcp_store_connection.h"
#include "net/socket_address.h"

namespace ferry::coord {
namespace {

// How often timeouts of reservations and of the shared scope are checked.
constexpr absl::Duration kTickPeriod = absl::Milliseconds(100);
// See TcpStoreBudget::EndPeriod.
constexpr absl::Duration kBudgetPeriod = absl::Seconds(1);
constexpr absl::Duration kRefusedLogPeriod = absl::Seconds(10);
// See DescriptorLimit.
constexpr rlim_t kMaxReservedDescriptors = 1024;

// Ports of scopes take descriptors as their clients do.
absl::Status CheckDescriptorsForPort() {
  const uint64_t limit = TcpStoreServer::DescriptorLimit();
  // The kernel gives the lowest number that is free.
  const UniqueFd next(eventfd(0, EFD_CLOEXEC));
  if (next.valid() && static_cast<uint64_t>(next.get()) < limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no port can be opened for a PyTorch store, since descriptors from ", limit,
                   " on are for other clients: raise `ulimit -n`"));
}

}  // namespace

int TcpStoreServer::DefaultThreads() {
  const int processors = Usable().processors;
  return processors <= 3 ? 1 : processors <= 7 ? 2 : 4;
}

TcpStoreServer::TcpStoreServer(TcpStoreServerOptions options)
    : shared_(std::move(options)), refused_log_(SteadyClock(), /*lines=*/1, kRefusedLogPeriod) {}

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::Create(
    TcpStoreServerOptions options) {
  TcpStoreLimits& limits = options.request_limits;
  // A request of the largest size must fit when the budget is three quarters full.
  limits.max_request_bytes = std::min(limits.max_request_bytes, options.max_client_bytes / 4);
  options.threads = std::clamp(options.threads, 1, kMaxThreads);
  auto server = std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(options)));
  for (int i = 0; i < server->shared_.options.threads; ++i) {
    FERRY_ASSIGN_OR_RETURN(std::unique_ptr<TcpStoreWorker> worker,
                           TcpStoreWorker::Create(server->shared_, static_cast<size_t>(i)));
    server->workers_.push_back(std::move(worker));
  }
  return server;
}

TcpStoreServer::~TcpStoreServer() { Stop(); }

void TcpStoreServer::Take(UniqueFd connection) { Serve(std::move(connection), nullptr); }

uint64_t TcpStoreServer::DescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::numeric_limits<uint64_t>::max();
  return limit.rlim_cur - std::min(limit.rlim_cur / 4, kMaxReservedDescriptors);
}

bool TcpStoreServer::HasDescriptorsFor(const UniqueFd& connection) {
  // The kernel allocates the lowest free descriptor, so a high one means that most are in use.
  const uint64_t limit = DescriptorLimit();
  if (static_cast<uint64_t>(connection.get()) < limit) return true;
  if (refused_log_.Allow()) {
    FERRY_LOG_WARN(kCoord,
                   "closed new connections of PyTorch stores, since descriptors from {} on are "
                   "reserved for other clients: raise `ulimit -n`; peer={}",
                   limit, PeerName(connection.get()));
  }
  return false;
}

void TcpStoreServer::Serve(UniqueFd connection, std::shared_ptr<TcpStoreScope> scope) {
  if (!HasDescriptorsFor(connection)) return;
  {
    absl::MutexLock lock(&shared_.mu);
    ++arriving_;
  }
  const size_t worker = next_worker_.fetch_add(1, std::memory_order_relaxed) % workers_.size();
  const bool is_shared = scope == nullptr;
  auto begin = [this, worker, connection = std::move(connection),
                scope = std::move(scope)]() mutable {
    Begin(*workers_[worker], std::move(connection), std::move(scope));
  };
  if (!is_shared) return workers_[worker]->loop().Post(std::move(begin));
  // The ends of connections that were closed before this one was opened must be handled first, so
  // that the clients of one job are gone before the next job begins.
  AfterPendingEvents((worker + 1) % workers_.size(), worker, std::move(begin));
}

void TcpStoreServer::AfterPendingEvents(size_t worker, size_t last,
                                        absl::AnyInvocable<void() &&> done) {
  SocketLoop& loop = workers_[worker]->loop();
  // Posting twice lets the loop poll for events in between.
  loop.Post([this, worker, last, &loop, done = std::move(done)]() mutable {
    loop.Post([this, worker, last, done = std::move(done)]() mutable {
      if (worker == last) return std::move(done)();
      AfterPendingEvents((worker + 1) % workers_.size(), last, std::move(done));
    });
  });
}

void TcpStoreServer::Begin(TcpStoreWorker& worker, UniqueFd connection,
                           std::shared_ptr<TcpStoreScope> scope) {
  std::shared_ptr<TcpStoreConnection> served;
  {
    absl::MutexLock lock(&shared_.mu);
    --arriving_;
    if (scope == nullptr) {
      scope = shared_.scopes.Shared();
    } else if (shared_.scopes.Find(scope->name) != scope) {
      return;  // Accepted while the port was being closed.
    }
    served = AddClient(worker, std::move(connection), std::move(scope));
    TickLater();
    // Shared() may have ended reservations, and thereby waits.
    worker.RunCompletions();
  }
  worker.FlushReady();
  served->Watch();
}

std::shared_ptr<TcpStoreConnection> TcpStoreServer::AddClient(
    TcpStoreWorker& worker, UniqueFd connection, std::shared_ptr<TcpStoreScope> scope) {
  std::string peer = PeerName(connection.get());
  shared_.scopes.Attach(scope);
  const TcpStoreClient client(++shared_.last_client);
  shared_.peers[client] = peer;
  auto served = std::make_shared<TcpStoreConnection>(shared_, worker, std::move(connection),
                                                     std::move(scope));
  served->Begin(client, std::move(peer));
  return served;
}

std::vector<PausedLoop> TcpStoreServer::Pause() {
  {
    // Those that a paused worker would pass on to another one.
    absl::MutexLock lock(&shared_.mu);
    const auto is_quiet = [this]()
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_.mu) { return arriving_ == 0; };
    shared_.mu.Await(absl::Condition(&is_quiet));
  }
  std::vector<PausedLoop> paused;
  paused.reserve(workers_.size());
  for (const auto& worker : workers_) paused.emplace_back(worker->loop());
  return paused;
}

std::vector<TcpStoreScopeState> TcpStoreServer::Export() {
  absl::MutexLock lock(&shared_.mu);
  std::vector<TcpStoreScopeState> states;
  absl::flat_hash_map<const TcpStoreScope*, size_t> index;
  for (const std::shared_ptr<TcpStoreScope>& scope : shared_.scopes.All()) {
    index[scope.get()] = states.size();
    states.push_back({.name = scope->name, .since = scope->since, .store = scope->store.Export()});
  }
  for (const auto& worker : workers_) {
    worker->SettleWaits();
    for (const TcpStoreConnection* const connection : worker->connections()) {
      const auto at = index.find(connection->scope().get());
      if (at != index.end()) states[at->second].connections.push_back(connection->Export());
    }
  }
  return states;
}

absl::Status TcpStoreServer::RestoreScope(
    TcpStoreScopeState state, std::vector<std::shared_ptr<TcpStoreConnection>>& restored) {
  // Owned from here on, so that they are closed after an error.
  std::vector<UniqueFd> sockets;
  for (const TcpStoreConnectionState& each : state.connections) sockets.emplace_back(each.socket);
  FERRY_ASSIGN_OR_RETURN(const std::shared_ptr<TcpStoreScope> scope,
                         shared_.scopes.Restore(state.name, state.since));
  FERRY_RETURN_IF_ERROR(scope->store.Restore(state.store));
  TcpStoreSession::Sessions sessions;
  for (size_t i = 0; i < sockets.size(); ++i) {
    TcpStoreConnectionState& each = state.connections[i];
    const TcpStoreClient former = each.session.client;
    restored.push_back(AddClient(NextWorker(), std::move(sockets[i]), scope));
    FERRY_RETURN_IF_ERROR(restored.back()->Restore(std::move(each)));
    if (!sessions.emplace(former, restored.back()->session()).second) {
      return absl::InvalidArgumentError(absl::StrCat("client ", former.value(), " occurs twice"));
    }
  }
  return TcpStoreSession::RestoreWaits(state.store, sessions);
}

absl::Status TcpStoreServer::Restore(std::vector<TcpStoreScopeState> scopes) {
  const std::vector<PausedLoop> paused = Pause();
  std::vector<std::shared_ptr<TcpStoreConnection>> restored;
  absl::Status status;
  {
    absl::MutexLock lock(&shared_.mu);
    for (TcpStoreScopeState& scope : scopes) {
      // After an error only to close the rest.
      status.Update(RestoreScope(std::move(scope), restored));
    }
    TickLater();
  }
  for (const std::shared_ptr<TcpStoreConnection>& connection : restored) {
    if (status.ok()) {
      connection->GoOnLater();
    } else {
      connection->Drop();
    }
  }
  return status;
}

size_t TcpStoreServer::port_count() const {
  absl::MutexLock lock(&shared_.mu);
  return shared_.ports.size();
}

absl::StatusOr<int> TcpStoreServer::HoldOpenPort(absl::string_view name) {
  const auto port = shared_.ports.find(name);
  if (port == shared_.ports.end()) return 0;
  FERRY_RETURN_IF_ERROR(shared_.scopes.Open(name).status());
  return port->second.listener->port();
}

absl::StatusOr<int> TcpStoreServer::OpenScope(absl::string_view name, OpenListener open) {
  FERRY_RETURN_IF_ERROR(TcpStoreScopes::CheckName(name));
  {
    absl::MutexLock lock(&shared_.mu);
    FERRY_ASSIGN_OR_RETURN(const int port, HoldOpenPort(name));
    if (port != 0) return port;
  }
  FERRY_RETURN_IF_ERROR(CheckDescriptorsForPort());
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, open());
  absl::MutexLock lock(&shared_.mu);
  // Another thread may have opened the port meanwhile.
  FERRY_ASSIGN_OR_RETURN(const int open_port, HoldOpenPort(name));
  if (open_port != 0) return open_port;
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<TcpStoreScope> scope, shared_.scopes.Open(name));
  const absl::Status status = listener->Start(
      workers_[0]->loop(),
      {.on_connection = [this, scope](UniqueFd connection) { Serve(std::move(connection), scope); },
       .on_trouble =
           [this](const std::string& trouble) {
             if (refused_log_.Allow()) FERRY_LOG_WARN(kCoord, "{}", trouble);
           }});
  if (!status.ok()) {
    shared_.scopes.Close(scope);
    return status;
  }
  const int port = listener->port();
  shared_.ports[name] = {std::move(scope), std::move(listener)};
  return port;
}

absl::Status TcpStoreServer::CloseScope(absl::string_view name) {
  std::unique_ptr<Listener> closed;
  absl::MutexLock lock(&shared_.mu);
  const auto port = shared_.ports.find(name);
  if (port == shared_.ports.end()) {
    return absl::NotFoundError(absl::StrCat("there is no store with the scope ", Quoted(name)));
  }
  const std::shared_ptr<TcpStoreScope> scope = port->second.scope;
  if (scope->holders == 1) {
    closed = std::move(port->second.listener);
    shared_.ports.erase(port);
  }
  shared_.scopes.Close(scope);
  return absl::OkStatus();
}

void TcpStoreServer::TickLater() {
  if (std::exchange(will_tick_, true)) return;
  workers_[0]->loop().PostAfter(kTickPeriod, [this] { Tick(); });
}

void TcpStoreServer::Tick() {
  if (const absl::Time now = SteadyClock().CoarseNow(); now >= period_end_) {
    period_end_ = now + kBudgetPeriod;
    shared_.flow.EndPeriod();
  }
  if (const size_t left_out = shared_.closed_log.TakeLeftOut(); left_out > 0) {
    FERRY_LOG_WARN(kCoord, "closed {} more connections of PyTorch stores, without a line for each",
                   left_out);
  }
  TcpStoreWorker& worker = *workers_[0];
  {
    absl::MutexLock lock(&shared_.mu);
    will_tick_ = false;
    shared_.scopes.Advance();
    worker.RunCompletions();
    const bool has_work =
        shared_.scopes.NextDeadline() < absl::InfiniteFuture() || !shared_.peers.empty();
    if (has_work || shared_.closed_log.has_left_out()) TickLater();
  }
  worker.FlushReady();
}

TcpStoreMemory TcpStoreServer::Memory() const {
  return {shared_.flow.held_bytes(), shared_.flow.max_bytes()};
}

TableSizes TcpStoreServer::InnerTableSizes() const {
  absl::MutexLock lock(&shared_.mu);
  TableSizes sizes;
  shared_.scopes.AddTableSizes(sizes);
  return sizes;
}

void TcpStoreServer::Stop() {
  for (const auto& worker : workers_) worker->Stop();
  absl::MutexLock lock(&shared_.mu);
  shared_.ports.clear();
}

}  // namespace ferry::coord
