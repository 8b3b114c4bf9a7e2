// SPDX-License-Identifier: Apache-2.0
// The client's end of plain connections, and addresses.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "coord/wire/direct_connection.h"
#include "coord/wire/direct_frames.h"
#include "net/resolver.h"
#include "refusing_address.h"
#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;

std::string Framed(absl::string_view bytes) {
  uint8_t head[kDirectHeaderBytes];
  WriteDirectHeader({bytes.size(), false}, head);
  return absl::StrCat(absl::string_view(reinterpret_cast<char*>(head), sizeof(head)), bytes);
}

v1::ClientFrame Hello() {
  v1::ClientFrame frame;
  frame.mutable_hello();
  return frame;
}

// Sends Hello, and keeps the frames it receives.
class Greeter final : public DirectConnection {
 public:
  using DirectConnection::DirectConnection;

  absl::Notification welcomed;
  absl::Notification closed;
  // Used by the loop's thread until `closed`.
  absl::Status why;

  void Greet() {
    const std::string hello = Hello().SerializeAsString();
    const grpc::Slice slice(hello.data(), hello.size());
    // There is no connection yet.
    EXPECT_FALSE(Send({&slice, 1}));
  }

 private:
  bool OnFrame(const DirectFrame&) override {
    welcomed.Notify();
    return true;
  }
  void OnDrained() override {}
  void OnClosed(const absl::Status& status) override {
    why = status;
    closed.Notify();
  }
};

// A name that has an address of either family, of which the server listens on one.
TEST(DirectConnection, TriesTheNextAddressIfOneRefuses) {
  TestServer server(1);
  const RefusingAddress refusing;
  auto addresses = *ResolveAddress(refusing.text());
  addresses.push_back(ResolveAddress(server.address())->front());
  const auto loop = *SocketLoop::OfClients();
  const auto client = std::make_shared<Greeter>(*loop);
  client->Greet();
  client->Connect(addresses);
  EXPECT_TRUE(client->welcomed.WaitForNotificationWithTimeout(kTimeout));
  client->Close(absl::CancelledError("enough"));
  ASSERT_TRUE(client->closed.WaitForNotificationWithTimeout(kTimeout));
  EXPECT_THAT(client->why, Fails(StatusCode::kCancelled));
}

TEST(DirectConnection, NamesTheAddressThatRefused) {
  const RefusingAddress address;
  const auto loop = *SocketLoop::OfClients();
  const auto client = std::make_shared<Greeter>(*loop);
  client->Connect(*ResolveAddress(address.text()));
  ASSERT_TRUE(client->closed.WaitForNotificationWithTimeout(kTimeout));
  EXPECT_THAT(client->why, Fails(StatusCode::kUnavailable, HasSubstr(address.text())));
}

// A host that is off answers nothing at all.
TEST(DirectConnection, TriesTheNextAddressIfOneDoesNotAnswer) {
  UniqueFd full(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  ASSERT_EQ(bind(full.get(), reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(listen(full.get(), 0), 0);
  ASSERT_EQ(getsockname(full.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  auto addresses = *ResolveAddress(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)));
  // Its queue is full with these; later connections are dropped.
  std::vector<UniqueFd> queue;
  for (int i = 0; i < 4; ++i) queue.push_back(BeginConnect(addresses.front()));
  TestServer server(1);
  addresses.push_back(ResolveAddress(server.address())->front());
  const auto loop = *SocketLoop::OfClients();
  const auto client = std::make_shared<Greeter>(*loop);
  client->Greet();
  client->Connect(addresses);
  EXPECT_TRUE(client->welcomed.WaitForNotificationWithTimeout(kTimeout));
  client->Close(absl::CancelledError("enough"));
  ASSERT_TRUE(client->closed.WaitForNotificationWithTimeout(kTimeout));
}

// Notes the order in which frames come.
class Recorder final : public DirectConnection {
 public:
  // Each frame takes `work`.
  Recorder(SocketLoop& loop, std::string& order, char name, absl::Duration work)
      : DirectConnection(loop), order_(order), name_(name), work_(work) {}

  absl::Notification closed;

 private:
  bool OnFrame(const DirectFrame&) override {
    order_.push_back(name_);
    absl::SleepFor(work_);
    return true;
  }
  void OnDrained() override {}
  void OnClosed(const absl::Status&) override { closed.Notify(); }

  // Used by the loop's thread until all are closed.
  std::string& order_;
  const char name_;
  const absl::Duration work_;
};

// The order in which frames of two connections are handled that are ready at once: the bytes of
// 'a', each of whose frames takes `work`, and a single frame of 'b'.
void Race(std::string frames, absl::Duration work, std::string& order) {
  const auto loop = *SocketLoop::Create("test");
  absl::Notification waits;
  absl::Notification go;
  loop->Post([&] {
    waits.Notify();
    go.WaitForNotification();
  });
  // Else it may find 'a' before there is a 'b'.
  waits.WaitForNotification();
  std::vector<std::shared_ptr<Recorder>> recorders;
  const auto open = [&](char name, absl::string_view bytes) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    UniqueFd client(ends[0]);
    recorders.push_back(std::make_shared<Recorder>(*loop, order, name, work));
    recorders.back()->Accept(UniqueFd(ends[1]));
    ASSERT_EQ(send(client.get(), bytes.data(), bytes.size(), MSG_DONTWAIT),
              static_cast<ssize_t>(bytes.size()));
  };
  open('a', absl::StrCat(kDirectPreface, frames));
  open('b', absl::StrCat(kDirectPreface, Framed("x")));
  go.Notify();
  for (const auto& recorder : recorders) {
    ASSERT_TRUE(recorder->closed.WaitForNotificationWithTimeout(kTimeout));
  }
  loop->End();
}

TEST(DirectConnection, BurstDoesNotDelayOtherConnections) {
  std::string burst;
  while (burst.size() < 3 * SocketLoop::kScratchBytes / 2) burst += Framed(std::string(60, 'x'));
  std::string order;
  Race(burst, absl::ZeroDuration(), order);
  EXPECT_EQ(order.front(), 'a');
  EXPECT_EQ(order.back(), 'a');
}

TEST(DirectConnection, FewSlowFramesDoNotDelayOtherConnections) {
  std::string few;
  for (int i = 0; i < 100; ++i) few += Framed("x");
  std::string order;
  Race(few, absl::Milliseconds(1), order);
  EXPECT_EQ(order.size(), 101u);
  EXPECT_LT(order.find('b'), 50u);
}

// Collects the reasons passed to OnClosed.
class Closer final : public DirectConnection {
 public:
  using DirectConnection::DirectConnection;

  bool Greet() {
    const grpc::Slice slice("hello");
    return Send({&slice, 1});
  }

  // Used by the loop's thread until that has ended.
  std::vector<absl::Status> reasons;

 private:
  bool OnFrame(const DirectFrame&) override { return true; }
  void OnDrained() override { ADD_FAILURE() << "nothing can be sent any more"; }
  void OnClosed(const absl::Status& why) override { reasons.push_back(why); }
};

// Owners release what belongs to the connection in OnClosed, and may be gone after it.
TEST(DirectConnection, ClosedTwice_ReportsTheFirstReasonOnce) {
  const auto loop = *SocketLoop::Create("test");
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd peer(ends[0]);
  const auto connection = std::make_shared<Closer>(*loop);
  connection->Accept(UniqueFd(ends[1]));
  connection->Close(absl::CancelledError("the first"));
  connection->Close(absl::CancelledError("the second"));
  absl::Notification are_done;
  loop->Post([&] {
    EXPECT_FALSE(connection->Greet());
    are_done.Notify();
  });
  ASSERT_TRUE(are_done.WaitForNotificationWithTimeout(kTimeout));
  loop->End();
  ASSERT_EQ(connection->reasons.size(), 1u);
  EXPECT_THAT(connection->reasons[0], Fails(StatusCode::kCancelled, HasSubstr("the first")));
}

// --- Addresses ---

TEST(SocketAddress, ParsesAddressesGivenToAgents) {
  for (const char* const address : {"127.0.0.1:80", "ipv4:127.0.0.1:80", "dns:///127.0.0.1:80"}) {
    const auto found = ResolveAddress(address);
    ASSERT_THAT(found, IsOk()) << address;
    EXPECT_EQ(ShowAddress(found->front()), "127.0.0.1:80");
  }
  const auto last = ResolveAddress("127.0.0.1:65535");
  ASSERT_THAT(last, IsOk());
  EXPECT_EQ(ShowAddress(last->front()), "127.0.0.1:65535");
  const auto v6 = ResolveAddress("[::1]:80");
  if (v6.ok()) {
    EXPECT_EQ(ShowAddress(v6->front()), "[::1]:80");
  }
  // A link-local address means nothing without its interface.
  const auto scoped = ResolveAddress("[fe80::1%lo]:80");
  if (scoped.ok()) {
    EXPECT_EQ(ShowAddress(scoped->front()), "[fe80::1%lo]:80");
  }
  for (const char* const address :
       {"", ":80", "host", "host:", "host:http", "host:65536", "::1", "fe80::1%eth0:80x"}) {
    EXPECT_THAT(ResolveAddress(address), Fails(StatusCode::kInvalidArgument)) << address;
  }
  EXPECT_THAT(ResolveAddress("no such host:80"),
              Fails(StatusCode::kUnavailable, HasSubstr("no such host")));
}

// --- Frames ---

std::string Framed(absl::string_view bytes, bool is_last) {
  std::string framed = Framed(bytes);
  if (is_last) framed[kDirectHeaderBytes - 1] |= '\x80';
  return framed;
}

// Keeps the frames it receives; refuses frames of more than `most` bytes when asked.
class Collector final : public DirectConnection {
 public:
  Collector(SocketLoop& loop, size_t most) : DirectConnection(loop), most_(most) {}

  absl::Notification closed;
  // Used by the loop's thread until `closed`.
  std::vector<std::string> frames;
  std::vector<bool> is_last;
  absl::Status why;

 private:
  bool OnFrame(const DirectFrame& frame) override {
    frames.emplace_back(frame.bytes);
    is_last.push_back(frame.is_last);
    return true;
  }
  absl::Status CheckFrameSize(size_t bytes) override {
    return bytes <= most_ ? absl::OkStatus() : absl::ResourceExhaustedError("too large");
  }
  void OnDrained() override {}
  void OnClosed(const absl::Status& status) override {
    why = status;
    closed.Notify();
  }

  const size_t most_;
};

// The result of `bytes` that arrive in pieces of `piece` bytes, and of the end after them.
std::shared_ptr<Collector> Collect(SocketLoop& loop, absl::string_view bytes, size_t piece,
                                   size_t most = SIZE_MAX) {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd client(ends[0]);
  auto collector = std::make_shared<Collector>(loop, most);
  collector->Accept(UniqueFd(ends[1]));
  while (!bytes.empty()) {
    const ssize_t sent =
        send(client.get(), bytes.data(), std::min(bytes.size(), piece), MSG_NOSIGNAL);
    if (sent <= 0) break;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  client.Reset();
  EXPECT_TRUE(collector->closed.WaitForNotificationWithTimeout(kTimeout));
  return collector;
}

// Frames of 8 KiB and more are read into memory of their own, of which the first mebibyte is taken
// when they are announced.
TEST(DirectConnection, FramesOfEverySizeArriveComplete) {
  const auto loop = *SocketLoop::Create("test");
  constexpr size_t kMiB = size_t{1} << 20;
  for (const size_t piece : {size_t{1}, size_t{3}, size_t{4096}, size_t{1} << 16, 8 * kMiB}) {
    std::vector<size_t> sizes = {0, 1, 300, 0, 5};
    if (piece > 1) sizes.insert(sizes.end(), {8191, 8192, 8193, 0, 5});
    if (piece >= 4096) sizes.insert(sizes.end(), {70'000, kMiB, kMiB + 1, 2 * kMiB + 1, 0, 1});
    std::vector<std::string> sent;
    std::vector<bool> is_last;
    std::string bytes(kDirectPreface);
    for (const size_t size : sizes) {
      is_last.push_back(sent.size() % 2 == 1);
      sent.push_back(std::string(size, static_cast<char>('a' + sent.size())));
      bytes += Framed(sent.back(), is_last.back());
    }
    const auto collector = Collect(*loop, bytes, piece);
    EXPECT_THAT(collector->why, IsOk()) << piece;
    EXPECT_TRUE(collector->frames == sent) << piece;
    EXPECT_EQ(collector->is_last, is_last) << piece;
  }
  loop->End();
}

// Only between frames is an end in good order.
TEST(DirectConnection, EndWithinAFrameIsNoCleanEnd) {
  const auto loop = *SocketLoop::Create("test");
  const std::string begin = absl::StrCat(kDirectPreface, Framed("whole"));
  for (const size_t size : {size_t{1}, size_t{8192}}) {
    const std::string frame = Framed(std::string(size, 'x'));
    for (const size_t cut : {size_t{1}, kDirectHeaderBytes, frame.size() - 1}) {
      const auto collector = Collect(*loop, absl::StrCat(begin, frame.substr(0, cut)), 1 << 16);
      EXPECT_THAT(collector->why, Fails(StatusCode::kUnavailable, HasSubstr("within a frame")))
          << size << " " << cut;
      EXPECT_EQ(collector->frames.size(), 1u);
    }
  }
  loop->End();
}

// A large frame is refused by its length alone, and with it the frames behind it.
TEST(DirectConnection, FrameThatIsNotAllowedIsRefusedUnread) {
  const auto loop = *SocketLoop::Create("test");
  const std::string refused = Framed(std::string(10'001, 'x')).substr(0, kDirectHeaderBytes);
  const auto collector = Collect(
      *loop, absl::StrCat(kDirectPreface, Framed(std::string(10'000, 'x')), refused, "after"),
      /*piece=*/4096, /*most=*/10'000);
  EXPECT_THAT(collector->why, Fails(StatusCode::kResourceExhausted));
  EXPECT_EQ(collector->frames.size(), 1u);
  loop->End();
}

TEST(DirectConnection, PrefaceWithAWrongEndIsRefused) {
  const auto loop = *SocketLoop::Create("test");
  std::string other(kDirectPreface);
  other.back() = '\r';
  for (const size_t piece : {size_t{1}, size_t{100}}) {
    const auto collector = Collect(*loop, absl::StrCat(other, Framed("x")), piece);
    EXPECT_THAT(collector->why, Fails(StatusCode::kInvalidArgument)) << piece;
    EXPECT_TRUE(collector->frames.empty());
  }
  loop->End();
}

}  // namespace
}  // namespace ferry::coord
