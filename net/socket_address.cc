// SPDX-License-Identifier: Apache-2.0
// Connecting and socket options.
#include "net/socket_address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

#include "base/host_watch.h"

namespace ferry {
namespace {

// SYN is retransmitted after 1, 2, 4 and 8 seconds, and the attempt fails after 31: if thousands
// of ranks connected at once and failed early, their retries would only delay each other.
constexpr int kConnectRetries = 4;

struct NumericParts {
  std::string host;
  int port = 0;
};

NumericParts Parts(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return {text, ntohs(v4.sin_port)};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  if (address.storage.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return {text, ntohs(v6.sin6_port)};
  }
  if (address.storage.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  }
  return {text, ntohs(v6.sin6_port)};
}

// "%eth0", "%3" for an interface without a name here, or "".
std::string ScopeText(const SocketAddress& address) {
  if (address.storage.ss_family != AF_INET6) return "";
  const uint32_t scope = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_scope_id;
  if (scope == 0) return "";
  char name[IF_NAMESIZE] = "";
  return if_indextoname(scope, name) != nullptr ? absl::StrCat("%", name)
                                                : absl::StrCat("%", scope);
}

bool IsV6(const NumericParts& parts) { return parts.host.find(':') != std::string::npos; }

}  // namespace

std::string ShowAddress(const SocketAddress& address) {
  const NumericParts parts = Parts(address);
  return IsV6(parts) ? absl::StrCat("[", parts.host, ScopeText(address), "]:", parts.port)
                     : absl::StrCat(parts.host, ":", parts.port);
}

SocketAddress LocalAddress(int socket) {
  SocketAddress address;
  address.bytes = sizeof(address.storage);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) {
    address.bytes = 0;
  }
  return address;
}

std::string PeerName(int socket) {
  SocketAddress address;
  address.bytes = sizeof(address.storage);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) {
    return "unknown";
  }
  const NumericParts parts = Parts(address);
  return IsV6(parts) ? absl::StrCat("ipv6:%5B", parts.host, "%5D:", parts.port)
                     : absl::StrCat("ipv4:", parts.host, ":", parts.port);
}

UniqueFd BeginConnect(const SocketAddress& address) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fd;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_SYNCNT, &kConnectRetries, sizeof(kConnectRetries));
  if (connect(fd.get(), address.get(), address.bytes) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    fd.Reset();
    errno = error;
  }
  return fd;
}

void TuneConnection(int socket, absl::Duration idle, absl::Duration timeout) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  PrepareHostWatch(socket, idle, timeout);
}

}  // namespace ferry
