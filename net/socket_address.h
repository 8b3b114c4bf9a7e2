// SPDX-License-Identifier: Apache-2.0
// Addresses of sockets: finding them, saying them, and what the kernel is told of a connection.
#ifndef FERRY_NET_SOCKET_ADDRESS_H_
#define FERRY_NET_SOCKET_ADDRESS_H_

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/unique_fd.h"

namespace ferry::coord {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;
};

// All addresses of HOST:PORT or [IPV6]:PORT, in the order in which to try them; gRPC's "ipv4:",
// "ipv6:" and "dns:///" before it are allowed. Blocks while the host's name is looked up, which it
// is not if it is a number, or `may_ask` is false.
//   Errors: INVALID_ARGUMENT for what is no such address; UNAVAILABLE with the resolver's reason.
absl::StatusOr<std::vector<SocketAddress>> ResolveAddress(const std::string& address,
                                                          bool may_ask = true);

// "10.0.0.3:41234", "[::1]:5000", "[fe80::1%eth0]:5000".
std::string ShowAddress(const SocketAddress& address);
// The other end as gRPC calls it: "ipv4:10.0.0.3:41234", "ipv6:%5B::1%5D:5000".
std::string PeerName(int socket);

// A socket that is on its way there; it is writable when it is connected or has failed. -1, with
// errno set, if there is none.
UniqueFd BeginConnect(const SocketAddress& address);
// No delay; a peer that is silent for `idle` is probed, and gone when its host does not answer
// within `timeout`. While something is being sent to it, a HostWatch with both times together
// detects that.
void TuneConnection(int socket, absl::Duration idle, absl::Duration timeout);

}  // namespace ferry::coord

#endif  // FERRY_NET_SOCKET_ADDRESS_H_
