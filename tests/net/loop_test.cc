// SPDX-License-Identifier: Apache-2.0
// The contract that both event loops meet.
#include "net/loop.h"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#include "any_loop.h"
#include "base/clock.h"
#include "base/unique_fd.h"
#include "net/paused_loop.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

// Reads the bytes that are written to it.
class Reader final : public LoopSource {
 public:
  Reader() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    near_ = UniqueFd(ends[0]);
    far_ = UniqueFd(ends[1]);
  }

  int fd() const { return near_.get(); }
  // Called by OnReady, on the loop, after it has read.
  std::function<void()> on_bytes;

  void Write() { EXPECT_EQ(write(far_.get(), "x", 1), 1); }
  int bytes() {
    absl::MutexLock lock(&mu_);
    return bytes_;
  }
  // Waits until it has read so many.
  bool WaitForBytes(int count) {
    absl::MutexLock lock(&mu_);
    const auto has_come = [this, count]()
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return bytes_ >= count; };
    return mu_.AwaitWithTimeout(absl::Condition(&has_come), kTimeout);
  }

 private:
  void OnReady(uint32_t) override {
    char bytes[64];
    for (ssize_t got = 0; (got = read(near_.get(), bytes, sizeof(bytes))) > 0;) {
      absl::MutexLock lock(&mu_);
      bytes_ += static_cast<int>(got);
    }
    if (on_bytes) on_bytes();
  }

  UniqueFd near_;
  UniqueFd far_;
  absl::Mutex mu_;
  int bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

class LoopTest : public AnyLoopTest {
 protected:
  Loop::SourceId Add(const std::shared_ptr<Reader>& reader, uint32_t events = EPOLLIN) {
    const absl::StatusOr<Loop::SourceId> id = loop_->Add(reader, reader->fd(), events);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(0);
  }
};

TEST_P(LoopTest, SourceWithPendingBytes_IsCalled) {
  const auto early = std::make_shared<Reader>();
  early->Write();
  Add(early);
  EXPECT_TRUE(early->WaitForBytes(1));
  early->Write();
  EXPECT_TRUE(early->WaitForBytes(2));
}

TEST_P(LoopTest, FunctionsRunOnTheLoopInOrder) {
  std::string order;
  bool was_on_loop = false;
  absl::Notification ran;
  loop_->Post([&] { order += 'a'; });
  loop_->Post([&] {
    was_on_loop = loop_->IsOnLoop();
    order += 'b';
    ran.Notify();
  });
  ASSERT_TRUE(ran.WaitForNotificationWithTimeout(kTimeout));
  EXPECT_EQ(order, "ab");
  EXPECT_TRUE(was_on_loop);
  EXPECT_FALSE(loop_->IsOnLoop());
}

TEST_P(LoopTest, PausedLoop_CallsNothingUntilItGoesOn) {
  const auto reader = std::make_shared<Reader>();
  Add(reader);
  std::string order;
  loop_->Post([&] {
    order += 'a';
    loop_->Post([&] { order += 'b'; });
  });
  {
    // All that was posted has run, with what it has posted.
    PausedLoop paused(*loop_);
    EXPECT_EQ(order, "ab");
    reader->Write();
    loop_->Post([&] { order += 'd'; });
    // A move does not end the pause.
    const PausedLoop moved = std::move(paused);
    order += 'c';
    EXPECT_EQ(reader->bytes(), 0);
  }
  EXPECT_TRUE(reader->WaitForBytes(1));
  Settle();
  EXPECT_EQ(order, "abcd");
}

TEST_P(LoopTest, TimersRunInTheirOrderAndNotBeforeTheirTime) {
  std::string order;
  absl::Notification ran;
  const absl::Time now = SteadyClock().Now();
  const absl::Time last = now + absl::Milliseconds(20);
  absl::Time came;
  // One function posts all three, or the first may have run before the others are posted.
  loop_->Post([&] {
    loop_->PostAt(last, [&] {
      order += 'c';
      came = SteadyClock().Now();
      ran.Notify();
    });
    loop_->PostAt(now + absl::Milliseconds(10), [&] { order += 'b'; });
    loop_->PostAfter(absl::ZeroDuration(), [&] { order += 'a'; });
    // Wakes the loop before they are due.
    loop_->Post([] {});
  });
  ASSERT_TRUE(ran.WaitForNotificationWithTimeout(kTimeout));
  EXPECT_EQ(order, "abc");
  EXPECT_GE(came, last);
}

TEST_P(LoopTest, SourceThatWatchesNothing_IsCalledWhenItWatchesAgain) {
  const auto reader = std::make_shared<Reader>();
  const Loop::SourceId id = Add(reader);
  ASSERT_TRUE(loop_->Watch(id, reader->fd(), 0).ok());
  Settle();
  reader->Write();
  Settle();
  EXPECT_EQ(reader->bytes(), 0);
  ASSERT_TRUE(loop_->Watch(id, reader->fd(), EPOLLIN).ok());
  EXPECT_TRUE(reader->WaitForBytes(1));
}

TEST_P(LoopTest, RemovedByAnotherThread_IsReleasedAndNotCalled) {
  auto reader = std::make_shared<Reader>();
  const Loop::SourceId id = Add(reader);
  reader->Write();
  ASSERT_TRUE(reader->WaitForBytes(1));
  loop_->Remove(id, reader->fd());
  Settle();
  reader->Write();
  Settle();
  EXPECT_EQ(reader->bytes(), 1);
  EXPECT_EQ(reader.use_count(), 1) << "the loop keeps it";
  // It is unknown by now.
  loop_->Remove(id, reader->fd());
}

TEST_P(LoopTest, RemovedOnTheLoop_IsNotCalledAgain) {
  const auto reader = std::make_shared<Reader>();
  std::atomic<Loop::SourceId> id{0};
  reader->on_bytes = [&] { loop_->Remove(id, reader->fd()); };
  // Added on the loop, so that it is not called before its id is known.
  loop_->Post([&] { id = Add(reader); });
  Settle();
  reader->Write();
  ASSERT_TRUE(reader->WaitForBytes(1));
  Settle();
  reader->Write();
  Settle();
  EXPECT_EQ(reader->bytes(), 1);
  EXPECT_EQ(reader.use_count(), 1) << "the loop keeps it";
}

// Both are ready in one turn: the loop may be about to call the second, and so keeps it.
TEST_P(LoopTest, RemovedByAnotherThreadDuringDispatch_LivesUntilTheTurnEnds) {
  absl::Notification waits;
  absl::Notification go;
  loop_->Post([&] {
    waits.Notify();
    go.WaitForNotification();
  });
  waits.WaitForNotification();
  std::shared_ptr<Reader> both[2];
  Loop::SourceId ids[2] = {};
  std::atomic<int> called{-1};
  absl::Notification is_called;
  absl::Notification go_on;
  for (int i = 0; i < 2; ++i) {
    both[i] = std::make_shared<Reader>();
    both[i]->on_bytes = [&, i] {
      int none = -1;
      if (!called.compare_exchange_strong(none, i)) return;
      is_called.Notify();
      go_on.WaitForNotification();
    };
    ids[i] = Add(both[i]);
    both[i]->Write();
  }
  go.Notify();
  ASSERT_TRUE(is_called.WaitForNotificationWithTimeout(kTimeout));
  const int other = 1 - called;
  const std::weak_ptr<Reader> weak = both[other];
  loop_->Remove(ids[other], both[other]->fd());
  both[other] = nullptr;
  EXPECT_FALSE(weak.expired());
  go_on.Notify();
  Settle();
  EXPECT_TRUE(weak.expired());
}

TEST_P(LoopTest, SourceThatTheKernelCannotWatch_IsNotKept) {
  const UniqueFd file(memfd_create("ferry-unwatchable", MFD_CLOEXEC));
  const auto reader = std::make_shared<Reader>();
  const absl::Status status = loop_->Add(reader, file.get(), EPOLLIN).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("epoll_ctl"));
  Settle();
  EXPECT_EQ(reader.use_count(), 1) << "the loop keeps it";
}

FERRY_ON_BOTH_LOOPS(LoopTest);

}  // namespace
}  // namespace ferry
