// SPDX-License-Identifier: Apache-2.0
// Receives requests, and writes replies.
#include "coord/server/tcp_store_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/logging.h"
#include "coord/tcpstore/tcp_store_budget.h"
#include "coord/tcpstore/tcp_store_output.h"
#include "net/socket_address.h"

namespace ferry::coord {
namespace {

// How long to wait for a value after an ambiguous request: see TcpStoreParser. The longer timeout
// covers the retransmission of a lost packet, whose timeout is at least 200 ms on Linux.
constexpr absl::Duration kAmbiguityTimeout = absl::Milliseconds(10);
constexpr absl::Duration kLongAmbiguityTimeout = absl::Milliseconds(500);
constexpr size_t kPiecesInWrite = 64;
// Limits per event, so that one client does not delay the others.
constexpr size_t kReadsInTurn = 4;
constexpr size_t kBytesWrittenInTurn = size_t{4} << 20;
constexpr size_t kPartsInTurn = 4;

}  // namespace

void TcpStoreConnection::Begin(TcpStoreClient client, std::string peer) {
  worker_.AddConnection(*this);
  peer_ = std::move(peer);
  // The session exists only while the connection is open.
  session_ = std::make_shared<TcpStoreSession>(
      scope_->store, client, shared_.options.request_limits,
      [this](TcpStoreSession&, uint64_t wait) { worker_.AddEndedWait(shared_from_this(), wait); });
}

void TcpStoreConnection::Watch() {
  TuneConnection(connection_.get(), shared_.options.keepalive_time,
                 shared_.options.keepalive_timeout);
  const auto added = worker_.loop().Add(shared_from_this(), connection_.get(), watched_);
  // The loop of a server that is stopping accepts no more sources.
  if (!added.ok()) {
    return Close(absl::IsCancelled(added.status()) ? absl::OkStatus() : added.status());
  }
  source_ = *added;
}

TcpStoreConnectionState TcpStoreConnection::Export() const {
  return {.socket = connection_.get(), .unread = unread_, .session = session_->Export()};
}

absl::Status TcpStoreConnection::Restore(TcpStoreConnectionState state) {
  unread_ = std::move(state.unread);
  return session_->Restore(std::move(state.session));
}

void TcpStoreConnection::GoOnLater() {
  worker_.loop().Post([self = shared_from_this()] {
    self->Watch();
    if (!self->connection_.valid()) return;
    if (self->session_->is_ambiguous()) self->ResolveLater();
    self->Continue();
  });
}

void TcpStoreConnection::EndWait(uint64_t wait) {
  if (!connection_.valid()) return;
  session_->EndWait(wait);
  Continue();
}

void TcpStoreConnection::Resume() {
  if (!connection_.valid()) return;
  is_paused_ = false;
  UpdateWatch();
}

void TcpStoreConnection::CloseStalled(size_t held_bytes) {
  Close(absl::ResourceExhaustedError(
      absl::StrCat("stalled with ", held_bytes,
                   " bytes of incomplete requests, unread replies and waits, while others wait for "
                   "memory; the limit for all clients of stores is ",
                   shared_.flow.max_bytes(), " bytes (--max-store-client-bytes)")));
}

void TcpStoreConnection::SetReplacedBytes(size_t bytes) {
  if (bytes != std::exchange(replaced_bytes_, bytes)) UpdateWatch();
}

void TcpStoreConnection::OnReady(uint32_t events) {
  if (!connection_.valid()) return;
  if ((events & EPOLLOUT) != 0) Continue();
  if (!connection_.valid()) return;
  if ((watched_ & EPOLLIN) != 0 && (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    return Read();
  }
  // Reading is paused, but the client has disconnected.
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) Close(absl::OkStatus());
}

void TcpStoreConnection::OnLoopEnd() { Close(absl::OkStatus()); }

void TcpStoreConnection::Read() {
  for (size_t i = 0; i < kReadsInTurn; ++i) {
    // Not while a wait is pending: reading stops after any further request, and a CANCEL_WAIT
    // must be received.
    const bool is_sending = is_counted_ && !session_->is_waiting();
    if (is_sending && !shared_.flow.MayReceive(session_->client())) {
      is_paused_ = true;
      return UpdateWatch();
    }
    char* scratch = worker_.loop().scratch();
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

bool TcpStoreConnection::Consume(absl::string_view bytes) {
  if (!unread_.empty()) unread_.append(bytes.data(), bytes.size());
  for (size_t part = 0; part < kPartsInTurn; ++part) {
    absl::string_view rest = unread_.empty() ? bytes : unread_;
    absl::Status status;
    {
      absl::MutexLock lock(&shared_.mu);
      status = session_->Consume(rest);
      worker_.RunCompletions();
    }
    Keep(rest);
    bytes = {};
    if (!Flush()) return false;
    worker_.FlushReady();
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

bool TcpStoreConnection::CanConsume() const {
  if (session_->has_more_parts()) return true;
  return !unread_.empty() && !session_->is_waiting() && session_->output().empty();
}

void TcpStoreConnection::Keep(absl::string_view rest) {
  if (unread_.empty()) {
    unread_.assign(rest.data(), rest.size());
  } else {
    unread_.erase(0, unread_.size() - rest.size());
  }
  if (unread_.empty() && unread_.capacity() > TcpStoreOutput::kMaxKept) unread_ = {};
}

void TcpStoreConnection::Continue() {
  if (!connection_.valid() || !Flush()) return;
  if (unread_.empty() && !session_->has_more_parts()) return UpdateWatch();
  Consume({});
}

void TcpStoreConnection::ContinueLater() {
  if (std::exchange(will_continue_, true)) return;
  worker_.loop().Post([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->will_continue_ = false;
    self->Continue();
  });
}

bool TcpStoreConnection::Flush() {
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

void TcpStoreConnection::UpdateWatch() {
  UpdateFlow();
  uint32_t wanted = EPOLLRDHUP;
  if (unread_.empty() && !is_paused_) wanted |= EPOLLIN;
  if (!session_->output().empty()) wanted |= EPOLLOUT;
  if (wanted == watched_) return;
  if ((wanted & EPOLLOUT) != 0) {
    worker_.AddWriting(*this);
  } else if ((watched_ & EPOLLOUT) != 0) {
    worker_.RemoveWriting(*this);
    replaced_bytes_ = 0;
  }
  watched_ = wanted;
  // EPOLL_CTL_MOD allocates nothing, so it does not fail.
  worker_.loop().Watch(source_, connection_.get(), wanted).IgnoreError();
}

void TcpStoreConnection::UpdateFlow() {
  const size_t held = session_->held_bytes() + unread_.capacity() + replaced_bytes_;
  const bool counts = held > TcpStoreBudget::kUncountedBytes;
  if (!counts) {
    if (std::exchange(is_counted_, false)) shared_.flow.Remove(session_->client());
    is_paused_ = false;
    return;
  }
  is_counted_ = true;
  TcpStoreBudget::Phase phase = TcpStoreBudget::Phase::kSending;
  if (session_->is_waiting()) phase = TcpStoreBudget::Phase::kWaiting;
  if (!session_->output().empty()) phase = TcpStoreBudget::Phase::kReading;
  shared_.flow.Update(session_->client(), worker_.loop(), weak_from_this(), held, moved_bytes_,
                      session_->request_count(), phase);
}

void TcpStoreConnection::ResolveLater() {
  const bool is_likely = session_->sends_field_by_field();
  const absl::Duration timeout = is_likely ? kAmbiguityTimeout : kLongAmbiguityTimeout;
  worker_.loop().PostAfter(timeout, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr || !self->connection_.valid() || !self->session_->is_ambiguous()) return;
    absl::Status status;
    {
      absl::MutexLock lock(&self->shared_.mu);
      status = self->session_->ResolveAmbiguity();
      self->worker_.RunCompletions();
    }
    self->worker_.FlushReady();
    if (!status.ok()) return self->Close(status);
    self->Continue();
  });
}

void TcpStoreConnection::Close(const absl::Status& why) {
  if (!connection_.valid()) return;
  // The loop may have held the last reference.
  const std::shared_ptr<TcpStoreConnection> self = shared_from_this();
  worker_.loop().Remove(source_, connection_.get());
  connection_.Reset();
  if (absl::IsUnavailable(why)) {
    // This is not a warning, since a killed process may reset its connections.
    FERRY_LOG_INFO(kCoord, "lost a connection of a PyTorch store: peer={} error={}", peer_,
                   why.message());
  } else if (!why.ok() && shared_.closed_log.Allow()) {
    FERRY_LOG_WARN(kCoord, "closed a connection of a PyTorch store: peer={} error={}", peer_,
                   why.message());
  }
  worker_.RemoveConnection(*this);
  worker_.RemoveWriting(*this);
  if (is_counted_) shared_.flow.Remove(session_->client());
  {
    absl::MutexLock lock(&shared_.mu);
    shared_.peers.erase(session_->client());
    session_ = nullptr;
    shared_.scopes.Detach(scope_);
    worker_.RunCompletions();
  }
  worker_.FlushReady();
}

}  // namespace ferry::coord
