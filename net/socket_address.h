// SPDX-License-Identifier: Apache-2.0
// SocketAddress: formatting, connecting, and the options of connections.
#ifndef FERRY_NET_SOCKET_ADDRESS_H_
#define FERRY_NET_SOCKET_ADDRESS_H_

#include <sys/socket.h>

#include <string>

#include "absl/time/time.h"

#include "base/unique_fd.h"

namespace ferry {

// An address of IPv4 or IPv6, with its port.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// "10.0.0.3:41234", "[::1]:5000", "[fe80::1%eth0]:5000".
std::string ShowAddress(const SocketAddress& address);
// The local address of a bound socket; of 0 bytes if there is none.
SocketAddress LocalAddress(int socket);
// The remote address in gRPC's format: "ipv4:10.0.0.3:41234", "ipv6:%5B::1%5D:5000".
std::string PeerName(int socket);

// Starts a non-blocking connect; the socket becomes writable when it is connected or has failed.
// Returns -1, with errno set, on an immediate error.
UniqueFd BeginConnect(const SocketAddress& address);
// Disables Nagle's algorithm; probes a peer after `idle` of silence and ends the connection if its
// host does not answer within `timeout`. While data is outstanding, a HostWatch with the sum of
// both times detects that.
void TuneConnection(int socket, absl::Duration idle, absl::Duration timeout);

}  // namespace ferry

#endif  // FERRY_NET_SOCKET_ADDRESS_H_
