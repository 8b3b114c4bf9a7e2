// SPDX-License-Identifier: Apache-2.0
// The client's end of plain connections, and addresses.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "coord/wire/direct_connection.h"
#include "coord/wire/direct_frames.h"
#include "net/socket_address.h"
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

// Says Hello, and keeps what it is told.
class Greeter final : public DirectConnection {
 public:
  using DirectConnection::DirectConnection;

  absl::Notification welcomed;
  absl::Notification closed;
  // Of the loop's thread until `closed`.
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

std::string AddressWhereNobodyListens() {
  TestServer gone(1);
  return gone.address();
}

// As for a name that has an address of either family, of which the server has one.
TEST(DirectConnection, GoesOnToTheNextAddressIfOneRefuses) {
  TestServer server(1);
  auto addresses = *ResolveAddress(AddressWhereNobodyListens());
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
  const std::string address = AddressWhereNobodyListens();
  const auto loop = *SocketLoop::OfClients();
  const auto client = std::make_shared<Greeter>(*loop);
  client->Connect(*ResolveAddress(address));
  ASSERT_TRUE(client->closed.WaitForNotificationWithTimeout(kTimeout));
  EXPECT_THAT(client->why, Fails(StatusCode::kUnavailable, HasSubstr(address)));
}

// A host that is off answers nothing at all.
TEST(DirectConnection, GoesOnToTheNextAddressIfOneDoesNotAnswer) {
  UniqueFd full(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  ASSERT_EQ(bind(full.get(), reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(listen(full.get(), 0), 0);
  ASSERT_EQ(getsockname(full.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  auto addresses = *ResolveAddress(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)));
  // Its queue is full with these; what comes then is dropped.
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

  // Of the loop's thread until all are closed.
  std::string& order_;
  const char name_;
  const absl::Duration work_;
};

// The order in which frames are taken of two that are there at once: the bytes of 'a', of whose
// frames each takes `work`, and a single frame of 'b'.
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

TEST(DirectConnection, ABurstDoesNotHoldUpTheOthers) {
  std::string burst;
  while (burst.size() < 3 * SocketLoop::kScratchBytes / 2) burst += Framed(std::string(60, 'x'));
  std::string order;
  Race(burst, absl::ZeroDuration(), order);
  EXPECT_EQ(order.front(), 'a');
  EXPECT_EQ(order.back(), 'a');
}

TEST(DirectConnection, NorDoFewFramesThatTakeLong) {
  std::string few;
  for (int i = 0; i < 100; ++i) few += Framed("x");
  std::string order;
  Race(few, absl::Milliseconds(1), order);
  EXPECT_EQ(order.size(), 101u);
  EXPECT_LT(order.find('b'), 50u);
}

// --- Addresses ---

TEST(SocketAddress, ReadsWhatAgentsAreGiven) {
  for (const char* const address : {"127.0.0.1:80", "ipv4:127.0.0.1:80", "dns:///127.0.0.1:80"}) {
    const auto found = ResolveAddress(address);
    ASSERT_THAT(found, IsOk()) << address;
    EXPECT_EQ(ShowAddress(found->front()), "127.0.0.1:80");
  }
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

}  // namespace
}  // namespace ferry::coord
