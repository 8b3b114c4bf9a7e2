// SPDX-License-Identifier: Apache-2.0
// TcpStoreServer with several threads: clients on different workers that use the same keys.
#include "coord/server/tcp_store_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/thread.h"
#include "base/unique_fd.h"
#include "coord/server/handover_proto.h"
#include "net/paused_loop.h"
#include "tests/coord/tcpstore/tcp_store_bytes.h"
#include "tests/coord/tcpstore/tcp_store_handover.h"

namespace ferry::coord {
namespace {

const std::string kStop(1, '\0');
const TcpStoreBytes kBytes(TcpStoreDialect::kTorch22);
constexpr int kThreads = 4;
constexpr time_t kPatienceS = 30;

template <typename Number>
Number AsNumber(const std::string& bytes) {
  Number number = 0;
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(&number));
  return number;
}

class TcpStoreServerTest : public testing::Test {
 protected:
  // A blocking client, whose end of the connection closes with it.
  class Client {
   public:
    explicit Client(UniqueFd fd) : fd_(std::move(fd)) { Send(kBytes.Hello()); }
    void Send(const std::string& bytes) {
      ASSERT_EQ(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(bytes.size()));
    }
    std::string Read(size_t count) {
      std::string bytes(count, '\0');
      const ssize_t got = recv(fd_.get(), bytes.data(), count, MSG_WAITALL);
      bytes.resize(got < 0 ? 0 : static_cast<size_t>(got));
      EXPECT_EQ(bytes.size(), count);
      return bytes;
    }
    template <typename Number>
    Number ReadNumber() {
      return AsNumber<Number>(Read(sizeof(Number)));
    }
    std::string ReadVector() { return Read(ReadNumber<uint64_t>()); }
    bool IsClosed() {
      char byte;
      return recv(fd_.get(), &byte, 1, 0) <= 0 && errno != EAGAIN;
    }
    // Everything before it has been answered.
    void ExpectPong(uint32_t nonce) {
      Send(kBytes.Ping(nonce));
      EXPECT_EQ(Read(4), AsBytes(nonce));
    }

   private:
    UniqueFd fd_;
  };

  TcpStoreServerTest() {
    options_.keepalive_time = absl::Seconds(30);
    options_.keepalive_timeout = absl::Seconds(20);
    options_.idle_timeout = absl::Minutes(10);
    options_.threads = kThreads;
    server_ = *TcpStoreServer::Create(options_);
    listener_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 64), 0);
  }

  // Consecutive clients are on different workers.
  std::unique_ptr<Client> Connect() {
    sockaddr_in address = {};
    socklen_t length = sizeof(address);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience = {.tv_sec = kPatienceS, .tv_usec = 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    server_->Take(UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    return std::make_unique<Client>(std::move(fd));
  }
  std::vector<std::unique_ptr<Client>> Connect(int count) {
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < count; ++i) clients.push_back(Connect());
    return clients;
  }

  // Stops the server for good, and returns its state, with sockets for another one.
  HandoverState Leave() {
    std::vector<PausedLoop> paused = server_->Pause();
    HandoverState state;
    state.scopes = server_->Export();
    for (TcpStoreScopeState& scope : state.scopes) {
      for (TcpStoreConnectionState& each : scope.connections) each.socket = dup(each.socket);
    }
    absl::StatusOr<HandoverState> read = DecodeHandover(Encoded(state));
    EXPECT_TRUE(read.ok()) << read.status();
    former_.push_back({std::move(server_), std::move(paused)});
    server_ = *TcpStoreServer::Create(options_);
    return *std::move(read);
  }
  void HandOver() {
    // Replaces server_.
    HandoverState state = Leave();
    ASSERT_EQ(server_->Restore(std::move(state.scopes)), absl::OkStatus());
  }

  // Returns false if the condition does not become true in time.
  static bool WaitFor(absl::FunctionRef<bool()> condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(kPatienceS);
    while (!condition()) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

  TcpStoreServerOptions options_;
  std::unique_ptr<TcpStoreServer> server_;
  UniqueFd listener_;
  // They stay paused until the test is over, since a process image that is replaced does nothing
  // more.
  struct Former {
    std::unique_ptr<TcpStoreServer> server;
    std::vector<PausedLoop> paused;
  };
  std::vector<Former> former_;
};

TEST_F(TcpStoreServerTest, MultiSet_WaitsOnAllWorkers_AreEndedOnce) {
  const auto clients = Connect(4 * kThreads);
  std::vector<std::pair<std::string, std::string>> entries;
  for (size_t i = 0; i < clients.size(); ++i) {
    entries.emplace_back(absl::StrCat("key", i), "");
    clients[i]->Send(kBytes.Wait({absl::StrCat("key", i), "last"}));
  }
  entries.emplace_back("last", "");
  const auto setter = Connect();
  EXPECT_TRUE(
      WaitFor([&] { return server_->InnerTableSizes()["tcpstore.waits"] == clients.size(); }));
  setter->Send(kBytes.MultiSet(entries));
  for (const auto& client : clients) {
    EXPECT_EQ(client->Read(1), kStop);
    client->ExpectPong(7);
  }
}

TEST_F(TcpStoreServerTest, Add_ByClientsOfAllWorkers_DrawsEachNumberOnce) {
  constexpr int kClients = 2 * kThreads;
  constexpr int kAdds = 500;
  auto clients = Connect(kClients);
  absl::Mutex mu;
  std::set<int64_t> drawn;
  std::vector<std::unique_ptr<Thread>> threads;
  for (const auto& client : clients) {
    threads.push_back(std::make_unique<Thread>("client", [&mu, &drawn, &client] {
      for (int i = 0; i < kAdds; ++i) {
        client->Send(kBytes.Add("n", 1));
        const auto number = client->ReadNumber<int64_t>();
        absl::MutexLock lock(&mu);
        drawn.insert(number);
      }
    }));
  }
  for (const auto& thread : threads) thread->Join();
  EXPECT_EQ(drawn.size(), size_t{kClients} * kAdds);
  EXPECT_EQ(*drawn.rbegin(), kClients * kAdds);
}

TEST_F(TcpStoreServerTest, Queue_WaitersAndPushersOnAllWorkers_EachElementIsPoppedOnce) {
  constexpr int kPairs = kThreads;
  constexpr int kElements = 300;
  auto clients = Connect(2 * kPairs);
  absl::Mutex mu;
  std::multiset<std::string> popped;
  std::vector<std::unique_ptr<Thread>> threads;
  for (int pair = 0; pair < kPairs; ++pair) {
    threads.push_back(std::make_unique<Thread>("pusher", [&clients, pair] {
      for (int i = 0; i < kElements; ++i) {
        clients[pair]->Send(kBytes.QueuePush("q", absl::StrCat(pair, "/", i)));
      }
      clients[pair]->ExpectPong(1);
    }));
    threads.push_back(std::make_unique<Thread>("popper", [&, pair] {
      Client& client = *clients[kPairs + pair];
      for (int i = 0; i < kElements; ++i) {
        client.Send(kBytes.Wait({"q"}));
        ASSERT_EQ(client.Read(1), kStop);
        client.Send(kBytes.QueuePop("q"));
        // The element is reserved for the client whose wait it has ended.
        ASSERT_GT(client.ReadNumber<int64_t>(), 0);
        const std::string element = client.ReadVector();
        absl::MutexLock lock(&mu);
        popped.insert(element);
      }
    }));
  }
  for (const auto& thread : threads) thread->Join();
  EXPECT_EQ(popped.size(), size_t{kPairs} * kElements);
  EXPECT_EQ(std::set<std::string>(popped.begin(), popped.end()).size(), popped.size());
}

TEST_F(TcpStoreServerTest, CancelWait_KeyIsSetByAnotherWorkerMeanwhile_IsAnsweredInOrder) {
  const auto waiter = Connect();
  const auto setter = Connect();
  for (uint32_t i = 1; i <= 2000; ++i) {
    const std::string key = absl::StrCat("key", i);
    waiter->Send(kBytes.Wait({key}));
    setter->Send(kBytes.Set(key, ""));
    waiter->Send(kBytes.CancelWait());
    std::string reply = waiter->Read(1);
    if (reply == kStop) reply = waiter->Read(1);
    ASSERT_EQ(reply, "\1");
    waiter->ExpectPong(i);
  }
}

TEST_F(TcpStoreServerTest, WaiterDisconnects_KeyIsSetByAnotherWorkerMeanwhile_NothingIsLeft) {
  const auto setter = Connect();
  for (int i = 0; i < 200; ++i) {
    auto clients = Connect(kThreads);
    for (const auto& client : clients) client->Send(kBytes.Wait({absl::StrCat("key", i)}));
    setter->Send(kBytes.Set(absl::StrCat("key", i), ""));
    clients.clear();
    setter->ExpectPong(1);
  }
  EXPECT_TRUE(WaitFor([this] { return server_->Report(0).at(0).clients == 1; }));
  EXPECT_EQ(server_->InnerTableSizes()["tcpstore.waits"], 0u);
}

TEST_F(TcpStoreServerTest, NextJob_ConnectionsOfAllWorkersHaveJustClosed_BeginsWithAnEmptyStore) {
  for (int job = 0; job < 50; ++job) {
    const auto clients = Connect(2 * kThreads);
    for (size_t i = 0; i < clients.size(); ++i) {
      clients[i]->Send(kBytes.Add("init/", 1));
      EXPECT_EQ(clients[i]->ReadNumber<int64_t>(), static_cast<int64_t>(i + 1)) << "job " << job;
    }
  }
}

TEST_F(TcpStoreServerTest, UnreadReplies_OnAllWorkersOfReplacedValues_AreCounted) {
  const auto setter = Connect();
  const std::string value(size_t{4} << 20, 'x');
  setter->Send(kBytes.Set("large", value));
  setter->ExpectPong(1);
  const auto readers = Connect(kThreads);
  std::vector<std::string> keys(16, "large");
  for (const auto& reader : readers) reader->Send(kBytes.MultiGet(keys));
  // The replies share the value with the store, so that they hold little.
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_LT(server_->Memory().client_bytes, value.size());
  setter->Send(kBytes.DeleteKey("large"));
  EXPECT_EQ(setter->ReadNumber<int64_t>(), 1);
  EXPECT_TRUE(WaitFor([&] { return server_->Memory().client_bytes >= value.size() * 9 / 10; }))
      << server_->Memory().client_bytes;
  // Once, not for each reply.
  EXPECT_LT(server_->Memory().client_bytes, 2 * value.size());
}

TEST_F(TcpStoreServerTest, HandOver_KeysAreSetByAllWorkersMeanwhile_EachWaitIsAnsweredOnce) {
  const auto waiters = Connect(2 * kThreads);
  const auto setters = Connect(kThreads);
  for (uint32_t round = 0; round < 25; ++round) {
    for (size_t i = 0; i < waiters.size(); ++i) {
      waiters[i]->Send(kBytes.Wait({absl::StrCat(round, "/", i)}));
    }
    for (size_t i = 0; i < waiters.size(); ++i) {
      setters[i % kThreads]->Send(kBytes.Set(absl::StrCat(round, "/", i), ""));
    }
    HandOver();
    for (const auto& waiter : waiters) {
      ASSERT_EQ(waiter->Read(1), kStop) << "round " << round;
      waiter->ExpectPong(round);
    }
    for (const auto& setter : setters) setter->ExpectPong(round);
  }
}

TEST_F(TcpStoreServerTest, HandOver_ClientsOfAllWorkersAddMeanwhile_EachNumberIsDrawnOnce) {
  constexpr int kClients = 2 * kThreads;
  auto clients = Connect(kClients);
  absl::Mutex mu;
  std::multiset<int64_t> drawn;
  std::atomic<bool> is_over{false};
  std::vector<std::unique_ptr<Thread>> threads;
  for (const auto& client : clients) {
    threads.push_back(std::make_unique<Thread>("client", [&mu, &drawn, &client, &is_over] {
      while (!is_over) {
        client->Send(kBytes.Add("n", 1));
        const auto number = client->ReadNumber<int64_t>();
        absl::MutexLock lock(&mu);
        drawn.insert(number);
      }
    }));
  }
  for (size_t i = 1; i <= 10; ++i) {
    EXPECT_TRUE(WaitFor([&] {
      absl::MutexLock lock(&mu);
      return drawn.size() > i * 500;
    }));
    HandOver();
  }
  is_over = true;
  for (const auto& thread : threads) thread->Join();
  EXPECT_EQ(*drawn.begin(), 1);
  EXPECT_EQ(*drawn.rbegin(), static_cast<int64_t>(drawn.size()));
  EXPECT_EQ(std::set<int64_t>(drawn.begin(), drawn.end()).size(), drawn.size());
}

TEST_F(TcpStoreServerTest, Pause_ThatEndsWithoutASuccessor_LosesNothing) {
  const auto waiters = Connect(2 * kThreads);
  const auto setter = Connect();
  for (uint32_t round = 0; round < 25; ++round) {
    for (const auto& waiter : waiters) waiter->Send(kBytes.Wait({absl::StrCat(round)}));
    setter->Send(kBytes.Set(absl::StrCat(round), ""));
    {
      const std::vector<PausedLoop> paused = server_->Pause();
      EXPECT_EQ(server_->Export().size(), 1u);
    }
    for (const auto& waiter : waiters) {
      ASSERT_EQ(waiter->Read(1), kStop) << "round " << round;
      waiter->ExpectPong(round);
    }
  }
}

TEST_F(TcpStoreServerTest, Restore_StateThatMakesNoSense_ClosesAllConnections) {
  const auto clients = Connect(2 * kThreads);
  for (const auto& client : clients) {
    client->Send(kBytes.Wait({"absent"}));
    EXPECT_TRUE(WaitFor([&] { return server_->InnerTableSizes()["tcpstore.waits"] > 0; }));
  }
  HandoverState state = Leave();
  ASSERT_FALSE(state.scopes[0].store.waits.empty());
  state.scopes[0].store.waits[0].client = TcpStoreClient(12345);
  EXPECT_FALSE(server_->Restore(std::move(state.scopes)).ok());
  // The former server has the same connections.
  former_.clear();
  for (const auto& client : clients) EXPECT_TRUE(client->IsClosed());
}

TEST_F(TcpStoreServerTest, Stop_WithPendingWaits_ClosesAllConnections) {
  const auto clients = Connect(2 * kThreads);
  for (const auto& client : clients) {
    client->Send(kBytes.Wait({"absent"}));
    client->Send(kBytes.Ping(1));
  }
  EXPECT_TRUE(
      WaitFor([&] { return server_->InnerTableSizes()["tcpstore.waits"] == clients.size(); }));
  server_->Stop();
  EXPECT_EQ(server_->InnerTableSizes()["tcpstore.waits"], 0u);
  for (const auto& client : clients) EXPECT_TRUE(client->IsClosed());
}

}  // namespace
}  // namespace ferry::coord
