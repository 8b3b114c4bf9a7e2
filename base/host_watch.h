// SPDX-License-Identifier: Apache-2.0
// HostWatch: distinguishes an unreachable host from a peer that does not read for a while.
#ifndef FERRY_BASE_HOST_WATCH_H_
#define FERRY_BASE_HOST_WATCH_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ferry {

// The kernel's view of one TCP connection (TCP_INFO).
struct TcpState {
  // Sent data is unacknowledged, or waits for room in the peer's window.
  bool is_outstanding = false;
  // The peer's receive window is closed: its host acknowledges, but its process does not read.
  bool is_window_closed = false;
  // Time since the peer's host last acknowledged anything, including an empty probe of a closed
  // window.
  absl::Duration since_answer;
  // Segments retransmitted since the connection was established.
  uint32_t resent = 0;
  // Consecutive timeouts and probes without an answer.
  uint32_t unanswered = 0;
};

// Describes why the peer is not receiving: its process does not read although its host answers, or
// its host does not answer. Empty if neither is visible from here.
std::string DescribeObstacle(const TcpState& state);

// Returns nullopt if `socket` is not a TCP connection.
std::optional<TcpState> ReadTcpState(int socket);

// Prepares a connection for HostWatch: while nothing is sent, the kernel probes the peer's host
// after `idle` and ends the connection when three probes within `timeout` have no answer.
// Retransmissions, and probes of a closed window, occur at least five times within both times
// together.
//
// TCP_USER_TIMEOUT is off. With it the kernel ends a connection whose window stays closed for that
// long although the peer's host answers every probe, that is when its process is only stopped or
// busy. Source: tcp(7); Linux, net/ipv4/tcp_timer.c, tcp_probe_timer.
void PrepareHostWatch(int socket, absl::Duration idle, absl::Duration timeout);

// Decides from periodic samples of TCP_INFO. This covers the time while data is outstanding, during
// which the kernel sends no keepalive probes. Not thread-safe.
class HostWatch final {
 public:
  // The number of samples within the limit.
  static constexpr int kLooks = 10;

  // `limit`: how long a reachable host may leave everything unacknowledged.
  explicit HostWatch(absl::Duration limit) : limit_(limit) {}

  // Returns UNAVAILABLE with an explanation once the peer's host counts as vanished: for `limit`,
  // continuously outstanding data was not acknowledged, and three consecutive attempts had no
  // answer.
  absl::Status Look(const TcpState& state, absl::Time now);

  absl::Duration period() const { return limit_ / kLooks; }
  // True if data was outstanding at the last Look, so that another one is needed.
  bool is_waiting() const { return waits_since_ != absl::InfiniteFuture(); }

 private:
  absl::Duration limit_;
  // The first look since which data has been outstanding continuously.
  absl::Time waits_since_ = absl::InfiniteFuture();
  absl::Time answered_ = absl::InfinitePast();
  // TcpState::resent at the first look after the last answer.
  uint32_t resent_before_ = 0;
};

}  // namespace ferry

#endif  // FERRY_BASE_HOST_WATCH_H_
