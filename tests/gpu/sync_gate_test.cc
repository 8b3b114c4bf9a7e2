// SPDX-License-Identifier: Apache-2.0
// Which operations may wait for the device, and which must not wait.
#include "gpu/cuda/sync_gate.h"

#include <atomic>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#include "tests/gpu/cuda_fixture.h"

namespace ferry::cuda {
namespace {

using ::testing::HasSubstr;

TEST(SyncGate, QuietActionsAndWorkExcludeEachOther) {
  SyncGate gate;
  std::atomic<int> working = 0;
  std::atomic<int> quiet = 0;
  std::atomic<bool> stop = false;
  std::thread worker([&] {
    while (!stop) {
      gate.BeginWork();
      ++working;
      EXPECT_EQ(quiet, 0);
      --working;
      gate.EndWork();
    }
  });
  for (int i = 0; i < 200; ++i) {
    EXPECT_OK(gate.RunQuiesced(absl::Seconds(20), "map", [&] {
      ++quiet;
      EXPECT_EQ(working, 0);
      --quiet;
    }));
  }
  stop = true;
  worker.join();
  EXPECT_EQ(gate.work_count(), 0);
}

TEST(SyncGate, ReportsHowMuchWorkIsInProgress) {
  SyncGate gate;
  gate.BeginWork();
  gate.BeginWork();
  bool ran = false;
  const absl::Status status =
      gate.RunQuiesced(absl::Milliseconds(10), "unmap a peer's memory", [&] { ran = true; });
  EXPECT_FALSE(ran);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("unmap a peer's memory, and 2 pieces of NCCL's work"));
  EXPECT_FALSE(gate.is_quiesce_requested());
  std::thread waiter(
      [&] { EXPECT_OK(gate.RunQuiesced(absl::Seconds(20), "map", [&] { ran = true; })); });
  while (!gate.is_quiesce_requested()) std::this_thread::yield();
  gate.EndWork();
  gate.EndWork();
  waiter.join();
  EXPECT_TRUE(ran);
}

// One that times out while another has quiet must let nothing in.
TEST(SyncGate, TimeoutDuringAnotherAction_DoesNotEndItsQuiet) {
  SyncGate gate;
  bool ran = false;
  EXPECT_OK(gate.RunQuiesced(absl::Seconds(20), "map", [&] {
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(gate.RunQuiesced(absl::Milliseconds(1), "unmap", [&] { ran = true; }).code(),
                absl::StatusCode::kDeadlineExceeded);
    }
  }));
  EXPECT_FALSE(ran);
  EXPECT_OK(gate.RunQuiesced(absl::Seconds(20), "unmap", [&] { ran = true; }));
  EXPECT_TRUE(ran);
}

// A program that begins work continuously would block memory operations forever; but its work on
// another GPU may be what the first is waiting for.
TEST(SyncGate, AProgramsNextWorkWaitsForQuietUnlessAnotherDeviceIsAtWork) {
  SyncGate gate;
  gate.BeginProgramWork(0);
  std::thread waiter([&] { EXPECT_OK(gate.RunQuiesced(absl::Seconds(20), "map", [] {})); });
  while (!gate.is_quiesce_requested()) std::this_thread::yield();
  gate.BeginProgramWork(1);
  absl::Notification has_begun;
  std::thread next([&] {
    gate.BeginProgramWork(0);
    has_begun.Notify();
  });
  // Device 1 has some in progress.
  has_begun.WaitForNotification();
  next.join();
  gate.EndProgramWork(0);
  gate.EndProgramWork(1);
  absl::Notification is_there;
  std::thread last([&] {
    gate.BeginProgramWork(0);
    is_there.Notify();
  });
  EXPECT_FALSE(is_there.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  gate.EndProgramWork(0);
  waiter.join();
  last.join();
  EXPECT_EQ(gate.work_count(), 1);
  gate.EndProgramWork(0);
}

TEST(SyncGate, NotifiesWorkersThatQuietIsRequested) {
  struct Listener final : QuiesceListener {
    explicit Listener(SyncGate& its_gate) : gate(its_gate) {}
    void OnQuiesceRequested() override { heard.push_back(gate.is_quiesce_requested()); }
    SyncGate& gate;
    std::vector<bool> heard;
  };
  SyncGate gate;
  auto listener = std::make_shared<Listener>(gate);
  gate.Listen(listener);
  // Nothing is in progress.
  EXPECT_OK(gate.RunQuiesced(absl::Seconds(1), "map", [] {}));
  EXPECT_THAT(listener->heard, testing::IsEmpty());

  gate.BeginWork();
  EXPECT_EQ(gate.RunQuiesced(absl::Milliseconds(1), "map", [] {}).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(listener->heard, testing::ElementsAre(true, false));

  // One that finds quiet does not make it wanted for those that look while it runs.
  gate.EndWork();
  EXPECT_OK(gate.RunQuiesced(absl::Seconds(1), "map",
                             [&] { EXPECT_FALSE(gate.is_quiesce_requested()); }));
  gate.BeginWork();
  listener = nullptr;
  EXPECT_EQ(gate.RunQuiesced(absl::Milliseconds(1), "map", [] {}).code(),
            absl::StatusCode::kDeadlineExceeded);
  gate.EndWork();
}

}  // namespace
}  // namespace ferry::cuda
