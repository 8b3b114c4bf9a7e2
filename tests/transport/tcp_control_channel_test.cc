// SPDX-License-Identifier: Apache-2.0
// Data that a control channel over TCP leaves in its socket: room that a peer may be waiting for.
#include "transport/control/tcp_control_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/sockets.h"
#include "tests/transport/control_channel_pair.h"

namespace ferry {
namespace {

class TcpControlChannelTest : public ::testing::Test {
 protected:
  TcpControlChannelTest() {
    ListeningSocket listening = *ListenTcp("127.0.0.1:0");
    UniqueFd near = *BeginConnectTcp("127.0.0.1:" + std::to_string(listening.port));
    pollfd acceptable = {listening.fd.get(), POLLIN, 0};
    EXPECT_EQ(poll(&acceptable, 1, 10'000), 1);
    UniqueFd far(accept4(listening.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    EXPECT_TRUE(far.valid());
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

}  // namespace
}  // namespace ferry
