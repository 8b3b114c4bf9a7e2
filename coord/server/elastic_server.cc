// SPDX-License-Identifier: Apache-2.0
// Connections, and the JSON encoding of messages.
#include "coord/server/elastic_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/text.h"
#include "net/socket_address.h"

namespace ferry::coord {
namespace {

constexpr absl::Duration kTickPeriod = absl::Milliseconds(100);
constexpr size_t kReadBytes = 4096;
// A connection with more unsent bytes is closed.
constexpr size_t kMaxUnsentBytes = size_t{256} << 10;
// The number of agents per connection.
constexpr size_t kMaxAgents = 64;

ElasticRunId RunOf(const elastic::v1::Agent& agent) { return {agent.run_id(), agent.is_group()}; }

absl::Duration SecondsOf(double seconds) {
  // NaN and negative values become -1 s, which the rendezvous rejects as out of range.
  return seconds >= 0 ? absl::Seconds(seconds) : absl::Seconds(-1);
}

ElasticJoin JoinOf(const elastic::v1::Join& join) {
  constexpr uint32_t kTooMany = ElasticRendezvous::kMaxNodes + 1;
  const bool is_group = join.agent().is_group();
  return {.run = RunOf(join.agent()),
          .agent = join.agent().agent_id(),
          .host = join.host(),
          .attempt = join.attempt(),
          .min_nodes = static_cast<int>(std::min(join.min_nodes(), kTooMany)),
          .max_nodes = static_cast<int>(std::min(join.max_nodes(), kTooMany)),
          .rank = is_group ? static_cast<int>(std::min(join.rank(), kTooMany)) : -1,
          .last_call_timeout = SecondsOf(join.last_call_timeout_s()),
          .join_timeout = SecondsOf(join.join_timeout_s()),
          .heartbeat_timeout = SecondsOf(join.heartbeat_timeout_s())};
}

elastic::v1::Reply ErrorReply(uint32_t id, const absl::Status& status) {
  elastic::v1::Reply reply;
  reply.set_id(id);
  reply.set_error(absl::StatusCodeToString(status.code()));
  reply.set_message(std::string(status.message()));
  return reply;
}

std::string LineOf(const elastic::v1::Reply& reply) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string line;
  // Replies always have a JSON form.
  if (!google::protobuf::util::MessageToJsonString(reply, &line, options).ok()) line = "{}";
  return line + "\n";
}

}  // namespace

class ElasticServer::Stores final : public ElasticStores {
 public:
  explicit Stores(TcpStorePorts ports) : ports_(std::move(ports)) {}
  absl::StatusOr<int> Open(const std::string& scope) override {
    return ports_.server->OpenScope(scope, ports_.open);
  }
  void Close(const std::string& scope) override { ports_.server->CloseScope(scope).IgnoreError(); }

 private:
  const TcpStorePorts ports_;
};

// Everything but the constructor and Send is called on the loop.
class ElasticServer::Connection final : public LoopSource,
                                        public std::enable_shared_from_this<Connection> {
 public:
  // An agent that has sent requests over this connection.
  struct Agent {
    ElasticRunId run;
    std::string agent;

    bool operator==(const Agent&) const = default;
  };

  Connection(ElasticServer& server, uint64_t id, UniqueFd connection)
      : server_(server),
        id_(id),
        connection_(std::move(connection)),
        peer_(PeerName(connection_.get())) {}

  uint64_t id() const { return id_; }
  const std::vector<Agent>& agents() const { return agents_; }

  void Watch() {
    TuneConnection(connection_.get(), server_.options_.keepalive_time,
                   server_.options_.keepalive_timeout);
    const auto added = server_.loop_->Add(shared_from_this(), connection_.get(), watched_);
    if (!added.ok()) return connection_.Reset();
    source_ = *added;
    server_.loop_->PostAfter(server_.options_.hello_timeout, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self != nullptr && !self->has_asked_) self->Close("no request has come in time");
    });
  }
  // Any thread.
  void Send(const elastic::v1::Reply& reply) {
    server_.loop_->Post([self = shared_from_this(), line = LineOf(reply)] { self->Write(line); });
  }
  // Returns false if the connection has too many agents.
  bool Remember(Agent agent) {
    if (std::find(agents_.begin(), agents_.end(), agent) != agents_.end()) return true;
    if (agents_.size() == kMaxAgents) return false;
    agents_.push_back(std::move(agent));
    return true;
  }
  void Forget(const Agent& agent) { std::erase(agents_, agent); }

 private:
  void OnReady(uint32_t events) override {
    if (!connection_.valid()) return;
    if ((events & EPOLLOUT) != 0) Write("");
    if (connection_.valid() && (events & ~uint32_t{EPOLLOUT}) != 0) Read();
  }
  void OnLoopEnd() override { Close(""); }

  void Read() {
    char bytes[kReadBytes];
    const ssize_t got = recv(connection_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (got <= 0) return Close(got == 0 ? "" : std::strerror(errno));
    unread_.append(bytes, static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end; (end = unread_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      if (end - begin > kMaxLineBytes) break;
      OnLine(absl::string_view(unread_).substr(begin, end - begin));
      if (!connection_.valid()) return;
    }
    unread_.erase(0, begin);
    if (unread_.size() > kMaxLineBytes) {
      Write(LineOf(ErrorReply(0, absl::InvalidArgumentError(absl::StrCat(
                                     "a request has more than ", kMaxLineBytes, " bytes")))));
      Close("a request is too long");
    }
  }

  void OnLine(absl::string_view line) {
    elastic::v1::Request request;
    google::protobuf::util::JsonParseOptions options;
    options.ignore_unknown_fields = true;
    const auto parsed = google::protobuf::util::JsonStringToMessage(
        google::protobuf::StringPiece(line.data(), line.size()), &request, options);
    if (!parsed.ok()) {
      Write(
          LineOf(ErrorReply(0, absl::InvalidArgumentError(absl::StrCat(
                                   "cannot parse a request: ", Quoted(parsed.ToString(), 400))))));
      return Close("cannot parse a request");
    }
    has_asked_ = true;
    server_.Execute(shared_from_this(), request);
  }

  void Write(absl::string_view line) {
    if (!connection_.valid()) return;
    unsent_.append(line.data(), line.size());
    while (!unsent_.empty()) {
      const ssize_t sent =
          send(connection_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (sent < 0) return Close(std::strerror(errno));
      unsent_.erase(0, static_cast<size_t>(sent));
    }
    if (unsent_.size() > kMaxUnsentBytes) return Close("the client does not read its replies");
    const uint32_t wanted = EPOLLIN | EPOLLRDHUP | (unsent_.empty() ? uint32_t{0} : EPOLLOUT);
    if (wanted == std::exchange(watched_, wanted)) return;
    server_.loop_->Watch(source_, connection_.get(), wanted).IgnoreError();
  }

  void Close(absl::string_view why) {
    if (!connection_.valid()) return;
    const std::shared_ptr<Connection> self = shared_from_this();
    server_.loop_->Remove(source_, connection_.get());
    connection_.Reset();
    if (!why.empty()) {
      FERRY_LOG_INFO(kCoord, "closed a connection of the PyTorch rendezvous: peer={} reason={}",
                     peer_, why);
    }
    server_.Detach(*this);
  }

  ElasticServer& server_;
  const uint64_t id_;
  UniqueFd connection_;
  const std::string peer_;
  Loop::SourceId source_ = 0;
  uint32_t watched_ = EPOLLIN | EPOLLRDHUP;
  bool has_asked_ = false;
  std::string unread_;
  std::string unsent_;
  std::vector<Agent> agents_;
};

ElasticServer::ElasticServer(std::shared_ptr<Loop> loop, TcpStorePorts stores,
                             ElasticServerOptions options)
    : loop_(std::move(loop)),
      options_(options),
      stores_(std::make_unique<Stores>(std::move(stores))),
      rendezvous_(options_.elastic, SteadyClock(), completions_, *stores_) {}

ElasticServer::~ElasticServer() = default;

void ElasticServer::Take(UniqueFd connection) {
  // The rest is for the agents, for gRPC, and for accepting.
  if (static_cast<uint64_t>(connection.get()) >= TcpStoreServer::DescriptorLimit()) return;
  uint64_t id = 0;
  {
    absl::MutexLock lock(&mu_);
    id = ++last_connection_;
  }
  auto served = std::make_shared<Connection>(*this, id, std::move(connection));
  loop_->Post([served] { served->Watch(); });
}

void ElasticServer::Execute(const std::shared_ptr<Connection>& connection,
                            const elastic::v1::Request& request) {
  using elastic::v1::Request;
  const uint32_t id = request.id();
  const elastic::v1::Agent& agent = request.has_join()         ? request.join().agent()
                                    : request.has_keep_alive() ? request.keep_alive().agent()
                                    : request.has_close()      ? request.close().agent()
                                                               : request.leave().agent();
  const ElasticRunId run = RunOf(agent);
  // No agent has other names, which may be long.
  const bool is_kept = (request.has_join() || request.has_keep_alive()) &&
                       ElasticRendezvous::CheckNames(run, agent.agent_id()).ok();
  if (is_kept && !connection->Remember({run, agent.agent_id()})) {
    return connection->Send(
        ErrorReply(id, absl::ResourceExhaustedError(absl::StrCat("this connection has ", kMaxAgents,
                                                                 " agents, which is the limit"))));
  }
  elastic::v1::Reply reply;
  reply.set_id(id);
  {
    absl::MutexLock lock(&mu_);
    if (is_stopped_) return;
    TickLater();
    switch (request.op_case()) {
      case Request::kJoin:
        rendezvous_.Join(
            JoinOf(request.join()), connection->id(),
            [connection, id](absl::StatusOr<ElasticAssignment> assignment) {
              if (!assignment.ok()) {
                return connection->Send(ErrorReply(id, assignment.status()));
              }
              elastic::v1::Reply joined;
              joined.set_id(id);
              joined.mutable_assignment()->set_round(static_cast<uint32_t>(assignment->round));
              joined.mutable_assignment()->set_rank(static_cast<uint32_t>(assignment->rank));
              joined.mutable_assignment()->set_nodes(static_cast<uint32_t>(assignment->nodes));
              joined.mutable_assignment()->set_port(static_cast<uint32_t>(assignment->port));
              connection->Send(joined);
            });
        break;
      case Request::kKeepAlive: {
        const ElasticRunState run_state =
            rendezvous_.KeepAlive(run, agent.agent_id(), connection->id());
        reply.mutable_run_state()->set_round(static_cast<int32_t>(run_state.round));
        reply.mutable_run_state()->set_is_known(run_state.is_known);
        reply.mutable_run_state()->set_is_closed(run_state.is_closed);
        reply.mutable_run_state()->set_waiting(static_cast<uint32_t>(run_state.waiting));
        break;
      }
      case Request::kClose:
        rendezvous_.Close(run, agent.agent_id());
        break;
      case Request::kLeave:
        rendezvous_.Leave(run, agent.agent_id());
        connection->Forget({run, agent.agent_id()});
        break;
      case Request::OP_NOT_SET:
        reply = ErrorReply(
            id, absl::UnimplementedError("this coordinator does not support the request"));
        break;
    }
  }
  RunCompletions();
  if (!request.has_join()) connection->Send(reply);
}

void ElasticServer::Detach(const Connection& connection) {
  {
    absl::MutexLock lock(&mu_);
    for (const Connection::Agent& agent : connection.agents()) {
      rendezvous_.Detach(agent.run, agent.agent, connection.id());
    }
  }
  RunCompletions();
}

void ElasticServer::RunCompletions() {
  while (true) {
    std::vector<Completion> ready;
    {
      absl::MutexLock lock(&mu_);
      ready = completions_.Take();
    }
    if (ready.empty()) return;
    for (Completion& completion : ready) std::move(completion)();
  }
}

void ElasticServer::TickLater() {
  if (std::exchange(will_tick_, true)) return;
  loop_->PostAfter(kTickPeriod, [this] { Tick(); });
}

void ElasticServer::Tick() {
  {
    absl::MutexLock lock(&mu_);
    will_tick_ = false;
    rendezvous_.Advance();
    if (!rendezvous_.empty()) TickLater();
  }
  RunCompletions();
}

std::vector<ElasticRunReport> ElasticServer::Report() const {
  absl::MutexLock lock(&mu_);
  return rendezvous_.Report();
}

void ElasticServer::Stop() {
  // The answers to waits, which end when no lock is held.
  std::vector<Completion> unsent;
  absl::MutexLock lock(&mu_);
  is_stopped_ = true;
  rendezvous_.Stop();
  unsent = completions_.Take();
}

}  // namespace ferry::coord
