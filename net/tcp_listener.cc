// SPDX-License-Identifier: Apache-2.0
// Binding, listening, accepting.
#include "net/tcp_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/address_family.h"
#include "base/clock.h"
#include "base/file_limit.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ferry::coord {
namespace {

constexpr int kBacklog = 4096;  // a whole job may connect at once; the kernel may allow less
// How long to wait for a free descriptor before the next try.
constexpr int kRetryMs = 100;
constexpr absl::Duration kTroublePeriod = absl::Seconds(10);

// The port must be free in both families; another process may use it in one of them.
constexpr int kFreePortTries = 16;

absl::Status BindError(const std::string& address, int port, int error) {
  const std::string where = absl::StrCat("cannot listen on ", address, ": ");
  switch (error) {
    case EADDRINUSE:
      return absl::UnavailableError(
          absl::StrCat(where, "port ", port, " is in use (`ss -ltnp` says by whom)"));
    case EADDRNOTAVAIL:
      return absl::UnavailableError(absl::StrCat(where, NotOfThisHostHint()));
    case EACCES:
      return absl::UnavailableError(absl::StrCat(where, "this user may not listen on port ", port));
    case EAFNOSUPPORT:
      return absl::UnavailableError(
          absl::StrCat(where, std::strerror(error), "; ", NoIpv6Hint(port)));
    default:
      return absl::UnavailableError(absl::StrCat(where, ErrorWithFileLimit(error)));
  }
}

// REQUIRES: a bound socket.
int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

SocketAddress WithPort(SocketAddress address, int port) {
  const auto number = htons(static_cast<uint16_t>(port));
  if (address.family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in&>(address.storage).sin_port = number;
  }
  return address;
}

// Returns an invalid descriptor, with errno set, if the address cannot be bound.
UniqueFd Listen(const SocketAddress& address, bool is_v6_only) {
  UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fd;
  const int on = 1;
  const int v6_only = is_v6_only ? 1 : 0;
  // Connections of a previous incarnation may still be closing; two listeners at once remain an
  // error. Accepted connections inherit these options.
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (address.family() == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof(v6_only));
  }
  if (bind(fd.get(), address.get(), address.bytes) != 0 || listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    fd.Reset();
    errno = error;
  }
  return fd;
}

bool IsOutOfResources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpListener>> TcpListener::Open(const std::string& address) {
  return Open(address,
              [](const HostPort& parts) { return ResolveHost(parts, {.is_passive = true}); });
}

absl::StatusOr<std::unique_ptr<TcpListener>> TcpListener::Open(const std::string& address,
                                                               Resolve resolve) {
  FERRY_ASSIGN_OR_RETURN(HostPort parts, SplitHostPort(address));
  // All addresses of the available families: one dual-stack socket, or IPv4 where the kernel has
  // no IPv6.
  const bool is_any = parts.host.empty();
  if (is_any) parts.host = HasAddressFamily(AF_INET6) ? "::" : "0.0.0.0";
  const std::string& host = parts.host;
  const auto addresses = resolve(parts);
  if (!addresses.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": host ",
                                               Quoted(host), " cannot be resolved (",
                                               addresses.status().message(), ")"));
  }
  auto listener = std::unique_ptr<TcpListener>(new TcpListener());
  const int tries = parts.port == 0 ? kFreePortTries : 1;
  int error = EADDRNOTAVAIL;
  for (int i = 0; i < tries && listener->listeners_.empty(); ++i) {
    listener->port_ = parts.port;
    error = listener->BindAll(*addresses, /*is_v6_only=*/host != "::");
  }
  if (listener->listeners_.empty()) return BindError(address, listener->port_, error);
  listener->address_ =
      absl::StrCat(is_any ? (host == "::" ? "[::]" : host) : address.substr(0, address.rfind(':')),
                   ":", listener->port_);
  listener->stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener->stop_.valid()) {
    return absl::UnavailableError(absl::StrCat("eventfd: ", ErrorWithFileLimit(errno)));
  }
  return listener;
}

int TcpListener::BindAll(const std::vector<SocketAddress>& addresses, bool is_v6_only) {
  int error = EADDRNOTAVAIL;
  for (const SocketAddress& each : addresses) {
    // All of them use the port that the first one was given.
    UniqueFd fd = Listen(WithPort(each, port_), is_v6_only);
    if (!fd.valid()) {
      // A host without IPv6 may still resolve to an IPv6 address.
      error = errno;
      if (error != EADDRINUSE) continue;
      listeners_.clear();
      return error;
    }
    port_ = PortOf(fd.get());
    listeners_.push_back(std::move(fd));
  }
  return error;
}

std::string TcpListener::AddressFor(const std::string& coordinator) {
  const size_t colon = coordinator.rfind(':');
  const std::string port = coordinator.substr(colon + 1);
  std::string host = coordinator.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  host = absl::AsciiStrToLower(host);
  in_addr v4 = {};
  in6_addr v6 = {};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    const bool is_loopback = ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
    return is_loopback ? absl::StrCat(host, ":", port) : absl::StrCat(":", port);
  }
  if (inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &v6) == 1) {
    const bool is_mapped_loopback =
        IN6_IS_ADDR_V4MAPPED(&v6) != 0 && v6.s6_addr[12] == IN_LOOPBACKNET;
    if (is_mapped_loopback) return absl::StrCat("127.0.0.1:", port);
    if (IN6_IS_ADDR_V4MAPPED(&v6) != 0) return absl::StrCat(":", port);
    return absl::StrCat(IN6_IS_ADDR_LOOPBACK(&v6) ? "[::1]:" : "[::]:", port);
  }
  // Names that mean loopback on every host. Another name may resolve to loopback on its own host
  // only: Debian maps a machine's own name to 127.0.1.1.
  for (const absl::string_view name : {"localhost", "localhost.localdomain", "localhost4",
                                       "localhost6", "ip6-localhost", "ip6-loopback"}) {
    if (host == name) return absl::StrCat(host, ":", port);
  }
  if (absl::EndsWith(host, ".localhost")) return absl::StrCat(host, ":", port);
  return absl::StrCat(":", port);
}

TcpListener::~TcpListener() { Close(); }

void TcpListener::Start(ConnectionCallback on_connection, TroubleCallback on_trouble) {
  on_connection_ = std::move(on_connection);
  on_trouble_ = std::move(on_trouble);
  thread_ = std::make_unique<Thread>("ferry-accept", [this] { Accept(); });
}

void TcpListener::Close() {
  if (thread_ != nullptr) {
    const uint64_t one = 1;
    // Cannot fail: the counter is far from its maximum.
    (void)!write(stop_.get(), &one, sizeof(one));
    thread_ = nullptr;
  }
  listeners_.clear();
}

bool TcpListener::WaitForConnection(std::vector<bool>& is_ready) {
  std::vector<pollfd> polled;
  polled.push_back({stop_.get(), POLLIN, 0});
  for (const UniqueFd& listener : listeners_) polled.push_back({listener.get(), POLLIN, 0});
  while (poll(polled.data(), polled.size(), /*timeout=*/-1) < 0 && errno == EINTR) {
  }
  for (size_t i = 0; i < listeners_.size(); ++i) is_ready[i] = polled[i + 1].revents != 0;
  return polled[0].revents == 0;
}

void TcpListener::Accept() {
  std::vector<bool> is_ready(listeners_.size());
  absl::Time told = absl::InfinitePast();
  while (WaitForConnection(is_ready)) {
    errno = 0;
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (is_ready[i]) AcceptAll(listeners_[i].get());
      if (IsOutOfResources(errno)) break;
    }
    const int error = errno;
    if (!IsOutOfResources(error)) continue;
    // Connections wait in the backlog; without a pause this would be a busy loop.
    if (const absl::Time now = SteadyClock().Now(); now - told >= kTroublePeriod) {
      told = now;
      on_trouble_(absl::StrCat("cannot accept connections for now: ", ErrorWithFileLimit(error)));
    }
    pollfd stop = {stop_.get(), POLLIN, 0};
    poll(&stop, 1, kRetryMs);
  }
}

void TcpListener::AcceptAll(int listener) {
  // Bounded, so that stop_ is checked as well.
  for (int i = 0; i < 1024; ++i) {
    UniqueFd connection(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (connection.valid()) {
      on_connection_(std::move(connection));
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;  // No connection or no descriptor is left.
    }
  }
  errno = 0;
}

}  // namespace ferry::coord
