// SPDX-License-Identifier: Apache-2.0
// A listener of a process that runs out of descriptors, and invalid addresses.
#include "net/tcp_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/status_macros.h"
#include "net/resolver.h"
#include "test_server.h"

namespace ferry::coord {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// The connections that a listener passed on. Thread-safe.
class Guests {
 public:
  TcpListener::ConnectionCallback Welcome() {
    return [this](UniqueFd connection) {
      absl::MutexLock lock(&mu_);
      connections_.push_back(std::move(connection));
    };
  }
  TcpListener::TroubleCallback Listen() {
    return [this](const std::string& trouble) {
      absl::MutexLock lock(&mu_);
      troubles_.push_back(trouble);
    };
  }
  size_t count() const {
    absl::MutexLock lock(&mu_);
    return connections_.size();
  }
  std::vector<std::string> troubles() const {
    absl::MutexLock lock(&mu_);
    return troubles_;
  }
  void SendAway() {
    absl::MutexLock lock(&mu_);
    connections_.clear();
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<UniqueFd> connections_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> troubles_ ABSL_GUARDED_BY(mu_);
};

UniqueFd NewSocket() { return UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

bool Connect(const UniqueFd& fd, int port, const char* host = "127.0.0.1") {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, host, &address.sin_addr);
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

TEST(TcpListener, AcceptsOnAPortOfItsOwn) {
  Guests guests;
  const auto listener = *TcpListener::Open("127.0.0.1:0");
  ASSERT_GT(listener->port(), 0);
  listener->Start(guests.Welcome(), guests.Listen());
  const UniqueFd client = NewSocket();
  EXPECT_TRUE(Connect(client, listener->port()));
  EXPECT_TRUE(Eventually([&] { return guests.count() == 1; }));
  listener->Close();
  EXPECT_FALSE(Connect(NewSocket(), listener->port()));
}

// A port scanner, or a job that is larger than the limit: connections wait, and are taken when
// there are descriptors again.
TEST(TcpListener, ContinuesWhenDescriptorsAreAvailableAgain) {
  Guests guests;
  const auto listener = *TcpListener::Open("127.0.0.1:0");
  listener->Start(guests.Welcome(), guests.Listen());
  std::vector<UniqueFd> clients;
  int highest = 0;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(NewSocket());
    highest = std::max(highest, clients.back().get());
  }
  size_t taken = 0;
  {
    const DescriptorLimit limit(highest + 3);
    for (const UniqueFd& client : clients) ASSERT_TRUE(Connect(client, listener->port()));
    ASSERT_TRUE(Eventually([&] { return !guests.troubles().empty(); }));
    taken = guests.count();
    EXPECT_LT(taken, clients.size());
    EXPECT_THAT(guests.troubles()[0], HasSubstr("Too many open files"));
    EXPECT_THAT(guests.troubles()[0], HasSubstr("ulimit -n"));
    guests.SendAway();
    EXPECT_TRUE(Eventually([&] { return guests.count() > 0; }));
  }
  EXPECT_TRUE(Eventually([&] { return taken + guests.count() == clients.size(); }));
  // It logs now and then, not for each.
  EXPECT_EQ(guests.troubles().size(), 1u);
}

TEST(TcpListener, ListensOnBothFamilies) {
  Guests guests;
  const absl::StatusOr<std::unique_ptr<TcpListener>> listener = TcpListener::Open("[::]:0");
  if (!listener.ok()) GTEST_SKIP() << "this host has no IPv6: " << listener.status();
  (*listener)->Start(guests.Welcome(), guests.Listen());
  const UniqueFd client = NewSocket();
  EXPECT_TRUE(Connect(client, (*listener)->port()));
  EXPECT_TRUE(Eventually([&] { return guests.count() == 1; }));
}

// The default. cli_network_test covers the fallback to IPv4 where there is no IPv6.
TEST(TcpListener, WithoutAHost_ListensOnBothFamilies) {
  Guests guests;
  const auto listener = *TcpListener::Open(":0");
  listener->Start(guests.Welcome(), guests.Listen());
  const std::string port = std::to_string(listener->port());
  EXPECT_THAT(listener->address(), AnyOf("[::]:" + port, "0.0.0.0:" + port));
  const UniqueFd client = NewSocket();
  EXPECT_TRUE(Connect(client, listener->port()));
  EXPECT_TRUE(Eventually([&] { return guests.count() == 1; }));
}

TEST(TcpListener, AddressKeepsTheRequestedHost) {
  const auto listener = *TcpListener::Open("localhost:0");
  EXPECT_EQ(listener->address(), "localhost:" + std::to_string(listener->port()));
}

// All nodes derive the address at which node 0 starts a coordinator.
TEST(TcpListener, AddressFor_IsTheLoopbackOnlyWhereRequested) {
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
    EXPECT_EQ(TcpListener::AddressFor(coordinator), expected) << coordinator;
  }
}

void ExpectRefused(const std::string& address, absl::StatusCode code, const char* why) {
  const absl::Status status = TcpListener::Open(address).status();
  EXPECT_EQ(status.code(), code) << address;
  EXPECT_THAT(status.message(), HasSubstr(why));
}

TEST(TcpListener, ReportsTheErrorInAnAddress) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnavailable = absl::StatusCode::kUnavailable;
  for (const char* address :
       {"", "host", ":", ":65536", "host:", "host:65536", "host:-1", "host:80x"}) {
    ExpectRefused(address, kInvalid, "is not HOST:PORT");
  }
  ExpectRefused("::1:0", kInvalid, "[::1]:0");
  ExpectRefused("nohost.invalid:0", kUnavailable, "cannot be resolved");
  ExpectRefused("192.0.2.1:0", kUnavailable, "it is no address of this host");
  const auto first = *TcpListener::Open("127.0.0.1:0");
  ExpectRefused(absl::StrCat("127.0.0.1:", first->port()), kUnavailable, "is in use");
}

// Listens at `port` on a host with these addresses.
absl::StatusOr<std::unique_ptr<TcpListener>> OpenOnAll(const std::vector<std::string>& hosts,
                                                       int port = 0) {
  return TcpListener::Open(
      absl::StrCat("head:", port),
      [&](const HostPort& parts) -> absl::StatusOr<std::vector<SocketAddress>> {
        EXPECT_EQ(parts.host, "head");
        std::vector<SocketAddress> addresses;
        for (const std::string& host : hosts) {
          FERRY_ASSIGN_OR_RETURN(
              const std::vector<SocketAddress> one,
              ResolveHost({.host = host, .port = parts.port}, {.may_ask = false}));
          addresses.insert(addresses.end(), one.begin(), one.end());
        }
        return addresses;
      });
}

TEST(TcpListener, HostWithSeveralAddresses_HasOnePortOnEach) {
  Guests guests;
  const auto listener = OpenOnAll({"127.0.0.1", "127.0.0.2"});
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ((*listener)->address(), absl::StrCat("head:", (*listener)->port()));
  (*listener)->Start(guests.Welcome(), guests.Listen());
  const UniqueFd clients[] = {NewSocket(), NewSocket()};
  EXPECT_TRUE(Connect(clients[0], (*listener)->port(), "127.0.0.1"));
  EXPECT_TRUE(Connect(clients[1], (*listener)->port(), "127.0.0.2"));
  EXPECT_TRUE(Eventually([&] { return guests.count() == 2; }));
}

// Nodes that resolve the name to that address would reach another process.
TEST(TcpListener, PortInUseOnOneOfSeveralAddresses_IsRefused) {
  const auto other = *TcpListener::Open("127.0.0.2:0");
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"127.0.0.1", "127.0.0.2"}, {"127.0.0.2", "127.0.0.1"}}) {
    const absl::Status status = OpenOnAll(hosts, other->port()).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("port ", other->port(), " is in use")));
  }
  EXPECT_FALSE(Connect(NewSocket(), other->port())) << "the first address is listened on";
}

// It may be for another interface, or a family that the kernel does not have.
TEST(TcpListener, AddressThatIsNotOfThisHost_DoesNotKeepItFromTheOthers) {
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"192.0.2.1", "127.0.0.1"}, {"127.0.0.1", "192.0.2.1"}}) {
    const auto listener = OpenOnAll(hosts);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_TRUE(Connect(NewSocket(), (*listener)->port()));
  }
  const absl::Status none = OpenOnAll({"192.0.2.1", "198.51.100.1"}).status();
  EXPECT_TRUE(absl::IsUnavailable(none)) << none;
  EXPECT_THAT(none.message(), HasSubstr("it is no address of this host"));
}

}  // namespace
}  // namespace ferry::coord
