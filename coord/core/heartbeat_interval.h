// SPDX-License-Identifier: Apache-2.0
// HeartbeatInterval: learns the interval of a task's heartbeats, and thus its client's heartbeat
// timeout.
#ifndef FERRY_COORD_CORE_HEARTBEAT_INTERVAL_H_
#define FERRY_COORD_CORE_HEARTBEAT_INTERVAL_H_

#include <array>
#include <cstddef>

#include "absl/time/time.h"

namespace ferry::coord {

// Clients of JAX and TensorFlow do not transmit their heartbeat timeout, but send heartbeats at a
// fixed fraction of it. A client sends a heartbeat an interval after the last one was answered, so
// the gap between two is never shorter than the interval, unless the call was repeated, which
// takes milliseconds; it may be longer when the network or the coordinator was slow. The longest
// of the last few gaps is used, so that one delay affects only as many heartbeats.
// Source: StartSendingHeartbeats in XLA's coordination_service_agent.cc, of which versions of 2024
// send the first heartbeat at once after registering and those of 2026 an interval later.
class HeartbeatInterval final {
 public:
  // Shorter gaps are repeated calls.
  static constexpr absl::Duration kShortestGap = absl::Milliseconds(100);

  // For a client that uses the coordinator's timeout: nothing to learn.
  HeartbeatInterval() = default;
  // For a client that registers now and sends `beats_per_timeout` heartbeats per timeout.
  HeartbeatInterval(int beats_per_timeout, absl::Time now)
      : beats_per_timeout_(beats_per_timeout), last_(now) {}

  void Beat(absl::Time now);

  // Zero while unknown.
  absl::Duration interval() const;
  absl::Duration timeout() const { return TimeoutFor(interval()); }
  // The timeout of a client with this heartbeat interval.
  absl::Duration TimeoutFor(absl::Duration interval) const { return interval * beats_per_timeout_; }
  bool is_learned() const { return beats_per_timeout_ > 0 && gaps_seen_ > 0; }
  // A single gap may be too short, as when a client is slow with its first heartbeat.
  bool is_certain() const { return beats_per_timeout_ > 0 && gaps_seen_ > 1; }

 private:
  static constexpr size_t kGaps = 3;

  int beats_per_timeout_ = 0;
  absl::Time last_ = absl::InfinitePast();
  std::array<absl::Duration, kGaps> gaps_ = {};
  size_t gaps_seen_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_HEARTBEAT_INTERVAL_H_
