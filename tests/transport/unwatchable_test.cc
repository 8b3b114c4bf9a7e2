// SPDX-License-Identifier: Apache-2.0
// Connections that the kernel cannot watch: its error for a regular file, and for one connection
// too many.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

#include "tests/transport/control_channel_pair.h"
#include "transport/control/shm_control_channel.h"
#include "transport/control/tcp_control_channel.h"
#include "transport/tcp/data_plane.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

UniqueFd Unwatchable() { return UniqueFd(memfd_create("ferry-unwatchable", MFD_CLOEXEC)); }

class UnwatchableTest : public ::testing::Test {
 protected:
  bool Becomes(const std::function<bool()>& condition) {
    return loop_->WaitUntil(condition, SteadyClock().Now() + absl::Seconds(10));
  }
  // The user of the connection receives the error, and nothing keeps it.
  template <typename ChannelType>
  void ExpectRefused(std::weak_ptr<ChannelType> channel, RecordingHandler& handler) {
    const absl::Status status = handler.WaitForClosed();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("node 2"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("epoll_ctl"));
    EXPECT_EQ(handler.WaitForChannel(), nullptr);
    EXPECT_TRUE(Becomes([&channel] { return channel.expired(); }));
  }

  std::unique_ptr<EventLoop> loop_ = *EventLoop::Create({});
};

TEST_F(UnwatchableTest, Source_IsNeitherKeptNorCalled) {
  class Source final : public PolledSource {
   public:
    bool Poll() override {
      ADD_FAILURE() << "polled";
      return false;
    }
  };
  auto source = std::make_shared<Source>();
  const std::weak_ptr<Source> weak = source;
  const UniqueFd file = Unwatchable();
  absl::Notification added;
  // As control channels do.
  loop_->Post([&] {
    const auto id = loop_->AddPolled(std::move(source), file.get(), EPOLLIN);
    EXPECT_EQ(id.status().code(), absl::StatusCode::kResourceExhausted);
    added.Notify();
  });
  ASSERT_TRUE(added.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_TRUE(Becomes([&weak] { return weak.expired(); }));
}

TEST_F(UnwatchableTest, ChannelOfSharedMemory_Ends) {
  auto handler = std::make_shared<RecordingHandler>();
  ShmControlChannel::Memory memory;
  memory.rings = *MemorySegment::Create(ShmControlChannel::RingsBytes(),
                                        {.huge_pages = false, .peers_may_write = true});
  const Doorbell bell = *Doorbell::Create();
  memory.peer_bell = *Doorbell::OfPeer(UniqueFd(fcntl(bell.page_fd(), F_DUPFD_CLOEXEC, 0)),
                                       UniqueFd(fcntl(bell.event_fd(), F_DUPFD_CLOEXEC, 0)));
  const std::weak_ptr<ShmControlChannel> channel = ShmControlChannel::Start(
      *loop_, {2, 20}, Unwatchable(), std::move(memory), true, handler, 1 << 20);
  ExpectRefused(channel, *handler);
}

TEST_F(UnwatchableTest, ChannelOverTcp_Ends) {
  auto handler = std::make_shared<RecordingHandler>();
  const std::weak_ptr<TcpControlChannel> channel =
      TcpControlChannel::Start(*loop_, {2, 20}, Unwatchable(), "tcp to nobody", handler, 1 << 20);
  ExpectRefused(channel, *handler);
}

// Its pair of endpoints ends, and its control channel with them, instead of waiting for slices
// forever.
TEST_F(UnwatchableTest, DataConnection_ReportsThatItIsBroken) {
  struct Both final : public SliceSource, public SliceSink {
    bool NextSlice(SliceWriter&, Slice&) override { return false; }
    Verdict FindTarget(const SliceHeader&, SliceTarget*) override { return Verdict::kError; }
    void OnSlice(const SliceHeader&) override {}
    void OnBroken(const absl::Status& why) override {
      status = why;
      broken.Notify();
    }
    absl::Status status;
    absl::Notification broken;
  };
  for (const bool writes : {false, true}) {
    auto both = std::make_shared<Both>();
    if (writes) {
      std::make_shared<SliceWriter>(*loop_, Unwatchable(), both)->Start();
    } else {
      std::make_shared<SliceReader>(*loop_, Unwatchable(), both)->Start();
    }
    ASSERT_TRUE(both->broken.WaitForNotificationWithTimeout(absl::Seconds(10)));
    EXPECT_THAT(std::string(both->status.message()), HasSubstr("epoll_ctl"));
    EXPECT_TRUE(Becomes([&both] { return both.use_count() == 1; }));
  }
}

}  // namespace
}  // namespace ferry
