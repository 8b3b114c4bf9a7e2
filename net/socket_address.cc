// SPDX-License-Identifier: Apache-2.0
// getaddrinfo, connect and socket options.
#include "net/socket_address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/host_watch.h"
#include "base/text.h"

namespace ferry::coord {
namespace {

// SYN is retransmitted after 1, 2, 4 and 8 seconds, and the attempt fails after 31: if thousands
// of ranks connected at once and failed early, their retries would only delay each other.
constexpr int kConnectRetries = 4;

struct HostPort {
  std::string host;
  int port = 0;
};

HostPort Parts(const SocketAddress& address) {
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

bool IsV6(const HostPort& parts) { return parts.host.find(':') != std::string::npos; }

}  // namespace

absl::StatusOr<std::vector<SocketAddress>> ResolveAddress(const std::string& address,
                                                          bool may_ask) {
  absl::string_view rest = address;
  for (const absl::string_view scheme : {"ipv4:", "ipv6:", "dns:///", "dns:"}) {
    // "dns:8476" is a host called "dns".
    if (absl::StartsWith(rest, scheme) && absl::StrContains(rest.substr(scheme.size()), ':')) {
      rest.remove_prefix(scheme.size());
      break;
    }
  }
  const size_t colon = rest.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(rest.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(address), " is not HOST:PORT"));
  }
  std::string host(rest.substr(0, colon));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (in6_addr v6; host.find(':') != std::string::npos &&
                          inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &v6) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(address), " is not HOST:PORT; an IPv6 address stands in brackets: [::1]:8476"));
  }
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  if (!may_ask) hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("host ", Quoted(host), " cannot be resolved: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SocketAddress& one = addresses.emplace_back();
    one.bytes = std::min<socklen_t>(each->ai_addrlen, sizeof(one.storage));
    std::memcpy(&one.storage, each->ai_addr, one.bytes);
  }
  return addresses;
}

std::string ShowAddress(const SocketAddress& address) {
  const HostPort parts = Parts(address);
  return IsV6(parts) ? absl::StrCat("[", parts.host, ScopeText(address), "]:", parts.port)
                     : absl::StrCat(parts.host, ":", parts.port);
}

std::string PeerName(int socket) {
  SocketAddress address;
  address.bytes = sizeof(address.storage);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) {
    return "unknown";
  }
  const HostPort parts = Parts(address);
  return IsV6(parts) ? absl::StrCat("ipv6:%5B", parts.host, "%5D:", parts.port)
                     : absl::StrCat("ipv4:", parts.host, ":", parts.port);
}

UniqueFd BeginConnect(const SocketAddress& address) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fd;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_SYNCNT, &kConnectRetries, sizeof(kConnectRetries));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0 &&
      errno != EINPROGRESS) {
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

}  // namespace ferry::coord
