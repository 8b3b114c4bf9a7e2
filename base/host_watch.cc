// SPDX-License-Identifier: Apache-2.0
// TCP_INFO and socket options, and their interpretation.
#include "base/host_watch.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/text.h"

// Since Linux 6.15, newer than the headers. Older kernels reject it and keep their 120 s between
// probes of a window that has been closed for long.
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

namespace ferry {
namespace {

constexpr int kProbes = 3;
// A single lost packet is not significant.
constexpr uint32_t kMostUnanswered = 3;
constexpr int kAttempts = 5;
// The kernel's clock for acknowledgements has ticks of up to 10 ms.
constexpr absl::Duration kTick = absl::Milliseconds(20);

void SetOption(int socket, int level, int name, int value) {
  setsockopt(socket, level, name, &value, sizeof(value));
}

int WholeSeconds(absl::Duration duration) {
  return static_cast<int>(std::max<int64_t>(1, absl::ToInt64Seconds(duration)));
}

}  // namespace

std::string DescribeObstacle(const TcpState& state) {
  if (!state.is_outstanding) return "";
  // A shorter silence may be a lost packet, or the time between two packets.
  if (state.unanswered >= 2) {
    return absl::StrCat("its host has acknowledged nothing for ",
                        ShortDuration(state.since_answer));
  }
  if (!state.is_window_closed) return "";
  return "its host answers, but its process is not reading; it may be stopped or busy";
}

std::optional<TcpState> ReadTcpState(int socket) {
  tcp_info info = {};
  socklen_t bytes = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return std::nullopt;
  int outstanding = 0;
  if (ioctl(socket, SIOCOUTQ, &outstanding) != 0) return std::nullopt;
  TcpState state;
  state.is_outstanding = outstanding > 0;
  // Everything in flight was acknowledged; the rest has not been sent.
  state.is_window_closed = state.is_outstanding && info.tcpi_unacked == 0;
  state.since_answer = absl::Milliseconds(info.tcpi_last_ack_recv);
  state.resent = info.tcpi_total_retrans;
  state.unanswered = uint32_t{info.tcpi_retransmits} + info.tcpi_probes;
  return state;
}

void PrepareHostWatch(int socket, absl::Duration idle, absl::Duration timeout) {
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, WholeSeconds(idle));
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, WholeSeconds(timeout / kProbes));
  SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  // Accepted connections inherit it from the listening socket.
  SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
  const int64_t apart_ms = absl::ToInt64Milliseconds((idle + timeout) / kAttempts);
  // The kernel accepts 1 s to 120 s only.
  SetOption(socket, IPPROTO_TCP, TCP_RTO_MAX_MS,
            static_cast<int>(std::clamp<int64_t>(apart_ms, 1000, 120'000)));
}

absl::Status HostWatch::Look(const TcpState& state, absl::Time now) {
  if (!state.is_outstanding) {
    waits_since_ = absl::InfiniteFuture();
    return absl::OkStatus();
  }
  const absl::Time answered = now - state.since_answer;
  const bool is_first = !is_waiting();
  if (is_first) waits_since_ = now;
  if (is_first || answered > answered_ + kTick) {
    answered_ = answered;
    resent_before_ = state.resent;
  }
  const absl::Duration silent = now - std::max(waits_since_, answered);
  const uint32_t attempts = std::max(state.unanswered, state.resent - resent_before_);
  if (silent < limit_ || attempts < kMostUnanswered) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("its host has acknowledged nothing for ", ShortDuration(silent), ", ", attempts,
                   " attempts long: it has gone down, or the network between does not carry "
                   "packets any more (the host of a process that is only stopped would answer)"));
}

}  // namespace ferry
