// SPDX-License-Identifier: Apache-2.0
// Connections, scopes with ports of their own, and reports.
#include "coord/server/tcp_store_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "coord/tcpstore/tcp_store_session.h"
#include "net/socket_address.h"

namespace ferry::coord {
namespace {

// How often reservations and the end of the shared scope are checked.
constexpr absl::Duration kTickPeriod = absl::Milliseconds(100);
// A value that follows the key of an APPEND of PyTorch 2.1 arrives within this time.
constexpr absl::Duration kAmbiguityTimeout = absl::Milliseconds(10);
constexpr size_t kPiecesInWrite = 64;
// Limits per turn, so that one client does not delay the others.
constexpr size_t kReadsInTurn = 4;
constexpr size_t kBytesWrittenInTurn = size_t{4} << 20;

}  // namespace

// Everything but the constructor is called on the loop.
class TcpStoreServer::Connection final : public LoopSource,
                                         public std::enable_shared_from_this<Connection> {
 public:
  Connection(TcpStoreServer& server, UniqueFd connection, std::shared_ptr<TcpStoreScope> scope)
      : server_(server), connection_(std::move(connection)), scope_(std::move(scope)) {}

  void Begin(TcpStoreClient client, std::string peer) {
    peer_ = std::move(peer);
    session_ = std::make_shared<TcpStoreSession>(scope_->store, client,
                                                 server_.options_.request_limits, [this] {
                                                   if (!std::exchange(is_ready_, true))
                                                     server_.AddReady(shared_from_this());
                                                 });
  }
  void Watch() {
    TuneConnection(connection_.get(), server_.options_.keepalive_time,
                   server_.options_.keepalive_timeout);
    const auto added = server_.loop_->Add(shared_from_this(), connection_.get(), watched_);
    if (!added.ok()) return Close(added.status());
    source_ = *added;
  }
  // A wait has ended: writes the reply, and goes on with requests that came behind it.
  void OnWaitEnd() {
    is_ready_ = false;
    GoOn();
  }

 private:
  void OnReady(uint32_t events) override {
    if (!connection_.valid()) return;
    if ((events & EPOLLOUT) != 0) GoOn();
    if (!connection_.valid()) return;
    if ((watched_ & EPOLLIN) != 0 && (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
      return Read();
    }
    // Nothing can be read now, but the client is gone.
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) Close(absl::OkStatus());
  }
  void OnLoopEnd() override { Close(absl::OkStatus()); }

  void Read() {
    for (size_t i = 0; i < kReadsInTurn; ++i) {
      char* scratch = server_.loop_->scratch();
      const ssize_t got = recv(connection_.get(), scratch, SocketLoop::kScratchBytes, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got <= 0) {
        return Close(got == 0 ? absl::OkStatus() : absl::UnavailableError(std::strerror(errno)));
      }
      const absl::string_view bytes(scratch, static_cast<size_t>(got));
      if (!Consume(bytes)) return;
      if (bytes.size() < SocketLoop::kScratchBytes || (watched_ & EPOLLIN) == 0) return;
    }
  }

  // Executes the requests in the unread bytes and `bytes`, and writes the replies. Returns false if
  // the connection has been closed.
  bool Consume(absl::string_view bytes) {
    if (!unread_.empty()) unread_.append(bytes.data(), bytes.size());
    for (bool again = true; again;) {
      absl::string_view rest = unread_.empty() ? bytes : unread_;
      absl::Status status;
      {
        absl::MutexLock lock(&server_.mu_);
        status = session_->Consume(rest);
        server_.RunCompletions();
      }
      const bool is_stuck = status.ok() && !rest.empty();
      Keep(rest);
      bytes = {};
      if (!Flush()) return false;
      server_.FlushReady();
      if (!status.ok()) {
        Close(status);
        return false;
      }
      if (!connection_.valid()) return false;
      // It stopped because of the output, which has been written.
      again = is_stuck && !session_->is_waiting() && session_->output().empty();
    }
    if (session_->is_ambiguous()) ResolveLater();
    WatchAgain();
    return true;
  }
  // `rest` is in unread_, or elsewhere.
  void Keep(absl::string_view rest) {
    if (unread_.empty()) {
      unread_.assign(rest.data(), rest.size());
    } else {
      unread_.erase(0, unread_.size() - rest.size());
    }
  }
  void GoOn() {
    if (!connection_.valid() || !Flush()) return;
    if (unread_.empty()) return WatchAgain();
    Consume({});
  }

  // Writes until the kernel accepts no more. Returns false if the connection has been closed.
  bool Flush() {
    TcpStoreOutput& output = session_->output();
    for (size_t total = 0; !output.empty() && total < kBytesWrittenInTurn;) {
      iovec pieces[kPiecesInWrite];
      msghdr message = {};
      message.msg_iov = pieces;
      message.msg_iovlen = output.Pieces(pieces, kPiecesInWrite);
      const ssize_t sent = sendmsg(connection_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (sent < 0) {
        Close(absl::UnavailableError(std::strerror(errno)));
        return false;
      }
      output.Consume(static_cast<size_t>(sent));
      total += static_cast<size_t>(sent);
    }
    return true;
  }
  void WatchAgain() {
    uint32_t wanted = EPOLLRDHUP;
    if (unread_.empty()) wanted |= EPOLLIN;
    if (!session_->output().empty()) wanted |= EPOLLOUT;
    if (wanted == std::exchange(watched_, wanted)) return;
    // Changing the events of a descriptor that is watched already takes no resources.
    server_.loop_->Watch(source_, connection_.get(), wanted).IgnoreError();
  }

  void ResolveLater() {
    server_.loop_->PostAfter(kAmbiguityTimeout, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self == nullptr || !self->connection_.valid() || !self->session_->is_ambiguous()) return;
      absl::Status status;
      {
        absl::MutexLock lock(&self->server_.mu_);
        status = self->session_->ResolveAmbiguity();
        self->server_.RunCompletions();
      }
      self->server_.FlushReady();
      if (!status.ok()) return self->Close(status);
      self->GoOn();
    });
  }

  void Close(const absl::Status& why) {
    if (!connection_.valid()) return;
    // The loop may have held the last reference.
    const std::shared_ptr<Connection> self = shared_from_this();
    server_.loop_->Remove(source_, connection_.get());
    connection_.Reset();
    if (absl::IsUnavailable(why)) {
      // Processes that are killed reset their connections.
      FERRY_LOG_INFO(kCoord, "a connection of a PyTorch store broke: peer={} error={}", peer_,
                     why.message());
    } else if (!why.ok()) {
      FERRY_LOG_WARN(kCoord, "closed a connection of a PyTorch store: peer={} error={}", peer_,
                     why.message());
    }
    {
      absl::MutexLock lock(&server_.mu_);
      server_.peers_.erase(session_->client());
      session_ = nullptr;
      server_.scopes_.Detach(scope_);
      server_.RunCompletions();
    }
    server_.FlushReady();
  }

  TcpStoreServer& server_;
  UniqueFd connection_;
  Loop::SourceId source_ = 0;
  const std::shared_ptr<TcpStoreScope> scope_;
  std::string peer_;
  // Its store is guarded by the server's lock; its output is the loop's.
  std::shared_ptr<TcpStoreSession> session_;
  // Received behind a pending wait, or behind replies that the client does not read.
  std::string unread_;
  uint32_t watched_ = EPOLLIN | EPOLLRDHUP;
  // It is in ready_.
  bool is_ready_ = false;
};

TcpStoreServer::TcpStoreServer(TcpStoreServerOptions options)
    : options_(std::move(options)),
      scopes_(options_.limits, SteadyClock(), completions_, options_.idle_timeout) {}

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::Create(
    TcpStoreServerOptions options) {
  auto server = std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(options)));
  FERRY_ASSIGN_OR_RETURN(server->loop_, SocketLoop::Create("ferry-tcpstore"));
  return server;
}

TcpStoreServer::~TcpStoreServer() { Stop(); }

void TcpStoreServer::Take(UniqueFd connection) {
  std::shared_ptr<TcpStoreScope> scope;
  {
    absl::MutexLock lock(&mu_);
    // Completions run on the loop, which owns the sessions' output.
    scope = scopes_.Shared();
    scopes_.Attach(scope);
  }
  Serve(std::move(connection), std::move(scope));
}

void TcpStoreServer::Serve(UniqueFd connection, std::shared_ptr<TcpStoreScope> scope) {
  std::string peer = PeerName(connection.get());
  auto served = std::make_shared<Connection>(*this, std::move(connection), std::move(scope));
  {
    absl::MutexLock lock(&mu_);
    const TcpStoreClient client(++last_client_);
    peers_[client] = peer;
    served->Begin(client, std::move(peer));
    TickLater();
  }
  loop_->Post([served] { served->Watch(); });
}

absl::StatusOr<int> TcpStoreServer::OpenScope(absl::string_view name, const std::string& listen) {
  absl::MutexLock lock(&mu_);
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<TcpStoreScope> scope, scopes_.Open(name));
  Port& port = ports_[name];
  if (port.listener == nullptr) {
    absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::OpenTcp(listen);
    absl::Status status = listener.status();
    if (status.ok()) {
      status = (*listener)->Start(*loop_, {.on_connection = [this, scope](UniqueFd connection) {
        {
          absl::MutexLock attach_lock(&mu_);
          // Accepted while the port was being closed.
          if (scopes_.Find(scope->name) != scope) return;
          scopes_.Attach(scope);
        }
        Serve(std::move(connection), scope);
      }});
    }
    if (!status.ok()) {
      ports_.erase(name);
      scopes_.Close(scope);
      return status;
    }
    port = {scope, *std::move(listener)};
  }
  return port.listener->port();
}

absl::Status TcpStoreServer::CloseScope(absl::string_view name) {
  std::unique_ptr<Listener> closed;
  absl::MutexLock lock(&mu_);
  const auto port = ports_.find(name);
  if (port == ports_.end()) {
    return absl::NotFoundError(absl::StrCat("there is no store with the scope ", Quoted(name)));
  }
  const std::shared_ptr<TcpStoreScope> scope = port->second.scope;
  if (scope->holders == 1) {
    closed = std::move(port->second.listener);
    ports_.erase(port);
  }
  scopes_.Close(scope);
  return absl::OkStatus();
}

void TcpStoreServer::RunCompletions() {
  while (!completions_.empty()) {
    for (Completion& completion : completions_.Take()) std::move(completion)();
  }
}

void TcpStoreServer::AddReady(std::shared_ptr<Connection> connection) {
  // Called by sessions, whose stores are guarded by it.
  mu_.AssertHeld();
  ready_.push_back(std::move(connection));
}

void TcpStoreServer::FlushReady() {
  // Not recursive: clients that wait for each other's keys could pipeline any number of requests.
  if (std::exchange(is_flushing_, true)) return;
  while (true) {
    std::vector<std::shared_ptr<Connection>> ready;
    {
      absl::MutexLock lock(&mu_);
      ready.swap(ready_);
    }
    if (ready.empty()) break;
    for (const auto& connection : ready) connection->OnWaitEnd();
  }
  is_flushing_ = false;
}

void TcpStoreServer::TickLater() {
  if (std::exchange(will_tick_, true)) return;
  loop_->PostAfter(kTickPeriod, [this] { Tick(); });
}

void TcpStoreServer::Tick() {
  {
    absl::MutexLock lock(&mu_);
    will_tick_ = false;
    scopes_.Advance();
    RunCompletions();
    if (scopes_.NextDeadline() < absl::InfiniteFuture() || !peers_.empty()) TickLater();
  }
  FlushReady();
}

std::vector<TcpStoreScopeReport> TcpStoreServer::Report(size_t max_waits) const {
  absl::MutexLock lock(&mu_);
  std::vector<TcpStoreScopeReport> reports;
  scopes_.ForEach([&](const TcpStoreScope& scope) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    TcpStoreScopeReport report{.name = scope.name,
                               .clients = scope.clients,
                               .keys = scope.store.key_count(),
                               .bytes = scope.store.stored_bytes()};
    const auto port = ports_.find(scope.name);
    if (port != ports_.end()) report.port = port->second.listener->port();
    std::vector<TcpStoreWaitInfo> waits = scope.store.Waits();
    const auto for_each_key = [&store = scope.store](
                                  absl::string_view prefix,
                                  absl::FunctionRef<void(absl::string_view)> visit) {
      store.ForEachEntry(prefix, [visit](absl::string_view key, const StoreValue&) { visit(key); });
    };
    report.missing = MissingTcpStoreKeys(waits, for_each_key, max_waits);
    for (TcpStoreWaitInfo& wait : waits) {
      if (report.waits.size() == max_waits) break;
      const auto peer = peers_.find(wait.client);
      report.waits.push_back({peer == peers_.end() ? "" : peer->second, std::move(wait)});
    }
    reports.push_back(std::move(report));
  });
  return reports;
}

absl::StatusOr<std::vector<StoreEntry>> TcpStoreServer::List(absl::string_view scope,
                                                             absl::string_view prefix,
                                                             size_t limit) const {
  absl::MutexLock lock(&mu_);
  const std::shared_ptr<TcpStoreScope> found = scopes_.Find(scope);
  if (found == nullptr) {
    return absl::NotFoundError(
        scope.empty() ? "no PyTorch client uses the store of the coordinator's port"
                      : absl::StrCat("there is no store with the scope ", Quoted(scope)));
  }
  std::vector<StoreEntry> entries;
  found->store.ForEachEntry(prefix, [&](absl::string_view key, const StoreValue& value) {
    if (limit == 0 || entries.size() < limit) entries.push_back({std::string(key), value, 0});
  });
  return entries;
}

TableSizes TcpStoreServer::InnerTableSizes() const {
  absl::MutexLock lock(&mu_);
  TableSizes sizes;
  scopes_.AddTableSizes(sizes);
  return sizes;
}

void TcpStoreServer::Stop() {
  if (loop_ == nullptr) return;  // None could be created.
  loop_->End();
  absl::MutexLock lock(&mu_);
  ports_.clear();
}

}  // namespace ferry::coord
