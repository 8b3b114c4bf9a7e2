// SPDX-License-Identifier: Apache-2.0
// Connections on their way to being lanes.
#include "transport/lane/lane_hub.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "transport/lane/descriptors.h"
#include "transport/lane/shm_lane.h"
#include "transport/lane/sockets.h"
#include "transport/lane/tcp_lane.h"

namespace ferry {
namespace {

// Strangers that connect and say nothing cost a descriptor each for as long as a handshake may
// take.
constexpr size_t kMaxHandshakes = 256;
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

}  // namespace

struct LaneHub::Shared {
  Shared(LaneLoop& loop, LaneHubOptions options, AcceptLane accept_lane, AcceptData accept_data)
      : loop(loop),
        options(std::move(options)),
        accept_lane(std::move(accept_lane)),
        accept_data(std::move(accept_data)) {}

  LaneLoop& loop;
  const LaneHubOptions options;
  const AcceptLane accept_lane;
  const AcceptData accept_data;
  std::atomic<int64_t> accepted{0};
  std::atomic<int64_t> refused{0};

  absl::Mutex mu;
  bool is_closed ABSL_GUARDED_BY(mu) = false;
  std::vector<std::shared_ptr<Listener>> listeners ABSL_GUARDED_BY(mu);
  absl::flat_hash_set<std::shared_ptr<Attempt>> attempts ABSL_GUARDED_BY(mu);
};

// A connection that is being made or proved. Lives on the loop.
class LaneHub::Attempt final : public LoopSource, public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(std::shared_ptr<Shared> shared, Handshake handshake, bool is_client, bool is_unix)
      : shared_(std::move(shared)),
        handshake_(std::move(handshake)),
        is_client_(is_client),
        is_unix_(is_unix) {}

  // Who is told in the end; a server's attempt asks the hub's callbacks instead.
  std::shared_ptr<LaneHandler> handler;
  DataCallback on_data;
  // Still to be tried.
  std::deque<std::string> tcp_addresses;
  std::string unix_name;
  // To begin anew with the next address.
  Handshake fresh_handshake = Handshake::Server({});

  // REQUIRES: on the loop, once.
  void StartServer(UniqueFd socket) {
    address_ = is_unix_ ? "a Unix socket" : PeerAddress(socket.get());
    if (!is_unix_) TuneTcp(socket.get());
    if (absl::Status status = Watch(std::move(socket)); !status.ok()) return Fail(status);
    is_connected_ = true;
    Advance();
  }
  void StartClient() {
    fresh_handshake = handshake_;
    TryNextAddress();
  }

  void OnReady(uint32_t) override { Advance(); }

  void Cancel(const absl::Status& why) {
    tcp_addresses.clear();
    Fail(why);
  }

 private:
  absl::Status Watch(UniqueFd socket) {
    socket_ = std::move(socket);
    const uint64_t round = ++round_;
    FERRY_ASSIGN_OR_RETURN(source_,
                           shared_->loop.Add(shared_from_this(), socket_.get(),
                                             EPOLLIN | EPOLLOUT | EPOLLRDHUP, /*polls=*/false));
    shared_->loop.PostAt(
        SteadyClock().Now() + shared_->options.handshake_timeout, [weak = weak_from_this(), round] {
          const auto self = weak.lock();
          if (self == nullptr || self->is_over_ || self->round_ != round) return;
          self->Fail(absl::DeadlineExceededError(
              absl::StrCat(self->address_, " has not answered for ",
                           ShortDuration(self->shared_->options.handshake_timeout),
                           self->is_connected_ ? ", though it is connected" : "")));
        });
    return absl::OkStatus();
  }

  void Unwatch() {
    if (!socket_.valid()) return;
    shared_->loop.Remove(source_, socket_.get());
    ++round_;
  }

  void TryNextAddress() {
    absl::StatusOr<UniqueFd> socket = absl::UnavailableError("no address");
    if (is_unix_) {
      address_ = "its Unix socket";
      socket = BeginConnectUnix(unix_name);
    } else {
      if (tcp_addresses.empty()) {
        return End(absl::UnavailableError("it has published no address to connect to"));
      }
      address_ = tcp_addresses.front();
      tcp_addresses.pop_front();
      socket = BeginConnectTcp(address_);
    }
    if (!socket.ok()) return Fail(socket.status());
    handshake_ = fresh_handshake;
    is_connected_ = is_unix_;
    if (absl::Status status = Watch(*std::move(socket)); !status.ok()) return Fail(status);
    Advance();
  }

  void Advance() {
    if (is_over_ || !socket_.valid()) return;
    if (absl::Status status = Step(); !status.ok()) Fail(status);
  }

  absl::Status Step() {
    if (!is_connected_) {
      FERRY_RETURN_IF_ERROR(ConnectError(socket_.get(), address_));
      sockaddr_storage peer;
      socklen_t length = sizeof(peer);
      if (getpeername(socket_.get(), reinterpret_cast<sockaddr*>(&peer), &length) != 0) {
        return absl::OkStatus();  // Not yet.
      }
      is_connected_ = true;
    }
    while (true) {
      FERRY_RETURN_IF_ERROR(SendOutput());
      if (handshake_.is_done()) {
        if (!handshake_.pending_output().empty()) return absl::OkStatus();
        return Finish();
      }
      char bytes[256];
      const size_t wanted = std::min(handshake_.wanted_bytes(), sizeof(bytes));
      const ssize_t got = recv(socket_.get(), bytes, wanted, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
      if (got <= 0) {
        return absl::UnavailableError(
            absl::StrCat(address_, got == 0 ? " has closed the connection during the handshake"
                                            : absl::StrCat(": ", std::strerror(errno))));
      }
      absl::string_view view(bytes, static_cast<size_t>(got));
      if (absl::Status status = handshake_.OnBytes(view); !status.ok()) {
        if (!is_client_) shared_->refused.fetch_add(1, std::memory_order_relaxed);
        // The peer is to know why.
        SendOutput().IgnoreError();
        // Another address would not be another job.
        tcp_addresses.clear();
        return absl::Status(status.code(), absl::StrCat(status.message(), " (", address_, ")"));
      }
    }
  }

  absl::Status SendOutput() {
    std::string& output = handshake_.pending_output();
    while (!output.empty()) {
      const ssize_t sent =
          send(socket_.get(), output.data(), output.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
      if (sent < 0)
        return absl::UnavailableError(absl::StrCat(address_, ": ", std::strerror(errno)));
      output.erase(0, static_cast<size_t>(sent));
    }
    return absl::OkStatus();
  }

  // Both know each other.
  absl::Status Finish() {
    const LanePeer peer = handshake_.peer();
    if (handshake_.purpose() == ConnectionPurpose::kData) {
      if (is_unix_) return absl::InvalidArgumentError("data does not come through a Unix socket");
      DataConnection connection = {
          .peer = peer, .index = handshake_.index(), .is_client = is_client_};
      Unwatch();
      connection.socket = std::move(socket_);
      const auto self = Leave();
      if (is_client_) {
        std::move(on_data)(std::move(connection));
      } else {
        shared_->accepted.fetch_add(1, std::memory_order_relaxed);
        shared_->accept_data(std::move(connection));
      }
      return absl::OkStatus();
    }
    ShmLane::Memory memory;
    if (is_unix_) {
      FERRY_ASSIGN_OR_RETURN(const bool is_complete, ExchangeMemory(memory));
      if (!is_complete) return absl::OkStatus();
    }
    if (!is_client_) handler = shared_->accept_lane(peer);
    Unwatch();
    const auto self = Leave();
    if (handler == nullptr) return absl::OkStatus();
    if (!is_client_) shared_->accepted.fetch_add(1, std::memory_order_relaxed);
    const size_t limit = shared_->options.lane_queue_bytes;
    if (is_unix_) {
      ShmLane::Start(shared_->loop, peer, std::move(socket_), std::move(memory), is_client_,
                     std::move(handler), limit);
    } else {
      std::string description =
          absl::StrCat("tcp ", is_client_ ? "to " : "from ", PeerAddress(socket_.get()));
      TcpLane::Start(shared_->loop, peer, std::move(socket_), std::move(description),
                     std::move(handler), limit);
    }
    return absl::OkStatus();
  }

  // The client brings the rings; each gives the other its bell. False: more is to come.
  absl::StatusOr<bool> ExchangeMemory(ShmLane::Memory& memory) {
    Doorbell& own = shared_->loop.doorbell();
    if (is_client_ && !rings_.base()) {
      FERRY_ASSIGN_OR_RETURN(rings_,
                             MemorySegment::Create(ShmLane::RingsBytes(),
                                                   {.huge_pages = false, .peers_may_write = true}));
      FERRY_RETURN_IF_ERROR(
          SendDescriptors(socket_.get(), {rings_.fd(), own.page_fd(), own.event_fd()}));
    }
    FERRY_ASSIGN_OR_RETURN(const bool is_open, ReceiveDescriptors(socket_.get(), arrived_));
    const size_t expected = is_client_ ? 2 : 3;
    if (arrived_.size() < expected) {
      if (!is_open) return absl::UnavailableError("it has closed the connection");
      return false;
    }
    if (!is_client_) {
      FERRY_ASSIGN_OR_RETURN(
          rings_, MemorySegment::MapPeer(std::move(arrived_[0]), ShmLane::RingsBytes(), true));
      arrived_.pop_front();
      FERRY_RETURN_IF_ERROR(SendDescriptors(socket_.get(), {own.page_fd(), own.event_fd()}));
    }
    FERRY_ASSIGN_OR_RETURN(memory.peer_bell,
                           Doorbell::OfPeer(std::move(arrived_[0]), std::move(arrived_[1])));
    memory.rings = std::move(rings_);
    return true;
  }

  // Of the list of attempts; returns what keeps it alive.
  std::shared_ptr<Attempt> Leave() {
    is_over_ = true;
    auto self = shared_from_this();
    absl::MutexLock lock(&shared_->mu);
    shared_->attempts.erase(self);
    return self;
  }

  void Fail(const absl::Status& why) {
    if (is_over_) return;
    Unwatch();
    socket_.Reset();
    absl::StrAppend(&failures_, failures_.empty() ? "" : "; ", why.message());
    last_code_ = why.code();
    if (is_client_ && !is_unix_ && !tcp_addresses.empty()) return TryNextAddress();
    End(absl::Status(last_code_, failures_));
  }

  void End(absl::Status why) {
    const auto self = Leave();
    if (is_client_) {
      why = absl::Status(why.code(), absl::StrCat("cannot reach ", Describe(handshake_.peer()),
                                                  ": ", why.message()));
    }
    if (handler != nullptr) std::exchange(handler, nullptr)->OnClosed(why);
    if (on_data) std::move(on_data)(std::move(why));
  }

  const std::shared_ptr<Shared> shared_;
  Handshake handshake_;
  const bool is_client_;
  const bool is_unix_;
  UniqueFd socket_;
  LaneLoop::SourceId source_ = 0;
  // Tells timers of earlier addresses apart.
  uint64_t round_ = 0;
  bool is_connected_ = false;
  bool is_over_ = false;
  std::string address_;
  std::string failures_;
  absl::StatusCode last_code_ = absl::StatusCode::kUnavailable;
  MemorySegment rings_;
  std::deque<UniqueFd> arrived_;
};

class LaneHub::Listener final : public LoopSource, public std::enable_shared_from_this<Listener> {
 public:
  Listener(std::shared_ptr<Shared> shared, UniqueFd socket, bool is_unix)
      : shared_(std::move(shared)), socket_(std::move(socket)), is_unix_(is_unix) {}

  absl::Status Start() {
    FERRY_ASSIGN_OR_RETURN(
        source_, shared_->loop.Add(shared_from_this(), socket_.get(), EPOLLIN, /*polls=*/false));
    return absl::OkStatus();
  }
  void Stop() { shared_->loop.Remove(source_, socket_.get()); }

  void OnReady(uint32_t) override {
    while (true) {
      UniqueFd socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.valid()) {
        Accept(std::move(socket));
        continue;
      }
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      // Out of descriptors, most likely: whoever waits in the backlog gets another chance.
      shared_->loop.PostAt(SteadyClock().Now() + kAcceptPause, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->OnReady(EPOLLIN);
      });
      return;
    }
  }

 private:
  void Accept(UniqueFd socket) {
    if (is_unix_ && !IsSameUser(socket.get())) {
      shared_->refused.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    auto attempt = std::make_shared<Attempt>(shared_, Handshake::Server(shared_->options.handshake),
                                             false, is_unix_);
    {
      absl::MutexLock lock(&shared_->mu);
      if (shared_->is_closed) return;
      if (shared_->attempts.size() >= kMaxHandshakes) {
        shared_->refused.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      shared_->attempts.insert(attempt);
    }
    attempt->StartServer(std::move(socket));
  }

  const std::shared_ptr<Shared> shared_;
  const UniqueFd socket_;
  const bool is_unix_;
  LaneLoop::SourceId source_ = 0;
};

LaneHub::LaneHub(LaneLoop& loop, std::shared_ptr<Shared> shared)
    : loop_(loop), shared_(std::move(shared)) {}

absl::StatusOr<std::unique_ptr<LaneHub>> LaneHub::Create(LaneLoop& loop, LaneHubOptions options,
                                                         AcceptLane accept_lane,
                                                         AcceptData accept_data) {
  auto shared = std::make_shared<Shared>(loop, std::move(options), std::move(accept_lane),
                                         std::move(accept_data));
  auto hub = std::unique_ptr<LaneHub>(new LaneHub(loop, shared));
  std::vector<std::shared_ptr<Listener>> listeners;
  if (!shared->options.tcp_listen.empty()) {
    FERRY_ASSIGN_OR_RETURN(ListeningSocket socket, ListenTcp(shared->options.tcp_listen));
    hub->tcp_port_ = socket.port;
    listeners.push_back(std::make_shared<Listener>(shared, std::move(socket.fd), false));
  }
  if (shared->options.unix_listen) {
    std::string name = absl::StrCat("ferry-", absl::BytesToHexString(DrawSecret().substr(0, 12)));
    FERRY_ASSIGN_OR_RETURN(ListeningSocket socket, ListenUnix(name));
    hub->unix_name_ = std::move(name);
    listeners.push_back(std::make_shared<Listener>(shared, std::move(socket.fd), true));
  }
  absl::MutexLock lock(&shared->mu);
  shared->listeners = std::move(listeners);
  return hub;
}

absl::Status LaneHub::Start() {
  std::vector<std::shared_ptr<Listener>> listeners;
  {
    absl::MutexLock lock(&shared_->mu);
    listeners = shared_->listeners;
  }
  for (const auto& listener : listeners) FERRY_RETURN_IF_ERROR(listener->Start());
  return absl::OkStatus();
}

LaneHub::~LaneHub() { Close(); }

void LaneHub::Connect(const LanePeer& peer, const LaneAddresses& addresses, bool use_unix,
                      std::shared_ptr<LaneHandler> handler) {
  auto attempt = std::make_shared<Attempt>(
      shared_, Handshake::Client(shared_->options.handshake, peer, ConnectionPurpose::kLane, 0),
      true, use_unix);
  attempt->unix_name = addresses.unix_name;
  attempt->tcp_addresses.assign(addresses.tcp.begin(), addresses.tcp.end());
  attempt->handler = std::move(handler);
  bool is_closed = false;
  {
    absl::MutexLock lock(&shared_->mu);
    is_closed = shared_->is_closed;
    if (!is_closed) shared_->attempts.insert(attempt);
  }
  loop_.Post([attempt, is_closed] {
    if (is_closed) return attempt->Cancel(absl::CancelledError("this process is leaving"));
    attempt->StartClient();
  });
}

void LaneHub::ConnectData(const LanePeer& peer, const LaneAddresses& addresses, uint32_t index,
                          DataCallback done) {
  auto attempt = std::make_shared<Attempt>(
      shared_, Handshake::Client(shared_->options.handshake, peer, ConnectionPurpose::kData, index),
      true, false);
  attempt->tcp_addresses.assign(addresses.tcp.begin(), addresses.tcp.end());
  attempt->on_data = std::move(done);
  bool is_closed = false;
  {
    absl::MutexLock lock(&shared_->mu);
    is_closed = shared_->is_closed;
    if (!is_closed) shared_->attempts.insert(attempt);
  }
  loop_.Post([attempt, is_closed] {
    if (is_closed) return attempt->Cancel(absl::CancelledError("this process is leaving"));
    attempt->StartClient();
  });
}

LaneHubStats LaneHub::stats() const {
  return {.accepted = shared_->accepted.load(), .refused = shared_->refused.load()};
}

void LaneHub::Close() {
  std::vector<std::shared_ptr<Listener>> listeners;
  absl::flat_hash_set<std::shared_ptr<Attempt>> attempts;
  {
    absl::MutexLock lock(&shared_->mu);
    shared_->is_closed = true;
    listeners.swap(shared_->listeners);
    attempts = shared_->attempts;
  }
  for (const auto& listener : listeners) listener->Stop();
  for (const auto& attempt : attempts) {
    loop_.Post([attempt] { attempt->Cancel(absl::CancelledError("this process is leaving")); });
  }
}

}  // namespace ferry
