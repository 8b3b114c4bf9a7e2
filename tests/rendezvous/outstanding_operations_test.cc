// SPDX-License-Identifier: Apache-2.0
// OutstandingOperations: which operations are counted, which waiters are woken, and what a step's
// table counts.
#include "rendezvous/outstanding_operations.h"

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/thread.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous_fixture.h"

namespace ferry {
namespace {

class OutstandingOperationsTest : public ::testing::Test {
 protected:
  std::atomic<int> wakes_{0};
  const OutstandingOperations::Wake wake_ = [this] { ++wakes_; };
  OutstandingOperations::Ptr operations_ = OutstandingOperations::Create(&wake_);
};

TEST_F(OutstandingOperationsTest, LastOperation_Ends_WakesTheWaiter) {
  StepOperation first(*operations_);
  StepOperation second;
  second.Begin(*operations_);
  EXPECT_EQ(operations_->count(), 2u);
  const OutstandingOperations::Waiter waiter(*operations_);
  first.End();
  EXPECT_EQ(wakes_, 0);
  second.End();
  EXPECT_EQ(operations_->count(), 0u);
  EXPECT_EQ(wakes_, 1);
}

TEST_F(OutstandingOperationsTest, NoWaiter_NoneIsWoken) {
  { const OutstandingOperations::Waiter waiter(*operations_); }
  { const StepOperation operation(*operations_); }
  EXPECT_EQ(wakes_, 0);
}

TEST_F(OutstandingOperationsTest, MovedOperation_EndsOnce) {
  StepOperation operation(*operations_);
  {
    StepOperation moved(std::move(operation));
    operation.End();  // NOLINT(bugprone-use-after-move): it is empty now.
    EXPECT_EQ(operations_->count(), 1u);
    moved.End();
    moved.End();
    EXPECT_EQ(operations_->count(), 0u);
  }
  EXPECT_EQ(operations_->count(), 0u);
}

// A transfer may outlive its step.
TEST_F(OutstandingOperationsTest, OwnerIsDestroyed_OperationEndsAfterwards) {
  StepOperation operation(*operations_);
  operations_ = nullptr;
  operation.End();
  EXPECT_EQ(wakes_, 0);
}

TEST_F(OutstandingOperationsTest, TwoThreadsEndOneOperation_ItEndsOnce) {
  for (int i = 0; i < 1000; ++i) {
    StepOperation operation(*operations_);
    {
      Thread other("other", [&operation] { operation.End(); });
      operation.End();
    }
    ASSERT_EQ(operations_->count(), 0u);
  }
}

// Ending the last operation touches nothing that the waiter may then have deleted.
TEST_F(OutstandingOperationsTest, WaiterDeletesTheOwner_WhenTheCountIsZero) {
  for (int i = 0; i < 1000; ++i) {
    auto operations = OutstandingOperations::Create(&wake_);
    StepOperation operation(*operations);
    Thread ending("ending", [&operation] { operation.End(); });
    {
      const OutstandingOperations::Waiter waiter(*operations);
      while (operations->count() > 0) {
      }
    }
    operations = nullptr;
  }
}

class CountedTable : public OutstandingOperationsTest {
 protected:
  absl::Status Send(absl::string_view key) { return table_.Send(Key(key), Value(key)); }
  void Recv(absl::string_view key, StepOperation* operation = nullptr) {
    table_.RecvAsync(Key(key), {.operation = operation}, results_.Writer());
  }

  FakeClock clock_;
  LocalRendezvous table_{clock_, {}, operations_.get()};
  Results results_;
};

TEST_F(CountedTable, QueuedSends_AreCountedUntilTheyAreReceived) {
  for (const char* key : {"a", "b", "c"}) ASSERT_TRUE(Send(key).ok());
  EXPECT_EQ(operations_->count(), 0u) << "nobody waits for them yet";
  const OutstandingOperations::Waiter waiter(*operations_);
  table_.TrackQueuedSends();
  EXPECT_GT(operations_->count(), 0u);
  Recv("a");
  ASSERT_TRUE(Send("a").ok());
  for (const char* key : {"a", "b"}) Recv(key);
  EXPECT_GT(operations_->count(), 0u);
  EXPECT_EQ(wakes_, 0);
  Recv("c");
  EXPECT_EQ(operations_->count(), 0u);
  EXPECT_EQ(wakes_, 1);
  ASSERT_TRUE(Send("late").ok());
  EXPECT_GT(operations_->count(), 0u);
  table_.StartAbort(absl::AbortedError("enough"));
  EXPECT_EQ(operations_->count(), 0u);
}

TEST_F(CountedTable, FailedSends_AreNotCounted) {
  ASSERT_TRUE(Send("a").ok());
  table_.TrackQueuedSends();
  EXPECT_EQ(operations_->count(), 1u);
  table_.Fail([](const RendezvousKey&) { return absl::UnavailableError("it has died"); });
  EXPECT_EQ(operations_->count(), 0u);
}

TEST_F(CountedTable, WaitingReceives_AreNotCounted) {
  StepOperation operation;
  Recv("a");
  Recv("b", &operation);
  table_.TrackQueuedSends();
  EXPECT_EQ(operations_->count(), 0u);
  table_.StartAbort(absl::AbortedError("enough"));
  EXPECT_EQ(operations_->count(), 0u);
}

// In either order of arrival, and without a moment at which the value is not counted.
TEST_F(CountedTable, ValueForAnotherProcess_IsCountedUntilItsOperationEnds) {
  StepOperation early;
  Recv("a", &early);
  ASSERT_TRUE(Send("a").ok());
  EXPECT_EQ(operations_->count(), 1u);
  early.End();
  ASSERT_TRUE(Send("b").ok());
  const OutstandingOperations::Waiter waiter(*operations_);
  table_.TrackQueuedSends();
  StepOperation late;
  Recv("b", &late);
  EXPECT_EQ(operations_->count(), 1u);
  EXPECT_EQ(wakes_, 0);
  late.End();
  EXPECT_EQ(operations_->count(), 0u);
  EXPECT_EQ(wakes_, 1);
}

// Senders and receivers on threads of their own: the count is 0 when and only when all was taken.
TEST_F(CountedTable, ManyThreads_CountIsExact) {
  constexpr int kThreads = 4;
  constexpr int kValues = 2000;
  const auto key = [](int thread, int i) { return Key(absl::StrCat(thread, " ", i % 7)); };
  table_.TrackQueuedSends();
  std::atomic<int> taken{0};
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.push_back(std::make_unique<Thread>("sender", [&, thread] {
        for (int i = 0; i < kValues; ++i) {
          EXPECT_TRUE(table_.Send(key(thread, i), Value("value")).ok());
        }
      }));
      threads.push_back(std::make_unique<Thread>("receiver", [&, thread] {
        for (int i = 0; i < kValues; ++i) {
          table_.RecvAsync(key(thread, i), {},
                           [&taken](const absl::Status&, const Received&) { ++taken; });
        }
      }));
    }
  }
  EXPECT_EQ(taken, kThreads * kValues);
  EXPECT_EQ(operations_->count(), 0u);
}

// Two callers close a step, and one of them gives up.
TEST_F(OutstandingOperationsTest, OneOfTwoWaitersLeaves_TheOtherIsWoken) {
  StepOperation operation(*operations_);
  const OutstandingOperations::Waiter stays(*operations_);
  { const OutstandingOperations::Waiter leaves(*operations_); }
  operation.End();
  EXPECT_EQ(wakes_, 1);
  // And again, for operations begun since.
  operation.Begin(*operations_);
  EXPECT_EQ(operations_->count(), 1u);
  operation.End();
  EXPECT_EQ(wakes_, 2);
}

}  // namespace
}  // namespace ferry
