// SPDX-License-Identifier: Apache-2.0
// Sockets of control channels and data: addresses, listening, connecting and options.
#ifndef FERRY_NET_SOCKETS_H_
#define FERRY_NET_SOCKETS_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/unique_fd.h"
#include "net/resolver.h"
#include "net/socket_address.h"

namespace ferry {

// All sockets are non-blocking.

struct ListeningSocket {
  UniqueFd fd;
  // 0 for Unix sockets.
  int port = 0;
};

// Listens on every address of the host part of `address`, HOST:PORT or [IPV6]:PORT; for "[::]" on
// those of both families. ":PORT" means every address of the families that the kernel has, while
// "[::]" fails without IPv6. Port 0 means any free port, the same for all. Never empty.
//   Errors: INVALID_ARGUMENT for a malformed address; RESOURCE_EXHAUSTED without descriptors;
//   UNAVAILABLE, with the reason, if the host cannot be resolved, the port is in use, or the
//   address is not one of this host.
absl::StatusOr<std::vector<ListeningSocket>> ListenTcpOnAll(const std::string& address);
// As above, with the addresses that `resolve` returns for the host.
using ResolveFunction =
    absl::FunctionRef<absl::StatusOr<std::vector<SocketAddress>>(const HostPort& parts)>;
absl::StatusOr<std::vector<ListeningSocket>> ListenTcpOnAll(const std::string& address,
                                                            ResolveFunction resolve);
// As ListenTcpOnAll, on the first of the addresses.
absl::StatusOr<ListeningSocket> ListenTcp(const std::string& address);
// In the abstract namespace: no file, disappears with its owner, scoped to the network namespace.
absl::StatusOr<ListeningSocket> ListenUnix(absl::string_view name);

// Takes over a TCP socket that listens already.
//   Errors: INVALID_ARGUMENT if it does not listen.
absl::StatusOr<ListeningSocket> AdoptListening(UniqueFd socket);

// Starts connecting; the socket becomes writable when it is connected or has failed
// (ConnectError).
//   Errors: INVALID_ARGUMENT; UNAVAILABLE naming the address and the reason.
absl::StatusOr<UniqueFd> BeginConnectTcp(const std::string& address);
// Returns all addresses of HOST:PORT in numeric form, in the order in which to try them. Blocks
// while the name is resolved; numeric hosts are not.
//   Errors: INVALID_ARGUMENT for a malformed address; UNAVAILABLE with the resolver's reason.
absl::StatusOr<std::vector<std::string>> ResolveTcp(const std::string& address);
absl::StatusOr<UniqueFd> BeginConnectUnix(absl::string_view name);
// Returns OK if the socket has connected.
absl::Status ConnectError(int socket, absl::string_view address);

// A peer whose host has acknowledged nothing for this long counts as vanished. A stopped or busy
// process does not, since its kernel acknowledges.
inline constexpr absl::Duration kVanishLimit = absl::Seconds(10);

// Disables Nagle's algorithm. The kernel detects within kVanishLimit that the peer's host has
// vanished while nothing is sent; while data is outstanding, the owner's HostWatch does.
void TuneTcp(int socket);
// The kernel's error text, with an explanation where that helps.
std::string ConnectionErrorText(int error);
// For a connected socket that sends tensors. To an address of this host, limits the send buffer to
// what covers a sleeping receiver's wake-up: more would leave the caches before it is read.
void TuneTcpSender(int socket);

// Whether the socket connected or was accepted.
enum class SocketEnd { kClient, kServer };

// Checks that the process at the other end of a connected Unix socket may share memory with this
// one: both run as the same user, or the client is root.
//   end: which end `socket` is.
//   Errors: FAILED_PRECONDITION naming both users.
absl::Status CheckSameUser(int socket, SocketEnd end);

// "10.0.0.3:41234", "[::1]:5000"; "?" if there is none.
std::string PeerAddress(int socket);

}  // namespace ferry

#endif  // FERRY_NET_SOCKETS_H_
