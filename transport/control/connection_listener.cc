// SPDX-License-Identifier: Apache-2.0
// Accepts connections and limits how many are unauthenticated at a time.
#include "transport/control/connection_listener.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "net/sockets.h"

namespace ferry {
namespace {

// Each unauthenticated connection that sends nothing holds a descriptor until the handshake
// timeout.
constexpr size_t kMaxStrangers = 256;
// Age from which one is evicted when the limit is reached: a handshake takes milliseconds, so it is
// malicious or hung.
constexpr absl::Duration kEnough = absl::Seconds(1);
constexpr absl::Duration kFullPause = absl::Milliseconds(5);
constexpr absl::Duration kNoRoomPause = absl::Milliseconds(100);

}  // namespace

absl::Status ConnectionManager::Listener::Start() {
  KeepReserve();
  FERRY_ASSIGN_OR_RETURN(source_, shared_->loop.Add(shared_from_this(), socket_.get(), EPOLLIN));
  return absl::OkStatus();
}

void ConnectionManager::Listener::OnReady(uint32_t) {
  while (true) {
    if (!HasRoom()) return ComeBackIn(kFullPause);
    UniqueFd socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      KeepReserve();
      Accept(std::move(socket));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    // Most likely out of descriptors.
    if ((errno == EMFILE || errno == ENFILE) && TurnAwayOne()) continue;
    // Connections in the backlog are retried later.
    return ComeBackIn(kNoRoomPause);
  }
}

bool ConnectionManager::Listener::TurnAwayOne() {
  if (!reserve_.valid()) return false;
  reserve_.Reset();
  UniqueFd socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.valid()) {
    // Closing with unread data sends a reset, which may overtake the reply.
    char hello[256];
    recv(socket.get(), hello, sizeof(hello), MSG_DONTWAIT);
    const std::string words = Handshake::OutOfDescriptors(shared_->options.handshake);
    send(socket.get(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  const bool is_told = socket.valid();
  socket.Reset();
  KeepReserve();
  return is_told;
}

void ConnectionManager::Listener::KeepReserve() {
  if (!reserve_.valid()) reserve_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

void ConnectionManager::Listener::ComeBackIn(absl::Duration pause) {
  if (std::exchange(comes_back_, true)) return;
  shared_->loop.PostAt(SteadyClock().Now() + pause, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->comes_back_ = false;
    self->OnReady(EPOLLIN);
  });
}

bool ConnectionManager::Listener::HasRoom() {
  if (strangers_.size() < kMaxStrangers) return true;
  std::erase_if(strangers_, [](const Stranger& each) {
    const auto attempt = each.attempt.lock();
    return attempt == nullptr || attempt->is_over();
  });
  if (strangers_.size() < kMaxStrangers) return true;
  if (SteadyClock().Now() - strangers_.front().since < kEnough) return false;
  const auto oldest = strangers_.front().attempt.lock();
  strangers_.pop_front();
  shared_->NoteRefusal(absl::StrCat(kMaxStrangers, " strangers had not said yet who they are"));
  oldest->Cancel(absl::ResourceExhaustedError("has to make way for others"));
  return true;
}

void ConnectionManager::Listener::AwaitTimeout() {
  if (strangers_.empty() || std::exchange(awaits_timeout_, true)) return;
  shared_->loop.PostAt(strangers_.front().since + shared_->options.handshake_timeout,
                       [weak = weak_from_this()] {
                         if (const auto self = weak.lock()) self->DropWhoIsLate();
                       });
}

void ConnectionManager::Listener::DropWhoIsLate() {
  awaits_timeout_ = false;
  const absl::Time limit = SteadyClock().Now() - shared_->options.handshake_timeout;
  while (!strangers_.empty()) {
    const auto attempt = strangers_.front().attempt.lock();
    const bool is_over = attempt == nullptr || attempt->is_over();
    if (!is_over && strangers_.front().since > limit) break;
    strangers_.pop_front();
    if (!is_over) attempt->Cancel(absl::DeadlineExceededError("has not said who it is"));
  }
  AwaitTimeout();
}

void ConnectionManager::Listener::Accept(UniqueFd socket) {
  if (is_unix_) {
    // The client fails the same check, and uses another transport.
    if (const absl::Status same = CheckSameUser(socket.get(), SocketEnd::kServer); !same.ok()) {
      shared_->NoteRefusal(std::string(same.message()));
      return;
    }
  }
  auto attempt = std::make_shared<Attempt>(shared_, Handshake::Server(shared_->options.handshake),
                                           false, is_unix_);
  {
    absl::MutexLock lock(&shared_->mu);
    if (shared_->is_closed) return;
    shared_->attempts.insert(attempt);
  }
  strangers_.push_back({SteadyClock().Now(), attempt});
  AwaitTimeout();
  attempt->StartServer(std::move(socket));
}

}  // namespace ferry
