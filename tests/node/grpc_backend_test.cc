// SPDX-License-Identifier: Apache-2.0
// The end of GrpcBackend: which calls it waits for.
#include "node/grpc_backend.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace ferry {
namespace {

UniqueFd ConnectTo(int port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Any client can connect and send nothing, or stop in the middle.
TEST(GrpcBackend, UnauthenticatedConnectionsDoNotDelayItsEnd) {
  // With one that is waited for this would not end.
  GrpcBackend backend([](int32_t) { return absl::NotFoundError("nobody is here"); },
                      *HostArena::Create({}), {.grace = absl::Hours(1)});
  RendezvousManager manager(SteadyClock(), backend.fetcher());
  ASSERT_TRUE(backend.Serve(manager, {0, 1}, "127.0.0.1:0", nullptr).ok());
  const UniqueFd silent = ConnectTo(backend.port());
  const UniqueFd halting = ConnectTo(backend.port());
  constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  ASSERT_EQ(write(halting.get(), kPreface, 10), 10);
  const UniqueFd idle = ConnectTo(backend.port());
  // The preface, and an empty SETTINGS frame.
  constexpr char kSettings[9] = {0, 0, 0, 4, 0, 0, 0, 0, 0};
  ASSERT_EQ(write(idle.get(), kPreface, sizeof(kPreface) - 1), ssize_t{sizeof(kPreface) - 1});
  ASSERT_EQ(write(idle.get(), kSettings, sizeof(kSettings)), ssize_t{sizeof(kSettings)});
  char answer[9];
  ASSERT_EQ(recv(idle.get(), answer, sizeof(answer), MSG_WAITALL), ssize_t{sizeof(answer)});
  backend.Stop();
}

}  // namespace
}  // namespace ferry
