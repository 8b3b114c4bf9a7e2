// SPDX-License-Identifier: Apache-2.0
// Work that is stopped: by a signal, by an error that arrives, and by an earlier one.
#include <csignal>

#include <unistd.h>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/thread.h"
#include "cli/interruptible.h"

namespace ferry::cli {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);

class Stoppable : public ::testing::Test {
 protected:
  // Runs work that ends when it is stopped.
  absl::Status RunUntilStopped() {
    absl::Notification stopped;
    return RunInterruptibly(
        signals_, error_,
        [&]() -> absl::Status {
          began_.Notify();
          if (!stopped.WaitForNotificationWithTimeout(kTimeout)) {
            return absl::DeadlineExceededError("nobody has called it off");
          }
          return absl::CancelledError("called off");
        },
        [&](const absl::Status& why) {
          ++stops_;
          reason_ = why;
          if (!stopped.HasBeenNotified()) stopped.Notify();
        });
  }

  BlockedSignals signals_{SIGUSR1};
  JobError error_{signals_};
  absl::Notification began_;
  int stops_ = 0;
  absl::Status reason_;
};

TEST_F(Stoppable, EarlierErrorStopsIt) {
  error_.Set(absl::AbortedError("node 1 has failed"));
  // Another thread has waited in between, and has consumed the wake that came with the error.
  EXPECT_FALSE(signals_.WaitFor(absl::ZeroDuration()).has_value());
  EXPECT_EQ(RunUntilStopped(), absl::AbortedError("node 1 has failed"));
  EXPECT_EQ(stops_, 1);
}

TEST_F(Stoppable, ArrivingErrorStopsIt) {
  Thread failing("failing", [this] {
    began_.WaitForNotification();
    error_.Set(absl::AbortedError("node 1 has failed"));
    error_.Set(absl::AbortedError("and node 2"));
  });
  EXPECT_EQ(RunUntilStopped(), absl::AbortedError("node 1 has failed"));
  EXPECT_EQ(stops_, 1);
}

TEST_F(Stoppable, SignalStopsIt) {
  Thread killing("killing", [this] {
    began_.WaitForNotification();
    kill(getpid(), SIGUSR1);
  });
  const absl::Status status = RunUntilStopped();
  EXPECT_TRUE(absl::IsCancelled(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("stopped by"));
  EXPECT_EQ(reason_, status);
}

TEST_F(Stoppable, ItsOwnErrorIsReported) {
  EXPECT_EQ(RunInterruptibly(
                signals_, error_, [] { return absl::NotFoundError("no such key"); },
                [this](const absl::Status&) { ++stops_; }),
            absl::NotFoundError("no such key"));
  EXPECT_EQ(stops_, 0);
}

TEST_F(Stoppable, FinishedWorkSucceeds) {
  error_.Set(absl::AbortedError("the job has failed"));
  absl::Notification stopped;
  EXPECT_EQ(RunInterruptibly(
                signals_, error_,
                [&]() -> absl::Status {
                  stopped.WaitForNotificationWithTimeout(kTimeout);
                  return absl::OkStatus();
                },
                [&](const absl::Status&) { stopped.Notify(); }),
            absl::OkStatus());
}

TEST(BlockedSignalsTest, SignalAfterTheListenerEnded_KillsNoProcess) {
  {
    BlockedSignals signals({SIGUSR1});
    kill(getpid(), SIGUSR1);
    EXPECT_EQ(signals.WaitFor(kTimeout), SIGUSR1);
    kill(getpid(), SIGUSR1);
  }
  SUCCEED();
}

TEST_F(Stoppable, ItsOwnErrorIsPreferredToTheStop) {
  error_.Set(absl::AbortedError("the job has failed"));
  absl::Notification stopped;
  EXPECT_EQ(RunInterruptibly(
                signals_, error_,
                [&]() -> absl::Status {
                  stopped.WaitForNotificationWithTimeout(kTimeout);
                  return absl::DataLossError("a byte is wrong");
                },
                [&](const absl::Status&) { stopped.Notify(); }),
            absl::DataLossError("a byte is wrong"));
}

}  // namespace
}  // namespace ferry::cli
