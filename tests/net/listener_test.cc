// SPDX-License-Identifier: Apache-2.0
// A listener on either loop: out of descriptors, without room, on several addresses; and invalid
// addresses.
#include "net/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "any_loop.h"
#include "base/status_macros.h"
#include "net/resolver.h"
#include "net/sockets.h"
#include "tests/support/used_up_descriptors.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// The connections that a listener passed on. Thread-safe.
class Guests {
 public:
  // The callbacks of a listener. It outlives the loop.
  ListenerCallbacks Callbacks() {
    return {.on_connection =
                [this](UniqueFd connection) {
                  absl::MutexLock lock(&mu_);
                  ++total_;
                  connections_.push_back(std::move(connection));
                },
            .on_trouble =
                [this](const std::string& trouble) {
                  absl::MutexLock lock(&mu_);
                  troubles_.push_back(trouble);
                }};
  }
  size_t total() const {
    absl::MutexLock lock(&mu_);
    return total_;
  }
  std::vector<std::string> troubles() const {
    absl::MutexLock lock(&mu_);
    return troubles_;
  }
  // Waits until so many have come in all.
  bool WaitForTotal(size_t count) {
    return Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return total_ >= count; });
  }
  bool WaitForTrouble() {
    return Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !troubles_.empty(); });
  }
  void SendAway() {
    absl::MutexLock lock(&mu_);
    connections_.clear();
  }

 private:
  bool Await(absl::FunctionRef<bool()> condition) {
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&condition), kTimeout);
  }

  mutable absl::Mutex mu_;
  size_t total_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<UniqueFd> connections_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> troubles_ ABSL_GUARDED_BY(mu_);
};

UniqueFd NewSocket() { return UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

bool Connect(const UniqueFd& fd, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

// No descriptor above `highest` can be opened during its lifetime.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int highest) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(highest) + 1;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

class ListenerTest : public AnyLoopTest {
 protected:
  ~ListenerTest() override {
    listener_ = nullptr;
    // Before what the callbacks use.
    loop_ = nullptr;
  }

  [[nodiscard]] absl::Status Start(const std::string& address) {
    return Start(address, guests_.Callbacks());
  }
  absl::Status Start(const std::string& address, ListenerCallbacks callbacks) {
    auto listener = Listener::OpenTcp(address);
    if (!listener.ok()) return listener.status();
    listener_ = *std::move(listener);
    return listener_->Start(*loop_, std::move(callbacks));
  }
  // Connects and closes.
  bool Visit() const { return Connect(NewSocket(), listener_->port()); }

  Guests guests_;
  std::unique_ptr<Listener> listener_;
};

TEST_P(ListenerTest, AcceptsOnAPortOfItsOwnUntilItIsClosed) {
  ASSERT_TRUE(Start("127.0.0.1:0").ok());
  ASSERT_GT(listener_->port(), 0);
  EXPECT_TRUE(Visit());
  EXPECT_TRUE(guests_.WaitForTotal(1));
  const int port = listener_->port();
  listener_->Close();
  listener_->Close();
  listener_ = nullptr;
  Settle();
  EXPECT_FALSE(Connect(NewSocket(), port));
}

TEST_P(ListenerTest, AdoptedSockets_AcceptThoseWhoConnectedBefore) {
  listener_ = *Listener::OpenTcp("127.0.0.1:0");
  const int port = listener_->port();
  EXPECT_TRUE(Visit());
  std::vector<UniqueFd> sockets;
  for (const int socket : listener_->descriptors()) sockets.emplace_back(dup(socket));
  listener_ = nullptr;
  auto adopted = Listener::Adopt(std::move(sockets), "here:1");
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  listener_ = *std::move(adopted);
  EXPECT_EQ(listener_->port(), port);
  EXPECT_EQ(listener_->address(), "here:1");
  ASSERT_TRUE(listener_->Start(*loop_, guests_.Callbacks()).ok());
  EXPECT_TRUE(Visit());
  EXPECT_TRUE(guests_.WaitForTotal(2));
}

TEST(ListenerAdopt, SocketsThatDoNotListen_AreRejected) {
  EXPECT_FALSE(Listener::Adopt({}, "").ok());
  std::vector<UniqueFd> sockets;
  sockets.push_back(NewSocket());
  EXPECT_EQ(Listener::Adopt(std::move(sockets), "").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(ListenerTest, ClientsThatConnectedBeforeStart_AreAccepted) {
  listener_ = *Listener::OpenTcp("127.0.0.1:0");
  EXPECT_TRUE(Visit());
  EXPECT_TRUE(Visit());
  ASSERT_TRUE(listener_->Start(*loop_, guests_.Callbacks()).ok());
  EXPECT_TRUE(guests_.WaitForTotal(2));
}

// A port scanner, or a job that is larger than the limit: connections wait, and are taken when
// there are descriptors again.
TEST_P(ListenerTest, ContinuesWhenDescriptorsAreAvailableAgain) {
  ASSERT_TRUE(Start("127.0.0.1:0").ok());
  Settle();
  std::vector<UniqueFd> clients;
  int highest = 0;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(NewSocket());
    highest = std::max(highest, clients.back().get());
  }
  {
    const DescriptorLimit limit(highest + 3);
    for (const UniqueFd& client : clients) ASSERT_TRUE(Connect(client, listener_->port()));
    ASSERT_TRUE(guests_.WaitForTrouble());
    const size_t taken = guests_.total();
    EXPECT_LT(taken, clients.size());
    EXPECT_THAT(guests_.troubles()[0], HasSubstr("Too many open files"));
    EXPECT_THAT(guests_.troubles()[0], HasSubstr("ulimit -n"));
    guests_.SendAway();
    EXPECT_TRUE(guests_.WaitForTotal(taken + 1));
  }
  EXPECT_TRUE(guests_.WaitForTotal(clients.size()));
  // It logs now and then, not for each.
  EXPECT_EQ(guests_.troubles().size(), 1u);
}

// It is accepted with the descriptor that is kept for that, told, and closed.
TEST_P(ListenerTest, WithoutDescriptors_ClientIsToldWhy) {
  ListenerCallbacks callbacks = guests_.Callbacks();
  callbacks.out_of_descriptors = "come back later";
  ASSERT_TRUE(Start("127.0.0.1:0", std::move(callbacks)).ok());
  Settle();
  const UniqueFd clients[] = {NewSocket(), NewSocket()};
  {
    const UsedUpDescriptors none;
    for (const UniqueFd& client : clients) {
      ASSERT_TRUE(Connect(client, listener_->port()));
      char told[64] = {};
      pollfd readable = {client.get(), POLLIN, 0};
      ASSERT_EQ(poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(kTimeout))), 1);
      EXPECT_GT(recv(client.get(), told, sizeof(told), 0), 0);
      EXPECT_STREQ(told, "come back later");
      EXPECT_EQ(recv(client.get(), told, sizeof(told), 0), 0);
    }
  }
  EXPECT_EQ(guests_.total(), 0u);
  EXPECT_TRUE(Visit());
  EXPECT_TRUE(guests_.WaitForTotal(1));
  EXPECT_TRUE(guests_.troubles().empty());
}

// The events that an epoll set of this process waits for on `fd`, as the kernel shows them; empty:
// none contains it.
std::string WatchedEvents(int fd) {
  const std::string wanted = absl::StrCat(fd);
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
    std::ifstream file(each.path());
    for (std::string word; file >> word;) {
      std::string tfd;
      std::string key;
      std::string events;
      if (word == "tfd:" && file >> tfd >> key >> events && tfd == wanted) return events;
    }
  }
  return "";
}

int ListeningDescriptor(int port) {
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in address = {};
    socklen_t length = sizeof(address);
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) continue;
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
    if (ntohs(address.sin_port) == port) return fd;
  }
  return -1;
}

// A level-triggered loop would call it again at once, and never sleep.
TEST_P(ListenerTest, WithoutRoom_ConnectionsWaitAndNothingIsWatched) {
  std::atomic<bool> has_room{false};
  ListenerCallbacks callbacks = guests_.Callbacks();
  callbacks.has_room = [&has_room] { return has_room.load(); };
  ASSERT_TRUE(Start("127.0.0.1:0", std::move(callbacks)).ok());
  const int fd = ListeningDescriptor(listener_->port());
  ASSERT_GE(fd, 0);
  const std::string before = WatchedEvents(fd);
  // EPOLLIN, beside EPOLLERR and EPOLLHUP, which are always watched.
  EXPECT_TRUE(absl::EndsWith(before, "19")) << before;
  EXPECT_TRUE(Visit());
  bool is_quiet = false;
  for (const absl::Time end = absl::Now() + kTimeout; !is_quiet && absl::Now() < end;) {
    // EPOLLERR and EPOLLHUP are always watched.
    is_quiet = absl::EndsWith(WatchedEvents(fd), "18");
  }
  EXPECT_TRUE(is_quiet) << WatchedEvents(fd);
  EXPECT_EQ(guests_.total(), 0u);
  has_room = true;
  EXPECT_TRUE(guests_.WaitForTotal(1));
  EXPECT_TRUE(Visit());
  EXPECT_TRUE(guests_.WaitForTotal(2));
}

// More than it accepts in one turn of the loop.
TEST_P(ListenerTest, CrowdThatWaits_IsAcceptedToTheLast) {
  constexpr int kCrowd = 1100;
  int limit = 0;
  std::ifstream("/proc/sys/net/core/somaxconn") >> limit;
  if (limit < kCrowd) GTEST_SKIP() << "the kernel keeps " << limit << " connections waiting";
  listener_ = *Listener::OpenTcp("127.0.0.1:0");
  for (int i = 0; i < kCrowd; ++i) ASSERT_TRUE(Visit()) << i;
  std::atomic<int> came{0};
  absl::Notification all;
  ASSERT_TRUE(listener_
                  ->Start(*loop_, {.on_connection =
                                       [&](UniqueFd) {
                                         if (++came == kCrowd) all.Notify();
                                       }})
                  .ok());
  EXPECT_TRUE(all.WaitForNotificationWithTimeout(kTimeout)) << came;
}

TEST_P(ListenerTest, ListensOnBothFamilies) {
  if (const absl::Status status = Start("[::]:0"); !status.ok()) {
    GTEST_SKIP() << "this host has no IPv6: " << status;
  }
  EXPECT_TRUE(Visit());
  EXPECT_TRUE(guests_.WaitForTotal(1));
}

// The default. cli_network_test covers the fallback to IPv4 where there is no IPv6.
TEST_P(ListenerTest, WithoutAHost_ListensOnBothFamilies) {
  ASSERT_TRUE(Start(":0").ok());
  const std::string port = std::to_string(listener_->port());
  EXPECT_THAT(listener_->address(), AnyOf("[::]:" + port, "0.0.0.0:" + port));
  EXPECT_TRUE(Visit());
  EXPECT_TRUE(guests_.WaitForTotal(1));
}

// IPv4 in the form of IPv6.
TEST_P(ListenerTest, MappedAddress_AcceptsIPv4) {
  if (const absl::Status status = Start("[::ffff:127.0.0.1]:0"); !status.ok()) {
    ASSERT_FALSE(Listener::OpenTcp("[::1]:0").ok()) << status;
    GTEST_SKIP() << "this host has no IPv6: " << status;
  }
  EXPECT_TRUE(Visit());
  EXPECT_TRUE(guests_.WaitForTotal(1));
}

TEST_P(ListenerTest, NameOfSeveralAddresses_AcceptsOnEach) {
  const auto addresses = ResolveTcp("localhost:0");
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  if (addresses->size() < 2) GTEST_SKIP() << "localhost has one address here";
  ASSERT_TRUE(Start("localhost:0").ok());
  size_t count = 0;
  for (const std::string& each : *addresses) {
    const std::string host = each.substr(0, each.rfind(':'));
    const std::string address = absl::StrCat(host, ":", listener_->port());
    const auto client = BeginConnectTcp(address);
    ASSERT_TRUE(client.ok()) << client.status();
    EXPECT_TRUE(guests_.WaitForTotal(++count)) << address;
  }
}

TEST_P(ListenerTest, UnixSocket_Accepts) {
  const std::string name = absl::StrCat("ferry-listener-test-", getpid());
  listener_ = *Listener::OpenUnix(name);
  EXPECT_EQ(listener_->port(), 0);
  EXPECT_EQ(listener_->address(), name);
  EXPECT_EQ(Listener::OpenUnix(name).status().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(listener_->Start(*loop_, guests_.Callbacks()).ok());
  const auto client = BeginConnectUnix(name);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE(guests_.WaitForTotal(1));
}

FERRY_ON_BOTH_LOOPS(ListenerTest);

// The loop may be kept for its other sources.
TEST(ListenerOnSocketLoop, EndOfTheLoop_ClosesThePort) {
  Guests guests;
  const auto loop = *SocketLoop::Create("test");
  const auto listener = *Listener::OpenTcp("127.0.0.1:0");
  ASSERT_TRUE(listener->Start(*loop, guests.Callbacks()).ok());
  loop->End();
  EXPECT_FALSE(Connect(NewSocket(), listener->port()));
}

TEST(ListenerAddress, WithoutDescriptors_OpenSaysSo) {
  const UsedUpDescriptors none;
  const absl::Status status = Listener::OpenTcp("127.0.0.1:0").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("cannot listen on 127.0.0.1:0"), HasSubstr("ulimit -n")));
}

TEST(ListenerAddress, AddressKeepsTheRequestedHost) {
  const auto listener = *Listener::OpenTcp("localhost:0");
  EXPECT_EQ(listener->address(), "localhost:" + std::to_string(listener->port()));
}

// All nodes derive the address at which node 0 starts a coordinator.
TEST(ListenerAddress, AddressFor_IsTheLoopbackOnlyWhereRequested) {
  const std::pair<const char*, const char*> kCases[] = {
      {"127.0.0.1:80", "127.0.0.1:80"},
      {"127.0.1.1:80", "127.0.1.1:80"},
      {"[::1]:80", "[::1]:80"},
      {"[0:0:0:0:0:0:0:1]:80", "[::1]:80"},
      {"[::ffff:127.0.0.1]:80", "127.0.0.1:80"},
      {"localhost:80", "localhost:80"},
      {"LocalHost:80", "localhost:80"},
      {"ip6-localhost:80", "ip6-localhost:80"},
      {"job.localhost:80", "job.localhost:80"},
      // Other machines connect to these.
      {"10.0.0.7:80", ":80"},
      {"0.0.0.0:80", ":80"},
      {"[::ffff:10.0.0.7]:80", ":80"},
      {"head:80", ":80"},
      {"localhost.example.com:80", ":80"},
      // By IPv6 alone.
      {"[fd00::7]:80", "[::]:80"},
      {"[fe80::7%eth0]:80", "[::]:80"},
      {"[::]:80", "[::]:80"},
  };
  for (const auto& [coordinator, expected] : kCases) {
    EXPECT_EQ(Listener::AddressFor(coordinator), expected) << coordinator;
  }
}

void ExpectRefused(const std::string& address, absl::StatusCode code, const char* why) {
  const absl::Status status = Listener::OpenTcp(address).status();
  EXPECT_EQ(status.code(), code) << address;
  EXPECT_THAT(status.message(), HasSubstr(why));
}

TEST(ListenerAddress, ReportsTheErrorInAnAddress) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnavailable = absl::StatusCode::kUnavailable;
  for (const char* address :
       {"", "host", ":", ":65536", "host:", "host:65536", "host:-1", "host:80x"}) {
    ExpectRefused(address, kInvalid, "is not HOST:PORT");
  }
  ExpectRefused("::1:0", kInvalid, "[::1]:0");
  ExpectRefused("nohost.invalid:0", kUnavailable, "cannot be resolved");
  ExpectRefused("192.0.2.1:0", kUnavailable, "it is no address of this host");
  const auto first = *Listener::OpenTcp("127.0.0.1:0");
  ExpectRefused(absl::StrCat("127.0.0.1:", first->port()), kUnavailable, "is in use");
}

// Listens at `port` on a host with these addresses.
absl::StatusOr<std::vector<ListeningSocket>> ListenOnAll(const std::vector<std::string>& hosts,
                                                         int port = 0) {
  return ListenTcpOnAll(absl::StrCat("head:", port),
                        [&](const HostPort& parts) -> absl::StatusOr<std::vector<SocketAddress>> {
                          EXPECT_EQ(parts.host, "head");
                          std::vector<SocketAddress> addresses;
                          for (const std::string& host : hosts) {
                            FERRY_ASSIGN_OR_RETURN(const std::vector<SocketAddress> one,
                                                   ResolveHost({.host = host, .port = parts.port},
                                                               {.may_ask = false}));
                            addresses.insert(addresses.end(), one.begin(), one.end());
                          }
                          return addresses;
                        });
}

bool Connects(const char* host, int port) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, host, &address.sin_addr);
  return connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

TEST(ListenTcpOnAllTest, HostWithSeveralAddresses_HasOnePortOnEach) {
  const auto sockets = ListenOnAll({"127.0.0.1", "127.0.0.2"});
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  ASSERT_EQ(sockets->size(), 2u);
  EXPECT_EQ((*sockets)[0].port, (*sockets)[1].port);
  EXPECT_TRUE(Connects("127.0.0.1", (*sockets)[0].port));
  EXPECT_TRUE(Connects("127.0.0.2", (*sockets)[0].port));
}

// Nodes that resolve the name to that address would reach another process.
TEST(ListenTcpOnAllTest, PortInUseOnOneOfSeveralAddresses_IsRefused) {
  const auto other = *ListenTcp("127.0.0.2:0");
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"127.0.0.1", "127.0.0.2"}, {"127.0.0.2", "127.0.0.1"}}) {
    const absl::Status status = ListenOnAll(hosts, other.port).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("port ", other.port, " is in use")));
  }
  EXPECT_FALSE(Connects("127.0.0.1", other.port)) << "the first address is listened on";
}

// It may be for another interface, or a family that the kernel does not have.
TEST(ListenTcpOnAllTest, AddressThatIsNotOfThisHost_DoesNotKeepItFromTheOthers) {
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"192.0.2.1", "127.0.0.1"}, {"127.0.0.1", "192.0.2.1"}}) {
    const auto sockets = ListenOnAll(hosts);
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    EXPECT_TRUE(Connects("127.0.0.1", (*sockets)[0].port));
  }
  const absl::Status none = ListenOnAll({"192.0.2.1", "198.51.100.1"}).status();
  EXPECT_TRUE(absl::IsUnavailable(none)) << none;
  EXPECT_THAT(none.message(), HasSubstr("it is no address of this host"));
}

}  // namespace
}  // namespace ferry
