// SPDX-License-Identifier: Apache-2.0
// Attempts that fail, one after the other: what they keep until their timeout.
#include "transport/control/connect_attempt.h"

#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "net/sockets.h"
#include "tests/transport/control_channel_pair.h"
#include "transport/control/auth_handshake.h"

namespace ferry {
namespace {

// A peer that is restarting, with many requests for it: each timer would be kept for the timeout of
// a handshake, and wake the loop once more.
TEST(ConnectAttemptTest, FailedAttempts_ShareATimer) {
  ControlEnd a(PeerId{1, 11});
  for (int i = 0; i < 50; ++i) {
    auto client = std::make_shared<RecordingHandler>();
    a.connection_manager->Connect(PeerId{2, 22}, {.tcp = {"127.0.0.1:1"}}, false, client);
    EXPECT_EQ(client->WaitForClosed().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_LE(a.loop->timers(), 1u);
}

// A peer that has no room for a connection is tried again for as long as an address is.
TEST(ConnectAttemptTest, AddressThatIsTriedAgain_HasOneTimer) {
  ControlEnd a(PeerId{1, 11});
  auto listening = *ListenTcp("127.0.0.1:0");
  const std::string words =
      AuthHandshake::OutOfDescriptors({.self = PeerId{2, 22}, .token = "token"});
  auto client = std::make_shared<RecordingHandler>();
  a.connection_manager->Connect(
      PeerId{2, 22}, {.tcp = {absl::StrCat("127.0.0.1:", listening.port)}}, false, client);
  size_t most = 0;
  for (int tries = 0; tries < 4;) {
    UniqueFd socket(accept4(listening.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) {
      absl::SleepFor(absl::Milliseconds(1));
      continue;
    }
    ++tries;
    most = std::max(most, a.loop->timers());
    ASSERT_GT(send(socket.get(), words.data(), words.size(), MSG_NOSIGNAL), 0);
    char byte;
    // Until it has received that, and closes.
    while (recv(socket.get(), &byte, 1, 0) > 0) continue;
  }
  EXPECT_LE(most, 1u);
}

// Each has a timeout of its own, though one timer serves all.
TEST(ConnectAttemptTest, EachSilentAddress_IsGivenUp) {
  ControlEnd a(PeerId{1, 11}, "token", absl::Milliseconds(50));
  const auto first = *ListenTcp("127.0.0.1:0");
  const auto second = *ListenTcp("127.0.0.1:0");
  const std::string first_address = absl::StrCat("127.0.0.1:", first.port);
  const std::string second_address = absl::StrCat("127.0.0.1:", second.port);
  // The second attempt starts when no timer of the first is left.
  for (int i = 0; i < 2; ++i) {
    auto client = std::make_shared<RecordingHandler>();
    a.connection_manager->Connect(PeerId{2, 22}, {.tcp = {first_address, second_address}}, false,
                                  client);
    const absl::Status why = client->WaitForClosed();
    EXPECT_EQ(why.code(), absl::StatusCode::kDeadlineExceeded) << why;
    for (const std::string& each : {first_address, second_address}) {
      EXPECT_TRUE(absl::StrContains(why.message(), each + " has not answered")) << why;
    }
  }
}

// The peer reported why it could keep no connection, and was too slow to report it again.
TEST(ConnectAttemptTest, PeersReason_IsTheErrorAtTheTimeout) {
  ControlEnd a(PeerId{1, 11}, "token", absl::Milliseconds(500));
  auto listening = *ListenTcp("127.0.0.1:0");
  const std::string words =
      AuthHandshake::OutOfDescriptors({.self = PeerId{2, 22}, .token = "token"});
  auto client = std::make_shared<RecordingHandler>();
  a.connection_manager->Connect(
      PeerId{2, 22}, {.tcp = {absl::StrCat("127.0.0.1:", listening.port), "127.0.0.1:1"}}, false,
      client);
  UniqueFd socket;
  while (!socket.valid()) {
    socket = UniqueFd(accept4(listening.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_GT(send(socket.get(), words.data(), words.size(), MSG_NOSIGNAL), 0);
  socket.Reset();
  // The next connection stays in the kernel's queue, and is never accepted.
  const absl::Status why = client->WaitForClosed();
  EXPECT_EQ(why.code(), absl::StatusCode::kResourceExhausted) << why;
  EXPECT_TRUE(absl::StrContains(why.message(), "ulimit -n")) << why;
}

}  // namespace
}  // namespace ferry
