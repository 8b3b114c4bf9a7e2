// SPDX-License-Identifier: Apache-2.0
// The loop: which thread leads it, which sleeps, and that none sleeps through its own events.
#include "net/event_loop.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

#include "base/clock.h"
#include "base/fence.h"

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

// A source whose descriptor has events when the test says so.
class Signalled final : public LoopSource {
 public:
  explicit Signalled(bool is_stream) : is_stream_(is_stream) {}
  void OnReady(uint32_t) override {
    uint64_t value = 0;
    if (read(event_.get(), &value, sizeof(value)) == sizeof(value)) seen_.fetch_add(value);
  }
  bool IsStream() const override { return is_stream_; }

  int fd() const { return event_.get(); }
  uint64_t seen() const { return seen_.load(); }
  void Signal() {
    const uint64_t one = 1;
    EXPECT_EQ(write(event_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }

 private:
  const bool is_stream_;
  const UniqueFd event_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  std::atomic<uint64_t> seen_{0};
};

// Memory has nothing for it, and it never sleeps.
TEST(EventLoopTest, CallerThatPolls_SeesEventsOfDescriptors) {
  for (const bool is_stream : {false, true}) {
    auto loop = *EventLoop::Create({.spin = absl::Hours(1)});
    const auto source = std::make_shared<Signalled>(is_stream);
    const auto id = loop->Add(source, source->fd(), EPOLLIN);
    ASSERT_TRUE(id.ok()) << id.status();
    for (uint64_t i = 1; i <= 50; ++i) {
      std::thread peer([&source, i] {
        // Soon after the last one, and after a while without any.
        absl::SleepFor(absl::Microseconds(i % 10 == 0 ? 20'000 : i * 10));
        source->Signal();
      });
      EXPECT_TRUE(loop->WaitUntil([&] { return source->seen() >= i; }, In(absl::Seconds(20))));
      peer.join();
    }
    loop->Remove(*id, source->fd());
  }
}

// Waits that took as long as those of a thread that was not woken do: a few may be the machine's.
int CountSlow(const std::vector<absl::Duration>& waits, absl::Duration unwoken) {
  return static_cast<int>(std::count_if(waits.begin(), waits.end(),
                                        [&](absl::Duration each) { return each >= unwoken; }));
}

// The leader polls on after its pass, and wakes a caller that parks meanwhile.
TEST(EventLoopTest, WakeOnTheLoop_ReachesCallersThatPark) {
  auto loop = *EventLoop::Create({.spin = absl::ZeroDuration()});
  constexpr int kRounds = 300;
  std::atomic<bool> is_over{false};
  std::atomic<bool> keeps_busy{false};
  // Leads, and never sleeps: there is always something posted.
  std::function<void()> again = [&] {
    if (!is_over.load()) loop->Post(again);
  };
  loop->Post(again);
  std::thread leader([&] {
    loop->WaitUntil(
        [&] {
          keeps_busy.store(true);
          return is_over.load();
        },
        In(absl::Seconds(60)));
  });
  while (!keeps_busy.load()) std::this_thread::yield();
  std::vector<absl::Duration> waits;
  for (int i = 0; i < kRounds; ++i) {
    std::atomic<bool> done{false};
    loop->Post([&] {
      // From before it parks until after it has.
      for (int spin = 0; spin < i * 20; ++spin) FullFence();
      done.store(true);
      loop->Wake();
    });
    const absl::Time start = SteadyClock().Now();
    ASSERT_TRUE(loop->WaitUntil([&done] { return done.load(); }, In(absl::Seconds(20))));
    waits.push_back(SteadyClock().Now() - start);
    // Wake may still be running.
    absl::Notification passed;
    loop->Post([&passed] { passed.Notify(); });
    passed.WaitForNotification();
  }
  is_over.store(true);
  loop->Wake();
  leader.join();
  EXPECT_LT(CountSlow(waits, absl::Milliseconds(90)), kRounds / 10);
}

TEST(EventLoopTest, WakeOnAnotherThread_ReachesALeaderThatSleeps) {
  auto loop = *EventLoop::Create({.spin = absl::ZeroDuration()});
  constexpr int kRounds = 20;
  std::vector<absl::Duration> waits;
  for (int i = 0; i < kRounds; ++i) {
    std::atomic<bool> done{false};
    std::thread other([&] {
      // Before it sleeps, and afterwards.
      absl::SleepFor(absl::Microseconds(i * 100));
      done.store(true);
      loop->Wake();
    });
    const absl::Time start = SteadyClock().Now();
    EXPECT_TRUE(loop->WaitUntil([&done] { return done.load(); }, In(absl::Seconds(20))));
    waits.push_back(SteadyClock().Now() - start);
    other.join();
  }
  EXPECT_LT(CountSlow(waits, absl::Milliseconds(900)), kRounds / 4);
}

}  // namespace
}  // namespace ferry
