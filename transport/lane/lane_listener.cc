// SPDX-License-Identifier: Apache-2.0
// Who comes, and how many at a time.
#include "transport/lane/lane_listener.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/status_macros.h"
#include "transport/lane/sockets.h"

namespace ferry {
namespace {

// Strangers that connect and say nothing cost a descriptor each for as long as a handshake may
// take.
constexpr size_t kMaxHandshakes = 256;
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

}  // namespace

absl::Status LaneHub::Listener::Start() {
  FERRY_ASSIGN_OR_RETURN(
      source_, shared_->loop.Add(shared_from_this(), socket_.get(), EPOLLIN, /*polls=*/false));
  return absl::OkStatus();
}

void LaneHub::Listener::OnReady(uint32_t) {
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

void LaneHub::Listener::Accept(UniqueFd socket) {
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

}  // namespace ferry
