// SPDX-License-Identifier: Apache-2.0
// TcpStoreFlow: members on two loops that share a budget.
#include "coord/server/tcp_store_flow.h"

#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "net/socket_loop.h"

namespace ferry::coord {
namespace {

using Phase = TcpStoreBudget::Phase;

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr absl::Duration kPatience = absl::Seconds(20);

class Member final : public TcpStoreFlowMember {
 public:
  explicit Member(SocketLoop& loop) : loop_(loop) {}
  void Resume() override {
    EXPECT_TRUE(loop_.IsOnLoop());
    resumed.Notify();
  }
  void CloseStalled(size_t held_bytes) override {
    EXPECT_TRUE(loop_.IsOnLoop());
    closed_with = held_bytes;
    closed.Notify();
  }

  absl::Notification resumed;
  absl::Notification closed;
  size_t closed_with = 0;

 private:
  SocketLoop& loop_;
};

class TcpStoreFlowTest : public testing::Test {
 protected:
  TcpStoreFlowTest() : a_(*SocketLoop::Create("a")), b_(*SocketLoop::Create("b")) {}
  ~TcpStoreFlowTest() override {
    a_->End();
    b_->End();
  }

  const std::shared_ptr<SocketLoop> a_;
  const std::shared_ptr<SocketLoop> b_;
  TcpStoreFlow flow_{kMaxBytes, /*threads=*/2};
};

TEST_F(TcpStoreFlowTest, PausedMember_OtherFreesMemory_IsResumedOnItsOwnLoop) {
  const auto large = std::make_shared<Member>(*a_);
  const auto paused = std::make_shared<Member>(*b_);
  flow_.Update(TcpStoreClient(1), *a_, large, kMaxBytes, 1, 0, Phase::kWaiting);
  flow_.Update(TcpStoreClient(2), *b_, paused, kMaxBytes / 16, 1, 0, Phase::kSending);
  EXPECT_EQ(flow_.held_bytes(), kMaxBytes + kMaxBytes / 16);
  EXPECT_FALSE(flow_.MayReceive(TcpStoreClient(2)));
  EXPECT_FALSE(paused->resumed.HasBeenNotified());
  flow_.Remove(TcpStoreClient(1));
  EXPECT_TRUE(paused->resumed.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(flow_.MayReceive(TcpStoreClient(2)));
}

TEST_F(TcpStoreFlowTest, StalledMember_IsClosedOnItsOwnLoop) {
  const auto stalled = std::make_shared<Member>(*b_);
  flow_.Update(TcpStoreClient(1), *b_, stalled, kMaxBytes, 1, 0, Phase::kSending);
  flow_.EndPeriod();
  flow_.EndPeriod();
  ASSERT_TRUE(stalled->closed.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(stalled->closed_with, kMaxBytes);
}

TEST_F(TcpStoreFlowTest, MemberThatIsGone_IsSkipped) {
  auto gone = std::make_shared<Member>(*b_);
  flow_.Update(TcpStoreClient(1), *b_, gone, kMaxBytes, 1, 0, Phase::kSending);
  gone = nullptr;
  flow_.EndPeriod();
  flow_.EndPeriod();
  absl::Notification done;
  b_->Post([&done] { done.Notify(); });
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
}

TEST_F(TcpStoreFlowTest, ReplyCounts_OfAllThreads_AreAdded) {
  const std::string x, y;
  EXPECT_THAT(flow_.ShareReplyCounts(0, {{&x, 1}, {&y, 2}}),
              testing::UnorderedElementsAre(testing::Pair(&x, 1), testing::Pair(&y, 2)));
  EXPECT_THAT(flow_.ShareReplyCounts(1, {{&x, 4}}),
              testing::UnorderedElementsAre(testing::Pair(&x, 5)));
  // The former counts of the thread are replaced.
  EXPECT_THAT(flow_.ShareReplyCounts(0, {{&x, 2}}),
              testing::UnorderedElementsAre(testing::Pair(&x, 6)));
  EXPECT_TRUE(flow_.ShareReplyCounts(1, {}).empty());
  EXPECT_THAT(flow_.ShareReplyCounts(0, {{&x, 2}}),
              testing::UnorderedElementsAre(testing::Pair(&x, 2)));
}

}  // namespace
}  // namespace ferry::coord
