// SPDX-License-Identifier: Apache-2.0
// ConnectionManager::Listener: a socket to which peers connect.
#ifndef FERRY_TRANSPORT_CONTROL_CONNECTION_LISTENER_H_
#define FERRY_TRANSPORT_CONTROL_CONNECTION_LISTENER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/time/time.h"

#include "transport/control/connect_attempt.h"

namespace ferry {

// Makes an attempt of each connection that comes. So many at a time: others wait in the kernel, and
// whoever has taken long makes way for them. Called by the loop.
class ConnectionManager::Listener final : public LoopSource,
                                          public std::enable_shared_from_this<Listener> {
 public:
  Listener(std::shared_ptr<Shared> shared, UniqueFd socket, bool is_unix)
      : shared_(std::move(shared)), socket_(std::move(socket)), is_unix_(is_unix) {}

  absl::Status Start();
  void Stop() { shared_->loop.Remove(source_, socket_.get()); }

  void OnReady(uint32_t) override;

 private:
  // Of those that have not proved who they are yet.
  struct Stranger {
    absl::Time since;
    std::weak_ptr<Attempt> attempt;
  };

  bool HasRoom();
  void Accept(UniqueFd socket);
  // Who waits is told that there are no descriptors; false: he cannot be.
  bool TurnAwayOne();
  void KeepReserve();
  void ComeBackIn(absl::Duration pause);
  // One timer for all of them: who comes and goes a hundred thousand times leaves none behind.
  void AwaitTimeout();
  void DropWhoIsLate();

  const std::shared_ptr<Shared> shared_;
  const UniqueFd socket_;
  const bool is_unix_;
  EventLoop::SourceId source_ = 0;
  // Open for nothing but to be closed when there are no others: who connects is to know why.
  UniqueFd reserve_;
  // The first who came is the first.
  std::deque<Stranger> strangers_;
  bool comes_back_ = false;
  bool awaits_timeout_ = false;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_CONNECTION_LISTENER_H_
