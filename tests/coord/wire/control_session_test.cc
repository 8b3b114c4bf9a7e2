// SPDX-License-Identifier: Apache-2.0
// ferry.v1.Control: how a session begins, breaks, is taken up again and ends.
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/generic/generic_stub.h>

#include "absl/strings/str_cat.h"

#include "control_stream.h"
#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kLong = absl::Minutes(1);

int Code(StatusCode code) { return static_cast<int>(code); }

TEST(ControlSession, BeginsWithAWelcomeThatCarriesTheClientsSettings) {
  ServerOptions options = TestOptions(3);
  options.coordinator.heartbeat_timeout = absl::Seconds(7);
  TestServer server(options);
  ControlStream stream(server.Channel());
  const v1::Welcome welcome = stream.Attach();
  EXPECT_NE(welcome.session_id(), 0u);
  EXPECT_EQ(welcome.received_request_id(), 0u);
  EXPECT_EQ(welcome.coordinator_incarnation(), server.incarnation());
  EXPECT_EQ(welcome.num_nodes(), 3);
  EXPECT_EQ(welcome.heartbeat_timeout_ms(), 7000);
  EXPECT_THAT(welcome.observed_address(), StartsWith("ipv4:127.0.0.1:"));
}

TEST(ControlSession, IsRefusedWithoutAHello) {
  TestServer server(1);
  ControlStream stream(server.Channel());
  stream.Send({PutRequest(1, {{"k", "v"}})});
  EXPECT_THAT(stream.End(), Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(server.Task(Dialect::kTensorflow, 0).TryGet("k").Wait(),
              Fails(StatusCode::kNotFound));
}

TEST(ControlSession, EmptyFirstFrameIsRefused) {
  TestServer server(1);
  ControlStream stream(server.Channel());
  stream.Send(v1::ClientFrame());
  EXPECT_THAT(stream.End(), Fails(StatusCode::kInvalidArgument));
}

TEST(ControlSession, UnknownSessionIsAborted) {
  TestServer server(1);
  ControlStream stream(server.Channel());
  v1::Hello hello;
  hello.set_session_id(0xdeadbeef);
  stream.SendHello(hello);
  EXPECT_THAT(stream.End(), Fails(StatusCode::kAborted));
}

TEST(ControlSession, UnknownNodeIsRefused) {
  TestServer server(2);
  for (const int node : {2, -1, 1'000'000}) {
    ControlStream stream(server.Channel());
    stream.SendHello(RankHello(node, 1, "host"));
    EXPECT_THAT(stream.End(), Fails(StatusCode::kInvalidArgument)) << node;
  }
}

// The request was done and its answer lost; asking again must not add again.
TEST(ControlSession, BrokenStreamNeitherLosesNorRepeatsARequest) {
  TestServer server(1);
  auto channel = server.Channel();
  uint64_t session = 0;
  {
    ControlStream stream(channel);
    session = stream.Attach().session_id();
    stream.Send({IncrementRequest(1, "n", 5)});
    // The answer is in flight; this client never acknowledges it.
    EXPECT_EQ(stream.ReplyTo(1).entries(0).value(), "5");
  }
  ControlStream stream(channel);
  const v1::Welcome welcome = stream.Attach(session, 0);
  EXPECT_EQ(welcome.session_id(), session);
  EXPECT_EQ(welcome.received_request_id(), 1u);
  stream.Send({IncrementRequest(1, "n", 5), IncrementRequest(2, "n", 1)});
  EXPECT_EQ(stream.ReplyTo(1).entries(0).value(), "5");
  EXPECT_EQ(stream.ReplyTo(2).entries(0).value(), "6");
  EXPECT_EQ(stream.reply_counts[1], 1);
}

TEST(ControlSession, PendingRequestsSurviveABrokenStream) {
  TestServer server(1);
  auto channel = server.Channel();
  uint64_t session = 0;
  {
    ControlStream stream(channel);
    session = stream.Attach().session_id();
    stream.Send({GetRequest(1, {"late"}, kLong), GetRequest(2, {"later"}, kLong)});
    ASSERT_TRUE(server.WaitUntilParked(2));
  }
  // One completes while no stream is attached.
  ASSERT_THAT(server.Task(Dialect::kTensorflow, 0).Insert("late", "1").Wait(), IsOk());
  EXPECT_EQ(server.parked(), 1u);
  ControlStream stream(channel);
  EXPECT_EQ(stream.Attach(session, 0).received_request_id(), 2u);
  EXPECT_EQ(stream.ReplyTo(1).entries(0).value(), "1");
  ASSERT_THAT(server.Task(Dialect::kTensorflow, 0).Insert("later", "2").Wait(), IsOk());
  EXPECT_EQ(stream.ReplyTo(2).entries(0).value(), "2");
  EXPECT_EQ(server->frontend().dropped_waits(), 0);
}

TEST(ControlSession, AcknowledgedFramesAreNotSentAgain) {
  TestServer server(1);
  auto channel = server.Channel();
  uint64_t session = 0;
  uint64_t seen = 0;
  {
    ControlStream stream(channel);
    session = stream.Attach().session_id();
    stream.Call(PutRequest(1, {{"a", "1"}}));
    seen = stream.last_sequence();
    stream.Call(PutRequest(2, {{"b", "2"}}));
    EXPECT_GT(stream.last_sequence(), seen);
  }
  ControlStream stream(channel);
  stream.Attach(session, seen);
  stream.Call(PutRequest(3, {{"c", "3"}}));
  EXPECT_EQ(stream.replies.count(1), 0u);
  EXPECT_EQ(stream.reply_counts[2], 1);
  EXPECT_EQ(stream.sequences.front(), seen + 1);
}

// An acknowledgement of an unsent frame, or one that decreases, comes from a confused client.
TEST(ControlSession, InvalidAcknowledgementsAreHarmless) {
  TestServer server(1);
  ControlStream stream(server.Channel());
  stream.Attach();
  stream.Call(PutRequest(1, {{"a", "1"}}));
  stream.Acknowledge(UINT64_MAX);
  stream.Acknowledge(0);
  stream.Send({PutRequest(2, {{"b", "2"}})});
  // Either it continues, or the stream ends; the server keeps running in any case.
  while (stream.replies.count(2) == 0 && stream.ReadOne()) {
  }
  ControlStream other(server.Channel());
  other.Attach();
  EXPECT_EQ(other.Call(PutRequest(1, {{"c", "3"}})).code(), 0);
}

TEST(ControlSession, DuplicateOnOneStreamIsIgnored) {
  TestServer server(1);
  ControlStream stream(server.Channel());
  stream.Attach();
  stream.Send({IncrementRequest(1, "n", 1), IncrementRequest(1, "n", 1)});
  stream.Send({IncrementRequest(1, "n", 1)});
  EXPECT_EQ(stream.Call(IncrementRequest(2, "n", 1)).entries(0).value(), "2");
  EXPECT_EQ(stream.reply_counts[1], 1);
}

// The client saw its connection die before the server did.
TEST(ControlSession, LaterStreamTakesItOver) {
  TestServer server(1);
  ControlStream first(server.Channel());
  const uint64_t session = first.Attach().session_id();
  first.Send({GetRequest(1, {"k"}, kLong)});
  ASSERT_TRUE(server.WaitUntilParked(1));
  ControlStream second(server.Channel());
  EXPECT_EQ(second.Attach(session, 0).received_request_id(), 1u);
  EXPECT_FALSE(first.End().ok());
  EXPECT_EQ(second.Call(PutRequest(2, {{"k", "v"}})).code(), 0);
  EXPECT_EQ(second.ReplyTo(1).entries(0).value(), "v");
}

// The server is still writing to the stream that is replaced: nobody reads it.
TEST(ControlSession, StreamIsReplacedWhileItIsWrittenTo_TheNewOneIsWrittenTo) {
  TestServer server(1);
  const std::string value(size_t{8} << 20, 'v');
  ControlStream first(server.Channel());
  const uint64_t session = first.Attach().session_id();
  ASSERT_EQ(first.Call(PutRequest(1, {{"large", value}})).code(), 0);
  first.Send({GetRequest(2, {"large"}, kLong), GetRequest(3, {"k"}, kLong)});
  // By now the answer to request 2 is on its way.
  ASSERT_TRUE(server.WaitUntilParked(1));
  ControlStream second(server.Channel());
  EXPECT_EQ(second.Attach(session, 0).received_request_id(), 3u);
  EXPECT_TRUE(second.ReplyTo(2).entries(0).value() == value);
  EXPECT_EQ(second.Call(PutRequest(4, {{"k", "v"}})).code(), 0);
  EXPECT_EQ(second.ReplyTo(3).entries(0).value(), "v");
}

TEST(ControlSession, RankThatDoesNotReconnectIsDroppedWithItsRequests) {
  ServerOptions options = TestOptions(1);
  options.coordinator.heartbeat_timeout = absl::Milliseconds(300);
  TestServer server(options);
  auto channel = server.Channel();
  uint64_t session = 0;
  {
    ControlStream stream(channel);
    session = stream.Attach(RankHello(0, 1, "host")).session_id();
    stream.Send({GetRequest(1, {"never"}, kLong)});
    // On a loaded machine it may be dropped before this thread has seen that it waits.
    ASSERT_TRUE(Eventually(
        [&] { return server.parked() == 1 || server->frontend().dropped_waits() == 1; }));
  }
  EXPECT_TRUE(Eventually([&] { return server->frontend().dropped_waits() == 1; }));
  EXPECT_TRUE(server.WaitUntilParked(0));
  ControlStream stream(channel);
  v1::Hello hello;
  hello.set_session_id(session);
  stream.SendHello(hello);
  EXPECT_THAT(stream.End(), Fails(StatusCode::kAborted));
}

TEST(ControlSession, EndsUnavailableAfterPendingMessagesWhenTheCoordinatorStops) {
  TestServer server(1);
  ControlStream stream(server.Channel());
  stream.Attach();
  stream.Send({GetRequest(1, {"never"}, kLong)});
  ASSERT_TRUE(server.WaitUntilParked(1));
  server->Stop();
  EXPECT_THAT(stream.End(), Fails(StatusCode::kUnavailable));
  EXPECT_EQ(stream.replies[1].code(), Code(StatusCode::kCancelled));
}

// --- Which process may be which node ---

TEST(ControlIdentity, NodeOfAnotherProcessIsRefusedNamingBoth) {
  TestServer server(2);
  ControlStream first(server.Channel());
  first.Attach(RankHello(1, 11, "alpha"));
  ControlStream second(server.Channel());
  v1::Hello hello = RankHello(1, 22, "beta");
  hello.mutable_node()->set_process_id(4242);
  second.SendHello(hello);
  EXPECT_THAT(second.End(),
              Fails(StatusCode::kAlreadyExists, AllOf(HasSubstr("alpha"), HasSubstr("beta"))));
  // The one that was there is not disturbed.
  EXPECT_EQ(first.Call(PutRequest(1, {{"k", "v"}})).code(), 0);
}

TEST(ControlIdentity, GpuOfAnotherHostIsRefusedNamingBoth) {
  TestServer server(2);
  v1::Hello one = RankHello(0, 1, "alpha");
  one.mutable_node()->set_boot_id("boot-alpha");
  one.mutable_node()->add_gpu_uuids("GPU-1");
  ControlStream first(server.Channel());
  first.Attach(one);
  v1::Hello other = RankHello(1, 2, "beta");
  other.mutable_node()->set_boot_id("boot-beta");
  other.mutable_node()->add_gpu_uuids("GPU-0");
  other.mutable_node()->add_gpu_uuids("GPU-1");
  ControlStream second(server.Channel());
  second.SendHello(other);
  EXPECT_THAT(second.End(),
              Fails(StatusCode::kAlreadyExists,
                    AllOf(HasSubstr("alpha"), HasSubstr("beta"), HasSubstr("GPU-1"))));
}

// The first session must not hold a GPU that the second, and last, has released.
TEST(ControlIdentity, GpuIsFreeWhenItsNodeHasLeft) {
  ServerOptions options = TestOptions(2);
  options.coordinator.heartbeat_timeout = absl::Milliseconds(300);
  TestServer server(options);
  const auto hello = [](int node, absl::string_view host) {
    v1::Hello hello = RankHello(node, 1, std::string(host));
    hello.mutable_node()->set_boot_id(absl::StrCat("boot-", host));
    hello.mutable_node()->add_gpu_uuids("GPU-1");
    return hello;
  };
  {
    ControlStream first(server.Channel());
    first.Attach(hello(0, "alpha"));
    ControlStream second(server.Channel());
    second.Attach(hello(0, "alpha"));
  }
  EXPECT_TRUE(Eventually([&] {
    ControlStream other(server.Channel());
    other.SendHello(hello(1, "beta"));
    return other.ReadOne();
  }));
}

// The session that was replaced must not release what is its successor's.
TEST(ControlIdentity, NodeThatWasRestarted_IsStillRefusedToAnotherProcess) {
  TestServer server(2);
  {
    ControlStream first(server.Channel());
    first.Attach(RankHello(1, 11, "alpha"));
  }
  std::unique_ptr<ControlStream> restarted;
  // Until the coordinator has noticed its end, the first process holds the node.
  ASSERT_TRUE(Eventually([&] {
    restarted = std::make_unique<ControlStream>(server.Channel());
    restarted->SendHello(RankHello(1, 12, "alpha"));
    return restarted->ReadOne();
  }));
  ControlStream other(server.Channel());
  other.SendHello(RankHello(1, 13, "beta"));
  EXPECT_THAT(other.End(),
              Fails(StatusCode::kAlreadyExists, AllOf(HasSubstr("alpha"), HasSubstr("beta"))));
}

TEST(ControlIdentity, GpuSharedWithANodeThatWasRestarted_IsStillRefusedToAnotherHost) {
  TestServer server(3);
  const auto hello = [](int node, uint64_t incarnation, absl::string_view host,
                        absl::string_view gpu) {
    v1::Hello hello = RankHello(node, incarnation, std::string(host));
    hello.mutable_node()->set_boot_id(absl::StrCat("boot-", host));
    hello.mutable_node()->add_gpu_uuids(std::string(gpu));
    return hello;
  };
  ControlStream first(server.Channel());
  first.Attach(hello(0, 1, "alpha", "GPU-1"));
  ControlStream second(server.Channel());
  second.Attach(hello(1, 1, "alpha", "GPU-1"));
  // The same process with a session of its own; it has another GPU now.
  ControlStream again(server.Channel());
  again.Attach(hello(0, 1, "alpha", "GPU-2"));
  ControlStream other(server.Channel());
  other.SendHello(hello(2, 1, "beta", "GPU-1"));
  EXPECT_THAT(other.End(), Fails(StatusCode::kAlreadyExists, HasSubstr("that of node 1")));
}

// The next process is started while the connection of the former is still there.
TEST(ControlIdentity, NodeThatHasLeft_MayBeTakenByAnotherProcess) {
  v1::Request requests[2];
  requests[0].mutable_leave();
  requests[1].mutable_shutdown();
  for (v1::Request& leave : requests) {
    TestServer server(2);
    ControlStream first(server.Channel());
    first.Attach(RankHello(1, 11, "alpha"));
    v1::Request join;
    join.set_id(1);
    join.mutable_register_();
    ASSERT_EQ(first.Call(join).code(), 0);
    leave.set_id(2);
    ASSERT_EQ(first.Call(leave).code(), 0) << leave.ShortDebugString();
    ControlStream second(server.Channel());
    second.SendHello(RankHello(1, 22, "beta"));
    EXPECT_TRUE(second.ReadOne()) << leave.ShortDebugString() << second.End();
  }
}

TEST(ControlIdentity, OnlyItsOwnClientMayAttachToASession) {
  TestServer server(2);
  ControlStream rank(server.Channel());
  const uint64_t session = rank.Attach(RankHello(1, 11, "alpha")).session_id();
  v1::Hello nobody;
  nobody.set_session_id(session);
  v1::Hello other = RankHello(0, 22, "beta");
  other.set_session_id(session);
  v1::Hello later_life = RankHello(1, 12, "alpha");
  later_life.set_session_id(session);
  for (const v1::Hello& hello : {nobody, other, later_life}) {
    ControlStream thief(server.Channel());
    thief.SendHello(hello);
    EXPECT_THAT(thief.End(), Fails(StatusCode::kInvalidArgument));
  }
  EXPECT_EQ(rank.Call(PutRequest(1, {{"k", "v"}})).code(), 0);
}

// Two processes of one host that share a GPU (MPS, MIG) are no mistake.
TEST(ControlIdentity, GpuMayBeSharedWithinAHost) {
  TestServer server(2);
  ControlStream streams[] = {ControlStream(server.Channel()), ControlStream(server.Channel())};
  for (int node = 0; node < 2; ++node) {
    v1::Hello hello = RankHello(node, 1, "alpha");
    hello.mutable_node()->set_boot_id("boot-alpha");
    hello.mutable_node()->add_gpu_uuids("GPU-1");
    EXPECT_NE(streams[node].Attach(hello).session_id(), 0u);
  }
}

// Containers of one machine have host names of their own, and so may share its GPU.
TEST(ControlIdentity, GpuMayBeSharedByContainersOfAHost) {
  TestServer server(2);
  ControlStream streams[] = {ControlStream(server.Channel()), ControlStream(server.Channel())};
  for (int node = 0; node < 2; ++node) {
    v1::Hello hello = RankHello(node, 1, absl::StrCat("container", node));
    hello.mutable_node()->set_boot_id("boot-alpha");
    hello.mutable_node()->add_gpu_uuids("GPU-1");
    EXPECT_NE(streams[node].Attach(hello).session_id(), 0u);
  }
}

// Machines cloned from one image have one host name; those that send no boot id have only that.
TEST(ControlIdentity, HostsDifferByTheirBootOrElseByTheirName) {
  const struct {
    const char* hosts[2];
    const char* boots[2];
  } cases[] = {{{"clone", "clone"}, {"boot-alpha", "boot-beta"}},
               {{"alpha", "beta"}, {"", "boot-beta"}},
               {{"alpha", "beta"}, {"boot-alpha", ""}}};
  for (const auto& each : cases) {
    TestServer server(2);
    ControlStream streams[] = {ControlStream(server.Channel()), ControlStream(server.Channel())};
    for (int node = 0; node < 2; ++node) {
      v1::Hello hello = RankHello(node, 1, each.hosts[node]);
      hello.mutable_node()->set_boot_id(each.boots[node]);
      hello.mutable_node()->add_gpu_uuids("GPU-1");
      if (node == 0) {
        streams[node].Attach(hello);
        continue;
      }
      streams[node].SendHello(hello);
      EXPECT_THAT(streams[node].End(), Fails(StatusCode::kAlreadyExists, HasSubstr("GPU-1")));
    }
  }
}

// --- Malformed frames ---

TEST(ControlFrames, GarbageEndsTheStreamOnly) {
  TestServer server(1);
  auto channel = server.Channel();
  for (const std::string& garbage :
       {std::string("\x0a\xff\xff\xff\xff\x0f"), std::string(1000, '\xff'), std::string("\x07")}) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kTimeout));
    std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            channel.get(),
            grpc::internal::RpcMethod("/ferry.v1.Control/Attach",
                                      grpc::internal::RpcMethod::BIDI_STREAMING),
            &context));
    grpc::Slice slice(garbage);
    stream->Write(grpc::ByteBuffer(&slice, 1));
    grpc::ByteBuffer frame;
    while (stream->Read(&frame)) {
    }
    const grpc::Status status = stream->Finish();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << "the stream hung";
  }
  ControlStream other(channel);
  other.Attach();
  EXPECT_EQ(other.Call(PutRequest(1, {{"k", "v"}})).code(), 0);
}

// An operation of a newer client that this server does not know looks the same.
TEST(ControlFrames, RequestWithoutAKnownOperationIsUnimplemented) {
  TestServer server(1);
  ControlStream stream(server.Channel());
  stream.Attach();
  v1::Request request;
  request.set_id(1);
  EXPECT_EQ(stream.Call(request).code(), Code(StatusCode::kUnimplemented));
  EXPECT_EQ(stream.Call(PutRequest(2, {{"k", "v"}})).code(), 0);
}

TEST(ControlFrames, SecondHelloOnOneStreamDoesNotBreakTheServer) {
  TestServer server(2);
  ControlStream stream(server.Channel());
  stream.Attach();
  stream.SendHello(RankHello(1, 1, "x"));
  stream.Send({PutRequest(1, {{"k", "v"}})});
  while (stream.replies.count(1) == 0 && stream.ReadOne()) {
  }
  ControlStream other(server.Channel());
  EXPECT_NE(other.Attach().session_id(), 0u);
}

}  // namespace
}  // namespace ferry::coord
