// SPDX-License-Identifier: Apache-2.0
// ferry.v1.Control over plain connections: the bytes, what is refused, and other clients of the
// port.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "control_stream.h"
#include "coord/wire/direct_frames.h"
#include "reserved_descriptors.h"
#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Framed(absl::string_view bytes, bool is_last = false) {
  uint8_t head[kDirectHeaderBytes];
  WriteDirectHeader({bytes.size(), is_last}, head);
  return absl::StrCat(absl::string_view(reinterpret_cast<char*>(head), sizeof(head)), bytes);
}

std::string Framed(const v1::ClientFrame& frame) { return Framed(frame.SerializeAsString()); }

v1::ClientFrame HelloFrame() {
  v1::ClientFrame frame;
  frame.mutable_hello();
  return frame;
}

v1::ClientFrame Frame(v1::Request request) {
  v1::ClientFrame frame;
  *frame.add_requests() = std::move(request);
  return frame;
}

// A client that writes and reads bytes.
class RawClient {
 public:
  explicit RawClient(TestServer& server)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(server->port()));
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }

  void Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }

  int fd() const { return socket_.get(); }

  // Nothing when the server has closed the connection, or sends nothing for kTimeout.
  std::optional<std::string> Read(size_t bytes) {
    std::string read(bytes, '\0');
    for (size_t have = 0; have < bytes;) {
      pollfd ready = {socket_.get(), POLLIN, 0};
      if (poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(kTimeout))) != 1) return {};
      const ssize_t some = recv(socket_.get(), read.data() + have, bytes - have, 0);
      if (some <= 0) return {};
      have += static_cast<size_t>(some);
    }
    return read;
  }

  struct Answer {
    bool is_last = false;
    std::string bytes;
  };
  std::optional<Answer> ReadFrame() {
    const auto head = Read(kDirectHeaderBytes);
    if (!head.has_value()) return {};
    const DirectHeader header = ReadDirectHeader(head->data());
    auto bytes = Read(header.bytes);
    if (!bytes.has_value()) return {};
    return Answer{header.is_last, *std::move(bytes)};
  }
  // Reads what should be the last frame, and returns its reason.
  std::optional<StatusCode> ReadEnd() {
    const auto answer = ReadFrame();
    v1::Reply why;
    if (!answer.has_value() || !answer->is_last || !why.ParseFromString(answer->bytes)) return {};
    return static_cast<StatusCode>(why.code());
  }
  v1::ServerFrame ReadServerFrame() {
    v1::ServerFrame frame;
    const auto answer = ReadFrame();
    EXPECT_TRUE(answer.has_value());
    if (!answer.has_value()) return frame;
    EXPECT_FALSE(answer->is_last);
    EXPECT_TRUE(frame.ParseFromString(answer->bytes));
    return frame;
  }
  // The next frame if it has less than a mebibyte; of a larger one that it was there.
  std::optional<v1::ServerFrame> ReadSmallFrame() {
    const auto head = Read(kDirectHeaderBytes);
    if (!head.has_value()) return {};
    v1::ServerFrame frame;
    size_t left = ReadDirectHeader(head->data()).bytes;
    if (left < size_t{1} << 20) {
      const auto bytes = Read(left);
      if (!bytes.has_value() || !frame.ParseFromString(*bytes)) return {};
      return frame;
    }
    while (left > 0) {
      const auto some = Read(std::min(left, size_t{1} << 20));
      if (!some.has_value()) return {};
      left -= some->size();
    }
    return frame;
  }
  void Close() { socket_.Reset(); }
  // Soon, that is, and with nothing more to read.
  bool IsClosed() {
    pollfd ready = {socket_.get(), POLLIN, 0};
    char unused;
    return poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(kTimeout))) == 1 &&
           recv(socket_.get(), &unused, 1, 0) <= 0;
  }

 private:
  UniqueFd socket_;
};

void ExpectServes(TestServer& server) {
  RawClient client(server);
  client.Send(absl::StrCat(kDirectPreface, Framed(HelloFrame())));
  EXPECT_NE(client.ReadServerFrame().welcome().session_id(), 0u);
  TaskClient honest = server.Task(Dialect::kTensorflow, 0);
  EXPECT_THAT(honest.Insert("honest", "v", true).Wait(), IsOk());
}

TEST(DirectControl, CarriesFramesInAnyFragmentation) {
  TestServer server(1);
  const std::string key(300, 'k');
  const std::string large(20'000, 'v');
  const std::string all =
      absl::StrCat(kDirectPreface, Framed(HelloFrame()), Framed(Frame(PutRequest(1, {{key, "v"}}))),
                   Framed(Frame(PutRequest(2, {{"large", large}}))),
                   Framed(Frame(GetRequest(3, {key, "large"}, absl::ZeroDuration()))));
  for (const size_t piece : {size_t{1}, size_t{3}, size_t{4099}, all.size()}) {
    RawClient client(server);
    for (size_t at = 0; at < all.size(); at += piece) {
      client.Send(absl::string_view(all).substr(at, piece));
      // Makes the pieces arrive one by one, as far as possible.
      if (piece < 10 && at < 1000) absl::SleepFor(absl::Microseconds(100));
    }
    const v1::Welcome welcome = client.ReadServerFrame().welcome();
    EXPECT_THAT(welcome.observed_address(), StartsWith("ipv4:127.0.0.1:"));
    std::vector<v1::Reply> replies;
    while (replies.size() < 3) {
      const v1::ServerFrame frame = client.ReadServerFrame();
      if (frame.replies().empty()) break;
      replies.insert(replies.end(), frame.replies().begin(), frame.replies().end());
    }
    ASSERT_EQ(replies.size(), 3u);
    ASSERT_EQ(replies[2].entries_size(), 2);
    EXPECT_EQ(replies[2].entries(0).value(), "v");
    EXPECT_EQ(replies[2].entries(1).value(), large);
    // For the next round.
    client.Send(Framed(Frame([&] {
      v1::Request request;
      request.set_id(4);
      request.mutable_delete_()->add_keys(key);
      request.mutable_delete_()->add_keys("large");
      return request;
    }())));
    EXPECT_EQ(client.ReadServerFrame().replies(0).code(), 0);
  }
}

// Replies wait in the server without delaying others, and arrive in order.
TEST(DirectControl, ClientThatDoesNotReadDelaysNoOther) {
  TestServer server(1);
  RawClient client(server);
  const std::string value(1 << 20, 'v');
  client.Send(absl::StrCat(kDirectPreface, Framed(HelloFrame()),
                           Framed(Frame(PutRequest(1, {{"k", value}})))));
  constexpr int kGets = 40;
  for (int i = 0; i < kGets; ++i) {
    client.Send(Framed(Frame(GetRequest(2 + i, {"k"}, absl::ZeroDuration()))));
  }
  ExpectServes(server);
  EXPECT_NE(client.ReadServerFrame().welcome().session_id(), 0u);
  uint64_t last_sequence = 0;
  uint64_t last_id = 0;
  while (last_id < kGets + 1) {
    const v1::ServerFrame frame = client.ReadServerFrame();
    ASSERT_EQ(frame.sequence(), last_sequence + 1);
    last_sequence = frame.sequence();
    for (const v1::Reply& reply : frame.replies()) {
      ASSERT_EQ(reply.request_id(), ++last_id);
      if (last_id == 1) continue;
      ASSERT_EQ(reply.entries(0).value(), value);
    }
  }
}

// Health checks, and ranks that come back, connect at any time.
TEST(DirectControl, StopsWhileOthersConnect) {
  for (int round = 0; round < 40; ++round) {
    auto server = std::make_unique<TestServer>(1);
    const int port = (*server)->port();
    std::atomic<bool> is_over{false};
    std::atomic<int> connected{0};
    std::vector<UniqueFd> silent;
    std::thread dialling([&] {
      while (!is_over) {
        UniqueFd& fd = silent.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in address = {};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address.sin_port = htons(static_cast<uint16_t>(port));
        sockaddr_in own = {};
        socklen_t own_bytes = sizeof own;
        // Without a listener, a socket whose own port is the one it connects to connects to itself.
        if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
            getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &own_bytes) == 0 &&
            own.sin_port != address.sin_port) {
          ++connected;
        } else {
          silent.pop_back();
        }
        if (silent.size() > 50) silent.clear();
      }
    });
    // Some are connected, and more connect all the time.
    while (connected < 5) std::this_thread::yield();
    server = nullptr;
    is_over = true;
    dialling.join();
    // Each connection that was made has been ended by the server, whether it was accepted or not.
    for (const UniqueFd& fd : silent) {
      const timeval timeout = {.tv_sec = 20, .tv_usec = 0};
      setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
      char byte = 0;
      // A connection whose handshake ends while its listener is being closed may not be notified of
      // its server's end: Linux resets it only when something is sent.
      send(fd.get(), &byte, 1, MSG_NOSIGNAL);
      const ssize_t received = recv(fd.get(), &byte, 1, 0);
      EXPECT_TRUE(received == 0 || (received < 0 && errno == ECONNRESET))
          << "round " << round << ": " << received << ", " << std::strerror(errno);
    }
  }
}

// Clients of PyTorch before 2.2 are silent at first, and may be thousands.
TEST(DirectControl, SilentConnectionWithAReservedDescriptor_IsClosed) {
  ServerOptions options = TestOptions(1);
  options.hello_timeout = absl::Milliseconds(50);
  TestServer server(options);
  {
    const OnlyReservedDescriptorsLeft few;
    RawClient silent(server);
    pollfd ended = {silent.fd(), POLLIN, 0};
    EXPECT_EQ(poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(kTimeout))), 1);
  }
  RawClient silent(server);
  pollfd ended = {silent.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&ended, 1, /*timeout=*/500), 0) << "there are enough descriptors";
}

v1::ClientFrame HelloOfRank(uint64_t incarnation) {
  v1::ClientFrame frame;
  v1::Node& node = *frame.mutable_hello()->mutable_node();
  node.set_node_id(0);
  node.set_incarnation(incarnation);
  node.set_host_name("host");
  node.set_boot_id("boot");
  return frame;
}

// The kernel keeps the connection of a process that is stopped, or whose children have it.
TEST(DirectControl, RankWithoutHeartbeatsLosesItsNode) {
  ServerOptions options = TestOptions(1);
  options.coordinator.heartbeat_timeout = absl::Milliseconds(300);
  TestServer server(options);
  RawClient silent(server);
  const absl::Time began = absl::Now();
  v1::Request heartbeat;
  heartbeat.set_id(1);
  heartbeat.mutable_heartbeat();
  silent.Send(absl::StrCat(kDirectPreface, Framed(HelloOfRank(7)), Framed(Frame(heartbeat))));
  EXPECT_NE(silent.ReadServerFrame().welcome().session_id(), 0u);
  EXPECT_EQ(silent.ReadServerFrame().replies_size(), 1);
  bool is_refused_first = false;
  for (int i = 0;; ++i) {
    RawClient restarted(server);
    restarted.Send(absl::StrCat(kDirectPreface, Framed(HelloOfRank(8))));
    const auto answer = restarted.ReadFrame();
    ASSERT_TRUE(answer.has_value());
    // On a loaded machine the first one may come when the node is already lost.
    const bool is_in_time = absl::Now() - began < options.coordinator.heartbeat_timeout;
    if (!answer->is_last) {
      EXPECT_TRUE(is_refused_first || !is_in_time);
      break;
    }
    is_refused_first = true;
    ASSERT_LT(i, 1000);
    absl::SleepFor(absl::Milliseconds(20));
  }
}

TEST(DirectControl, RefusesAFirstFrameThatCannotBeAHello) {
  TestServer server(1);
  RawClient client(server);
  uint8_t head[kDirectHeaderBytes];
  WriteDirectHeader({size_t{1} << 30, false}, head);
  client.Send(absl::StrCat(kDirectPreface,
                           absl::string_view(reinterpret_cast<char*>(head), sizeof(head)), "x"));
  EXPECT_EQ(client.ReadEnd(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(client.IsClosed());
  ExpectServes(server);
}

TEST(DirectControl, ConnectionWithoutASessionIsClosedAfterATimeout) {
  ServerOptions options = TestOptions(1);
  options.hello_timeout = absl::Milliseconds(100);
  TestServer server(options);
  RawClient preface_only(server);
  preface_only.Send(kDirectPreface);
  RawClient half_a_frame(server);
  half_a_frame.Send(absl::StrCat(kDirectPreface, Framed(HelloFrame()).substr(0, 2)));
  // Receives the reason, and neither closes nor falls silent.
  RawClient refused(server);
  refused.Send(absl::StrCat(kDirectPreface, Framed(Frame(PutRequest(1, {{"k", "v"}})))));
  RawClient attached(server);
  attached.Send(absl::StrCat(kDirectPreface, Framed(HelloFrame())));
  EXPECT_NE(attached.ReadServerFrame().welcome().session_id(), 0u);
  EXPECT_EQ(preface_only.ReadEnd(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(half_a_frame.ReadEnd(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(refused.ReadEnd(), StatusCode::kInvalidArgument);
  attached.Send(Framed(Frame(PutRequest(1, {{"k", "v"}}))));
  EXPECT_EQ(attached.ReadServerFrame().replies_size(), 1);
}

TEST(DirectControl, RankThatHangsAfterItHasJoinedLosesItsNode) {
  ServerOptions options = TestOptions(1);
  options.coordinator.heartbeat_timeout = absl::Milliseconds(300);
  TestServer server(options);
  RawClient silent(server);
  v1::Request join;
  join.set_id(1);
  join.mutable_register_();
  silent.Send(absl::StrCat(kDirectPreface, Framed(HelloOfRank(7)), Framed(Frame(join))));
  EXPECT_NE(silent.ReadServerFrame().welcome().session_id(), 0u);
  EXPECT_EQ(silent.ReadServerFrame().replies_size(), 1);
  EXPECT_TRUE(Eventually([&] {
    RawClient restarted(server);
    restarted.Send(absl::StrCat(kDirectPreface, Framed(HelloOfRank(8))));
    const auto answer = restarted.ReadFrame();
    return answer.has_value() && !answer->is_last;
  }));
}

// The first Welcome was lost, and frames sent before arrive after frames sent later.
TEST(DirectControl, AttemptsOfOneClientShareASession) {
  TestServer server(1);
  const auto hello = [](uint32_t attempt) {
    v1::ClientFrame frame = HelloOfRank(7);
    frame.mutable_hello()->set_opening(99);
    frame.mutable_hello()->set_attempt(attempt);
    return absl::StrCat(kDirectPreface, Framed(frame));
  };
  RawClient second(server);
  second.Send(hello(2));
  const uint64_t session = second.ReadServerFrame().welcome().session_id();
  RawClient first(server);
  first.Send(hello(1));
  const auto refusal = first.ReadFrame();
  ASSERT_TRUE(refusal.has_value() && refusal->is_last);
  v1::Reply why;
  ASSERT_TRUE(why.ParseFromString(refusal->bytes));
  EXPECT_EQ(why.code(), static_cast<int>(StatusCode::kUnavailable));
  second.Send(Framed(Frame(PutRequest(1, {{"k", "v"}}))));
  EXPECT_EQ(second.ReadServerFrame().replies_size(), 1);
  RawClient third(server);
  third.Send(hello(3));
  EXPECT_EQ(third.ReadServerFrame().welcome().session_id(), session);
}

TEST(DirectControl, ReportsTheReasonOfItsEnd) {
  TestServer server(1);
  RawClient client(server);
  client.Send(absl::StrCat(kDirectPreface, Framed(Frame(PutRequest(1, {{"k", "v"}})))));
  const auto answer = client.ReadFrame();
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(answer->is_last);
  v1::Reply why;
  ASSERT_TRUE(why.ParseFromString(answer->bytes));
  EXPECT_EQ(why.code(), static_cast<int>(StatusCode::kInvalidArgument));
  EXPECT_THAT(why.message(), HasSubstr("Hello"));
  // The server's direction is over; the connection ends with the client's.
  EXPECT_TRUE(client.IsClosed());
}

TEST(DirectControl, SessionOutlivesItsConnection) {
  TestServer server(1);
  uint64_t session = 0;
  {
    RawClient client(server);
    client.Send(absl::StrCat(kDirectPreface, Framed(HelloFrame()),
                             Framed(Frame(GetRequest(1, {"late"}, absl::Minutes(1))))));
    session = client.ReadServerFrame().welcome().session_id();
    ASSERT_TRUE(server.WaitUntilAwaited("late"));
  }
  RawClient client(server);
  v1::ClientFrame hello = HelloFrame();
  hello.mutable_hello()->set_session_id(session);
  client.Send(
      absl::StrCat(kDirectPreface, Framed(hello), Framed(Frame(PutRequest(2, {{"late", "v"}})))));
  EXPECT_EQ(client.ReadServerFrame().welcome().received_request_id(), 1u);
  int replies = 0;
  while (replies < 2) replies += client.ReadServerFrame().replies_size();
  EXPECT_EQ(replies, 2);
}

TEST(DirectControl, PrefaceThatDiffersLaterIsClosed) {
  TestServer server(1);
  RawClient client(server);
  client.Send("FERRYv2\n and more");
  EXPECT_EQ(client.ReadEnd(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(client.IsClosed());
  ExpectServes(server);
}

TEST(DirectControl, AnnouncedLengthAllocatesNoMemory) {
  TestServer server(1);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<RawClient>(server));
    uint8_t head[kDirectHeaderBytes];
    WriteDirectHeader({kMaxDirectFrameBytes, false}, head);
    clients.back()->Send(absl::StrCat(
        kDirectPreface, absl::string_view(reinterpret_cast<char*>(head), sizeof(head)), "some"));
  }
  ExpectServes(server);
}

TEST(DirectControl, RandomFramesAreHarmless) {
  TestServer server(1);
  std::mt19937 random(20261122);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 200; ++i) {
    std::string bytes(random() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    clients.push_back(std::make_unique<RawClient>(server));
    clients.back()->Send(absl::StrCat(kDirectPreface, i % 2 == 0 ? Framed(bytes) : bytes));
    if (i % 3 == 0) clients.back() = nullptr;
  }
  ExpectServes(server);
}

TEST(DirectControl, SilentConnectionsOverTheLimitAreClosedTheOldestFirst) {
  ServerOptions options = TestOptions(1);
  options.hello_timeout = absl::Milliseconds(100);
  options.max_silent_connections = 2;
  TestServer server(options);
  RawClient oldest(server);
  RawClient second(server);
  RawClient gone(server);
  EXPECT_TRUE(oldest.IsClosed());
  // It may still begin with any protocol; then it counts no more.
  second.Send(absl::StrCat(kDirectPreface, Framed(HelloFrame())));
  EXPECT_NE(second.ReadServerFrame().welcome().session_id(), 0u);
  RawClient fourth(server);
  RawClient fifth(server);
  EXPECT_TRUE(gone.IsClosed());
  fourth.Send(absl::StrCat(kDirectPreface, Framed(HelloFrame())));
  EXPECT_NE(fourth.ReadServerFrame().welcome().session_id(), 0u);
}

TEST(DirectControl, FrameOfTooManyRequestsEndsTheStream) {
  TestServer server(1);
  RawClient client(server);
  v1::ClientFrame many;
  for (int i = 0; i < 20'000; ++i) many.add_requests()->set_id(i + 1);
  client.Send(absl::StrCat(kDirectPreface, Framed(HelloFrame()), Framed(many)));
  EXPECT_NE(client.ReadServerFrame().welcome().session_id(), 0u);
  EXPECT_EQ(client.ReadEnd(), StatusCode::kInvalidArgument);
}

// A frame is handled in one piece, during which no other client is served.
TEST(DirectControl, FrameOverTheLimitIsRefusedAsSoonAsItIsAnnounced) {
  ServerOptions options = TestOptions(1);
  options.coordinator.max_frame_bytes = size_t{1} << 20;
  TestServer server(options);
  RawClient client(server);
  uint8_t head[kDirectHeaderBytes];
  WriteDirectHeader({(size_t{1} << 20) + 1, false}, head);
  client.Send(absl::StrCat(kDirectPreface, Framed(HelloFrame()),
                           absl::string_view(reinterpret_cast<char*>(head), sizeof(head)), "x"));
  EXPECT_EQ(client.ReadServerFrame().welcome().max_frame_bytes(), size_t{1} << 20);
  const auto last = client.ReadFrame();
  ASSERT_TRUE(last.has_value() && last->is_last);
  v1::Reply why;
  ASSERT_TRUE(why.ParseFromString(last->bytes));
  EXPECT_EQ(why.code(), static_cast<int>(StatusCode::kResourceExhausted));
  EXPECT_THAT(why.message(), HasSubstr("1048577"));
  EXPECT_THAT(why.message(), HasSubstr("--max-frame-bytes"));
}

// A client that requests everything at once.
TEST(DirectControl, AnswerThatIsTooLargeIsRefused) {
  TestServer server(1);
  RawClient client(server);
  client.Send(absl::StrCat(
      kDirectPreface, Framed(HelloFrame()),
      Framed(Frame(PutRequest(1, {{"large", std::string(size_t{1} << 20, 'v')}}))),
      Framed(Frame(GetRequest(2, std::vector<std::string>(2100, "large"), absl::ZeroDuration()))),
      Framed(Frame(GetRequest(3, {"large"}, absl::ZeroDuration())))));
  EXPECT_NE(client.ReadServerFrame().welcome().session_id(), 0u);
  std::vector<v1::Reply> replies;
  while (replies.size() < 3) {
    const v1::ServerFrame frame = client.ReadServerFrame();
    for (const v1::Reply& reply : frame.replies()) replies.push_back(reply);
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  EXPECT_EQ(replies[1].code(), static_cast<int>(StatusCode::kResourceExhausted));
  ASSERT_EQ(replies[2].entries_size(), 1) << replies[2].message();
  EXPECT_EQ(replies[2].entries(0).value().size(), size_t{1} << 20);
}

// Thousands of calls may wait for one key, beside others that are large.
TEST(DirectControl, AnswersThatFallDueAtOnceAreBounded) {
  TestServer server(1);
  RawClient client(server);
  std::vector<std::string> keys(400, "large");
  keys.push_back("late");
  client.Send(
      absl::StrCat(kDirectPreface, Framed(HelloFrame()),
                   Framed(Frame(PutRequest(1, {{"large", std::string(size_t{1} << 20, 'v')}})))));
  for (uint64_t id = 2; id < 8; ++id) {
    client.Send(Framed(Frame(GetRequest(id, keys, absl::Minutes(1)))));
  }
  client.Send(Framed(Frame(PutRequest(8, {{"late", ""}}))));
  // A gibibyte may be pending, and the answer that exceeds it: three of them.
  int refused = 0;
  while (refused < 3) {
    const auto frame = client.ReadSmallFrame();
    ASSERT_TRUE(frame.has_value()) << refused << " were refused";
    for (const v1::Reply& reply : frame->replies()) {
      if (reply.code() == static_cast<int>(StatusCode::kResourceExhausted)) ++refused;
    }
  }
  ExpectServes(server);
}

TEST(DirectControl, StopsQuicklyWithClientsOfEveryKind) {
  ServerOptions options = TestOptions(2);
  // Far longer than a loaded machine takes to stop: only a server that waits for clients takes as
  // long.
  options.stop_grace = absl::Minutes(1);
  TestServer server(options);
  RawClient silent(server);
  RawClient unattached(server);
  unattached.Send(kDirectPreface);
  RawClient attached(server);
  attached.Send(absl::StrCat(kDirectPreface, Framed(HelloFrame())));
  EXPECT_NE(attached.ReadServerFrame().welcome().session_id(), 0u);
  const absl::Time start = absl::Now();
  std::thread stop([&] { server->Stop(); });
  const auto last = attached.ReadFrame();
  // As an agent does when its stream ends. The others are not waited for.
  attached.Close();
  stop.join();
  EXPECT_LT(absl::Now() - start, options.stop_grace);
  ASSERT_TRUE(last.has_value());
  EXPECT_TRUE(last->is_last);
  v1::Reply why;
  ASSERT_TRUE(why.ParseFromString(last->bytes));
  EXPECT_EQ(why.code(), static_cast<int>(StatusCode::kUnavailable));
  EXPECT_TRUE(unattached.IsClosed());
}

}  // namespace
}  // namespace ferry::coord
