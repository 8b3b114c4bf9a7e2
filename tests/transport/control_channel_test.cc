// SPDX-License-Identifier: Apache-2.0
// Control channels of both kinds: order, size, descriptors, back-pressure, ends.
#include "transport/control/control_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "net/sockets.h"
#include "tensor/memory_segment.h"
#include "tests/transport/control_channel_pair.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

class ControlChannelTest : public ::testing::TestWithParam<bool> {
 protected:
  bool is_unix() const { return GetParam(); }

  // Connects a to b; both handlers have their control channels afterwards.
  void Connect() {
    a_.connection_manager->Connect(b_.peer, b_.addresses, is_unix(), client_);
    client_channel_ = client_->WaitForChannel();
    ASSERT_NE(client_channel_, nullptr) << client_->WaitForClosed();
    server_channel_ = b_.accepted->WaitForChannel();
    ASSERT_NE(server_channel_, nullptr);
  }

  ControlEnd a_{PeerId{1, 11}};
  ControlEnd b_{PeerId{2, 22}};
  std::shared_ptr<RecordingHandler> client_ = std::make_shared<RecordingHandler>();
  std::shared_ptr<ControlChannel> client_channel_;
  std::shared_ptr<ControlChannel> server_channel_;
};

TEST_P(ControlChannelTest, FramesArriveInOrderInBothDirections) {
  Connect();
  EXPECT_EQ(client_channel_->peer(), b_.peer);
  EXPECT_EQ(server_channel_->peer(), a_.peer);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = absl::StrCat("there ", i);
    ASSERT_TRUE(client_channel_->Send(static_cast<uint16_t>(i), {"go ", text}).ok());
    ASSERT_TRUE(server_channel_->Send(7, {absl::StrCat("back ", i)}).ok());
  }
  const auto there = b_.accepted->WaitForFrames(5000);
  const auto back = client_->WaitForFrames(5000);
  ASSERT_EQ(there.size(), 5000u);
  ASSERT_EQ(back.size(), 5000u);
  for (int i = 0; i < 5000; ++i) {
    EXPECT_EQ(there[i].first, i);
    EXPECT_EQ(there[i].second, absl::StrCat("go there ", i));
    EXPECT_EQ(back[i].second, absl::StrCat("back ", i));
  }
}

TEST_P(ControlChannelTest, AcceptsBodiesOfAllSizesAndMoreThanFits) {
  Connect();
  // Several times the size of a ring or a socket buffer.
  for (int i = 0; i < 400; ++i) {
    const size_t size = i * 977 % (kMaxControlBody + 1);
    ASSERT_TRUE(
        client_channel_->Send(1, {std::string(size, static_cast<char>('a' + i % 26))}).ok());
  }
  // The largest one, in between others, and by itself.
  const size_t most = client_channel_->max_body();
  const size_t large[] = {most, 1, most - 1, most, 50'000, most};
  for (const size_t size : large) {
    ASSERT_TRUE(client_channel_->Send(2, {std::string(size, 'z')}).ok());
  }
  const auto frames = b_.accepted->WaitForFrames(406);
  ASSERT_EQ(frames.size(), 406u);
  for (int i = 0; i < 400; ++i) {
    ASSERT_EQ(frames[i].second.size(), i * 977 % (kMaxControlBody + 1));
    EXPECT_EQ(frames[i].second.find_first_not_of(static_cast<char>('a' + i % 26)),
              std::string::npos);
  }
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(frames[400 + i].second, std::string(large[i], 'z'));
  }
  EXPECT_EQ(client_channel_->Send(1, {std::string(most + 1, 'x')}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(ControlChannelTest, SendersOnManyThreadsLoseNothing) {
  Connect();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 2000; ++i) {
        ASSERT_TRUE(client_channel_->Send(static_cast<uint16_t>(t), {absl::StrCat(i)}).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int next[4] = {};
  for (const auto& [type, body] : b_.accepted->WaitForFrames(8000)) {
    EXPECT_EQ(body, absl::StrCat(next[type]++));
  }
  for (const int count : next) EXPECT_EQ(count, 2000);
}

// While frames arrive in quick succession the kernel need not notify a control channel; when its
// reader sleeps again it has to.
TEST_P(ControlChannelTest, FrameAfterABurst_WakesTheReader) {
  Connect();
  size_t sent = 0;
  for (int burst = 0; burst < 30; ++burst) {
    for (int i = 0; i < 300; ++i, ++sent)
      ASSERT_TRUE(client_channel_->Send(1, {"one of many"}).ok());
    ASSERT_EQ(b_.accepted->WaitForFrames(sent).size(), sent);
    absl::SleepFor(absl::Milliseconds(3));
    ++sent;
    ASSERT_TRUE(client_channel_->Send(1, {"the last"}).ok());
    ASSERT_EQ(b_.accepted->WaitForFrames(sent).size(), sent);
  }
}

// While its callers come and go a process is not woken for each frame, except by a caller that can
// only wait for it.
TEST(ControlChannelPollingTest, BlockingCaller_WakesAPollingPeer) {
  ControlEnd asks(PeerId{1, 11});
  // It would not look by itself before the test is over.
  ControlEnd polls(PeerId{2, 22}, "token", absl::Seconds(10), {.tick = absl::Hours(1)});
  const auto client = std::make_shared<RecordingHandler>();
  asks.connection_manager->Connect(polls.peer, polls.addresses, /*use_unix=*/true, client);
  const std::shared_ptr<ControlChannel> channel = client->WaitForChannel();
  ASSERT_NE(channel, nullptr) << client->WaitForClosed();
  ASSERT_NE(polls.accepted->WaitForChannel(), nullptr);
  Doorbell& bell = polls.loop->doorbell();
  const auto in = [](absl::Duration duration) { return SteadyClock().Now() + duration; };
  for (const absl::Time end = in(absl::Seconds(20));
       !bell.is_polling() && SteadyClock().Now() < end; absl::SleepFor(absl::Milliseconds(1))) {
    // A caller has finished, and then a frame arrives that no caller waits for.
    polls.loop->WaitUntil([] { return false; }, in(absl::Milliseconds(1)));
    bell.RingAnyway();
  }
  ASSERT_TRUE(bell.is_polling());
  ASSERT_TRUE(channel->Send(1, {"a question"}).ok());
  EXPECT_TRUE(bell.is_polling());
  bool is_heard = false;
  for (const absl::Time end = in(absl::Seconds(20)); !is_heard && SteadyClock().Now() < end;) {
    is_heard = asks.loop->WaitUntil([&polls] { return !polls.accepted->WaitForFrames(0).empty(); },
                                    in(absl::Milliseconds(20)));
  }
  EXPECT_TRUE(is_heard);
  bell.RingAnyway();
}

TEST_P(ControlChannelTest, CloseNotifiesBothSides) {
  Connect();
  ASSERT_TRUE(client_channel_->Send(1, {"last word"}).ok());
  ASSERT_EQ(b_.accepted->WaitForFrames(1).size(), 1u);
  client_channel_->Close(absl::CancelledError("enough"));
  EXPECT_EQ(client_->WaitForClosed(), absl::CancelledError("enough"));
  const absl::Status there = b_.accepted->WaitForClosed();
  EXPECT_EQ(there.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(there.message()), HasSubstr("node 1 has closed its connection"));
  EXPECT_EQ(client_channel_->Send(1, {"x"}), absl::CancelledError("enough"));
  EXPECT_FALSE(server_channel_->Send(1, {"x"}).ok());
}

TEST_P(ControlChannelTest, HandlerThatRefusesAFrame_EndsTheChannel) {
  Connect();
  b_.accepted->SetVerdict(absl::InvalidArgumentError("what is that?"));
  ASSERT_TRUE(client_channel_->Send(1, {"odd"}).ok());
  EXPECT_EQ(b_.accepted->WaitForClosed(), absl::InvalidArgumentError("what is that?"));
  EXPECT_EQ(client_->WaitForClosed().code(), absl::StatusCode::kUnavailable);
}

TEST_P(ControlChannelTest, WrongToken_IsRefusedAndCounted) {
  ControlEnd stranger(PeerId{3, 33}, "another token");
  stranger.connection_manager->Connect(b_.peer, b_.addresses, is_unix(), client_);
  const absl::Status status = client_->WaitForClosed();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot reach node 2"));
  EXPECT_EQ(b_.connection_manager->stats().refused, 1);
  EXPECT_EQ(b_.connection_manager->stats().accepted, 0);
}

TEST_P(ControlChannelTest, EarlierIncarnationOfThePeer_IsNotReached) {
  a_.connection_manager->Connect(PeerId{2, 21}, b_.addresses, is_unix(), client_);
  const absl::Status status = client_->WaitForClosed();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("restarted"));
}

TEST_P(ControlChannelTest, PeersThatReadNothing_AreReportedInTheEnd) {
  // No thread reads: a bare socket that accepts a connection would not shake hands, so the reader
  // is one whose loop is kept busy.
  Connect();
  const auto go = std::make_shared<absl::Notification>();
  b_.loop->Post([go] { go->WaitForNotification(); });
  absl::Status status;
  const std::string body(kMaxControlBody, 'x');
  for (int i = 0; i < 5000 && status.ok(); ++i) status = client_channel_->Send(1, {body});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--peer-queue-bytes"));
  go->Notify();
}

INSTANTIATE_TEST_SUITE_P(Media, ControlChannelTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Shm" : "Tcp"; });

TEST(ShmControlChannelTest, DescriptorsArriveWithTheirFrames) {
  ControlEnd a(PeerId{1, 11});
  ControlEnd b(PeerId{2, 22});
  auto client = std::make_shared<RecordingHandler>();
  a.connection_manager->Connect(b.peer, b.addresses, true, client);
  const auto channel = client->WaitForChannel();
  ASSERT_NE(channel, nullptr);
  for (int i = 0; i < 20; ++i) {
    auto memory = *MemorySegment::Create(4096, {.huge_pages = false});
    static_cast<char*>(memory.base())[0] = static_cast<char>(i);
    const int fd = memory.fd();
    ASSERT_TRUE(channel->Send(static_cast<uint16_t>(i), {"fd"}, {&fd, 1}).ok());
  }
  ASSERT_EQ(b.accepted->WaitForFrames(20).size(), 20u);
  std::vector<UniqueFd> descriptors = b.accepted->TakeDescriptors();
  ASSERT_EQ(descriptors.size(), 20u);
  for (int i = 0; i < 20; ++i) {
    auto mapped = MemorySegment::MapPeer(std::move(descriptors[i]), 4096, false);
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    EXPECT_EQ(static_cast<char*>(mapped->base())[0], i);
  }
}

TEST(ConnectionManagerTest, NamesTheTriedAddresses) {
  ControlEnd a(PeerId{1, 11});
  auto client = std::make_shared<RecordingHandler>();
  a.connection_manager->Connect(PeerId{2, 22}, {.tcp = {"127.0.0.1:1", "[::1]:1"}}, false, client);
  const absl::Status status = client->WaitForClosed();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1: Connection refused"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("[::1]:1"));
}

TEST(ConnectionManagerTest, TriesTheNextAddress) {
  ControlEnd a(PeerId{1, 11});
  ControlEnd b(PeerId{2, 22});
  auto client = std::make_shared<RecordingHandler>();
  a.connection_manager->Connect(b.peer, {.tcp = {"127.0.0.1:1", b.addresses.tcp[0]}}, false,
                                client);
  EXPECT_NE(client->WaitForChannel(), nullptr) << client->WaitForClosed();
}

TEST(ConnectionManagerTest, SilentConnection_IsGivenUp) {
  ControlEnd b(PeerId{2, 22}, "token", absl::Milliseconds(50));
  UniqueFd silent = *BeginConnectTcp(b.addresses.tcp[0]);
  // A server that is silent, for a client.
  auto listening = *ListenTcp("127.0.0.1:0");
  auto client = std::make_shared<RecordingHandler>();
  b.connection_manager->Connect(
      PeerId{1, 11}, {.tcp = {absl::StrCat("127.0.0.1:", listening.port)}}, false, client);
  const absl::Status status = client->WaitForClosed();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("though it is connected"));
  char byte;
  ssize_t got = -1;
  for (int i = 0; i < 500 && got < 0; ++i) {
    got = recv(silent.get(), &byte, 1, MSG_DONTWAIT);
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(got, 0) << "the server has not closed it";
}

// The timer of one silent connection is set for the next, which no later one need follow.
TEST(ConnectionManagerTest, EachSilentConnection_IsGivenUp) {
  ControlEnd b(PeerId{2, 22}, "token", absl::Milliseconds(200));
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 3; ++i) {
    silent.push_back(*BeginConnectTcp(b.addresses.tcp[0]));
    // So that they do not all time out at once.
    absl::SleepFor(absl::Milliseconds(50));
  }
  for (const UniqueFd& each : silent) {
    pollfd closed = {each.get(), POLLIN, 0};
    ASSERT_EQ(poll(&closed, 1, /*timeout=*/10'000), 1) << "the server has not closed it";
    char byte;
    EXPECT_EQ(recv(each.get(), &byte, 1, MSG_DONTWAIT), 0);
  }
}

// In a program that continues after its part in a job is over.
TEST(ConnectionManagerTest, SilentConnection_IsClosedWhenTheLoopEnds) {
  auto b = std::make_unique<ControlEnd>(PeerId{2, 22});
  UniqueFd silent = *BeginConnectTcp(b->addresses.tcp[0]);
  for (int i = 0; i < 500 && b->loop->timers() == 0; ++i) absl::SleepFor(absl::Milliseconds(10));
  ASSERT_GT(b->loop->timers(), 0u) << "nobody has taken it";
  // The loop ends with other work to do than Close requests.
  const auto busy = std::make_shared<absl::Notification>();
  const auto go = std::make_shared<absl::Notification>();
  b->loop->Post([busy, go] {
    busy->Notify();
    go->WaitForNotification();
  });
  busy->WaitForNotification();
  b->connection_manager->Close();
  std::thread stopper([&b] { b->loop->Stop(); });
  absl::SleepFor(absl::Milliseconds(20));
  go->Notify();
  stopper.join();
  b.reset();
  char byte;
  EXPECT_EQ(recv(silent.get(), &byte, 1, MSG_DONTWAIT), 0) << "its socket is open";
}

// A port scanner that never closes, or an attacker who opens connections and sends nothing.
TEST(ConnectionManagerTest, SilentCrowds_BlockNoPeer) {
  ControlEnd a(PeerId{1, 11});
  ControlEnd b(PeerId{2, 22});
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 400; ++i) crowd.push_back(*BeginConnectTcp(b.addresses.tcp[0]));
  for (const bool is_unix : {true, false}) {
    auto client = std::make_shared<RecordingHandler>();
    a.connection_manager->Connect(b.peer, b.addresses, is_unix, client);
    EXPECT_NE(client->WaitForChannel(), nullptr) << client->WaitForClosed();
  }
  EXPECT_GT(b.connection_manager->stats().refused, 0);
}

// A process that is opening many control channels itself, at the beginning of a large job, still
// accepts them.
TEST(ConnectionManagerTest, OwnAttempts_BlockNoPeer) {
  ControlEnd a(PeerId{1, 11});
  ControlEnd b(PeerId{2, 22});
  auto silent = *ListenTcp("127.0.0.1:0");
  for (int i = 0; i < 300; ++i) {
    b.connection_manager->Connect(PeerId{100 + i, 33},
                                  {.tcp = {absl::StrCat("127.0.0.1:", silent.port)}}, false,
                                  std::make_shared<RecordingHandler>());
  }
  auto client = std::make_shared<RecordingHandler>();
  a.connection_manager->Connect(b.peer, b.addresses, false, client);
  EXPECT_NE(client->WaitForChannel(), nullptr) << client->WaitForClosed();
  EXPECT_EQ(b.connection_manager->stats().refused, 0);
}

TEST(ConnectionManagerTest, GarbageIsRefusedAtItsFirstBytes) {
  ControlEnd b(PeerId{2, 22});
  UniqueFd socket = *BeginConnectTcp(b.addresses.tcp[0]);
  const std::string http = "GET / HTTP/1.1\r\n\r\n";
  for (int i = 0; i < 100 && send(socket.get(), http.data(), http.size(), MSG_NOSIGNAL) < 0; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  for (int i = 0; i < 500 && b.connection_manager->stats().refused == 0; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(b.connection_manager->stats().refused, 1);
}

// A process that connects to a socket without a file must be of the same user, whatever it knows.
TEST(ConnectionManagerTest, ProcessOfAnotherUser_IsRefusedAndCounted) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  // Before there are threads here.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char name[200] = {};
    const bool is_told = read(pipe_ends[0], name, sizeof(name) - 1) > 0;
    if (!is_told || setgid(65534) != 0 || setuid(65534) != 0) _exit(2);
    const auto socket = BeginConnectUnix(name);
    char byte = 0;
    // Until the other side closes it.
    _exit(socket.ok() && fcntl(socket->get(), F_SETFL, 0) == 0 &&
                  recv(socket->get(), &byte, 1, 0) <= 0
              ? 0
              : 1);
  }
  ControlEnd b(PeerId{2, 22});
  const std::string& name = b.addresses.unix_name;
  ASSERT_EQ(write(pipe_ends[1], name.data(), name.size()), static_cast<ssize_t>(name.size()));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(b.connection_manager->stats().refused, 1);
  EXPECT_THAT(b.connection_manager->stats().last_refusal,
              HasSubstr("processes of two users cannot share memory: this one runs as uid 0"));
  for (const int each : pipe_ends) close(each);
}

// A scanner, or a health check, a hundred times a second: its state would be kept for the timeout
// of a handshake, and each would wake the loop once more.
TEST(ConnectionManagerTest, ConnectionsThatComeAndGo_LeaveNothingBehind) {
  ControlEnd b(PeerId{2, 22});
  constexpr int kVisits = 300;
  for (int i = 0; i < kVisits; ++i) {
    UniqueFd socket = *BeginConnectTcp(b.addresses.tcp[0]);
    for (int j = 0; j < 1000 && send(socket.get(), "GET", 3, MSG_NOSIGNAL) < 0; ++j) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  for (int i = 0; i < 500 && b.connection_manager->stats().refused < kVisits; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(b.connection_manager->stats().refused, kVisits);
  // One per listener, for all its connections.
  EXPECT_LE(b.loop->timers(), 2u);
}

}  // namespace
}  // namespace ferry
