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
#include "net/resolver.h"

namespace ferry {
namespace {

constexpr int kBacklog = 512;
constexpr absl::Duration kSilenceBeforeProbes = absl::Seconds(4);
// 0.2 ms at 5 GB/s. The kernel doubles it for its own bookkeeping.
constexpr int kSendBufferWithinHost = 512 * 1024;

absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& address, bool is_passive) {
  FERRY_ASSIGN_OR_RETURN(const HostPort parts, SplitHostPort(address));
  auto addresses = ResolveHost(parts, {.is_passive = is_passive});
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

}  // namespace

absl::StatusOr<ListeningSocket> ListenTcp(const std::string& address) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<SocketAddress> list, Resolve(address, true));
  absl::Status status = absl::UnavailableError(absl::StrCat(address, ": no such address"));
  // An IPv6 socket on all addresses also accepts IPv4, and so comes first.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const SocketAddress& each : list) {
      if (each.family() != family) continue;
      UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!fd.valid()) {
        status = OsError(absl::StrCat("cannot listen on ", address), errno);
        if (absl::IsUnavailable(status) && !HasAddressFamily(family)) {
          const auto& asked = reinterpret_cast<const sockaddr_in6&>(*each.get());
          status = absl::UnavailableError(
              absl::StrCat(status.message(), "; ", NoIpv6Hint(ntohs(asked.sin6_port))));
        }
        continue;
      }
      SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
      if (family == AF_INET6) SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
      if (bind(fd.get(), each.get(), each.bytes) != 0 || listen(fd.get(), kBacklog) != 0) {
        const int error = errno;
        status = OsError(absl::StrCat("cannot listen on ", address), error);
        if (error == EADDRNOTAVAIL) {
          status =
              absl::UnavailableError(absl::StrCat(status.message(), ": ", NotOfThisHostHint()));
        }
        continue;
      }
      sockaddr_storage bound = {};
      socklen_t length = sizeof(bound);
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length);
      const int port =
          ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
      return ListeningSocket{std::move(fd), port};
    }
  }
  return status;
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

absl::StatusOr<UniqueFd> BeginConnectTcp(const std::string& address) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<SocketAddress> list, Resolve(address, false));
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
  FERRY_ASSIGN_OR_RETURN(const std::vector<SocketAddress> list, Resolve(address, false));
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
