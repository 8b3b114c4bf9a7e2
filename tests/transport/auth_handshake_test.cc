// SPDX-License-Identifier: Apache-2.0
// The handshake as a plain object: two sides, and bytes between them.
#include "transport/control/auth_handshake.h"

#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

using ::testing::HasSubstr;

constexpr PeerId kA = {1, 111};
constexpr PeerId kB = {2, 222};

// Carries bytes between the two until nothing moves; each side's verdict.
std::pair<absl::Status, absl::Status> Carry(AuthHandshake& client, AuthHandshake& server,
                                            size_t slice) {
  absl::Status at_client;
  absl::Status at_server;
  for (bool moved = true; moved;) {
    moved = false;
    for (auto [from, to, status] :
         {std::tuple(&client, &server, &at_server), std::tuple(&server, &client, &at_client)}) {
      const std::string bytes = from->pending_output().substr(0, slice);
      from->pending_output().erase(0, bytes.size());
      moved |= !bytes.empty();
      absl::string_view view = bytes;
      if (status->ok() && !bytes.empty()) *status = to->OnBytes(view);
    }
  }
  return {at_client, at_server};
}

class AuthHandshakeSlices : public ::testing::TestWithParam<size_t> {};

TEST_P(AuthHandshakeSlices, BothSidesLearnThePeersIdentity) {
  AuthHandshake client =
      AuthHandshake::Client({.self = kA, .token = "t"}, kB, ConnectionPurpose::kData, 3);
  AuthHandshake server = AuthHandshake::Server({.self = kB, .token = "t"});
  const auto [at_client, at_server] = Carry(client, server, GetParam());
  EXPECT_TRUE(at_client.ok()) << at_client;
  EXPECT_TRUE(at_server.ok()) << at_server;
  ASSERT_TRUE(client.is_done());
  ASSERT_TRUE(server.is_done());
  EXPECT_EQ(server.peer(), kA);
  EXPECT_EQ(client.peer(), kB);
  EXPECT_EQ(server.purpose(), ConnectionPurpose::kData);
  EXPECT_EQ(server.index(), 3u);
}

INSTANTIATE_TEST_SUITE_P(Of, AuthHandshakeSlices, ::testing::Values(1, 7, 1000));

TEST(AuthHandshakeTest, TheTokenItselfIsNeverSent) {
  const std::string token = "a secret that nobody may see";
  AuthHandshake client =
      AuthHandshake::Client({.self = kA, .token = token}, kB, ConnectionPurpose::kControl, 0);
  AuthHandshake server = AuthHandshake::Server({.self = kB, .token = token});
  std::string seen;
  while (!client.is_done() || !server.is_done()) {
    for (auto [from, to] : {std::pair(&client, &server), std::pair(&server, &client)}) {
      const std::string bytes = std::exchange(from->pending_output(), "");
      seen += bytes;
      absl::string_view view = bytes;
      ASSERT_TRUE(to->OnBytes(view).ok());
    }
  }
  EXPECT_EQ(seen.find(token), std::string::npos);
}

TEST(AuthHandshakeTest, OtherTokensAreRefusedByBothSides) {
  AuthHandshake client =
      AuthHandshake::Client({.self = kA, .token = "x"}, kB, ConnectionPurpose::kControl, 0);
  AuthHandshake server = AuthHandshake::Server({.self = kB, .token = "y"});
  const auto [at_client, at_server] = Carry(client, server, 1000);
  EXPECT_EQ(at_client.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(at_server.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_FALSE(client.is_done());
  EXPECT_FALSE(server.is_done());
}

TEST(AuthHandshakeTest, RecordedAuthTagIsRefused) {
  const AuthHandshakeOptions options = {.self = kB, .token = "t"};
  std::string hello;
  std::string auth_tag;
  {
    AuthHandshake client =
        AuthHandshake::Client({.self = kA, .token = "t"}, kB, ConnectionPurpose::kControl, 0);
    AuthHandshake server = AuthHandshake::Server(options);
    hello = std::exchange(client.pending_output(), "");
    absl::string_view view = hello;
    ASSERT_TRUE(server.OnBytes(view).ok());
    const std::string challenge = std::exchange(server.pending_output(), "");
    view = challenge;
    ASSERT_TRUE(client.OnBytes(view).ok());
    auth_tag = client.pending_output();
    view = auth_tag;
    ASSERT_TRUE(server.OnBytes(view).ok());
    ASSERT_TRUE(server.is_done());
  }
  AuthHandshake server = AuthHandshake::Server(options);
  absl::string_view view = hello;
  ASSERT_TRUE(server.OnBytes(view).ok());
  view = auth_tag;
  EXPECT_EQ(server.OnBytes(view).code(), absl::StatusCode::kUnauthenticated);
}

TEST(AuthHandshakeTest, ReportsTheVersionsOfBothSides) {
  AuthHandshake client = AuthHandshake::Client({.self = kA, .token = "t", .version = 9}, kB,
                                               ConnectionPurpose::kControl, 0);
  AuthHandshake server = AuthHandshake::Server({.self = kB, .token = "t"});
  const auto [at_client, at_server] = Carry(client, server, 1000);
  EXPECT_EQ(at_client.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(at_client.message()),
              HasSubstr(absl::StrCat("speaks version ", kControlVersion,
                                     " of the control protocol, this is 9")));
  EXPECT_THAT(std::string(at_server.message()), HasSubstr("speaks version 9"));
}

TEST(AuthHandshakeTest, WrongNodeOrIncarnationIsRefused) {
  AuthHandshake other_life =
      AuthHandshake::Client({.self = kA, .token = "t"}, {2, 999}, ConnectionPurpose::kControl, 0);
  AuthHandshake server = AuthHandshake::Server({.self = kB, .token = "t"});
  EXPECT_THAT(std::string(Carry(other_life, server, 1000).first.message()), HasSubstr("restarted"));
  AuthHandshake other_node =
      AuthHandshake::Client({.self = kA, .token = "t"}, {5, 222}, ConnectionPurpose::kControl, 0);
  AuthHandshake server2 = AuthHandshake::Server({.self = kB, .token = "t"});
  EXPECT_THAT(std::string(Carry(other_node, server2, 1000).first.message()),
              HasSubstr("where node 5 should be, node 2 is"));
}

// A later version may connect for something that this one does not know.
TEST(AuthHandshakeTest, UnknownPurpose_IsRefusedByBothSides) {
  for (const int purpose : {0, 3}) {
    AuthHandshake client = AuthHandshake::Client({.self = kA, .token = "t"}, kB,
                                                 static_cast<ConnectionPurpose>(purpose), 0);
    AuthHandshake server = AuthHandshake::Server({.self = kB, .token = "t"});
    const auto [at_client, at_server] = Carry(client, server, 1000);
    EXPECT_EQ(at_server.code(), absl::StatusCode::kInvalidArgument) << purpose;
    EXPECT_EQ(at_client.code(), absl::StatusCode::kFailedPrecondition) << purpose;
    EXPECT_THAT(std::string(at_client.message()), HasSubstr("node 2 refuses")) << purpose;
    EXPECT_FALSE(server.is_done());
    EXPECT_FALSE(client.is_done());
  }
}

TEST(AuthHandshakeTest, PeerWithoutDescriptorsReportsIt) {
  AuthHandshake client =
      AuthHandshake::Client({.self = kA, .token = "t"}, kB, ConnectionPurpose::kControl, 0);
  const std::string words = AuthHandshake::OutOfDescriptors({.self = kB, .token = "t"});
  absl::string_view view = words;
  const absl::Status status = client.OnBytes(view);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("node 2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit -n"));
}

TEST(AuthHandshakeTest, OtherProtocolsAreRecognisedByTheirFirstByte) {
  AuthHandshake server = AuthHandshake::Server({.self = kB, .token = "t"});
  absl::string_view view = "G";
  EXPECT_EQ(server.OnBytes(view).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(server.wanted_bytes(), 0u);
}

}  // namespace
}  // namespace ferry
