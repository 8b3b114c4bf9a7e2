// SPDX-License-Identifier: Apache-2.0
// Connections, ports of scopes, and status reports.
#include "coord/server/tcp_store_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
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

// How often timeouts of reservations and of the shared scope are checked.
constexpr absl::Duration kTickPeriod = absl::Milliseconds(100);
// How long to wait for a value after an ambiguous request: see TcpStoreParser. The longer timeout
// covers the retransmission of a lost packet, whose timeout is at least 200 ms on Linux.
constexpr absl::Duration kAmbiguityTimeout = absl::Milliseconds(10);
constexpr absl::Duration kLongAmbiguityTimeout = absl::Milliseconds(500);
constexpr size_t kPiecesInWrite = 64;
// Limits per event, so that one client does not delay the others.
constexpr size_t kReadsInTurn = 4;
constexpr size_t kBytesWrittenInTurn = size_t{4} << 20;
constexpr size_t kPartsInTurn = 4;
// See TcpStoreBudget::EndPeriod.
constexpr absl::Duration kBudgetPeriod = absl::Seconds(1);
// The number of lines about closed connections that are logged per period.
constexpr size_t kMaxLogLines = 20;
constexpr absl::Duration kLogPeriod = absl::Seconds(10);
// Report and List release the lock after this many entries or waits.
constexpr size_t kEntriesInPart = 1024;
constexpr size_t kWaitsInPart = 32;

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

// All methods are called on the loop.
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
                                                     server_.ready_.push_back(shared_from_this());
                                                 });
  }
  void Watch() {
    TuneConnection(connection_.get(), server_.options_.keepalive_time,
                   server_.options_.keepalive_timeout);
    const auto added = server_.loop_->Add(shared_from_this(), connection_.get(), watched_);
    if (!added.ok()) return Close(added.status());
    source_ = *added;
  }
  // A wait has ended: writes the reply, and executes requests that were received after it.
  void OnWaitEnd() {
    is_ready_ = false;
    Continue();
  }
  // The budget allows the connection to receive again.
  void Resume() {
    if (!connection_.valid()) return;
    is_paused_ = false;
    UpdateWatch();
  }
  void CloseStalled(size_t held_bytes) {
    Close(absl::ResourceExhaustedError(absl::StrCat("stalled with ", held_bytes,
                                                    " bytes of incomplete requests, unread replies "
                                                    "and waits, while others wait for memory; the "
                                                    "limit for all clients of stores is ",
                                                    server_.budget_.max_bytes(),
                                                    " bytes (--max-store-client-bytes)")));
  }

  // Calls `visit` for each value that queued replies share with the store.
  void ForEachShared(absl::FunctionRef<void(const StoreValue&)> visit) const {
    session_->output().ForEachShared(visit);
  }
  // Sets its share of the values that only replies refer to any more.
  void SetReplacedBytes(size_t bytes) {
    if (bytes != std::exchange(replaced_bytes_, bytes)) UpdateWatch();
  }

 private:
  void OnReady(uint32_t events) override {
    if (!connection_.valid()) return;
    if ((events & EPOLLOUT) != 0) Continue();
    if (!connection_.valid()) return;
    if ((watched_ & EPOLLIN) != 0 && (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
      return Read();
    }
    // Reading is paused, but the client has disconnected.
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) Close(absl::OkStatus());
  }
  void OnLoopEnd() override { Close(absl::OkStatus()); }

  void Read() {
    for (size_t i = 0; i < kReadsInTurn; ++i) {
      // Not while a wait is pending: reading stops after any further request, and a CANCEL_WAIT
      // must be received.
      const bool is_sending = is_counted_ && !session_->is_waiting();
      if (is_sending && !server_.budget_.MayReceive(session_->client())) {
        is_paused_ = true;
        return UpdateWatch();
      }
      char* scratch = server_.loop_->scratch();
      const ssize_t got = recv(connection_.get(), scratch, SocketLoop::kScratchBytes, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got <= 0) {
        return Close(got == 0 ? absl::OkStatus() : absl::UnavailableError(std::strerror(errno)));
      }
      const absl::string_view bytes(scratch, static_cast<size_t>(got));
      moved_bytes_ += bytes.size();
      if (!Consume(bytes)) return;
      if (bytes.size() < SocketLoop::kScratchBytes || (watched_ & EPOLLIN) == 0) return;
    }
  }

  // Executes the requests in the unread bytes and `bytes`, and writes the replies. Returns false if
  // the connection has been closed.
  bool Consume(absl::string_view bytes) {
    if (!unread_.empty()) unread_.append(bytes.data(), bytes.size());
    for (size_t part = 0; part < kPartsInTurn; ++part) {
      absl::string_view rest = unread_.empty() ? bytes : unread_;
      absl::Status status;
      {
        absl::MutexLock lock(&server_.mu_);
        status = session_->Consume(rest);
        server_.RunCompletions();
      }
      Keep(rest);
      bytes = {};
      if (!Flush()) return false;
      server_.FlushReady();
      if (!status.ok()) {
        Close(status);
        return false;
      }
      if (!connection_.valid()) return false;
      // Continue at once if the output was written, or a long reply has another part.
      if (!CanConsume()) break;
    }
    if (session_->is_ambiguous()) ResolveLater();
    if (CanConsume()) ContinueLater();
    UpdateWatch();
    return true;
  }
  bool CanConsume() const {
    if (session_->has_more_parts()) return true;
    return !unread_.empty() && !session_->is_waiting() && session_->output().empty();
  }
  // Stores the unconsumed bytes. `rest` is the end of unread_, or elsewhere if that is empty.
  void Keep(absl::string_view rest) {
    if (unread_.empty()) {
      unread_.assign(rest.data(), rest.size());
    } else {
      unread_.erase(0, unread_.size() - rest.size());
    }
    if (unread_.empty() && unread_.capacity() > TcpStoreOutput::kMaxKept) unread_ = {};
  }
  void Continue() {
    if (!connection_.valid() || !Flush()) return;
    if (unread_.empty() && !session_->has_more_parts()) return UpdateWatch();
    Consume({});
  }
  void ContinueLater() {
    if (std::exchange(will_continue_, true)) return;
    server_.loop_->Post([weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      self->will_continue_ = false;
      self->Continue();
    });
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
      moved_bytes_ += static_cast<size_t>(sent);
    }
    return true;
  }
  // Updates the budget and the watched events, after each read or write.
  void UpdateWatch() {
    UpdateBudget();
    uint32_t wanted = EPOLLRDHUP;
    if (unread_.empty() && !is_paused_) wanted |= EPOLLIN;
    if (!session_->output().empty()) wanted |= EPOLLOUT;
    if (wanted == watched_) return;
    if ((wanted & EPOLLOUT) != 0) {
      server_.writing_.insert(this);
    } else if ((watched_ & EPOLLOUT) != 0) {
      server_.writing_.erase(this);
      replaced_bytes_ = 0;
    }
    watched_ = wanted;
    // EPOLL_CTL_MOD allocates nothing, so it does not fail.
    server_.loop_->Watch(source_, connection_.get(), wanted).IgnoreError();
  }

  void UpdateBudget() {
    const size_t held = session_->held_bytes() + unread_.capacity() + replaced_bytes_;
    const bool counts = held > TcpStoreBudget::kUncountedBytes;
    if (!counts && !is_counted_) return;
    if (counts != std::exchange(is_counted_, counts)) {
      if (counts) server_.counted_[session_->client()] = this;
      if (!counts) server_.counted_.erase(session_->client());
    }
    if (!counts) is_paused_ = false;
    TcpStoreBudget::Phase phase = TcpStoreBudget::Phase::kSending;
    if (session_->is_waiting()) phase = TcpStoreBudget::Phase::kWaiting;
    if (!session_->output().empty()) phase = TcpStoreBudget::Phase::kReading;
    server_.budget_.Update(session_->client(), held, moved_bytes_, session_->request_count(),
                           phase);
    server_.ResumeReceiving();
  }

  void ResolveLater() {
    const bool is_likely = session_->sends_field_by_field();
    const absl::Duration timeout = is_likely ? kAmbiguityTimeout : kLongAmbiguityTimeout;
    server_.loop_->PostAfter(timeout, [weak = weak_from_this()] {
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
      self->Continue();
    });
  }

  void Close(const absl::Status& why) {
    if (!connection_.valid()) return;
    // The loop may have held the last reference.
    const std::shared_ptr<Connection> self = shared_from_this();
    server_.loop_->Remove(source_, connection_.get());
    connection_.Reset();
    if (absl::IsUnavailable(why)) {
      // This is not a warning, since a killed process may reset its connections.
      FERRY_LOG_INFO(kCoord, "lost a connection of a PyTorch store: peer={} error={}", peer_,
                     why.message());
    } else if (!why.ok() && server_.closed_log_.Allow()) {
      FERRY_LOG_WARN(kCoord, "closed a connection of a PyTorch store: peer={} error={}", peer_,
                     why.message());
    }
    server_.writing_.erase(this);
    if (is_counted_) {
      server_.counted_.erase(session_->client());
      server_.budget_.Remove(session_->client());
    }
    {
      absl::MutexLock lock(&server_.mu_);
      server_.peers_.erase(session_->client());
      session_ = nullptr;
      server_.scopes_.Detach(scope_);
      server_.RunCompletions();
    }
    server_.FlushReady();
    server_.ResumeReceiving();
  }

  TcpStoreServer& server_;
  UniqueFd connection_;
  Loop::SourceId source_ = 0;
  const std::shared_ptr<TcpStoreScope> scope_;
  std::string peer_;
  // Its store is guarded by server_.mu_; its output is used on the loop only.
  std::shared_ptr<TcpStoreSession> session_;
  // Received bytes that cannot be executed yet: a wait is pending, or replies are unread.
  std::string unread_;
  uint32_t watched_ = EPOLLIN | EPOLLRDHUP;
  // It is in server_.ready_.
  bool is_ready_ = false;
  // A call of Continue is posted.
  bool will_continue_ = false;
  // The budget counts it, and has paused it.
  bool is_counted_ = false;
  bool is_paused_ = false;
  uint64_t moved_bytes_ = 0;
  size_t replaced_bytes_ = 0;
};

TcpStoreServer::TcpStoreServer(TcpStoreServerOptions options)
    : options_(std::move(options)),
      closed_log_(SteadyClock(), kMaxLogLines, kLogPeriod),
      refused_log_(SteadyClock(), /*lines=*/1, kLogPeriod),
      budget_(options_.max_client_bytes),
      scopes_(options_.limits, SteadyClock(), completions_, options_.idle_timeout) {}

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::Create(
    TcpStoreServerOptions options) {
  TcpStoreLimits& limits = options.request_limits;
  // A request of the largest size must fit when the budget is three quarters full.
  limits.max_request_bytes = std::min(limits.max_request_bytes, options.max_client_bytes / 4);
  auto server = std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(options)));
  FERRY_ASSIGN_OR_RETURN(server->loop_, SocketLoop::Create("ferry-tcpstore"));
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
  // The ends of connections that were closed before this one was opened must be handled first, so
  // that the clients of one job are gone before the next job begins. Posting twice lets the loop
  // poll for events in between.
  loop_->Post([this, connection = std::move(connection), scope = std::move(scope)]() mutable {
    loop_->Post([this, connection = std::move(connection), scope = std::move(scope)]() mutable {
      Begin(std::move(connection), std::move(scope));
    });
  });
}

void TcpStoreServer::Begin(UniqueFd connection, std::shared_ptr<TcpStoreScope> scope) {
  std::string peer = PeerName(connection.get());
  std::shared_ptr<Connection> served;
  {
    absl::MutexLock lock(&mu_);
    if (scope == nullptr) {
      scope = scopes_.Shared();
    } else if (scopes_.Find(scope->name) != scope) {
      return;  // Accepted while the port was being closed.
    }
    scopes_.Attach(scope);
    const TcpStoreClient client(++last_client_);
    peers_[client] = peer;
    served = std::make_shared<Connection>(*this, std::move(connection), std::move(scope));
    served->Begin(client, std::move(peer));
    TickLater();
    // Shared() may have ended reservations, and thereby waits.
    RunCompletions();
  }
  FlushReady();
  served->Watch();
}

absl::StatusOr<int> TcpStoreServer::HoldOpenPort(absl::string_view name) {
  const auto port = ports_.find(name);
  if (port == ports_.end()) return 0;
  FERRY_RETURN_IF_ERROR(scopes_.Open(name).status());
  return port->second.listener->port();
}

absl::StatusOr<int> TcpStoreServer::OpenScope(absl::string_view name, OpenListener open) {
  FERRY_RETURN_IF_ERROR(TcpStoreScopes::CheckName(name));
  {
    absl::MutexLock lock(&mu_);
    FERRY_ASSIGN_OR_RETURN(const int port, HoldOpenPort(name));
    if (port != 0) return port;
  }
  FERRY_RETURN_IF_ERROR(CheckDescriptorsForPort());
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, open());
  absl::MutexLock lock(&mu_);
  // Another thread may have opened the port meanwhile.
  FERRY_ASSIGN_OR_RETURN(const int open_port, HoldOpenPort(name));
  if (open_port != 0) return open_port;
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<TcpStoreScope> scope, scopes_.Open(name));
  const absl::Status status = listener->Start(
      *loop_,
      {.on_connection = [this, scope](UniqueFd connection) { Serve(std::move(connection), scope); },
       .on_trouble =
           [this](const std::string& trouble) {
             if (refused_log_.Allow()) FERRY_LOG_WARN(kCoord, "{}", trouble);
           }});
  if (!status.ok()) {
    scopes_.Close(scope);
    return status;
  }
  const int port = listener->port();
  ports_[name] = {std::move(scope), std::move(listener)};
  return port;
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

void TcpStoreServer::FlushReady() {
  // Not recursive: a chain of clients that wait for each other's keys may have any length.
  if (ready_.empty() || std::exchange(is_flushing_, true)) return;
  while (!ready_.empty()) {
    for (const auto& connection : std::exchange(ready_, {})) connection->OnWaitEnd();
  }
  is_flushing_ = false;
}

void TcpStoreServer::TickLater() {
  if (std::exchange(will_tick_, true)) return;
  loop_->PostAfter(kTickPeriod, [this] { Tick(); });
}

void TcpStoreServer::ResumeReceiving() {
  client_bytes_.store(budget_.held_bytes(), std::memory_order_relaxed);
  for (const TcpStoreClient client : budget_.TakeResumed()) {
    const auto connection = counted_.find(client);
    if (connection != counted_.end()) connection->second->Resume();
  }
}

// A value that a reply shares with the store costs no memory of its own until the store replaces or
// deletes it.
void TcpStoreServer::CountReplacedValues() {
  if (writing_.empty()) return;
  struct Shared {
    const StoreValue* value;
    long in_replies = 0;
    bool is_replaced() const { return value->use_count() == in_replies; }
  };
  absl::flat_hash_map<const std::string*, Shared> values;
  for (const Connection* const connection : writing_) {
    connection->ForEachShared([&values](const StoreValue& value) {
      ++values.try_emplace(value.get(), Shared{&value}).first->second.in_replies;
    });
  }
  // SetReplacedBytes may resume other connections, which changes writing_.
  const std::vector<Connection*> connections(writing_.begin(), writing_.end());
  std::vector<size_t> bytes(connections.size());
  for (size_t i = 0; i < connections.size(); ++i) {
    connections[i]->ForEachShared([&](const StoreValue& value) {
      const Shared& shared = values.find(value.get())->second;
      if (shared.is_replaced()) bytes[i] += value->size() / static_cast<size_t>(shared.in_replies);
    });
  }
  for (size_t i = 0; i < connections.size(); ++i) connections[i]->SetReplacedBytes(bytes[i]);
}

void TcpStoreServer::CloseStalled() {
  for (const TcpStoreBudget::Closed& closed : budget_.EndPeriod()) {
    const auto connection = counted_.find(closed.client);
    if (connection != counted_.end()) connection->second->CloseStalled(closed.held_bytes);
  }
}

void TcpStoreServer::Tick() {
  CountReplacedValues();
  if (const absl::Time now = SteadyClock().CoarseNow(); now >= period_end_) {
    period_end_ = now + kBudgetPeriod;
    CloseStalled();
  }
  if (const size_t left_out = closed_log_.TakeLeftOut(); left_out > 0) {
    FERRY_LOG_WARN(kCoord, "closed {} more connections of PyTorch stores, without a line for each",
                   left_out);
  }
  {
    absl::MutexLock lock(&mu_);
    will_tick_ = false;
    scopes_.Advance();
    RunCompletions();
    const bool has_work = scopes_.NextDeadline() < absl::InfiniteFuture() || !peers_.empty();
    if (has_work || closed_log_.has_left_out()) TickLater();
  }
  FlushReady();
}

TcpStoreScopeReport TcpStoreServer::ReportScope(TcpStoreScope& scope, size_t max_waits,
                                                size_t& waits_left) const {
  TcpStoreScopeReport report{.name = scope.name};
  std::vector<TcpStoreWaitInfo> waits;
  {
    absl::MutexLock lock(&mu_);
    report.clients = scope.clients;
    report.keys = scope.store.key_count();
    report.bytes = scope.store.stored_bytes();
    report.wait_count = scope.store.wait_count();
    const auto port = ports_.find(scope.name);
    if (port != ports_.end()) report.port = port->second.listener->port();
  }
  for (bool is_over = report.wait_count == 0; !is_over;) {
    const size_t count = std::min(kWaitsInPart, waits_left);
    const uint64_t after = waits.empty() ? 0 : waits.back().number;
    absl::MutexLock lock(&mu_);
    std::vector<TcpStoreWaitInfo> part = scope.store.Waits(after, count, kMaxMissingKeysOfWait);
    waits_left -= part.size();
    is_over = part.size() < kWaitsInPart;
    for (TcpStoreWaitInfo& wait : part) {
      if (report.waits.size() < max_waits) {
        const auto peer = peers_.find(wait.client);
        report.waits.push_back({peer == peers_.end() ? "" : peer->second, wait});
      }
      waits.push_back(std::move(wait));
    }
  }
  const auto for_each_key = [this, &scope](absl::string_view prefix,
                                           absl::FunctionRef<bool(absl::string_view)> visit) {
    std::optional<std::string> last;
    for (bool is_over = false; !is_over;) {
      std::vector<std::string> keys;
      {
        absl::MutexLock lock(&mu_);
        scope.store.ForEachEntry(prefix, last, [&](absl::string_view key, const StoreValue&) {
          keys.emplace_back(key);
          return keys.size() < kEntriesInPart;
        });
      }
      is_over = keys.size() < kEntriesInPart;
      for (const std::string& key : keys) {
        if (!visit(key)) return;
      }
      if (!keys.empty()) last = std::move(keys.back());
    }
  };
  report.missing = MissingTcpStoreKeys(waits, for_each_key, max_waits);
  return report;
}

std::vector<TcpStoreScopeReport> TcpStoreServer::Report(size_t max_waits) const {
  std::vector<std::shared_ptr<TcpStoreScope>> scopes;
  {
    absl::MutexLock lock(&mu_);
    scopes = scopes_.All();
  }
  size_t waits_left = kMaxWaitsRead;
  std::vector<TcpStoreScopeReport> reports;
  reports.reserve(scopes.size());
  for (const std::shared_ptr<TcpStoreScope>& scope : scopes) {
    reports.push_back(ReportScope(*scope, max_waits, waits_left));
  }
  return reports;
}

absl::StatusOr<std::vector<StoreEntry>> TcpStoreServer::List(absl::string_view scope,
                                                             absl::string_view prefix,
                                                             size_t limit) const {
  std::shared_ptr<TcpStoreScope> found;
  {
    absl::MutexLock lock(&mu_);
    found = scopes_.Find(scope);
  }
  if (found == nullptr) {
    return absl::NotFoundError(
        scope.empty() ? "the store of the coordinator's port has no clients"
                      : absl::StrCat("there is no store with the scope ", Quoted(scope)));
  }
  std::vector<StoreEntry> entries;
  const size_t most = limit == 0 ? std::numeric_limits<size_t>::max() : limit;
  for (size_t end = 0; entries.size() == end && end < most;) {
    end = entries.size() + std::min(kEntriesInPart, most - entries.size());
    std::optional<absl::string_view> last;
    if (!entries.empty()) last = entries.back().key;
    absl::MutexLock lock(&mu_);
    found->store.ForEachEntry(prefix, last, [&](absl::string_view key, const StoreValue& value) {
      entries.push_back({std::string(key), value, 0});
      return entries.size() < end;
    });
  }
  return entries;
}

TcpStoreMemory TcpStoreServer::Memory() const {
  return {client_bytes_.load(std::memory_order_relaxed), options_.max_client_bytes};
}

TableSizes TcpStoreServer::InnerTableSizes() const {
  absl::MutexLock lock(&mu_);
  TableSizes sizes;
  scopes_.AddTableSizes(sizes);
  return sizes;
}

void TcpStoreServer::Stop() {
  if (loop_ == nullptr) return;  // Create failed.
  loop_->End();
  absl::MutexLock lock(&mu_);
  ports_.clear();
}

}  // namespace ferry::coord
