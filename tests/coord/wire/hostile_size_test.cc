// SPDX-License-Identifier: Apache-2.0
// Too long, too many, not even gRPC; and memory after all of it.
#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "control_stream.h"
#include "test_server.h"
#include "tests/support/tcp_proxy.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Pair;

void ExpectServes(TestServer& server) {
  TaskClient honest = server.Task(Dialect::kIncarnations, 0);
  EXPECT_THAT(honest.Insert("honest", "v", true).Wait(), IsOk());
  EXPECT_THAT(honest.Entry("GetKeyValue", honest.Get("honest").Wait()), Pair("honest", "v"));
}

TEST(HostileSize, KeyOverItsLimitIsRefusedNamingTheOption) {
  TestServer server(1);
  const std::string longest(1 << 20, 'k');
  for (const Dialect dialect : kDialects) {
    TaskClient task = server.Task(dialect, 0);
    EXPECT_THAT(task.Insert(longest, "v", true).Wait(), IsOk());
    EXPECT_THAT(task.Insert(longest + "k", "v").Wait(),
                Fails(StatusCode::kInvalidArgument, HasSubstr("max-key-bytes")));
    EXPECT_THAT(task.Increment(longest + "k", 1).Wait(), Fails(StatusCode::kInvalidArgument));
    // The message holds no megabyte of key.
    EXPECT_THAT(task.TryGet(longest + "k").Wait(),
                AnyOf(Fails(StatusCode::kNotFound), Fails(StatusCode::kInvalidArgument)));
  }
  ExpectServes(server);
}

// It can never be set: a wait for it would never end.
TEST(HostileSize, GetOfAKeyOverItsLimitIsRefused) {
  TestServer server(1);
  TaskClient task = server.Task(Dialect::kTensorflow, 0);
  const PendingCall get = task.Get(std::string((1 << 20) + 1, 'k'));
  ASSERT_TRUE(Eventually([&] { return get.done() || server.parked() > 0; }));
  ASSERT_EQ(server.parked(), 0u);
  EXPECT_THAT(get.Wait(), Fails(StatusCode::kInvalidArgument));
}

TEST(HostileSize, FullStoreIsReported) {
  ServerOptions options = TestOptions(1);
  options.coordinator.max_value_bytes = 1000;
  options.coordinator.max_store_bytes = 10'000;
  options.coordinator.max_keys = 50;
  TestServer server(options);
  TaskClient task = server.Task(Dialect::kTensorflow, 0);
  EXPECT_THAT(task.Insert("k", std::string(1001, 'v')).Wait(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("max-value-bytes")));
  for (int i = 0; i < 50; ++i) EXPECT_THAT(task.Insert(absl::StrCat(i), "v").Wait(), IsOk());
  EXPECT_THAT(task.Insert("one more", "v").Wait(),
              Fails(StatusCode::kResourceExhausted, HasSubstr("max-keys")));
  Answer answer;
  for (int i = 0; i < 50 && answer.code != StatusCode::kResourceExhausted; ++i) {
    answer = task.Insert(absl::StrCat(i), std::string(1000, 'v'), true).Wait();
  }
  EXPECT_THAT(answer, Fails(StatusCode::kResourceExhausted, HasSubstr("max-store-bytes")));
  EXPECT_THAT(task.Delete("0").Wait(), IsOk());
  EXPECT_THAT(task.Insert("0", "v").Wait(), IsOk());
}

// docs/protocols.md: better than upstream, which cuts the key there.
TEST(HostileSize, EmbeddedNulsArePartOfAKey) {
  TestServer server(1);
  const std::string key("a\0b", 3);
  for (const Dialect dialect : kDialects) {
    TaskClient task = server.Task(dialect, 0);
    EXPECT_THAT(task.Insert(key, DialectName(dialect), true).Wait(), IsOk());
    EXPECT_THAT(task.Entry("TryGetKeyValue", task.TryGet(key).Wait()),
                Pair(key, DialectName(dialect)));
    EXPECT_THAT(task.TryGet("a").Wait(), Fails(StatusCode::kNotFound));
  }
}

TEST(HostileSize, KeysOfOnlySlashes) {
  TestServer server(1);
  for (const Dialect dialect : kDialects) {
    TaskClient task = server.Task(dialect, 0);
    for (const std::string& key : {std::string(""), std::string("/"), std::string(100'000, '/')}) {
      (void)task.Insert(key, "v", true).Wait();
      (void)task.TryGet(key).Wait();
      EXPECT_THAT(task.Delete(key).Wait(), AnyOf(IsOk(), Fails(StatusCode::kInvalidArgument)));
    }
  }
  ExpectServes(server);
}

// The error would carry the id in its payload, and the trailers have 8 KiB.
TEST(HostileSize, BarrierIdOfAMebibyteFailsWithItsOwnCode) {
  TestServer server(2);
  for (const Dialect dialect : kDialects) {
    auto tasks = server.Registered(dialect, 2);
    const std::string id = std::string(1 << 20, 'b') + DialectName(dialect);
    EXPECT_THAT(tasks[0].Barrier(id, absl::Milliseconds(50)).Wait(),
                AnyOf(Fails(StatusCode::kDeadlineExceeded), Fails(StatusCode::kInvalidArgument)));
    // Not so long as to be absurd, but too long for a trailer.
    const std::string shorter = std::string(6000, 'b') + DialectName(dialect);
    EXPECT_THAT(tasks[0].Barrier(shorter, absl::Milliseconds(50)).Wait(),
                AnyOf(Fails(StatusCode::kDeadlineExceeded), Fails(StatusCode::kInvalidArgument)));
  }
  ExpectServes(server);
}

// The message contains user input; it must arrive, whatever the input is.
TEST(HostileSize, LongAndOddNamesInMessagesDoNotHideTheCode) {
  TestServer server(2);
  auto tasks = server.Registered(Dialect::kTensorflow, 2);
  const PendingCall poll = tasks[1].Poll();
  ASSERT_TRUE(server.WaitUntilParked(1));
  ASSERT_THAT(
      tasks[0].ReportError(StatusCode::kDataLoss, std::string(1 << 20, 'e') + "\n\t\x01%0A").Wait(),
      IsOk());
  EXPECT_THAT(poll.Wait(), Fails(StatusCode::kDataLoss));
  EXPECT_THAT(server.Task(Dialect::kTensorflow, 0).TryGet(std::string(500'000, '%')).Wait(),
              Fails(StatusCode::kNotFound));
}

TEST(HostileSize, InvalidUtf8IsAlwaysAnswered) {
  TestServer server(1);
  const std::string bad = "\xc3\x28 \xff\xfe \xed\xa0\x80";
  for (const char* path :
       {"/tensorflow.CoordinationService/", "/xla.coordination.CoordinationService/"}) {
    auto channel = server.Channel();
    const std::string field =
        absl::StrCat("\x0a", std::string(1, static_cast<char>(bad.size())), bad);
    for (const char* method : {"TryGetKeyValue", "GetKeyValueDir", "DeleteKeyValue"}) {
      const Answer answer = PendingCall::Start(channel, absl::StrCat(path, method), field).Wait();
      EXPECT_THAT(answer,
                  AnyOf(IsOk(), Fails(StatusCode::kNotFound), Fails(StatusCode::kInvalidArgument)));
    }
  }
  ControlStream stream(server.Channel());
  stream.Attach();
  // Keys of ferry.v1 are bytes.
  EXPECT_EQ(stream.Call(PutRequest(1, {{bad, "v"}})).code(), 0);
  EXPECT_EQ(stream.Call(GetRequest(2, {bad}, absl::ZeroDuration())).entries(0).key(), bad);
  // It cannot be sent in a message unchanged.
  EXPECT_EQ(stream.Call(GetRequest(3, {bad + "x"}, absl::ZeroDuration())).code(),
            static_cast<int>(StatusCode::kNotFound));
}

// --- Sockets ---

class RawSocket {
 public:
  explicit RawSocket(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~RawSocket() { close(socket_); }
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;

  void Send(const std::string& bytes) {
    (void)!send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

 private:
  int socket_;
};

TEST(HostileSocket, BytesThatAreNotHttp2AreHarmless) {
  TestServer server(1);
  RawSocket http1(server->port());
  http1.Send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  RawSocket garbage(server->port());
  garbage.Send(std::string(100'000, '\xee'));
  // The preface, and then a frame with a length that is never kept.
  RawSocket preface(server->port());
  preface.Send(absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                            std::string("\xff\xff\xff\x00\x00\x00\x00\x00\x01garbage", 16)));
  RawSocket tls(server->port());
  tls.Send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
  ExpectServes(server);
}

TEST(HostileSocket, SilentConnectionsDelayNoOther) {
  TestServer server(1);
  std::vector<std::unique_ptr<RawSocket>> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(std::make_unique<RawSocket>(server->port()));
    if (i % 2 == 0) silent.back()->Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  }
  ExpectServes(server);
  const absl::Time start = absl::Now();
  server->Stop();
  EXPECT_LT(absl::Now() - start, kTimeout);
}

// --- Memory ---

size_t ResidentWithoutTrim() {
  std::ifstream status("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  status >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Memory in use, without free memory that the allocator keeps.
size_t ResidentBytes() {
  malloc_trim(0);
  return ResidentWithoutTrim();
}

// Four rounds of 5000, the number that 20,000 clients leave behind during a long run of the server.
TEST(HostileMemory, ReturnsAfterAbandonedGets) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep freed memory on purpose";
#endif
  TestServer server(1);
  TcpProxy proxy(server->port());
  size_t after_first = 0;
  for (int round = 0; round < 4; ++round) {
    TaskClient task(Dialect::kTensorflow, NewChannel(proxy.address()), 0, 0);
    std::vector<PendingCall> gets;
    for (int i = 0; i < 5000; ++i) gets.push_back(task.Get(absl::StrCat("never/", round, "/", i)));
    ASSERT_TRUE(server.WaitUntilParked(5000));
    proxy.Cut();
    ASSERT_TRUE(server.WaitUntilParked(0));
    for (const PendingCall& get : gets) (void)get.Wait();
    gets.clear();
    if (round == 0) after_first = ResidentBytes();
  }
  // A call costs some 10 KB on both sides of this process; kept, these would be 150 MB. gRPC
  // deletes the last ones after it has answered them.
  const size_t limit = after_first + (48u << 20);
  const absl::Time give_up = absl::Now() + kTimeout;
  size_t resident = ResidentBytes();
  while (resident >= limit && absl::Now() < give_up) {
    absl::SleepFor(absl::Milliseconds(20));
    resident = ResidentBytes();
  }
  EXPECT_LT(resident, limit);
  ExpectServes(server);
}

// Free blocks lie between used ones: half a gigabyte of small blocks, of which a few remain, as
// after answers to a client that has requested everything.
TEST(HostileMemory, CoordinatorReturnsFreedMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep freed memory on purpose";
#endif
  const size_t before = ResidentBytes();
  std::vector<std::unique_ptr<std::string>> blocks;
  for (int i = 0; i < 2'000'000; ++i) blocks.push_back(std::make_unique<std::string>(200, 'x'));
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i % 10'000 != 0) blocks[i] = nullptr;
  }
  blocks.back() = std::make_unique<std::string>(200, 'x');
  ASSERT_GT(ResidentWithoutTrim(), before + (300u << 20));
  TestServer server(1);
  const absl::Time give_up = absl::Now() + kTimeout;
  while (ResidentWithoutTrim() > before + (100u << 20) && absl::Now() < give_up) {
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_LT(ResidentWithoutTrim(), before + (100u << 20));
}

}  // namespace
}  // namespace ferry::coord
