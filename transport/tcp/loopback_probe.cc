// SPDX-License-Identifier: Apache-2.0
// Measures a connection of the process with itself.
#include "transport/tcp/loopback_probe.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace ferry {
namespace {

// On a slower machine the first transfers give the measurement.
constexpr absl::Duration kTimeout = absl::Milliseconds(50);
constexpr size_t kBytes = size_t{1} << 20;
// Fits into a socket's buffers at once.
constexpr size_t kPieceBytes = size_t{64} << 10;
constexpr int kMessages = 8;

absl::Status Failed(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, " over loopback: ", std::strerror(errno)));
}

struct Connection {
  UniqueFd from;
  UniqueFd to;
};

absl::StatusOr<Connection> Connect() {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (!listener.valid() || bind(listener.get(), raw, length) != 0 ||
      listen(listener.get(), 1) != 0 || getsockname(listener.get(), raw, &length) != 0) {
    return Failed("listening");
  }
  Connection connection;
  connection.from = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!connection.from.valid() || connect(connection.from.get(), raw, length) != 0) {
    return Failed("connecting");
  }
  connection.to = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!connection.to.valid()) return Failed("accepting");
  const int on = 1;
  setsockopt(connection.from.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return connection;
}

// Sends `bytes` through the connection and receives them again; never waits beyond `deadline`.
absl::Status Carry(const Connection& connection, std::vector<char>& bytes, size_t count,
                   absl::Time deadline) {
  size_t sent = 0;
  size_t received = 0;
  while (received < count) {
    if (SteadyClock().Now() > deadline) return absl::UnavailableError("loopback is slow");
    if (sent < count) {
      const ssize_t more =
          send(connection.from.get(), bytes.data(), count - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (more < 0 && errno != EAGAIN && errno != EINTR) return Failed("sending");
      sent += more > 0 ? static_cast<size_t>(more) : 0;
    }
    const ssize_t more = recv(connection.to.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (more < 0 && errno != EAGAIN && errno != EINTR) return Failed("receiving");
    received += more > 0 ? static_cast<size_t>(more) : 0;
    if (more <= 0 && sent == count) {
      pollfd readable = {.fd = connection.to.get(), .events = POLLIN, .revents = 0};
      poll(&readable, 1, 1);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PathCost> MeasureLoopback() {
  FERRY_ASSIGN_OR_RETURN(const Connection connection, Connect());
  std::vector<char> bytes(kPieceBytes, 1);
  const absl::Time deadline = SteadyClock().Now() + kTimeout;
  PathCost cost = {absl::InfiniteDuration(), 0};
  cost.latency_basis = cost.bandwidth_basis = CostBasis::kAtStart;
  for (int i = 0; i < kMessages; ++i) {
    const absl::Time start = SteadyClock().Now();
    FERRY_RETURN_IF_ERROR(Carry(connection, bytes, 1, deadline));
    cost.latency = std::min(cost.latency, SteadyClock().Now() - start);
  }
  double best_seconds = 1;
  for (size_t carried = 0; carried < kBytes; carried += kPieceBytes) {
    const absl::Time start = SteadyClock().Now();
    FERRY_RETURN_IF_ERROR(Carry(connection, bytes, kPieceBytes, deadline));
    best_seconds = std::min(best_seconds, absl::ToDoubleSeconds(SteadyClock().Now() - start));
  }
  cost.bytes_per_second = static_cast<double>(kPieceBytes) / std::max(best_seconds, 1e-6);
  return cost;
}

}  // namespace ferry
