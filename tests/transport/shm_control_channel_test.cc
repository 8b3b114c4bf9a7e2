// SPDX-License-Identifier: Apache-2.0
// Frames that find no room in the ring: their bound, their descriptors, and their end.
#include "transport/control/shm_control_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include "tests/transport/control_channel_pair.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMaxQueued = 100'000;

UniqueFd Copy(int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

// The far side does not read until StartFar.
class ShmControlChannelQueueTest : public ::testing::Test {
 protected:
  ShmControlChannelQueueTest() { StartNear(); }

  // Again: with an empty ring.
  void StartNear() {
    near_handler_ = std::make_shared<RecordingHandler>();
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    far_socket_ = UniqueFd(ends[1]);
    MemorySegment rings = *MemorySegment::Create(ShmControlChannel::RingsBytes(),
                                                 {.huge_pages = false, .peers_may_write = true});
    far_rings_ = *MemorySegment::MapPeer(Copy(rings.fd()), ShmControlChannel::RingsBytes(), true);
    near_ = ShmControlChannel::Start(*near_loop_, {2, 22}, UniqueFd(ends[0]),
                                     {std::move(rings), BellOf(*far_loop_)}, /*is_first=*/true,
                                     near_handler_, kMaxQueued);
  }

  void StartFar() {
    ShmControlChannel::Start(*far_loop_, {1, 11}, std::move(far_socket_),
                             {std::move(far_rings_), BellOf(*near_loop_)}, /*is_first=*/false,
                             far_handler_, kMaxQueued);
  }

  // Sends until the ring is full; returns the number of frames.
  size_t FillRing() {
    size_t frames = 0;
    const std::string body(1000, 'x');
    while (near_->queued_bytes() == 0) {
      EXPECT_TRUE(near_->Send(1, {body}).ok());
      ++frames;
    }
    return frames;
  }

  static Doorbell BellOf(EventLoop& loop) {
    Doorbell& bell = loop.doorbell();
    return *Doorbell::OfPeer(Copy(bell.page_fd()), Copy(bell.event_fd()));
  }

  std::unique_ptr<EventLoop> near_loop_ = *EventLoop::Create({});
  std::unique_ptr<EventLoop> far_loop_ = *EventLoop::Create({});
  std::shared_ptr<RecordingHandler> near_handler_;
  std::shared_ptr<RecordingHandler> far_handler_ = std::make_shared<RecordingHandler>();
  UniqueFd far_socket_;
  MemorySegment far_rings_;
  std::shared_ptr<ControlChannel> near_;
};

TEST_F(ShmControlChannelQueueTest, QueueIsBoundedToTheByte) {
  FillRing();
  while (kMaxQueued - near_->queued_bytes() > 10'000) {
    ASSERT_TRUE(near_->Send(1, {std::string(5000, 'x')}).ok());
  }
  const size_t room = kMaxQueued - near_->queued_bytes();
  const absl::Status status = near_->Send(1, {std::string(room + 1, 'x')});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--peer-queue-bytes"));
  EXPECT_EQ(near_->queued_bytes(), kMaxQueued - room);
  EXPECT_TRUE(near_->Send(1, {std::string(room, 'x')}).ok());
  EXPECT_EQ(near_->Send(1, {"x"}).code(), absl::StatusCode::kResourceExhausted);
}

// The reader makes room after the loop has looked for some, and before it sleeps: it finds the loop
// awake, and does not ring.
TEST_F(ShmControlChannelQueueTest, RoomMadeWhileTheLoopFallsAsleep_IsFoundBeforeItSleeps) {
  FillRing();
  auto* const source = dynamic_cast<PolledSource*>(near_.get());
  ASSERT_NE(source, nullptr);
  // Its own thread has tried to send the queue, and sleeps.
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_FALSE(source->HasWork());
  // Two rings, the first of which is that of the near side.
  constexpr size_t kCapacity = 512 * 1024;
  ASSERT_EQ(ShmControlChannel::RingsBytes(),
            (2 * (kRingControlBytes + kCapacity) + 4095) / 4096 * 4096);
  RingReader reader(far_rings_.base(), kCapacity);
  while (reader.HasFrame()) {
    ASSERT_TRUE(reader.Read().ok());
    reader.Release();
  }
  EXPECT_TRUE(reader.Publish()) << "the writer has requested no room";
  // Or the thread was late, and has sent the queue.
  EXPECT_TRUE(source->HasWork() || near_->queued_bytes() == 0);
}

// Those that leave the queue make room in it, and no more than they had.
TEST_F(ShmControlChannelQueueTest, FramesThatWereSent_LeaveTheQueue) {
  size_t frames = FillRing();
  for (int i = 0; i < 20; ++i, ++frames) {
    ASSERT_TRUE(near_->Send(2, {std::string(100 * i, 'y')}).ok());
  }
  StartFar();
  const auto arrived = far_handler_->WaitForFrames(frames);
  ASSERT_EQ(arrived.size(), frames);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(arrived[frames - 20 + i], std::pair(uint16_t{2}, std::string(100 * i, 'y')));
  }
  EXPECT_TRUE(near_loop_->WaitUntil([this] { return near_->queued_bytes() == 0; },
                                    SteadyClock().Now() + absl::Seconds(10)));
}

// They are sent from copies: the caller may close its own at once.
TEST_F(ShmControlChannelQueueTest, DescriptorsOfQueuedFrames_ArriveWithTheirFrames) {
  size_t frames = FillRing();
  for (int i = 0; i < 10; ++i, ++frames) {
    const MemorySegment memory = *MemorySegment::Create(4096, {.huge_pages = false});
    static_cast<char*>(memory.base())[0] = static_cast<char>(i);
    const int fd = memory.fd();
    ASSERT_TRUE(near_->Send(3, {"fd"}, {&fd, 1}).ok());
  }
  StartFar();
  ASSERT_EQ(far_handler_->WaitForFrames(frames).size(), frames);
  std::vector<UniqueFd> descriptors = far_handler_->TakeDescriptors();
  ASSERT_EQ(descriptors.size(), 10u);
  for (int i = 0; i < 10; ++i) {
    const auto mapped = MemorySegment::MapPeer(std::move(descriptors[i]), 4096, false);
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    EXPECT_EQ(static_cast<char*>(mapped->base())[0], i);
  }
}

// Descriptors have no frame numbers: one that is sent twice would be taken for that of a later
// frame.
TEST_F(ShmControlChannelQueueTest, FirstFrameWithoutRoomHasADescriptor_ItIsSentOnce) {
  const size_t room = FillRing() - 1;
  StartNear();
  const std::string body(1000, 'x');
  for (size_t i = 0; i < room; ++i) ASSERT_TRUE(near_->Send(1, {body}).ok());
  ASSERT_EQ(near_->queued_bytes(), 0u);
  for (int i = 0; i < 3; ++i) {
    const MemorySegment memory = *MemorySegment::Create(4096, {.huge_pages = false});
    static_cast<char*>(memory.base())[0] = static_cast<char>(i);
    const int fd = memory.fd();
    ASSERT_TRUE(near_->Send(3, {body}, {&fd, 1}).ok());
  }
  ASSERT_EQ(near_->queued_bytes(), 3 * body.size());
  StartFar();
  ASSERT_EQ(far_handler_->WaitForFrames(room + 3).size(), room + 3);
  std::vector<UniqueFd> descriptors = far_handler_->TakeDescriptors();
  ASSERT_EQ(descriptors.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    const auto mapped = MemorySegment::MapPeer(std::move(descriptors[i]), 4096, false);
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    EXPECT_EQ(static_cast<char*>(mapped->base())[0], i);
  }
}

// The memory of tensors would stay for as long as anybody keeps the channel.
TEST_F(ShmControlChannelQueueTest, DescriptorsOfQueuedFrames_AreClosedWithTheChannel) {
  FillRing();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  ASSERT_TRUE(near_->Send(3, {"fd"}, {&ends[1], 1}).ok());
  writer.Reset();
  pollfd polled = {reader.get(), POLLIN, 0};
  ASSERT_EQ(poll(&polled, 1, 0), 0) << "the queue has no copy";
  near_->Close(absl::CancelledError("over"));
  EXPECT_EQ(near_handler_->WaitForClosed().message(), "over");
  EXPECT_EQ(poll(&polled, 1, /*timeout=*/10'000), 1) << "the copy is open";
  EXPECT_NE(polled.revents & POLLHUP, 0);
}

std::vector<std::pair<uint16_t, std::string>> Numbered(size_t count) {
  std::vector<std::pair<uint16_t, std::string>> frames;
  for (size_t i = 0; i < count; ++i) frames.emplace_back(4, std::to_string(i));
  return frames;
}

TEST_F(ShmControlChannelQueueTest, AppendedFrames_ArriveInOrderWithSentOnes) {
  StartFar();
  for (int i = 0; i < 10; ++i) {
    const std::string body = std::to_string(i);
    ASSERT_TRUE((i == 4 ? near_->Send(4, {body}) : near_->Append(4, {body})).ok());
  }
  near_->Kick();
  EXPECT_EQ(far_handler_->WaitForFrames(10), Numbered(10));
}

TEST_F(ShmControlChannelQueueTest, FramesThatHaveArrived_AreDeliveredTogether) {
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(near_->Send(4, {std::to_string(i)}).ok());
  StartFar();
  EXPECT_EQ(far_handler_->WaitForFrames(200), Numbered(200));
  EXPECT_EQ(far_handler_->together(), 64u);
}

TEST_F(ShmControlChannelQueueTest, LargeFramesThatHaveArrived_AreReleasedInBetween) {
  const std::string body(10'000, 'x');
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(near_->Send(4, {body}).ok());
  StartFar();
  EXPECT_EQ(far_handler_->WaitForFrames(20).size(), 20u);
  EXPECT_EQ(far_handler_->together(), 4u);
}

// Those before it come first, and those after it later.
TEST_F(ShmControlChannelQueueTest, FrameWithDescriptors_IsDeliveredAlone) {
  for (int i = 0; i < 20; ++i) {
    const std::string body = std::to_string(i);
    if (i != 7 && i != 12) {
      ASSERT_TRUE(near_->Send(4, {body}).ok());
      continue;
    }
    const UniqueFd fd(eventfd(0, EFD_CLOEXEC));
    ASSERT_TRUE(near_->Send(4, {body}, {fd.get()}).ok());
  }
  StartFar();
  EXPECT_EQ(far_handler_->WaitForFrames(20), Numbered(20));
  EXPECT_EQ(far_handler_->TakeDescriptors().size(), 2u);
  EXPECT_EQ(far_handler_->together(), 7u);
}

TEST_F(ShmControlChannelQueueTest, FramesBehindOneThatIsRefused_AreNotDelivered) {
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(near_->Send(4, {std::to_string(i)}).ok());
  far_handler_->SetVerdict(absl::InvalidArgumentError("refused"));
  StartFar();
  EXPECT_EQ(far_handler_->WaitForClosed().message(), "refused");
  EXPECT_EQ(far_handler_->WaitForFrames(1), Numbered(1));
}

TEST_F(ShmControlChannelQueueTest, RingFillsUpBetweenAppends_AllArrive) {
  size_t frames = 0;
  const std::string padding(1000, 'x');
  while (near_->queued_bytes() < 10'000) {
    ASSERT_TRUE(near_->Append(4, {padding, std::to_string(frames++)}).ok());
  }
  StartFar();
  // Without a Kick: a full ring makes the peer read.
  const auto arrived = far_handler_->WaitForFrames(frames);
  ASSERT_EQ(arrived.size(), frames);
  for (size_t i = 0; i < frames; ++i) {
    EXPECT_EQ(arrived[i].second, padding + std::to_string(i));
  }
}

TEST_F(ShmControlChannelQueueTest, AppendIsBoundedAsSend_AndEndsWithTheChannel) {
  absl::Status status;
  while (status.ok()) status = near_->Append(1, {std::string(1000, 'x')});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(near_->Append(1, {std::string(kMaxControlBody + 1, 'x')}).code(),
            absl::StatusCode::kInvalidArgument);
  near_->Close(absl::CancelledError("over"));
  EXPECT_EQ(near_handler_->WaitForClosed().message(), "over");
  EXPECT_EQ(near_->Append(1, {"x"}).message(), "over");
  near_->Kick();
}

// The bell costs a fence, and a system call if the peer sleeps: one for each burst.
TEST(ShmControlChannelBellTest, IsRungByKick_NotByAppend) {
  const std::unique_ptr<EventLoop> loop = *EventLoop::Create({});
  Doorbell bell = *Doorbell::Create();
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd far(ends[1]);
  const auto channel = ShmControlChannel::Start(
      *loop, {2, 22}, UniqueFd(ends[0]),
      {*MemorySegment::Create(ShmControlChannel::RingsBytes(),
                              {.huge_pages = false, .peers_may_write = true}),
       *Doorbell::OfPeer(Copy(bell.page_fd()), Copy(bell.event_fd()))},
      /*is_first=*/true, std::make_shared<RecordingHandler>(), kMaxQueued);
  // Wakes it too.
  const auto is_rung = [&bell] {
    uint64_t rings = 0;
    return read(bell.event_fd(), &rings, sizeof(rings)) == sizeof(rings);
  };
  // The loop rings for unread frames before it sleeps: let it sleep first.
  ASSERT_TRUE(loop->WaitUntil([&] { return channel->queued_bytes() == 0; },
                              SteadyClock().Now() + absl::Seconds(10)));
  bell.FallAsleep();
  EXPECT_FALSE(is_rung());
  absl::Notification over;
  loop->Post([&] {
    EXPECT_TRUE(channel->Append(1, {"a"}).ok());
    EXPECT_TRUE(channel->Append(1, {"b"}).ok());
    EXPECT_FALSE(is_rung());
    channel->Kick();
    EXPECT_TRUE(is_rung());
    // Awake, and nothing was appended.
    channel->Kick();
    EXPECT_FALSE(is_rung());
    over.Notify();
  });
  ASSERT_TRUE(over.WaitForNotificationWithTimeout(absl::Seconds(10)));
  channel->Close(absl::CancelledError("over"));
}

}  // namespace
}  // namespace ferry
