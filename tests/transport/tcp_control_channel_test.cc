// SPDX-License-Identifier: Apache-2.0
// Data that a control channel over TCP leaves in its socket: room that a peer may be waiting for.
#include "transport/control/tcp_control_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "net/sockets.h"
#include "tests/transport/control_channel_pair.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

// Two ends of a connection over TCP.
std::pair<UniqueFd, UniqueFd> MakeConnection() {
  const ListeningSocket listening = *ListenTcp("127.0.0.1:0");
  UniqueFd near = *BeginConnectTcp("127.0.0.1:" + std::to_string(listening.port));
  pollfd acceptable = {listening.fd.get(), POLLIN, 0};
  EXPECT_EQ(poll(&acceptable, 1, 10'000), 1);
  UniqueFd far(accept4(listening.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  EXPECT_TRUE(far.valid());
  return {std::move(near), std::move(far)};
}

class TcpControlChannelTest : public ::testing::Test {
 protected:
  TcpControlChannelTest() {
    auto [near, far] = MakeConnection();
    far_socket_ = UniqueFd(fcntl(far.get(), F_DUPFD_CLOEXEC, 0));
    near_ = TcpControlChannel::Start(*near_loop_, {2, 22}, std::move(near), "near", near_handler_,
                                     64 << 20);
    far_ = TcpControlChannel::Start(*far_loop_, {1, 11}, std::move(far), "far", far_handler_,
                                    64 << 20);
  }

  // Bytes queued at the far control channel; -1 if the kernel cannot tell.
  int BytesInSocket() const {
    int bytes = -1;
    return ioctl(far_socket_.get(), FIONREAD, &bytes) == 0 ? bytes : -1;
  }

  std::unique_ptr<EventLoop> near_loop_ = *EventLoop::Create({});
  std::unique_ptr<EventLoop> far_loop_ = *EventLoop::Create({});
  std::shared_ptr<RecordingHandler> near_handler_ = std::make_shared<RecordingHandler>();
  std::shared_ptr<RecordingHandler> far_handler_ = std::make_shared<RecordingHandler>();
  UniqueFd far_socket_;
  std::shared_ptr<ControlChannel> near_;
  std::shared_ptr<ControlChannel> far_;
};

// An unread last byte of a large piece keeps all of the piece, and with it the window: the peer
// sends nothing more, and the kernel reports no event.
TEST_F(TcpControlChannelTest, ReadData_LeavesTheSocket) {
  size_t frames = 0;
  for (const size_t bytes : {1, 100, 700, 3000, 20'000, 60'000, 130'000}) {
    for (const int count : {1, 2, 37}) {
      for (int i = 0; i < count; ++i, ++frames) {
        ASSERT_TRUE(near_->Send(1, {std::string(bytes, 'x')}).ok());
      }
      ASSERT_EQ(far_handler_->WaitForFrames(frames).size(), frames);
      const absl::Time deadline = absl::Now() + absl::Seconds(10);
      while (BytesInSocket() != 0 && absl::Now() < deadline) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      EXPECT_EQ(BytesInSocket(), 0) << count << " frames of " << bytes << " bytes";
    }
  }
}

// The part of a frame that was read stays until the rest is there, however the stream is cut.
TEST(TcpControlChannelInputTest, InputCutAtAnyByte_FramesArriveWhole) {
  constexpr size_t kHead = 8;
  const std::unique_ptr<EventLoop> loop = *EventLoop::Create({});
  const auto handler = std::make_shared<RecordingHandler>();
  auto [near_socket, far] = MakeConnection();
  const auto near = TcpControlChannel::Start(*loop, {2, 22}, std::move(near_socket), "near",
                                             handler, /*max_queued_bytes=*/1 << 20);
  std::string stream;
  const std::pair<uint16_t, std::string> frames[] = {{1, "abc"}, {2, ""}, {3, "defgh"}, {4, "i"}};
  for (const auto& [type, body] : frames) {
    const char head[kHead] = {static_cast<char>(body.size()), 0, 0, 0, static_cast<char>(type)};
    stream.append(head, sizeof(head));
    stream += body;
  }
  size_t count = 0;
  for (size_t cut = 1; cut < stream.size(); ++cut) {
    ASSERT_EQ(send(far.get(), stream.data(), cut, MSG_NOSIGNAL), static_cast<ssize_t>(cut));
    absl::Notification is_read;
    loop->Post([&] {
      near->Poll();
      is_read.Notify();
    });
    is_read.WaitForNotification();
    const size_t rest = stream.size() - cut;
    ASSERT_EQ(send(far.get(), stream.data() + cut, rest, MSG_NOSIGNAL), static_cast<ssize_t>(rest));
    count += std::size(frames);
    const auto arrived = handler->WaitForFrames(count);
    ASSERT_EQ(arrived.size(), count) << "cut behind byte " << cut;
    EXPECT_TRUE(std::equal(std::begin(frames), std::end(frames), arrived.end() - 4))
        << "cut behind byte " << cut;
  }
}

// Those before a malformed one, too.
TEST(TcpControlChannelInputTest, FramesThatHaveArrived_AreDeliveredTogether) {
  constexpr size_t kHead = 8;
  const std::unique_ptr<EventLoop> loop = *EventLoop::Create({});
  const auto handler = std::make_shared<RecordingHandler>();
  auto [near_socket, far] = MakeConnection();
  std::string stream;
  for (int i = 0; i < 100; ++i) {
    const char head[kHead] = {1, 0, 0, 0, static_cast<char>(i)};
    stream.append(head, sizeof(head));
    stream += 'x';
  }
  const char malformed[kHead] = {0, 0, 0, static_cast<char>(0x80)};
  stream.append(malformed, sizeof(malformed));
  ASSERT_EQ(send(far.get(), stream.data(), stream.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(stream.size()));
  const auto near = TcpControlChannel::Start(*loop, {2, 22}, std::move(near_socket), "near",
                                             handler, /*max_queued_bytes=*/1 << 20);
  EXPECT_THAT(std::string(handler->WaitForClosed().message()), HasSubstr("a message of"));
  const auto arrived = handler->WaitForFrames(100);
  ASSERT_EQ(arrived.size(), 100u);
  for (uint16_t i = 0; i < 100; ++i) EXPECT_EQ(arrived[i].first, i);
  EXPECT_EQ(handler->together(), 64u);
}

class TcpControlChannelQueueTest : public ::testing::Test {
 protected:
  static constexpr size_t kMaxQueued = 1 << 20;
  static constexpr size_t kHead = 8;

  TcpControlChannelQueueTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    far_ = UniqueFd(ends[1]);
    near_ =
        TcpControlChannel::Start(*loop_, {2, 22}, UniqueFd(ends[0]), "near", handler_, kMaxQueued);
  }

  absl::Status Send(size_t bytes) { return near_->Send(1, {std::string(bytes, 'x')}, {}); }

  // Sends frames until some are queued; returns the bytes sent and queued.
  size_t FillSocket() {
    size_t bytes = 0;
    while (near_->queued_bytes() < 50'000) {
      EXPECT_TRUE(Send(10'000).ok());
      bytes += kHead + 10'000;
    }
    return bytes;
  }

  // Reads what has come to the far end.
  size_t Drain() {
    size_t bytes = 0;
    std::string room(1 << 16, '\0');
    for (ssize_t got; (got = recv(far_.get(), room.data(), room.size(), 0)) > 0;) {
      bytes += static_cast<size_t>(got);
    }
    return bytes;
  }

  // The far end may receive bytes before the loop has counted them as sent.
  void WaitUntilNothingIsQueued() {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (near_->queued_bytes() > 0 && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_EQ(near_->queued_bytes(), 0u);
  }

  std::unique_ptr<EventLoop> loop_ = *EventLoop::Create({});
  std::shared_ptr<RecordingHandler> handler_ = std::make_shared<RecordingHandler>();
  UniqueFd far_;
  std::shared_ptr<TcpControlChannel> near_;
};

TEST_F(TcpControlChannelQueueTest, QueueIsBoundedToTheByte) {
  FillSocket();
  while (kMaxQueued - near_->queued_bytes() > 20'000) {
    ASSERT_TRUE(Send(10'000).ok());
  }
  const size_t room = kMaxQueued - near_->queued_bytes() - kHead;
  const absl::Status status = Send(room + 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--peer-queue-bytes"));
  EXPECT_TRUE(Send(room).ok());
  EXPECT_EQ(near_->queued_bytes(), kMaxQueued);
  EXPECT_EQ(Send(0).code(), absl::StatusCode::kResourceExhausted);
}

// Notifications are off then, and a peer that sends without a pause would receive nothing.
TEST_F(TcpControlChannelQueueTest, QueuedFrames_AreSentWhileInputIsFoundByPolling) {
  // The second time, notifications are off from the beginning.
  for (int time = 0; time < 2; ++time) {
    struct Traffic {
      absl::Notification over;
      size_t left = 0;
      int turns = 0;
      std::function<void()> turn;
    };
    const auto traffic = std::make_shared<Traffic>();
    traffic->turn = [this, traffic] {
      // A frame for each poll, so that the loop never idles.
      const char frame[kHead] = {0, 0, 0, 0, 1, 0, 0, 0};
      EXPECT_EQ(send(far_.get(), frame, sizeof(frame), MSG_NOSIGNAL),
                static_cast<ssize_t>(sizeof(frame)));
      near_->Poll();
      ++traffic->turns;
      if (traffic->turns == 100) traffic->left = FillSocket();
      if (traffic->turns > 200) traffic->left -= std::min(traffic->left, Drain());
      if ((traffic->turns > 200 && traffic->left == 0) || traffic->turns == 20'000) {
        traffic->turn = nullptr;
        return traffic->over.Notify();
      }
      loop_->Post(traffic->turn);
    };
    loop_->Post(traffic->turn);
    ASSERT_TRUE(traffic->over.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_EQ(traffic->left, 0u) << "bytes were not sent in " << traffic->turns << " turns";
    EXPECT_EQ(near_->queued_bytes(), 0u);
  }
}

// On the loop, which sends what was appended before it sleeps.
TEST_F(TcpControlChannelQueueTest, AppendedFrames_AreSentByKick_OrWithTheNextSend) {
  absl::Notification over;
  loop_->Post([&] {
    EXPECT_TRUE(near_->Append(1, {"abc"}).ok());
    EXPECT_TRUE(near_->Append(1, {"", "d"}).ok());
    EXPECT_EQ(Drain(), 0u);
    near_->Kick();
    EXPECT_EQ(Drain(), 2 * kHead + 4);
    near_->Kick();
    EXPECT_EQ(Drain(), 0u);
    EXPECT_TRUE(near_->Append(1, {"abc"}).ok());
    EXPECT_TRUE(Send(10).ok());
    EXPECT_EQ(Drain(), 2 * kHead + 13);
    over.Notify();
  });
  ASSERT_TRUE(over.WaitForNotificationWithTimeout(absl::Seconds(10)));
  ASSERT_TRUE(near_->Append(1, {"abc"}).ok());
  loop_->Post([] {});
  pollfd polled = {far_.get(), POLLIN, 0};
  EXPECT_EQ(poll(&polled, 1, 10'000), 1) << "the loop sleeps on an appended frame";
}

// Many small ones are sent as if they were large.
TEST_F(TcpControlChannelQueueTest, AppendedFrames_AreBounded) {
  absl::Notification over;
  loop_->Post([&] {
    size_t bytes = 0;
    for (; bytes < 32'000; bytes += kHead + 100) {
      EXPECT_TRUE(near_->Append(1, {std::string(100, 'x')}).ok());
    }
    size_t sent = Drain();
    EXPECT_GE(sent, 16'000u - 2 * (kHead + 100));
    EXPECT_LT(sent, bytes);
    near_->Kick();
    sent += Drain();
    EXPECT_EQ(sent, bytes);
    over.Notify();
  });
  ASSERT_TRUE(over.WaitForNotificationWithTimeout(absl::Seconds(10)));
}

// In the queue, behind those that were sent before them, and within its bound.
TEST_F(TcpControlChannelQueueTest, AppendWhileFramesAreQueued) {
  size_t bytes = FillSocket();
  absl::Status status;
  while (true) {
    status = near_->Append(1, {std::string(1000, 'x')});
    if (!status.ok()) break;
    bytes += kHead + 1000;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_LE(near_->queued_bytes(), kMaxQueued);
  near_->Kick();
  pollfd polled = {far_.get(), POLLIN, 0};
  while (bytes > 0 && poll(&polled, 1, 10'000) == 1) bytes -= std::min(bytes, Drain());
  EXPECT_EQ(bytes, 0u);
  WaitUntilNothingIsQueued();
  near_->Close(absl::CancelledError("over"));
  EXPECT_EQ(near_->Append(1, {"x"}).message(), "over");
  near_->Kick();
}

TEST_F(TcpControlChannelTest, AppendedFrames_ArriveInOrder) {
  const auto body = [](int i) { return std::to_string(i) + std::string(i * i % 30'000, 'x'); };
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE((i % 50 == 49 ? near_->Send(2, {body(i)}) : near_->Append(2, {body(i)})).ok());
    if (i % 7 == 0) near_->Kick();
  }
  near_->Kick();
  const auto arrived = far_handler_->WaitForFrames(500);
  ASSERT_EQ(arrived.size(), 500u);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(arrived[i].second, body(i));
}

}  // namespace
}  // namespace ferry
