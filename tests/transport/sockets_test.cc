// SPDX-License-Identifier: Apache-2.0
// What the kernel is told of sockets.
#include "transport/lane/sockets.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

int SendBuffer(int socket) {
  int bytes = 0;
  socklen_t length = sizeof(bytes);
  EXPECT_EQ(getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, &length), 0);
  return bytes;
}

UniqueFd Connected(const std::string& address) {
  absl::StatusOr<UniqueFd> socket = BeginConnectTcp(address);
  EXPECT_TRUE(socket.ok()) << socket.status();
  pollfd writable = {socket->get(), POLLOUT, 0};
  EXPECT_EQ(poll(&writable, 1, 10'000), 1);
  EXPECT_TRUE(ConnectError(socket->get(), address).ok());
  return *std::move(socket);
}

TEST(SocketsTest, SendersHoldBackLittleWithinTheHost) {
  for (const char* const host : {"127.0.0.1", "[::1]"}) {
    const absl::StatusOr<ListeningSocket> listener = ListenTcp(absl::StrCat(host, ":0"));
    // A machine without IPv6.
    if (!listener.ok() && host[0] == '[') continue;
    ASSERT_TRUE(listener.ok()) << listener.status();
    const UniqueFd socket = Connected(absl::StrCat(host, ":", listener->port));
    const int before = SendBuffer(socket.get());
    TuneTcpSender(socket.get());
    // As the kernel says it: twice what was asked for.
    EXPECT_EQ(SendBuffer(socket.get()), 1024 * 1024) << host << ", before " << before;
  }
}

TEST(SocketsTest, TheKernelChoosesForOthers) {
  // From another address than the listener's, as of another host.
  const absl::StatusOr<ListeningSocket> listener = ListenTcp("127.0.0.2:0");
  ASSERT_TRUE(listener.ok()) << listener.status();
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  address.sin_port = htons(static_cast<uint16_t>(listener->port));
  ASSERT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const UniqueFd unix_socket(pair[0]);
  const UniqueFd unix_peer(pair[1]);
  const UniqueFd unconnected(::socket(AF_INET, SOCK_STREAM, 0));
  for (const int each : {socket.get(), unix_socket.get(), unconnected.get()}) {
    const int before = SendBuffer(each);
    TuneTcpSender(each);
    EXPECT_EQ(SendBuffer(each), before);
  }
}

}  // namespace
}  // namespace ferry
