// SPDX-License-Identifier: Apache-2.0
// Host names to socket addresses.
#ifndef FERRY_NET_RESOLVER_H_
#define FERRY_NET_RESOLVER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "net/socket_address.h"

namespace ferry {

struct HostPort {
  // Without brackets; empty for ":PORT".
  std::string host;
  int port = 0;
};

// Splits HOST:PORT, [IPV6]:PORT or :PORT.
//   Errors: INVALID_ARGUMENT quoting the address.
absl::StatusOr<HostPort> SplitHostPort(absl::string_view address);

struct ResolveOptions {
  // For listening: an empty host means every address of this host. Otherwise it means loopback.
  bool is_passive = false;
  // Whether a name server may be asked. If not, only numeric hosts are resolved.
  bool may_ask = true;
};

// Returns all addresses of a name or numeric host, in the order in which to try them. Blocks while
// a name is resolved.
//   Errors: UNAVAILABLE with the resolver's reason alone.
absl::StatusOr<std::vector<SocketAddress>> ResolveHost(const HostPort& parts,
                                                       ResolveOptions options = {});

// The same for HOST:PORT or [IPV6]:PORT; gRPC's prefixes "ipv4:", "ipv6:" and "dns:///" are
// allowed.
//   Errors: INVALID_ARGUMENT for a malformed address; UNAVAILABLE naming the host, with the
//   resolver's reason.
absl::StatusOr<std::vector<SocketAddress>> ResolveAddress(const std::string& address,
                                                          bool may_ask = true);

}  // namespace ferry

#endif  // FERRY_NET_RESOLVER_H_
