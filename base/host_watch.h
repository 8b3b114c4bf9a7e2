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
  // Some of what was sent is not acknowledged, or waits for room in the peer's window.
  bool is_outstanding = false;
  // The peer's receive window is closed: its host acknowledges, but its process does not read.
  bool is_window_closed = false;
  // Since the peer's host last acknowledged anything, an empty probe of a closed window included.
  absl::Duration since_answer;
  // Segments that were sent again, since the connection was made.
  uint32_t resent = 0;
  // Timeouts and probes in a row that had no answer.
  uint32_t unanswered = 0;
};

// Describes why the peer is not receiving: its process does not read although its host answers, or
// its host does not answer. Empty if nothing of the kind is visible from here.
std::string DescribeObstacle(const TcpState& state);

// nullopt if `socket` is not a TCP connection.
std::optional<TcpState> ReadTcpState(int socket);

// Prepares a connection for HostWatch: the kernel probes the peer's host while nothing is sent,
// after `idle`, and ends the connection when three probes within `timeout` have no answer. What is
// sent again, and probes of a closed window, come at least five times within both.
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

  // UNAVAILABLE, saying so, once the peer's host counts as vanished: for `limit` nothing was
  // acknowledged that was outstanding all the while, and three attempts in a row had no answer.
  absl::Status Look(const TcpState& state, absl::Time now);

  absl::Duration period() const { return limit_ / kLooks; }
  // True if anything was outstanding at the last Look, so that another one is needed.
  bool is_waiting() const { return waits_since_ != absl::InfiniteFuture(); }

 private:
  absl::Duration limit_;
  // The first look since which something has been outstanding all the time.
  absl::Time waits_since_ = absl::InfiniteFuture();
  absl::Time answered_ = absl::InfinitePast();
  // TcpState::resent at the first look after the last answer.
  uint32_t resent_before_ = 0;
};

}  // namespace ferry

#endif  // FERRY_BASE_HOST_WATCH_H_
