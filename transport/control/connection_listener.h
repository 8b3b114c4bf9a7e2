// SPDX-License-Identifier: Apache-2.0
// ConnectionManager::Listener: a socket on which peers connect.
#ifndef FERRY_TRANSPORT_CONTROL_CONNECTION_LISTENER_H_
#define FERRY_TRANSPORT_CONTROL_CONNECTION_LISTENER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/time/time.h"

#include "transport/control/connect_attempt.h"

namespace ferry {

// Creates an Attempt for each incoming connection. Their number is limited: others wait in the
// kernel's backlog, and slow ones are evicted to make room. Called by the loop.
class ConnectionManager::Listener final : public LoopSource,
                                          public std::enable_shared_from_this<Listener> {
 public:
  Listener(std::shared_ptr<Shared> shared, UniqueFd socket, bool is_unix)
      : shared_(std::move(shared)), socket_(std::move(socket)), is_unix_(is_unix) {}

  absl::Status Start();
  void Stop() { shared_->loop.Remove(source_, socket_.get()); }

  void OnReady(uint32_t) override;

 private:
  // A connection that has not been authenticated yet.
  struct Stranger {
    absl::Time since;
    std::weak_ptr<Attempt> attempt;
  };

  bool HasRoom();
  void Accept(UniqueFd socket);
  // Tells a waiting client that there are no descriptors; false if that is impossible.
  bool TurnAwayOne();
  void KeepReserve();
  void ComeBackIn(absl::Duration pause);
  // One timer serves all, so that a hundred thousand short connections leave none behind.
  void AwaitTimeout();
  void DropWhoIsLate();

  const std::shared_ptr<Shared> shared_;
  const UniqueFd socket_;
  const bool is_unix_;
  EventLoop::SourceId source_ = 0;
  // Spare descriptor, closed when none are left in order to accept a client and tell it why it is
  // rejected.
  UniqueFd reserve_;
  // Oldest first.
  std::deque<Stranger> strangers_;
  bool comes_back_ = false;
  bool awaits_timeout_ = false;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_CONNECTION_LISTENER_H_
