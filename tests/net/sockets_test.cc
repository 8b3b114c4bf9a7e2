// SPDX-License-Identifier: Apache-2.0
// Options of sockets.
#include "net/sockets.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST(SocketsTest, SendersBufferLittleWithinTheHost) {
  for (const char* const host : {"127.0.0.1", "[::1]"}) {
    const absl::StatusOr<ListeningSocket> listener = ListenTcp(absl::StrCat(host, ":0"));
    // A machine without IPv6.
    if (!listener.ok() && host[0] == '[') continue;
    ASSERT_TRUE(listener.ok()) << listener.status();
    const UniqueFd socket = Connected(absl::StrCat(host, ":", listener->port));
    const int before = SendBuffer(socket.get());
    TuneTcpSender(socket.get());
    // As the kernel reports it: twice the requested size.
    EXPECT_EQ(SendBuffer(socket.get()), 1024 * 1024) << host << ", before " << before;
  }
}

TEST(SocketsTest, KernelChoosesForOthers) {
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

TEST(SocketsTest, WithoutAHost_ListensOnBothFamilies) {
  const absl::StatusOr<ListeningSocket> listener = ListenTcp(":0");
  ASSERT_TRUE(listener.ok()) << listener.status();
  Connected(absl::StrCat("127.0.0.1:", listener->port));
  const auto v6 = BeginConnectTcp(absl::StrCat("[::1]:", listener->port));
  // A machine without IPv6.
  if (v6.ok()) Connected(absl::StrCat("[::1]:", listener->port));
}

// A coordinator that is started again must not wait until the kernel has forgotten the connections
// of the previous one (TIME_WAIT), a minute later.
TEST(SocketsTest, PortWhoseConnectionsHaveJustEnded_CanBeListenedOnAgain) {
  absl::StatusOr<ListeningSocket> listener = ListenTcp("127.0.0.1:0");
  ASSERT_TRUE(listener.ok()) << listener.status();
  const std::string address = absl::StrCat("127.0.0.1:", listener->port);
  UniqueFd client = Connected(address);
  pollfd incoming = {listener->fd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&incoming, 1, 10'000), 1);
  UniqueFd accepted(accept(listener->fd.get(), nullptr, nullptr));
  ASSERT_TRUE(accepted.valid());
  listener->fd.Reset();
  // The end that closes first keeps the connection for a while.
  accepted.Reset();
  pollfd ended = {client.get(), POLLIN, 0};
  ASSERT_EQ(poll(&ended, 1, 10'000), 1);
  client.Reset();
  const absl::StatusOr<ListeningSocket> again = ListenTcp(address);
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST(SocketsTest, ResolveTcp_ReturnsNumericAddresses) {
  const auto numeric = ResolveTcp("127.0.0.1:5");
  ASSERT_TRUE(numeric.ok()) << numeric.status();
  EXPECT_THAT(*numeric, ElementsAre("127.0.0.1:5"));
  const auto name = ResolveTcp("localhost:5");
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_THAT(*name, Each(AnyOf("127.0.0.1:5", "[::1]:5")));
  EXPECT_EQ(ResolveTcp("localhost").status().code(), absl::StatusCode::kInvalidArgument);
}

// Runs as another user in a process of its own; false: this one may not become another user.
bool RunAs(uid_t user, const std::function<bool()>& body, bool& result) {
  const pid_t child = fork();
  if (child == 0) {
    if (setresuid(user, user, user) != 0) std::_Exit(77);
    std::_Exit(body() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  result = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return !(WIFEXITED(status) && WEXITSTATUS(status) == 77);
}

TEST(SocketsTest, CheckSameUser_BothEndsNameBothUsers) {
  constexpr uid_t kOther = 65534;
  if (geteuid() == kOther) GTEST_SKIP() << "this is that user already";
  const std::string name = absl::StrCat("ferry-sockets-test-", getpid());
  const absl::StatusOr<ListeningSocket> listener = ListenUnix(name);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const std::string own = absl::StrCat("uid ", geteuid());
  const std::string other = absl::StrCat("uid ", kOther);
  bool is_told = false;
  const bool is_allowed = RunAs(
      kOther,
      [&] {
        const absl::StatusOr<UniqueFd> socket = BeginConnectUnix(name);
        if (!socket.ok()) return false;
        const absl::Status status = CheckSameUser(socket->get(), SocketEnd::kClient);
        return status.code() == absl::StatusCode::kFailedPrecondition &&
               absl::StrContains(status.message(), own) &&
               absl::StrContains(status.message(), other);
      },
      is_told);
  if (!is_allowed) GTEST_SKIP() << "this process may not become another user";
  EXPECT_TRUE(is_told);
  const UniqueFd accepted(accept(listener->fd.get(), nullptr, nullptr));
  ASSERT_TRUE(accepted.valid());
  const absl::Status status = CheckSameUser(accepted.get(), SocketEnd::kServer);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(own), HasSubstr(other)));
}

TEST(SocketsTest, CheckSameUser_OneUser_IsOk) {
  const std::string name = absl::StrCat("ferry-sockets-test-own-", getpid());
  const absl::StatusOr<ListeningSocket> listener = ListenUnix(name);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const absl::StatusOr<UniqueFd> client = BeginConnectUnix(name);
  ASSERT_TRUE(client.ok()) << client.status();
  const UniqueFd accepted(accept(listener->fd.get(), nullptr, nullptr));
  EXPECT_TRUE(CheckSameUser(client->get(), SocketEnd::kClient).ok());
  EXPECT_TRUE(CheckSameUser(accepted.get(), SocketEnd::kServer).ok());
}

}  // namespace
}  // namespace ferry
