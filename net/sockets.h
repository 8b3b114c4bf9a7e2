// SPDX-License-Identifier: Apache-2.0
// Sockets of control channels and data: addresses, listening, connecting, and what the kernel is
// told of them.
#ifndef FERRY_NET_SOCKETS_H_
#define FERRY_NET_SOCKETS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/unique_fd.h"

namespace ferry {

// All sockets are non-blocking.

struct ListeningSocket {
  UniqueFd fd;
  // 0 for Unix sockets.
  int port = 0;
};

// On HOST:PORT or [IPV6]:PORT. ":PORT" is every address of the families that the kernel has;
// "[::]:PORT" those of both, and an error where there is no IPv6. Port 0: a free one.
//   Errors: INVALID_ARGUMENT for what is no such address; UNAVAILABLE with the kernel's reason.
absl::StatusOr<ListeningSocket> ListenTcp(const std::string& address);
// In the abstract namespace: no file, gone with its owner, visible in the network namespace.
absl::StatusOr<ListeningSocket> ListenUnix(absl::string_view name);

// Begins to connect; the socket is writable when it is connected or has failed (ConnectError).
//   Errors: INVALID_ARGUMENT; UNAVAILABLE naming the address and the reason.
absl::StatusOr<UniqueFd> BeginConnectTcp(const std::string& address);
// All addresses of HOST:PORT as numbers, in the order in which to try them. Blocks while the host's
// name is looked up, which it is not if it is a number.
//   Errors: INVALID_ARGUMENT for what is no such address; UNAVAILABLE with the resolver's reason.
absl::StatusOr<std::vector<std::string>> ResolveTcp(const std::string& address);
absl::StatusOr<UniqueFd> BeginConnectUnix(absl::string_view name);
// OK if it has connected.
absl::Status ConnectError(int socket, absl::string_view address);

// A peer whose host has acknowledged nothing for this long counts as vanished. A stopped or busy
// process does not, since its kernel acknowledges.
inline constexpr absl::Duration kVanishLimit = absl::Seconds(10);

// No delay. The kernel notices within kVanishLimit that the peer's host has vanished while nothing
// is being sent; a HostWatch of the socket's owner does while something is.
void TuneTcp(int socket);
// The kernel's text, with an explanation where that helps.
std::string ConnectionErrorText(int error);
// For a connected socket that sends tensors. To an address of this host it holds back no more than
// what a sleeping receiver needs time for: more would leave the caches before it is read.
void TuneTcpSender(int socket);

// The end of a connection that has connected, or the one that has accepted.
enum class SocketEnd { kClient, kServer };

// Checks that the process at the other end of a connected Unix socket may share memory with this
// one: it is of the same user, or it is a client that is root.
//   end: which end `socket` is.
//   Errors: FAILED_PRECONDITION naming both users.
absl::Status CheckSameUser(int socket, SocketEnd end);

// "10.0.0.3:41234", "[::1]:5000"; "?" when there is none.
std::string PeerAddress(int socket);

}  // namespace ferry

#endif  // FERRY_NET_SOCKETS_H_
