// SPDX-License-Identifier: Apache-2.0
// LaneHub::Listener: a socket to which peers connect.
#ifndef FERRY_TRANSPORT_LANE_LANE_LISTENER_H_
#define FERRY_TRANSPORT_LANE_LANE_LISTENER_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "transport/lane/lane_attempt.h"

namespace ferry {

// Makes an attempt of each connection that comes. Called by the loop.
class LaneHub::Listener final : public LoopSource, public std::enable_shared_from_this<Listener> {
 public:
  Listener(std::shared_ptr<Shared> shared, UniqueFd socket, bool is_unix)
      : shared_(std::move(shared)), socket_(std::move(socket)), is_unix_(is_unix) {}

  absl::Status Start();
  void Stop() { shared_->loop.Remove(source_, socket_.get()); }

  void OnReady(uint32_t) override;

 private:
  void Accept(UniqueFd socket);

  const std::shared_ptr<Shared> shared_;
  const UniqueFd socket_;
  const bool is_unix_;
  LaneLoop::SourceId source_ = 0;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_LANE_LANE_LISTENER_H_
