// SPDX-License-Identifier: Apache-2.0
// ConnectionManager::IncomingAttempts: limits how many connections of a listener are
// unauthenticated at a time.
#ifndef FERRY_TRANSPORT_CONTROL_INCOMING_ATTEMPTS_H_
#define FERRY_TRANSPORT_CONTROL_INCOMING_ATTEMPTS_H_

#include <deque>
#include <memory>
#include <utility>

#include "absl/time/time.h"

#include "net/listener.h"
#include "transport/control/connect_attempt.h"

namespace ferry {

// Creates an Attempt for each connection that its listener accepts. Their number is limited: others
// wait in the kernel's backlog, and slow ones are evicted to make room. Called by the loop.
class ConnectionManager::IncomingAttempts final
    : public std::enable_shared_from_this<IncomingAttempts> {
 public:
  IncomingAttempts(std::shared_ptr<Shared> shared, std::unique_ptr<Listener> listener, bool is_unix)
      : shared_(std::move(shared)), listener_(std::move(listener)), is_unix_(is_unix) {}

  // Called once.
  absl::Status Start();
  // Any thread.
  void Stop() { listener_->Close(); }

 private:
  // A connection that has not been authenticated yet.
  struct Unauthenticated {
    absl::Time since;
    std::weak_ptr<Attempt> attempt;
  };

  bool HasRoom();
  void Accept(UniqueFd socket);
  // One timer serves all, so that a hundred thousand short connections leave none behind.
  void AwaitTimeout();
  void DropOverdueAttempts();

  const std::shared_ptr<Shared> shared_;
  const std::unique_ptr<Listener> listener_;
  const bool is_unix_;
  // Oldest first.
  std::deque<Unauthenticated> unauthenticated_;
  bool awaits_timeout_ = false;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_INCOMING_ATTEMPTS_H_
