// SPDX-License-Identifier: Apache-2.0
// Communicators that end or fail while something else is in the way, on the fake driver.
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/thread.h"
#include "tests/gpu/communicator/fake_driver_ranks.h"

namespace ferry {
namespace {

class CommunicatorFailureTest : public FakeDriverRanks {
 protected:
  bool HasInitialised(int rank) const {
    const std::string name = absl::StrCat("%number%", rank);
    for (const auto& file : std::filesystem::directory_iterator(folder_)) {
      if (absl::EndsWith(file.path().filename().string(), name)) return true;
    }
    return false;
  }
};

constexpr absl::Duration kMuchSooner = absl::Seconds(10);

// The work that blocks the executor may wait for this end.
TEST_F(CommunicatorFailureTest, EndDoesNotWaitForTheExecutor) {
  Made two = Make({0, 1});
  ExpectWay(two, 2, CommunicatorWay::kCreate);
  const auto can_go_on = std::make_shared<absl::Notification>();
  Gpu* const gpu = *gpus_->Get(0);
  ASSERT_TRUE(gpu->nccl->Post([can_go_on] { can_go_on->WaitForNotification(); }).ok());
  const absl::Time start = SteadyClock().Now();
  {
    const Thread other("rank 1", [&] {
      two.communicators[1]->Abort(absl::CancelledError("it is not wanted any more"));
    });
    two.communicators[0]->Abort(absl::CancelledError("it is not wanted any more"));
  }
  EXPECT_LT(SteadyClock().Now() - start, kMuchSooner);
  can_go_on->Notify();
}

// Its warm-up with the others has begun: they read its memory until they stop too.
TEST_F(CommunicatorFailureTest, CancelledRankWaitsForOthersThatWarmUp) {
  std::atomic<bool> is_cancelled{false};
  absl::Time all_have_begun = absl::InfiniteFuture();
  keep_going_ = [&](int device) {
    const absl::Time now = SteadyClock().Now();
    if (device == 2) {
      // It does not begin its own, for which the others wait.
      const absl::Time until = now + absl::Seconds(20);
      while (HasInitialised(2) && !is_cancelled && SteadyClock().Now() < until) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      return absl::OkStatus();
    }
    if (device == 1) {
      // It hears of the cancellation when it looks next.
      if (is_cancelled) absl::SleepFor(absl::Milliseconds(500));
      return absl::OkStatus();
    }
    if (all_have_begun == absl::InfiniteFuture()) {
      if (!HasInitialised(0) || !HasInitialised(1) || !HasInitialised(2)) {
        return absl::OkStatus();
      }
      all_have_begun = now + absl::Milliseconds(500);
    }
    if (now < all_have_begun) return absl::OkStatus();
    is_cancelled = true;
    return absl::CancelledError("it is not wanted any more");
  };
  Made three = Make({0, 1, 2}, {}, {}, absl::Seconds(3));
  EXPECT_TRUE(absl::IsCancelled(three.errors[0])) << three.errors[0];
  EXPECT_TRUE(three.communicators.empty());
}

// NCCL cannot revoke it, and its abort returns before the kernel has left, which writes until then.
TEST_F(CommunicatorFailureTest, MemoryOfAWarmUpIsKeptUntilItsKernelHasLeft) {
  const auto linger =
      reinterpret_cast<void (*)(int)>(cuda::StrictSymbol("strict_cuda_nccl_linger"));
  linger(500);
  cuda::FailNext("ncclCommRevoke", nccl::kInvalidUsage);
  std::atomic<bool> has_failed{false};
  keep_going_ = [&](int device) {
    // Rank 1 does not begin its warm-up, for which the other one waits.
    const absl::Time until = SteadyClock().Now() + absl::Seconds(20);
    while (device == 1 && HasInitialised(1) && !has_failed && SteadyClock().Now() < until) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    // Nor ends it before the other one's kernel has left.
    if (device == 1 && has_failed) absl::SleepFor(absl::Seconds(1));
    return absl::OkStatus();
  };
  const std::string fill(4, 'f');
  std::shared_ptr<Buffer> next_user;
  int work_count = 0;
  on_ended_ = [&](size_t count) {
    if (count != 1) return;
    Gpu* const gpu = *gpus_->Get(0);
    const cuda::ScopedCurrent current(*gpu->device);
    work_count = gpus_->gate()->work_count();
    next_user = *gpu->arena->Allocate(fill.size());
    EXPECT_EQ(gpu->device->table().copy_to_device_async(
                  reinterpret_cast<cuda::DevicePointer>(next_user->data()), fill.data(),
                  fill.size(), gpu->copies->get()),
              cuda::kSuccess);
    EXPECT_EQ(gpu->device->table().stream_synchronize(gpu->copies->get()), cuda::kSuccess);
    has_failed = true;
  };
  Made two = Make({0, 1}, {}, {}, absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(two.errors[0])) << two.errors[0];
  EXPECT_EQ(work_count, 1) << "memory that is freed would wait for the kernel";
  const absl::Time until = SteadyClock().Now() + kMuchSooner;
  while (gpus_->gate()->work_count() > 0 && SteadyClock().Now() < until) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(gpus_->gate()->work_count(), 0);
  linger(0);
  std::string found(fill.size(), '?');
  Gpu* const gpu = *gpus_->Get(0);
  const cuda::ScopedCurrent current(*gpu->device);
  EXPECT_EQ(gpu->device->table().copy_to_host_async(
                found.data(), reinterpret_cast<cuda::DevicePointer>(next_user->data()),
                found.size(), gpu->copies->get()),
            cuda::kSuccess);
  EXPECT_EQ(gpu->device->table().stream_synchronize(gpu->copies->get()), cuda::kSuccess);
  EXPECT_EQ(found, fill);
}

}  // namespace
}  // namespace ferry
