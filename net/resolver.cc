// SPDX-License-Identifier: Apache-2.0
// getaddrinfo.
#include "net/resolver.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace ferry {

absl::StatusOr<HostPort> SplitHostPort(absl::string_view address) {
  HostPort parts;
  const size_t colon = address.rfind(':');
  // The resolver would take a port beyond the range modulo 65536.
  if (colon == absl::string_view::npos ||
      !absl::SimpleAtoi(address.substr(colon + 1), &parts.port) || parts.port < 0 ||
      parts.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(address), " is not HOST:PORT with a port up to 65535"));
  }
  absl::string_view host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ':')) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(address), " is not HOST:PORT; an IPv6 address is written in brackets: ",
                     Quoted(absl::StrCat("[", host, "]:", parts.port))));
  }
  parts.host = std::string(host);
  return parts;
}

absl::StatusOr<std::vector<SocketAddress>> ResolveHost(const HostPort& parts,
                                                       ResolveOptions options) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = (options.is_passive ? AI_PASSIVE : 0) | (options.may_ask ? 0 : AI_NUMERICHOST);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(parts.host.empty() ? nullptr : parts.host.c_str(),
                                absl::StrCat(parts.port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    SocketAddress& one = addresses.emplace_back();
    one.bytes = std::min<socklen_t>(each->ai_addrlen, sizeof(one.storage));
    std::memcpy(&one.storage, each->ai_addr, one.bytes);
  }
  return addresses;
}

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
  // gRPC writes "ipv6:::1:8476" without brackets too.
  absl::StatusOr<HostPort> parts = SplitHostPort(rest);
  const size_t colon = rest.rfind(':');
  if (in6_addr v6; !parts.ok() && colon != absl::string_view::npos &&
                   inet_pton(AF_INET6, std::string(rest.substr(0, colon)).c_str(), &v6) == 1) {
    parts = SplitHostPort(absl::StrCat("[", rest.substr(0, colon), "]", rest.substr(colon)));
  }
  FERRY_RETURN_IF_ERROR(parts.status());
  if (parts->host.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(address), " is not HOST:PORT"));
  }
  auto addresses = ResolveHost(*parts, {.may_ask = may_ask});
  if (addresses.ok()) return addresses;
  return absl::UnavailableError(absl::StrCat(
      "host ", Quoted(parts->host), " cannot be resolved: ", addresses.status().message()));
}

}  // namespace ferry
