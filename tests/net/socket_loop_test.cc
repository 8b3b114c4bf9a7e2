// SPDX-License-Identifier: Apache-2.0
// Which thread waits in the kernel: the loop's own, or a caller that is otherwise idle.
#include "net/socket_loop.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include "any_loop.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace ferry {
namespace {

// Polls for at most kTimeout.
bool Eventually(absl::FunctionRef<bool()> condition) {
  const absl::Time deadline = absl::Now() + kTimeout;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// One end of a pair of sockets; a thread at the other end sends every byte back. The first caller
// receives the first byte that comes back.
class Echo final : public LoopSource {
 public:
  static std::shared_ptr<Echo> Make(SocketLoop& loop) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    auto echo = std::make_shared<Echo>(loop, UniqueFd(ends[0]), UniqueFd(ends[1]));
    const auto added = loop.Add(echo, echo->near_.get(), EPOLLIN);
    EXPECT_TRUE(added.ok()) << added.status();
    echo->source_ = added.value_or(0);
    return echo;
  }
  Echo(SocketLoop& loop, UniqueFd near, UniqueFd far)
      : loop_(loop),
        near_(std::move(near)),
        far_(std::move(far)),
        thread_([this] { SendBack(); }) {}
  ~Echo() override {
    shutdown(near_.get(), SHUT_RDWR);
    thread_.join();
  }

  // Sends a byte, and waits for it; returns the thread on which it arrived.
  std::thread::id Ask() {
    SocketLoop::Awaited awaited(loop_);
    std::thread::id where;
    Send([&] {
      where = std::this_thread::get_id();
      awaited.Notify();
    });
    awaited.Wait();
    return where;
  }
  void AskAsync(std::function<void()> done) { Send(std::move(done)); }

  void Leave() {
    absl::Notification left;
    loop_.Post([&] {
      loop_.Remove(source_, near_.get());
      left.Notify();
    });
    ASSERT_TRUE(left.WaitForNotificationWithTimeout(kTimeout));
  }

 private:
  void Send(std::function<void()> done) {
    absl::MutexLock lock(&mu_);
    waiting_.push_back(std::move(done));
    EXPECT_EQ(write(near_.get(), "x", 1), 1);
  }
  void SendBack() {
    char bytes[64];
    ssize_t count = 0;
    while ((count = read(far_.get(), bytes, sizeof(bytes))) > 0) {
      if (write(far_.get(), bytes, static_cast<size_t>(count)) != count) return;
    }
  }
  void OnReady(uint32_t) override {
    char bytes[64];
    const ssize_t count = recv(near_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    for (ssize_t i = 0; i < count; ++i) {
      std::function<void()> done;
      {
        absl::MutexLock lock(&mu_);
        done = std::move(waiting_.front());
        waiting_.pop_front();
      }
      done();
    }
  }

  SocketLoop& loop_;
  Loop::SourceId source_ = 0;
  const UniqueFd near_;
  const UniqueFd far_;
  absl::Mutex mu_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

class SocketLoopTest : public ::testing::Test {
 protected:
  void TearDown() override {
    echo_->Leave();
    loop_->End();
  }
  // Until the loop's thread has left a caller's answers to the caller.
  bool LeadsHere() {
    for (int i = 0; i < 20'000; ++i) {
      if (echo_->Ask() == std::this_thread::get_id()) return true;
    }
    return false;
  }

  const std::shared_ptr<SocketLoop> loop_ = *SocketLoop::Create("test");
  const std::shared_ptr<Echo> echo_ = Echo::Make(*loop_);
};

TEST_F(SocketLoopTest, RepeatedCallerReadsItsOwnAnswers) {
  EXPECT_TRUE(LeadsHere());
  // It continues to, except when its thread is scheduled out on a busy machine.
  int here = 0;
  for (int i = 0; i < 100; ++i) here += echo_->Ask() == std::this_thread::get_id() ? 1 : 0;
  EXPECT_GT(here, 0);
}

TEST_F(SocketLoopTest, UnawaitedDataIsReadWhenNoCallerLeads) {
  ASSERT_TRUE(LeadsHere());
  for (int i = 0; i < 50; ++i) {
    absl::Notification came;
    echo_->AskAsync([&] { came.Notify(); });
    ASSERT_TRUE(came.WaitForNotificationWithTimeout(kTimeout));
    echo_->Ask();
  }
}

TEST_F(SocketLoopTest, PostedFunctionRunsWhenNoCallerLeads) {
  ASSERT_TRUE(LeadsHere());
  absl::Notification ran;
  loop_->Post([&] { ran.Notify(); });
  EXPECT_TRUE(ran.WaitForNotificationWithTimeout(kTimeout));
  absl::Notification ran_later;
  ASSERT_TRUE(LeadsHere());
  loop_->PostAfter(absl::Milliseconds(1), [&] { ran_later.Notify(); });
  EXPECT_TRUE(ran_later.WaitForNotificationWithTimeout(kTimeout));
}

// The thread that keeps timeouts posts when no answer comes.
TEST_F(SocketLoopTest, LeadingCallerIsWokenByOtherThreads) {
  std::atomic<SocketLoop::Awaited*> next{nullptr};
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    while (!is_over) {
      SocketLoop::Awaited* const awaited = next.exchange(nullptr);
      if (awaited == nullptr) {
        std::this_thread::yield();
      } else {
        awaited->Notify();
      }
    }
  });
  for (int i = 0; i < 2000; ++i) {
    // So that the loop's thread mostly yields.
    if (i % 4 != 0) echo_->Ask();
    SocketLoop::Awaited awaited(*loop_);
    next = &awaited;
    awaited.Wait();
  }
  is_over = true;
  other.join();
}

// One caller leads, others wait beside it, and unawaited data arrives all the while.
TEST_F(SocketLoopTest, CallersOfManyThreads) {
  constexpr int kThreads = 6;
  constexpr int kRounds = 400;
  std::vector<std::shared_ptr<Echo>> echoes;
  for (int i = 0; i < kThreads; ++i) echoes.push_back(Echo::Make(*loop_));
  std::atomic<int> came{0};
  std::atomic<int> asked_alone{0};
  std::atomic<int> came_alone{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < kThreads; ++i) {
    callers.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        if (round % 7 == i) {
          asked_alone.fetch_add(1);
          loop_->RequestThread();
          echoes[static_cast<size_t>(i)]->AskAsync([&] { came_alone.fetch_add(1); });
        }
        echoes[static_cast<size_t>(i)]->Ask();
        came.fetch_add(1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(came, kThreads * kRounds);
  // Each arrived before the answer that its caller requested after it.
  EXPECT_EQ(came_alone, asked_alone);
  for (const auto& echo : echoes) echo->Leave();
}

TEST_F(SocketLoopTest, WaitsForDataThatHasAlreadyArrived) {
  SocketLoop::Awaited awaited(*loop_);
  awaited.Notify();
  awaited.Wait();
}

// A child has its parent's memory, but not the thread that would read.
TEST(SocketLoopOfClients, ForkedChildHasItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no threads in a forked child";
#endif
  const auto parents = *SocketLoop::OfClients();
  // Its thread has begun: a child that is forked while threads are being made inherits their locks.
  absl::Notification ran;
  parents->Post([&ran] { ran.Notify(); });
  ASSERT_TRUE(ran.WaitForNotificationWithTimeout(kTimeout));
  const pid_t child = fork();
  if (child == 0) {
    const auto own = SocketLoop::OfClients();
    absl::Notification ran_here;
    if (own.ok()) (*own)->Post([&ran_here] { ran_here.Notify(); });
    _exit(ran_here.WaitForNotificationWithTimeout(kTimeout) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Removes all of them from the loop as soon as one is called.
class Remover final : public LoopSource, public std::enable_shared_from_this<Remover> {
 public:
  Remover(SocketLoop& loop, std::vector<std::shared_ptr<Remover>>& all, UniqueFd near, UniqueFd far)
      : loop_(loop), all_(all), near_(std::move(near)), far_(std::move(far)) {}

  absl::Status Add() {
    FERRY_ASSIGN_OR_RETURN(source_, loop_.Add(shared_from_this(), near_.get(), EPOLLIN));
    return absl::OkStatus();
  }
  void Say() { EXPECT_EQ(write(far_.get(), "x", 1), 1); }
  int near() const { return near_.get(); }
  int told() const { return told_; }
  int ended() const { return ended_; }

 private:
  void OnReady(uint32_t) override {
    ++told_;
    for (const auto& each : all_) loop_.Remove(each->source_, each->near());
  }
  void OnLoopEnd() override { ++ended_; }

  SocketLoop& loop_;
  Loop::SourceId source_ = 0;
  std::vector<std::shared_ptr<Remover>>& all_;
  const UniqueFd near_;
  const UniqueFd far_;
  std::atomic<int> told_{0};
  std::atomic<int> ended_{0};
};

std::shared_ptr<Remover> AddRemover(SocketLoop& loop, std::vector<std::shared_ptr<Remover>>& all) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  auto one = std::make_shared<Remover>(loop, all, UniqueFd(ends[0]), UniqueFd(ends[1]));
  all.push_back(one);
  return one;
}

// Two sources are ready; the first removes the second, which the kernel has already named.
TEST(SocketLoopSources, SourceRemovedDuringDispatch_IsNotCalled) {
  const auto loop = *SocketLoop::Create("test");
  absl::Notification waits;
  absl::Notification go;
  loop->Post([&] {
    waits.Notify();
    go.WaitForNotification();
  });
  waits.WaitForNotification();
  std::vector<std::shared_ptr<Remover>> all;
  for (int i = 0; i < 2; ++i) AddRemover(*loop, all);
  for (const auto& each : all) {
    EXPECT_EQ(each->Add(), absl::OkStatus());
    each->Say();
  }
  go.Notify();
  EXPECT_TRUE(Eventually([&] { return all[0]->told() + all[1]->told() > 0; }));
  loop->End();
  EXPECT_EQ(all[0]->told() + all[1]->told(), 1);
  // The end is for those that are there.
  EXPECT_EQ(all[0]->ended() + all[1]->ended(), 0);
}

// The coordinator extends its tasks' deadlines by the time that its loop is behind.
TEST(SocketLoopSources, LoopThatIsBusy_IsBehindUntilItWaitsAgain) {
  const auto loop = *SocketLoop::Create("test");
  EXPECT_EQ(loop->Lag(), absl::ZeroDuration());
  absl::Notification is_busy;
  absl::Notification go;
  loop->Post([&] {
    is_busy.Notify();
    go.WaitForNotification();
  });
  is_busy.WaitForNotification();
  EXPECT_TRUE(Eventually([&] { return loop->Lag() > absl::ZeroDuration(); }));
  go.Notify();
  EXPECT_TRUE(Eventually([&] { return loop->Lag() == absl::ZeroDuration(); }));
}

TEST(SocketLoopSources, AfterItsEnd_NoSourceIsAddedAndAllWereNotified) {
  const auto loop = *SocketLoop::Create("test");
  std::vector<std::shared_ptr<Remover>> all;
  const auto there = AddRemover(*loop, all);
  const auto late = AddRemover(*loop, all);
  ASSERT_EQ(there->Add(), absl::OkStatus());
  loop->End();
  EXPECT_EQ(there->ended(), 1);
  EXPECT_EQ(late->Add().code(), absl::StatusCode::kCancelled);
  loop->End();
  EXPECT_EQ(there->ended(), 1);
  EXPECT_EQ(late->ended(), 0);
}

}  // namespace
}  // namespace ferry
