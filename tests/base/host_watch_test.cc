// SPDX-License-Identifier: Apache-2.0
// When a host counts as vanished, and when its process merely does not read.
#include "base/host_watch.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/unique_fd.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(10);

// A peer in the kernel's view, with a simulated clock.
class Watched {
 public:
  // Looks as often as a connection does for `span`; the state of each look is `make(now)`.
  template <typename Make>
  absl::Status Pass(absl::Duration span, Make make) {
    for (const absl::Time until = now_ + span; now_ < until;) {
      now_ += watch_.period();
      absl::Status status = watch_.Look(make(now_), now_);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  absl::Time now() const { return now_; }
  bool is_waiting() const { return watch_.is_waiting(); }

 private:
  HostWatch watch_{kLimit};
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST(HostWatch, AcknowledgesAsItIsSent_StaysForever) {
  Watched peer;
  uint32_t resent = 0;
  EXPECT_TRUE(peer.Pass(absl::Hours(1),
                        [&](absl::Time) {
                          // A lossy network: some packet is always lost.
                          return TcpState{.is_outstanding = true,
                                          .since_answer = absl::Milliseconds(300),
                                          .resent = resent += 10,
                                          .unanswered = 1};
                        })
                  .ok());
  EXPECT_TRUE(peer.is_waiting());
}

TEST(HostWatch, HostVanishesWhileDataIsInFlight_IsDetectedWithinTheLimit) {
  Watched peer;
  ASSERT_TRUE(peer.Pass(absl::Minutes(1),
                        [](absl::Time) {
                          return TcpState{.is_outstanding = true,
                                          .since_answer = absl::ZeroDuration()};
                        })
                  .ok());
  const absl::Time vanished = peer.now();
  const absl::Status found = peer.Pass(absl::Minutes(1), [&](absl::Time now) {
    const auto seconds = static_cast<uint32_t>(absl::ToInt64Seconds(now - vanished));
    return TcpState{.is_outstanding = true,
                    .since_answer = now - vanished,
                    .resent = seconds,
                    .unanswered = seconds};
  });
  EXPECT_EQ(found.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(found.message()), HasSubstr("its host has acknowledged nothing for 10"));
  EXPECT_LE(peer.now() - vanished, kLimit + absl::Seconds(2));
}

// The process is stopped, its kernel is not: each probe of the window is answered. Probes are two
// minutes apart on kernels without a configurable limit.
TEST(HostWatch, WindowStaysClosedForAnHour_HostIsThere) {
  for (const absl::Duration apart : {absl::Seconds(2), absl::Seconds(120)}) {
    Watched peer;
    const absl::Time start = peer.now();
    EXPECT_TRUE(peer.Pass(absl::Hours(1),
                          [&](absl::Time now) {
                            const absl::Duration since = now - start;
                            return TcpState{.is_outstanding = true,
                                            .is_window_closed = true,
                                            .since_answer = since - absl::Floor(since, apart)};
                          })
                    .ok())
        << apart;
  }
}

TEST(HostWatch, HostVanishesWhileItsWindowIsClosed_IsDetectedWithinTheLimit) {
  Watched peer;
  const auto answers = [](absl::Time) {
    return TcpState{.is_outstanding = true, .is_window_closed = true};
  };
  ASSERT_TRUE(peer.Pass(absl::Minutes(5), answers).ok());
  const absl::Time vanished = peer.now();
  const absl::Status found = peer.Pass(absl::Minutes(1), [&](absl::Time now) {
    return TcpState{.is_outstanding = true,
                    .is_window_closed = true,
                    .since_answer = now - vanished,
                    .unanswered = static_cast<uint32_t>((now - vanished) / absl::Seconds(2))};
  });
  EXPECT_EQ(found.code(), absl::StatusCode::kUnavailable);
  EXPECT_LE(peer.now() - vanished, kLimit + absl::Seconds(2));
}

// A single probe without an answer, two minutes before the next one.
TEST(HostWatch, OneLostProbe_IsNotAVanishedHost) {
  Watched peer;
  const absl::Time start = peer.now();
  EXPECT_TRUE(peer.Pass(absl::Minutes(2),
                        [&](absl::Time now) {
                          return TcpState{.is_outstanding = true,
                                          .is_window_closed = true,
                                          .since_answer = now - start,
                                          .unanswered = 1};
                        })
                  .ok());
}

// The last acknowledgement may be hours old when something is sent again.
TEST(HostWatch, SendsAfterALongSilence_GivesTheHostItsTime) {
  Watched peer;
  ASSERT_TRUE(peer.Pass(absl::Hours(2), [](absl::Time) { return TcpState{}; }).ok());
  EXPECT_FALSE(peer.is_waiting());
  const absl::Time sent = peer.now();
  const auto silent = [&](absl::Time now) {
    return TcpState{.is_outstanding = true,
                    .since_answer = absl::Hours(2) + (now - sent),
                    .resent = 5,
                    .unanswered = 5};
  };
  EXPECT_TRUE(peer.Pass(absl::Seconds(9), silent).ok());
  EXPECT_FALSE(peer.Pass(absl::Seconds(4), silent).ok());
}

// Some kernels count retransmissions into a window that has shrunk, and no timeouts.
TEST(HostWatch, OnlyResendsAreCounted_AreAttemptsToo) {
  Watched peer;
  ASSERT_TRUE(peer.Pass(absl::Minutes(1),
                        [](absl::Time) { return TcpState{.is_outstanding = true, .resent = 70}; })
                  .ok());
  const absl::Time vanished = peer.now();
  const auto silent = [&](absl::Time now) {
    return TcpState{.is_outstanding = true,
                    .since_answer = now - vanished,
                    .resent = 70 + static_cast<uint32_t>((now - vanished) / absl::Seconds(2))};
  };
  EXPECT_TRUE(peer.Pass(absl::Seconds(9), silent).ok());
  EXPECT_FALSE(peer.Pass(absl::Seconds(4), silent).ok());
}

TEST(DescribeObstacle, ReportsWhetherItIsTheProcessOrTheHost) {
  EXPECT_EQ(DescribeObstacle({}), "");
  EXPECT_EQ(DescribeObstacle({.is_outstanding = true, .unanswered = 1}), "");
  // Probes of an idle connection: nothing waits for their answers.
  EXPECT_EQ(DescribeObstacle({.since_answer = absl::Seconds(4), .unanswered = 3}), "");
  EXPECT_THAT(DescribeObstacle({.is_outstanding = true, .is_window_closed = true, .unanswered = 1}),
              HasSubstr("its host answers, but its process is not reading"));
  EXPECT_THAT(DescribeObstacle({.is_outstanding = true,
                                .is_window_closed = true,
                                .since_answer = absl::Seconds(4),
                                .unanswered = 2}),
              HasSubstr("its host has acknowledged nothing for 4s"));
}

// Two ends of a connection over loopback.
struct Pair {
  Pair() {
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM, 0));
    // The option may be inherited from a listener that has set it.
    const unsigned inherited_ms = 20'000;
    setsockopt(listener.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &inherited_ms, sizeof(inherited_ms));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
    client = UniqueFd(socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&address), bytes), 0);
    server = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
  }
  UniqueFd client;
  UniqueFd server;
};

int Option(int socket, int name) {
  int value = -1;
  socklen_t bytes = sizeof(value);
  EXPECT_EQ(getsockopt(socket, IPPROTO_TCP, name, &value, &bytes), 0);
  return value;
}

TEST(TcpState, PeerReadsNothing_WindowIsClosedAndItsHostAnswers) {
  Pair pair;
  PrepareHostWatch(pair.server.get(), absl::Seconds(4), absl::Seconds(6));
  ASSERT_FALSE(ReadTcpState(pair.server.get())->is_outstanding);
  const std::vector<char> much(size_t{1} << 20);
  while (send(pair.server.get(), much.data(), much.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
  ASSERT_EQ(errno, EAGAIN);
  TcpState state = *ReadTcpState(pair.server.get());
  // Data in flight on loopback is acknowledged at once, or by a delayed acknowledgement.
  for (int i = 0; i < 500 && !state.is_window_closed; ++i) {
    poll(nullptr, 0, 10);
    state = *ReadTcpState(pair.server.get());
  }
  EXPECT_TRUE(state.is_outstanding);
  EXPECT_TRUE(state.is_window_closed);
  EXPECT_LT(state.unanswered, 3u);
}

TEST(TcpState, AllIsAcknowledged_NothingIsOutstanding) {
  Pair pair;
  ASSERT_EQ(send(pair.server.get(), "x", 1, 0), 1);
  TcpState state = *ReadTcpState(pair.server.get());
  for (int i = 0; i < 500 && state.is_outstanding; ++i) {
    poll(nullptr, 0, 10);
    state = *ReadTcpState(pair.server.get());
  }
  EXPECT_FALSE(state.is_outstanding);
  EXPECT_FALSE(state.is_window_closed);
}

TEST(TcpState, NothingIsSent_TheTimeSinceTheLastAnswerGrows) {
  Pair pair;
  ASSERT_EQ(send(pair.server.get(), "x", 1, 0), 1);
  TcpState state = *ReadTcpState(pair.server.get());
  for (int i = 0; i < 500 && state.since_answer < absl::Milliseconds(50); ++i) {
    poll(nullptr, 0, 10);
    state = *ReadTcpState(pair.server.get());
  }
  EXPECT_GE(state.since_answer, absl::Milliseconds(50));
  EXPECT_FALSE(state.is_outstanding);
}

TEST(TcpState, NoTcpConnection_HasNone) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd one(ends[0]);
  const UniqueFd other(ends[1]);
  EXPECT_FALSE(ReadTcpState(one.get()).has_value());
}

// With TCP_USER_TIMEOUT a closed window ends the connection even if the probes are answered.
TEST(PrepareHostWatch, ListenerHadAUserTimeout_IsOffAndKeepaliveIsOn) {
  Pair pair;
  ASSERT_EQ(Option(pair.server.get(), TCP_USER_TIMEOUT), 20'000);
  PrepareHostWatch(pair.server.get(), absl::Seconds(4), absl::Seconds(6));
  EXPECT_EQ(Option(pair.server.get(), TCP_USER_TIMEOUT), 0);
  EXPECT_EQ(Option(pair.server.get(), TCP_KEEPIDLE), 4);
  EXPECT_EQ(Option(pair.server.get(), TCP_KEEPINTVL), 2);
  EXPECT_EQ(Option(pair.server.get(), TCP_KEEPCNT), 3);
}

// Not before the limit is reached, nor before three attempts were made.
TEST(HostWatch, AtItsLimit_WithThreeAttempts_TheHostHasVanished) {
  const auto look = [](absl::Duration silence, uint32_t unanswered) {
    HostWatch watch(kLimit);
    const absl::Time start = absl::UnixEpoch() + absl::Hours(1);
    EXPECT_TRUE(watch.Look({.is_outstanding = true}, start).ok());
    return watch.Look({.is_outstanding = true, .since_answer = silence, .unanswered = unanswered},
                      start + silence);
  };
  EXPECT_EQ(look(kLimit, 3).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(look(kLimit - absl::Milliseconds(1), 3).ok());
  EXPECT_TRUE(look(kLimit, 2).ok());
}

// Previously outstanding data has been acknowledged: the timeout of the next data starts again.
TEST(HostWatch, NextDataHasItsWholeTimeout) {
  HostWatch watch(kLimit);
  const absl::Time start = absl::UnixEpoch() + absl::Hours(1);
  ASSERT_TRUE(watch.Look({.is_outstanding = true}, start).ok());
  ASSERT_TRUE(watch.Look({}, start + absl::Seconds(1)).ok());
  EXPECT_FALSE(watch.is_waiting());
  const TcpState silent = {
      .is_outstanding = true, .since_answer = kLimit + absl::Seconds(1), .unanswered = 5};
  EXPECT_TRUE(watch.Look(silent, start + kLimit).ok());
  EXPECT_TRUE(watch.is_waiting());
}

}  // namespace
}  // namespace ferry
