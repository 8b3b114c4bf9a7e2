// SPDX-License-Identifier: Apache-2.0
// socket, bind, connect and their options.
#include "net/sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/address_family.h"
#include "base/file_limit.h"
#include "base/host_watch.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "net/resolver.h"

namespace ferry {
namespace {

constexpr int kBacklog = 4096;  // a whole job may connect at once; the kernel may allow less
constexpr absl::Duration kSilenceBeforeProbes = absl::Seconds(4);
// 0.2 ms at 5 GB/s. The kernel doubles it for its own bookkeeping.
constexpr int kSendBufferWithinHost = 512 * 1024;

absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& address) {
  FERRY_ASSIGN_OR_RETURN(const HostPort parts, SplitHostPort(address));
  auto addresses = ResolveHost(parts);
  if (addresses.ok()) return addresses;
  return absl::UnavailableError(absl::StrCat(address, ": ", addresses.status().message()));
}

absl::Status OsError(absl::string_view what, int error) {
  const std::string message = absl::StrCat(what, ": ", ErrorWithFileLimit(error));
  if (error == EMFILE || error == ENFILE) return absl::ResourceExhaustedError(message);
  return absl::UnavailableError(message);
}

std::string Numeric(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(address, length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  return address->sa_family == AF_INET6 ? absl::StrCat("[", host, "]:", port)
                                        : absl::StrCat(host, ":", port);
}

absl::StatusOr<sockaddr_un> UnixAddress(absl::string_view name, socklen_t& length) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() > sizeof(address.sun_path) - 1) {
    return absl::InvalidArgumentError("no name for a Unix socket");
  }
  // The leading zero byte selects the abstract namespace.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// Returns the address without its port; empty for Unix sockets.
absl::string_view HostBytes(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) {
    const in6_addr& host = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    return {reinterpret_cast<const char*>(&host), sizeof(host)};
  }
  if (address.ss_family != AF_INET) return {};
  const in_addr& host = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  return {reinterpret_cast<const char*>(&host), sizeof(host)};
}

void SetOption(int socket, int level, int name, int value) {
  setsockopt(socket, level, name, &value, sizeof(value));
}

// The port must be free in both families; another process may use it in one of them.
constexpr int kFreePortTries = 16;

absl::Status BindError(const std::string& address, int port, int error) {
  const std::string where = absl::StrCat("cannot listen on ", address, ": ");
  switch (error) {
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(absl::StrCat(where, ErrorWithFileLimit(error)));
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

// An IPv4 address in IPv6 form, on which only a socket of both families can listen.
bool IsMapped(const SocketAddress& address) {
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  return IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) != 0;
}

// Returns an invalid descriptor, with errno set, if the address cannot be bound.
UniqueFd Listen(const SocketAddress& address, bool is_v6_only) {
  UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fd;
  // Connections of a previous incarnation may still be closing; two listeners at once remain an
  // error. Accepted connections inherit these options.
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  SetOption(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (address.family() == AF_INET6) {
    SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, is_v6_only && !IsMapped(address) ? 1 : 0);
  }
  if (bind(fd.get(), address.get(), address.bytes) != 0 || listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    fd.Reset();
    errno = error;
  }
  return fd;
}

// Binds all of them to `port`, or to the one that the first is given if it is 0. Returns the last
// error; `sockets` is empty if none could be bound, or one is in use.
int BindAll(const std::vector<SocketAddress>& addresses, bool is_v6_only, int& port,
            std::vector<ListeningSocket>& sockets) {
  int error = EADDRNOTAVAIL;
  for (const SocketAddress& each : addresses) {
    UniqueFd fd = Listen(WithPort(each, port), is_v6_only);
    if (!fd.valid()) {
      // A host without IPv6 may still resolve to an IPv6 address.
      error = errno;
      if (error != EADDRINUSE) continue;
      sockets.clear();
      return error;
    }
    port = PortOf(fd.get());
    sockets.push_back({std::move(fd), port});
  }
  return error;
}

}  // namespace

absl::StatusOr<std::vector<ListeningSocket>> ListenTcpOnAll(const std::string& address) {
  return ListenTcpOnAll(
      address, [](const HostPort& parts) { return ResolveHost(parts, {.is_passive = true}); });
}

absl::StatusOr<std::vector<ListeningSocket>> ListenTcpOnAll(const std::string& address,
                                                            ResolveFunction resolve) {
  FERRY_ASSIGN_OR_RETURN(HostPort parts, SplitHostPort(address));
  // One dual-stack socket, or IPv4 where the kernel has no IPv6.
  if (parts.host.empty()) parts.host = HasAddressFamily(AF_INET6) ? "::" : "0.0.0.0";
  const auto addresses = resolve(parts);
  if (!addresses.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": host ",
                                               Quoted(parts.host), " cannot be resolved (",
                                               addresses.status().message(), ")"));
  }
  std::vector<ListeningSocket> sockets;
  const int tries = parts.port == 0 ? kFreePortTries : 1;
  int error = EADDRNOTAVAIL;
  int port = parts.port;
  for (int i = 0; i < tries && sockets.empty(); ++i) {
    port = parts.port;
    error = BindAll(*addresses, /*is_v6_only=*/parts.host != "::", port, sockets);
  }
  if (sockets.empty()) return BindError(address, port, error);
  return sockets;
}

absl::StatusOr<ListeningSocket> ListenTcp(const std::string& address) {
  FERRY_ASSIGN_OR_RETURN(std::vector<ListeningSocket> sockets, ListenTcpOnAll(address));
  return std::move(sockets.front());
}

absl::StatusOr<ListeningSocket> ListenUnix(absl::string_view name) {
  socklen_t length = 0;
  FERRY_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(name, length));
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return OsError("cannot listen on a Unix socket", errno);
  }
  return ListeningSocket{std::move(fd), 0};
}

absl::StatusOr<ListeningSocket> AdoptListening(UniqueFd socket) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", socket.get(), " is not a listening socket"));
  }
  const int port = PortOf(socket.get());
  return ListeningSocket{std::move(socket), port};
}

absl::StatusOr<UniqueFd> BeginConnectTcp(const std::string& address) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<SocketAddress> list, Resolve(address));
  absl::Status status = absl::UnavailableError(absl::StrCat(address, ": no such address"));
  for (const SocketAddress& each : list) {
    UniqueFd fd(socket(each.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) {
      // Such addresses may be given where the kernel has no IPv6.
      status = OsError(absl::StrCat("cannot connect to ", address), errno);
      continue;
    }
    TuneTcp(fd.get());
    if (connect(fd.get(), each.get(), each.bytes) == 0 || errno == EINPROGRESS) return fd;
    status = OsError(absl::StrCat("cannot connect to ", address), errno);
  }
  return status;
}

absl::StatusOr<std::vector<std::string>> ResolveTcp(const std::string& address) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<SocketAddress> list, Resolve(address));
  std::vector<std::string> addresses;
  for (const SocketAddress& each : list) {
    addresses.push_back(Numeric(each.get(), each.bytes));
  }
  return addresses;
}

absl::StatusOr<UniqueFd> BeginConnectUnix(absl::string_view name) {
  socklen_t length = 0;
  FERRY_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(name, length));
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() || connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return OsError("cannot connect to its Unix socket", errno);
  }
  return fd;
}

absl::Status ConnectError(int socket, absl::string_view address) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  return OsError(absl::StrCat("cannot connect to ", address), error);
}

void TuneTcp(int socket) {
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  PrepareHostWatch(socket, kSilenceBeforeProbes, kVanishLimit - kSilenceBeforeProbes);
}

std::string ConnectionErrorText(int error) {
  if (error != ETIMEDOUT) return std::strerror(error);
  return absl::StrCat(std::strerror(error),
                      ": its host does not answer; it has gone down, or the network between does "
                      "not carry packets any more");
}

void TuneTcpSender(int socket) {
  sockaddr_storage here = {};
  sockaddr_storage there = {};
  socklen_t length = sizeof(here);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&here), &length) != 0) return;
  length = sizeof(there);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&there), &length) != 0) return;
  if (!HostBytes(here).empty() && HostBytes(here) == HostBytes(there)) {
    SetOption(socket, SOL_SOCKET, SO_SNDBUF, kSendBufferWithinHost);
  }
}

absl::Status CheckSameUser(int socket, SocketEnd end) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return absl::UnavailableError(
        absl::StrCat("the kernel does not say whose Unix socket it is: ", std::strerror(errno)));
  }
  const uid_t own = geteuid();
  const uid_t client = end == SocketEnd::kClient ? own : peer.uid;
  if (peer.uid == own || client == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("processes of two users cannot share memory: this one runs as uid ", own,
                   " and the one at the other end of the Unix socket as uid ", peer.uid));
}

std::string PeerAddress(int socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "?";
  return Numeric(reinterpret_cast<sockaddr*>(&address), length);
}

}  // namespace ferry
