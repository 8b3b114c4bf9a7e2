// SPDX-License-Identifier: Apache-2.0
// Makes attempts out of accepted connections, and ends those that take too long.
#include "transport/control/incoming_attempts.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "net/sockets.h"

namespace ferry {
namespace {

// Each unauthenticated connection that sends nothing holds a descriptor until the handshake
// timeout.
constexpr size_t kMaxUnauthenticated = 256;
// Age from which one is evicted when the limit is reached: a handshake takes milliseconds, so it is
// malicious or hung.
constexpr absl::Duration kEnough = absl::Seconds(1);

}  // namespace

absl::Status ConnectionManager::IncomingAttempts::Start() {
  // The loop keeps the callbacks for a while after Stop.
  const std::weak_ptr<IncomingAttempts> weak = weak_from_this();
  return listener_->Start(
      shared_->loop,
      {.on_connection =
           [weak](UniqueFd socket) {
             if (const auto self = weak.lock()) self->Accept(std::move(socket));
           },
       .has_room =
           [weak] {
             const auto self = weak.lock();
             return self == nullptr || self->HasRoom();
           },
       .out_of_descriptors = AuthHandshake::OutOfDescriptors(shared_->options.handshake)});
}

bool ConnectionManager::IncomingAttempts::HasRoom() {
  if (unauthenticated_.size() < kMaxUnauthenticated) return true;
  std::erase_if(unauthenticated_, [](const Unauthenticated& each) {
    const auto attempt = each.attempt.lock();
    return attempt == nullptr || attempt->is_over();
  });
  if (unauthenticated_.size() < kMaxUnauthenticated) return true;
  if (SteadyClock().Now() - unauthenticated_.front().since < kEnough) return false;
  const auto oldest = unauthenticated_.front().attempt.lock();
  unauthenticated_.pop_front();
  shared_->NoteRefusal(
      absl::StrCat(kMaxUnauthenticated, " connections were not authenticated yet, the limit"));
  oldest->Cancel(absl::ResourceExhaustedError("dropped for a newer connection"));
  return true;
}

void ConnectionManager::IncomingAttempts::AwaitTimeout() {
  if (unauthenticated_.empty() || std::exchange(awaits_timeout_, true)) return;
  shared_->loop.PostAt(unauthenticated_.front().since + shared_->options.handshake_timeout,
                       [weak = weak_from_this()] {
                         if (const auto self = weak.lock()) self->DropOverdueAttempts();
                       });
}

void ConnectionManager::IncomingAttempts::DropOverdueAttempts() {
  awaits_timeout_ = false;
  const absl::Time limit = SteadyClock().Now() - shared_->options.handshake_timeout;
  while (!unauthenticated_.empty()) {
    const auto attempt = unauthenticated_.front().attempt.lock();
    const bool is_over = attempt == nullptr || attempt->is_over();
    if (!is_over && unauthenticated_.front().since > limit) break;
    unauthenticated_.pop_front();
    if (!is_over) attempt->Cancel(absl::DeadlineExceededError("has not said who it is"));
  }
  AwaitTimeout();
}

void ConnectionManager::IncomingAttempts::Accept(UniqueFd socket) {
  if (is_unix_) {
    // The client fails the same check, and uses another transport.
    if (const absl::Status same = CheckSameUser(socket.get(), SocketEnd::kServer); !same.ok()) {
      shared_->NoteRefusal(std::string(same.message()));
      return;
    }
  }
  auto attempt = std::make_shared<Attempt>(
      shared_, AuthHandshake::Server(shared_->options.handshake), false, is_unix_);
  {
    absl::MutexLock lock(&shared_->mu);
    if (shared_->is_closed) return;
    shared_->attempts.insert(attempt);
  }
  unauthenticated_.push_back({SteadyClock().Now(), attempt});
  AwaitTimeout();
  attempt->StartServer(std::move(socket));
}

}  // namespace ferry
