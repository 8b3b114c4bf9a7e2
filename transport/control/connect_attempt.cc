// SPDX-License-Identifier: Apache-2.0
// Tries addresses in turn, runs the handshake, and exchanges what the channel needs.
#include "transport/control/connect_attempt.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "net/sockets.h"
#include "transport/control/descriptors.h"
#include "transport/control/tcp_control_channel.h"

namespace ferry {
namespace {

// Delay before retrying a peer that had no descriptors left.
constexpr absl::Duration kNoDescriptorsPause = absl::Milliseconds(100);

}  // namespace

void ConnectionManager::Attempt::StartServer(UniqueFd socket) {
  address_ = is_unix_ ? "a Unix socket" : PeerAddress(socket.get());
  if (!is_unix_) TuneTcp(socket.get());
  if (absl::Status status = Watch(std::move(socket)); !status.ok()) return Fail(status);
  is_connected_ = true;
  Advance();
}

void ConnectionManager::Attempt::StartClient() {
  fresh_handshake = handshake_;
  TryNextAddress();
}

void ConnectionManager::Attempt::Cancel(const absl::Status& why) { FailForGood(why); }

absl::Status ConnectionManager::Attempt::Watch(UniqueFd socket) {
  socket_ = std::move(socket);
  FERRY_ASSIGN_OR_RETURN(source_, shared_->loop.Add(shared_from_this(), socket_.get(),
                                                    EPOLLIN | EPOLLOUT | EPOLLRDHUP));
  return absl::OkStatus();
}

void ConnectionManager::Attempt::Unwatch() {
  if (!socket_.valid()) return;
  shared_->loop.Remove(source_, socket_.get());
}

void ConnectionManager::Attempt::TryNextAddress() {
  if (is_unix_) {
    address_ = "its Unix socket";
  } else {
    if (tcp_addresses.empty()) {
      return End(absl::UnavailableError("it has published no address to connect to"));
    }
    address_ = tcp_addresses.front();
    tcp_addresses.pop_front();
    // A name is expanded to all of its addresses; errors of resolving it are reported by
    // connecting.
    const absl::StatusOr<std::vector<std::string>> each = ResolveTcp(address_);
    if (each.ok() && each->size() > 1) {
      address_ = each->front();
      tcp_addresses.insert(tcp_addresses.begin(), each->begin() + 1, each->end());
    }
  }
  give_up_ = SteadyClock().Now() + shared_->options.handshake_timeout;
  refusal_ = absl::OkStatus();
  // Client attempts only: the listener times out incoming ones.
  EndTrying();
  shared_->trying.push_back({give_up_, weak_from_this()});
  shared_->AwaitAnswers();
  FERRY_LOG_DEBUG(kTransport, "connecting: peer={} address={}", handshake_.peer().node_id,
                  address_);
  Connect();
}

void ConnectionManager::Attempt::EndTrying() {
  if (!is_client_) return;
  std::erase_if(shared_->trying,
                [this](const auto& each) { return each.attempt.lock().get() == this; });
}

void ConnectionManager::Attempt::FailLate() {
  // The peer's earlier refusal explains more than that it did not repeat it in time.
  if (!refusal_.ok()) return FailForGood(refusal_);
  Fail(absl::DeadlineExceededError(absl::StrCat(address_, " has not answered for ",
                                                ShortDuration(shared_->options.handshake_timeout),
                                                is_connected_ ? ", though it is connected" : "")));
}

void ConnectionManager::Shared::AwaitAnswers() {
  if (trying.empty() || std::exchange(awaits_answers, true)) return;
  loop.PostAt(trying.front().until, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->FailOverdueAttempts();
  });
}

void ConnectionManager::Shared::FailOverdueAttempts() {
  awaits_answers = false;
  const absl::Time now = SteadyClock().Now();
  std::vector<std::shared_ptr<Attempt>> late;
  while (!trying.empty() && trying.front().until <= now) {
    if (auto attempt = trying.front().attempt.lock()) late.push_back(std::move(attempt));
    trying.pop_front();
  }
  for (const auto& attempt : late) {
    if (!attempt->is_over()) attempt->FailLate();
  }
  AwaitAnswers();
}

void ConnectionManager::Attempt::ConnectAgain() {
  Unwatch();
  socket_.Reset();
  shared_->loop.PostAt(SteadyClock().Now() + kNoDescriptorsPause, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self != nullptr && !self->is_over_) self->Connect();
  });
}

void ConnectionManager::Attempt::Connect() {
  absl::StatusOr<UniqueFd> socket =
      is_unix_ ? BeginConnectUnix(unix_name) : BeginConnectTcp(address_);
  if (!socket.ok()) return Fail(socket.status());
  if (is_unix_) {
    const absl::Status same = CheckSameUser(socket->get(), SocketEnd::kClient);
    if (!same.ok()) return Fail(same);
  }
  handshake_ = fresh_handshake;
  is_connected_ = is_unix_;
  if (absl::Status status = Watch(*std::move(socket)); !status.ok()) return Fail(status);
  Advance();
}

void ConnectionManager::Attempt::Advance() {
  if (is_over_ || !socket_.valid()) return;
  if (absl::Status status = Step(); !status.ok()) Fail(status);
}

absl::Status ConnectionManager::Attempt::Step() {
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
    // A peer that rejects this side says why, and may have closed before it reads anything.
    const absl::Status written = SendOutput();
    if (handshake_.is_done()) {
      FERRY_RETURN_IF_ERROR(written);
      if (!handshake_.pending_output().empty()) return absl::OkStatus();
      return Finish();
    }
    char bytes[256];
    const size_t wanted = std::min(handshake_.wanted_bytes(), sizeof(bytes));
    const ssize_t got = recv(socket_.get(), bytes, wanted, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) FERRY_RETURN_IF_ERROR(written);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (got <= 0) {
      return absl::UnavailableError(
          absl::StrCat(address_, got == 0 ? " has closed the connection during the handshake"
                                          : absl::StrCat(": ", std::strerror(errno))));
    }
    absl::string_view view(bytes, static_cast<size_t>(got));
    if (absl::Status status = handshake_.OnBytes(view); !status.ok()) {
      absl::Status why(status.code(), absl::StrCat(status.message(), " (", address_, ")"));
      if (is_client_ && absl::IsResourceExhausted(status) &&
          SteadyClock().Now() + kNoDescriptorsPause < give_up_) {
        refusal_ = std::move(why);
        ConnectAgain();
        return absl::OkStatus();
      }
      if (!is_client_) {
        shared_->NoteRefusal(std::string(why.message()));
      }
      // Let the peer know why.
      SendOutput().IgnoreError();
      FailForGood(why);
      return absl::OkStatus();
    }
  }
}

absl::Status ConnectionManager::Attempt::SendOutput() {
  std::string& output = handshake_.pending_output();
  while (!output.empty()) {
    const ssize_t sent =
        send(socket_.get(), output.data(), output.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (sent < 0) return absl::UnavailableError(absl::StrCat(address_, ": ", std::strerror(errno)));
    output.erase(0, static_cast<size_t>(sent));
  }
  return absl::OkStatus();
}

absl::Status ConnectionManager::Attempt::Finish() {
  const PeerId peer = handshake_.peer();
  FERRY_LOG_TRACE(kTransport, "handshake is over: peer={} address={} {}", peer.node_id, address_,
                  is_client_ ? "outgoing" : "incoming");
  if (handshake_.purpose() == ConnectionPurpose::kData) {
    if (is_unix_) return absl::InvalidArgumentError("data does not come through a Unix socket");
    DataConnection connection = {
        .peer = peer, .index = handshake_.index(), .is_client = is_client_};
    FERRY_LOG_DEBUG(kTransport, "data connection open: peer={} index={} address={}", peer.node_id,
                    connection.index, address_);
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
  ShmControlChannel::Memory memory;
  if (is_unix_) {
    FERRY_ASSIGN_OR_RETURN(const bool is_complete, ExchangeMemory(memory));
    if (!is_complete) return absl::OkStatus();
  }
  if (!is_client_) handler = shared_->accept_channel(peer);
  Unwatch();
  const auto self = Leave();
  if (handler == nullptr) return absl::OkStatus();
  if (!is_client_) shared_->accepted.fetch_add(1, std::memory_order_relaxed);
  const size_t limit = shared_->options.peer_queue_bytes;
  if (is_unix_) {
    ShmControlChannel::Start(shared_->loop, peer, std::move(socket_), std::move(memory), is_client_,
                             std::move(handler), limit);
  } else {
    std::string description =
        absl::StrCat("tcp ", is_client_ ? "to " : "from ", PeerAddress(socket_.get()));
    TcpControlChannel::Start(shared_->loop, peer, std::move(socket_), std::move(description),
                             std::move(handler), limit);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ConnectionManager::Attempt::ExchangeMemory(ShmControlChannel::Memory& memory) {
  Doorbell& own = shared_->loop.doorbell();
  if (is_client_ && !rings_.base()) {
    FERRY_ASSIGN_OR_RETURN(rings_,
                           MemorySegment::Create(ShmControlChannel::RingsBytes(),
                                                 {.huge_pages = false, .peers_may_write = true}));
    FERRY_RETURN_IF_ERROR(
        SendDescriptors(socket_.get(), {rings_.fd(), own.page_fd(), own.event_fd()}));
  }
  FERRY_ASSIGN_OR_RETURN(const bool is_open, ReceiveDescriptors(socket_.get(), arrived_));
  for (const UniqueFd& each : arrived_) FERRY_RETURN_IF_ERROR(CheckDescriptor(each));
  const size_t expected = is_client_ ? 2 : 3;
  if (arrived_.size() < expected) {
    if (!is_open) return absl::UnavailableError("it has closed the connection");
    return false;
  }
  if (!is_client_) {
    FERRY_ASSIGN_OR_RETURN(rings_, MemorySegment::MapPeer(std::move(arrived_[0]),
                                                          ShmControlChannel::RingsBytes(), true));
    arrived_.pop_front();
    FERRY_RETURN_IF_ERROR(SendDescriptors(socket_.get(), {own.page_fd(), own.event_fd()}));
  }
  FERRY_ASSIGN_OR_RETURN(memory.peer_bell,
                         Doorbell::OfPeer(std::move(arrived_[0]), std::move(arrived_[1])));
  memory.rings = std::move(rings_);
  return true;
}

std::shared_ptr<ConnectionManager::Attempt> ConnectionManager::Attempt::Leave() {
  is_over_ = true;
  EndTrying();
  auto self = shared_from_this();
  absl::MutexLock lock(&shared_->mu);
  shared_->attempts.erase(self);
  return self;
}

void ConnectionManager::Attempt::Fail(const absl::Status& why) {
  if (is_over_) return;
  Unwatch();
  socket_.Reset();
  absl::StrAppend(&failures_, failures_.empty() ? "" : "; ", why.message());
  last_code_ = why.code();
  FERRY_LOG_DEBUG(kTransport, "connection attempt failed: address={} {}: {}", address_,
                  is_client_ ? "outgoing" : "incoming", why);
  if (is_client_ && !is_unix_ && !tcp_addresses.empty()) return TryNextAddress();
  End(absl::Status(last_code_, failures_));
}

void ConnectionManager::Attempt::FailForGood(const absl::Status& why) {
  tcp_addresses.clear();
  Fail(why);
}

void ConnectionManager::Attempt::End(absl::Status why) {
  const auto self = Leave();
  if (is_client_) {
    why = absl::Status(why.code(), absl::StrCat("cannot reach ", Describe(handshake_.peer()), ": ",
                                                why.message()));
  }
  if (handler != nullptr) std::exchange(handler, nullptr)->OnClosed(why);
  if (on_data) std::move(on_data)(std::move(why));
}

}  // namespace ferry
