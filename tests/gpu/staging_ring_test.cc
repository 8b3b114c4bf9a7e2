// SPDX-License-Identifier: Apache-2.0
// Slots of the staging ring, and streams for waiting transfers.
#include "gpu/cuda/staging_ring.h"

#include <vector>

#include "gpu/cuda/wait_streams.h"
#include "tests/gpu/cuda_fixture.h"

namespace ferry::cuda {
namespace {

class StagingRingTest : public CudaTest {
 protected:
  // On the executor, which has run it when this returns.
  void Take(StagingRing& ring, std::vector<StagingRing::Slot>& slots) {
    OnExecutor([&] {
      ring.Take([&slots](absl::StatusOr<StagingRing::Slot> slot) {
        EXPECT_OK(slot.status());
        if (slot.ok()) slots.push_back(*std::move(slot));
      });
    });
  }
  void OnExecutor(const std::function<void()>& work) {
    absl::Notification done;
    ASSERT_OK(executor_.Post([&] {
      work();
      done.Notify();
    }));
    done.WaitForNotification();
  }

  DeviceExecutor executor_{device_};
};

TEST_F(StagingRingTest, LaterRequestsWaitInOrder) {
  const auto ring =
      StagingRing::Create(executor_, nullptr, {.budget_bytes = 4 * kMiB, .slot_bytes = 2 * kMiB});
  EXPECT_EQ(ring->arena(), nullptr);
  std::vector<StagingRing::Slot> slots;
  std::vector<StagingRing::Slot> third;
  std::vector<StagingRing::Slot> fourth;
  Take(*ring, slots);
  Take(*ring, slots);
  ASSERT_EQ(slots.size(), 2u);
  Take(*ring, third);
  Take(*ring, fourth);
  EXPECT_TRUE(third.empty());
  EXPECT_EQ(ring->stats().waiting_count, 2);
  EXPECT_EQ(ring->stats().slot_count, 2);
  const DevicePointer pointer = slots[1]->pointer();
  ring->Give(std::move(slots[1]), nullptr);
  OnExecutor([] {});
  ASSERT_EQ(third.size(), 1u);
  EXPECT_EQ(third[0]->pointer(), pointer);
  EXPECT_TRUE(fourth.empty());
  ring->Give(std::move(slots[0]), nullptr);
  OnExecutor([] {});
  EXPECT_EQ(fourth.size(), 1u);
  ring->Give(std::move(third[0]), nullptr);
  ring->Give(std::move(fourth[0]), nullptr);
  EXPECT_EQ(ring->stats().free_count, 2);
  EXPECT_EQ(ring->stats().waited, 2);
}

// The copy into it may be enqueued still when its receiver has died.
TEST_F(StagingRingTest, SlotIsFreeOnlyWhenTheDeviceHasLeftIt) {
  const auto ring =
      StagingRing::Create(executor_, nullptr, {.budget_bytes = 2 * kMiB, .slot_bytes = 2 * kMiB});
  std::vector<StagingRing::Slot> slots;
  std::vector<StagingRing::Slot> next;
  Take(*ring, slots);
  Take(*ring, next);
  {
    HeldStream held(device_);
    ring->Give(std::move(slots[0]), *ReadyEvent::Record(*events_, held.get()));
    absl::SleepFor(absl::Milliseconds(20));
    OnExecutor([&] { EXPECT_TRUE(next.empty()); });
    held.Go();
    for (int i = 0; i < 5000 && ring->stats().waiting_count > 0; ++i) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  OnExecutor([] {});
  ASSERT_EQ(next.size(), 1u);
  ring->Give(std::move(next[0]), nullptr);
}

// A peer may give it back when the executor takes no more.
TEST_F(StagingRingTest, SlotIsFreeAlsoIfTheExecutorWasFull) {
  DeviceExecutor executor(device_, {.max_waiting = 2});
  const auto ring =
      StagingRing::Create(executor, nullptr, {.budget_bytes = 2 * kMiB, .slot_bytes = 2 * kMiB});
  StagingRing::Slot slot;
  ASSERT_OK(executor.PostAndWait(
      [&] {
        ring->Take([&slot](absl::StatusOr<StagingRing::Slot> taken) {
          if (taken.ok()) slot = *std::move(taken);
        });
        return absl::OkStatus();
      },
      absl::Seconds(20), "a test"));
  ASSERT_NE(slot, nullptr);
  HeldStream held(device_);
  const auto event = *ReadyEvent::Record(*events_, held.get());
  while (executor.Watch({.event = event}, [](absl::Status) {}).ok()) {
  }
  ring->Give(std::move(slot), event);
  EXPECT_EQ(ring->stats().free_count, 0);
  held.Go();
  for (int i = 0; i < 5000 && ring->stats().free_count == 0; ++i) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(ring->stats().free_count, 1);
  held.Finish();
}

TEST_F(StagingRingTest, WithoutMemoryForOneSlotTheErrorSaysSo) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  const auto ring = StagingRing::Create(executor_, nullptr, {});
  const auto fail =
      reinterpret_cast<void (*)(const char*, int, int, int)>(StrictSymbol("strict_cuda_fail"));
  for (const char* each : {"cuMemCreate", "cuMemAlloc_v2"}) fail(each, kErrorOutOfMemory, 0, 10);
  absl::Status status;
  OnExecutor(
      [&] { ring->Take([&](absl::StatusOr<StagingRing::Slot> slot) { status = slot.status(); }); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  const auto none = StagingRing::Create(executor_, nullptr, {.budget_bytes = 0});
  OnExecutor(
      [&] { none->Take([&](absl::StatusOr<StagingRing::Slot> slot) { status = slot.status(); }); });
  EXPECT_THAT(status.message(), ::testing::HasSubstr("--gpu-staging-budget-bytes"));
}

// Less than the driver gives out at a time.
TEST_F(StagingRingTest, BudgetBelowOneSlotIsNamed) {
  const auto ring = StagingRing::Create(executor_, nullptr, {.budget_bytes = kMiB});
  std::string message;
  OnExecutor([&] {
    ring->Take([&](absl::StatusOr<StagingRing::Slot> slot) {
      message = std::string(slot.status().message());
    });
  });
  EXPECT_THAT(message, ::testing::HasSubstr("--gpu-staging-budget-bytes"));
}

class WaitStreamsTest : public CudaTest {};

TEST_F(WaitStreamsTest, StreamThatWaitsIsNotHandedOutAgain) {
  const auto streams = *WaitStreams::Create(device_, 2);
  HeldStream held(device_);
  const auto event = *ReadyEvent::Record(*events_, held.get());
  const Stream first = streams->TakeIdle();
  ASSERT_NE(first, nullptr);
  ASSERT_OK(event->EnqueueWait(*device_, first));
  const Stream second = streams->TakeIdle();
  ASSERT_NE(second, nullptr);
  EXPECT_NE(second, first);
  ASSERT_OK(event->EnqueueWait(*device_, second));
  EXPECT_EQ(streams->TakeIdle(), nullptr);
  EXPECT_NE(streams->TakeIdleOrAny(), nullptr);
  held.Go();
  held.Finish();
  for (int i = 0; i < 5000 && streams->TakeIdle() == nullptr; ++i) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_NE(streams->TakeIdle(), nullptr);
}

}  // namespace
}  // namespace ferry::cuda
