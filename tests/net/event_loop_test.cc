// SPDX-License-Identifier: Apache-2.0
// The loop: which thread leads it, which sleeps, and that none sleeps through its own events.
#include "net/event_loop.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

#include "base/clock.h"

namespace ferry {
namespace {

absl::Time In(absl::Duration duration) { return SteadyClock().Now() + duration; }

TEST(EventLoopTest, RunsPostedFunctionsWithoutACaller) {
  auto loop = *EventLoop::Create({});
  for (int i = 0; i < 200; ++i) {
    absl::Notification ran;
    loop->Post([&ran] { ran.Notify(); });
    ASSERT_TRUE(ran.WaitForNotificationWithTimeout(absl::Seconds(10)));
    if (i % 20 == 0) absl::SleepFor(absl::Milliseconds(1));
  }
}

TEST(EventLoopTest, TimersRunInTheirOrder) {
  auto loop = *EventLoop::Create({});
  std::vector<int> order;
  absl::Notification done;
  const absl::Time now = SteadyClock().Now();
  loop->PostAt(now + absl::Milliseconds(60), [&] {
    order.push_back(2);
    done.Notify();
  });
  loop->PostAt(now + absl::Milliseconds(20), [&] { order.push_back(1); });
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_GE(SteadyClock().Now(), now + absl::Milliseconds(60));
}

TEST(EventLoopTest, CallerLeadsUntilItsTimeout) {
  auto loop = *EventLoop::Create({});
  const absl::Time start = SteadyClock().Now();
  EXPECT_FALSE(loop->WaitUntil([] { return false; }, start + absl::Milliseconds(30)));
  EXPECT_GE(SteadyClock().Now() - start, absl::Milliseconds(30));
  EXPECT_TRUE(loop->WaitUntil([] { return true; }, absl::InfinitePast()));
  EXPECT_FALSE(loop->IsOnLoop());
}

TEST(EventLoopTest, ManyCallersEachGetTheirOwnEvents) {
  auto loop = *EventLoop::Create({});
  constexpr int kCallers = 6;
  constexpr int kRounds = 400;
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int caller = 0; caller < kCallers; ++caller) {
    threads.emplace_back([&loop, &failures, caller] {
      for (int i = 0; i < kRounds; ++i) {
        auto done = std::make_shared<std::atomic<bool>>(false);
        std::thread other;
        // On the loop, by a timer, and by another thread: each source of a notification.
        if ((i + caller) % 3 == 0) {
          loop->Post([done, &loop] {
            done->store(true);
            loop->Wake();
          });
        } else if ((i + caller) % 3 == 1) {
          loop->PostAt(In(absl::Microseconds(300)), [done, &loop] {
            done->store(true);
            loop->Wake();
          });
        } else {
          other = std::thread([done, &loop] {
            absl::SleepFor(absl::Microseconds(100));
            done->store(true);
            loop->Wake();
          });
        }
        if (!loop->WaitUntil([&done] { return done->load(); }, In(absl::Seconds(20)))) {
          failures.fetch_add(1);
        }
        if (other.joinable()) other.join();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
}

TEST(EventLoopTest, ThreadContinuesAfterACaller) {
  auto loop = *EventLoop::Create({});
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(loop->WaitUntil([] { return false; }, In(absl::Microseconds(200))));
    absl::Notification ran;
    loop->Post([&ran] { ran.Notify(); });
    ASSERT_TRUE(ran.WaitForNotificationWithTimeout(absl::Seconds(10)));
  }
}

}  // namespace
}  // namespace ferry
