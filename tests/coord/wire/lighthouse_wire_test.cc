// SPDX-License-Identifier: Apache-2.0
// torchft.LighthouseService over gRPC, as torchft's managers call it.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "agent_fixture.h"
#include "proto/torchft_lighthouse.pb.h"
#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kQuorum[] = "/torchft.LighthouseService/Quorum";
constexpr char kHeartbeat[] = "/torchft.LighthouseService/Heartbeat";

ServerOptions OfMin(size_t replicas) {
  ServerOptions options = TestOptions(1);
  options.lighthouse.min_replicas = replicas;
  // A loaded machine may delay a call for longer than the usual timeout.
  options.lighthouse.heartbeat_timeout = absl::Minutes(1);
  return options;
}

std::string RequestOf(const std::string& id, int64_t step = 0) {
  ::torchft::LighthouseQuorumRequest request;
  request.mutable_requester()->set_replica_id(id);
  request.mutable_requester()->set_address(absl::StrCat("http://host-of-", id, ":1"));
  request.mutable_requester()->set_store_address("store:2");
  request.mutable_requester()->set_step(step);
  request.mutable_requester()->set_world_size(8);
  request.mutable_requester()->set_data("{\"k\": 1}");
  return request.SerializeAsString();
}

PendingCall Join(const TestServer& server, const std::string& request,
                 absl::Duration deadline = absl::Minutes(2)) {
  PendingCall::Options options;
  options.deadline = deadline;
  return PendingCall::Start(server.Channel(), kQuorum, request, options);
}

::torchft::Quorum QuorumOf(const PendingCall& call) {
  const Answer answer = call.Wait();
  EXPECT_THAT(answer, IsOk());
  ::torchft::LighthouseQuorumResponse response;
  EXPECT_TRUE(response.ParseFromString(answer.body));
  return response.quorum();
}

size_t Waiting(TestServer& server) {
  return server->lighthouse().Run([](Lighthouse& lighthouse) { return lighthouse.wait_count(); });
}

TEST(LighthouseWire, TwoReplicasJoin_BothGetTheQuorum) {
  TestServer server(OfMin(2));
  const PendingCall b = Join(server, RequestOf("b", 5));
  ASSERT_TRUE(Eventually([&] { return Waiting(server) == 1; }));
  EXPECT_FALSE(b.done());
  const PendingCall a = Join(server, RequestOf("a", 4));
  const ::torchft::Quorum quorum = QuorumOf(a);
  EXPECT_EQ(QuorumOf(b).SerializeAsString(), quorum.SerializeAsString());
  ASSERT_EQ(quorum.participants_size(), 2);
  EXPECT_EQ(quorum.participants(0).replica_id(), "a");
  const ::torchft::QuorumMember& member = quorum.participants(1);
  EXPECT_EQ(member.replica_id(), "b");
  EXPECT_EQ(member.address(), "http://host-of-b:1");
  EXPECT_EQ(member.store_address(), "store:2");
  EXPECT_EQ(member.step(), 5);
  EXPECT_EQ(member.world_size(), 8u);
  EXPECT_EQ(member.data(), "{\"k\": 1}");
  const absl::Time created = absl::FromUnixSeconds(quorum.created().seconds()) +
                             absl::Nanoseconds(quorum.created().nanos());
  EXPECT_LT(absl::AbsDuration(absl::Now() - created), absl::Minutes(1));
  // The same replicas again.
  const PendingCall again = Join(server, RequestOf("a", 5));
  EXPECT_EQ(QuorumOf(Join(server, RequestOf("b", 6))).quorum_id(), quorum.quorum_id());
  EXPECT_EQ(QuorumOf(again).quorum_id(), quorum.quorum_id());
}

// Later versions of torchft send more of themselves to each other.
TEST(LighthouseWire, FieldOfALaterVersion_ReachesTheMembers) {
  TestServer server(OfMin(1));
  // LighthouseQuorumRequest{requester = 1: {replica_id = 1: "a", 19: "new"}}.
  const std::string member(
      "\x0a\x01"
      "a"
      "\x9a\x01\x03"
      "new");
  const PendingCall call =
      Join(server, absl::StrCat("\x0a", std::string(1, static_cast<char>(member.size())), member));
  const Answer answer = call.Wait();
  ASSERT_THAT(answer, IsOk());
  EXPECT_THAT(answer.body, HasSubstr(member));
}

TEST(LighthouseWire, ReplicaThatOnlySendsHeartbeats_IsWaitedFor) {
  TestServer server(OfMin(1));
  ::torchft::LighthouseHeartbeatRequest heartbeat;
  heartbeat.set_replica_id("b");
  const auto beat = [&] {
    return PendingCall::Start(server.Channel(), kHeartbeat, heartbeat.SerializeAsString()).Wait();
  };
  EXPECT_THAT(beat(), IsOk());
  const PendingCall a = Join(server, RequestOf("a"));
  ASSERT_TRUE(Eventually([&] { return Waiting(server) == 1; }));
  EXPECT_THAT(beat(), IsOk());
  EXPECT_EQ(Waiting(server), 1u);
  EXPECT_EQ(QuorumOf(Join(server, RequestOf("b"))).participants_size(), 2);
  EXPECT_EQ(QuorumOf(a).participants_size(), 2);
}

// tonic, torchft's gRPC, gives up at the deadline by itself and says only that.
TEST(LighthouseWire, NoQuorumBeforeTheDeadline_ServersErrorNamesTheMissing) {
  TestServer server(OfMin(2));
  const Answer answer = Join(server, RequestOf("a"), absl::Seconds(2)).Wait();
  EXPECT_THAT(answer,
              Fails(StatusCode::kDeadlineExceeded,
                    AllOf(HasSubstr("replica \"a\" waited 1."), HasSubstr("the minimum is 2"),
                          HasSubstr("--lighthouse-min-replicas"))));
  EXPECT_EQ(Waiting(server), 0u);
}

TEST(LighthouseWire, ClientCancels_HasNotJoined) {
  TestServer server(OfMin(2));
  const PendingCall a = Join(server, RequestOf("a"));
  ASSERT_TRUE(Eventually([&] { return Waiting(server) == 1; }));
  a.Cancel();
  ASSERT_TRUE(Eventually([&] { return Waiting(server) == 0; }));
  EXPECT_TRUE(Eventually([&] { return server->frontend().dropped_waits() == 1; }));
  const PendingCall b = Join(server, RequestOf("b"));
  ASSERT_TRUE(Eventually([&] { return Waiting(server) == 1; }));
  EXPECT_FALSE(b.done());
}

TEST(LighthouseWire, MalformedRequests_AreRefused) {
  TestServer server(OfMin(1));
  EXPECT_THAT(Join(server, "").Wait(), Fails(StatusCode::kInvalidArgument, HasSubstr("requester")));
  for (const std::string& bytes : {std::string("\x0a\x05"), std::string("\xff\xff\xff"),
                                   // A replica id that is no UTF-8, which its peers could not read.
                                   std::string("\x0a\x03\x0a\x01\xff")}) {
    EXPECT_THAT(Join(server, bytes).Wait(), Fails(StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(PendingCall::Start(server.Channel(), kHeartbeat, "\xff").Wait(),
              Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(Join(server, RequestOf(std::string(2000, 'x'))).Wait(),
              Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(
      PendingCall::Start(server.Channel(), "/torchft.LighthouseService/Nonsense", "").Wait(),
      Fails(StatusCode::kUnimplemented));
  EXPECT_EQ(QuorumOf(Join(server, RequestOf("a"))).participants_size(), 1);
}

TEST(LighthouseWire, CoordinatorStops_CallsEnd) {
  TestServer server(OfMin(2));
  const PendingCall a = Join(server, RequestOf("a"));
  ASSERT_TRUE(Eventually([&] { return Waiting(server) == 1; }));
  server->Stop();
  EXPECT_THAT(a.Wait(), Fails(StatusCode::kUnavailable));
}

// Groups that outlive a coordinator find keys of its quorums in their stores.
TEST(LighthouseWire, AnotherCoordinator_ContinuesWithALargerId) {
  int64_t last = 0;
  for (int i = 0; i < 2; ++i) {
    TestServer server(OfMin(1));
    const int64_t id = QuorumOf(Join(server, RequestOf("a"))).quorum_id();
    EXPECT_GT(id, last);
    last = id;
  }
}

TEST(LighthouseWire, StatusHasItOnceAClientHasCalled) {
  TestServer server(OfMin(2));
  auto tool = Agent::Connect(ToolOptions(server.address()));
  ASSERT_THAT(tool, IsOk());
  const auto status = [&] {
    auto read = (*tool)->Status();
    EXPECT_THAT(read, IsOk());
    return read->lighthouse;
  };
  EXPECT_FALSE(status().has_value());
  const PendingCall a = Join(server, RequestOf("a", 7));
  ASSERT_TRUE(Eventually([&] { return Waiting(server) == 1; }));
  auto lighthouse = status();
  ASSERT_TRUE(lighthouse.has_value());
  EXPECT_EQ(lighthouse->quorum_id, 0);
  EXPECT_THAT(lighthouse->waits_for, HasSubstr("--lighthouse-min-replicas"));
  ASSERT_THAT(lighthouse->replicas, SizeIs(1));
  EXPECT_EQ(lighthouse->replicas[0].id, "a");
  EXPECT_EQ(lighthouse->replicas[0].step, 7);
  EXPECT_TRUE(lighthouse->replicas[0].has_joined);
  const int64_t id = QuorumOf(Join(server, RequestOf("b", 8))).quorum_id();
  lighthouse = status();
  ASSERT_TRUE(lighthouse.has_value());
  EXPECT_EQ(lighthouse->quorum_id, id);
  EXPECT_EQ(lighthouse->quorum_size, 2);
  EXPECT_EQ(lighthouse->waits_for, "");
  ASSERT_THAT(lighthouse->replicas, SizeIs(2));
  EXPECT_TRUE(lighthouse->replicas[1].is_in_quorum);
  EXPECT_FALSE(lighthouse->replicas[1].has_joined);
}

}  // namespace
}  // namespace ferry::coord
