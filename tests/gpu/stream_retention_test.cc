// SPDX-License-Identifier: Apache-2.0
// Memory of work that may not have left its stream.
#include "gpu/cuda/stream_retention.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"

#include "base/logging.h"
#include "tests/gpu/cuda_fixture.h"

namespace ferry::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StreamRetentionTest : public CudaTest {
 protected:
  StreamRetentionTest() {
    SetLogOutput([this](absl::string_view line) {
      const absl::MutexLock lock(&mu_);
      lines_.emplace_back(line);
    });
  }
  ~StreamRetentionTest() override { SetLogOutput(nullptr); }

  void Retain(DeviceExecutor& executor, Stream stream, absl::Time deadline) {
    auto memory = std::make_shared<int>(1);
    memory_ = memory;
    RetainUntilPassed(executor, *events_, stream,
                      {.user = "a test", .bytes = 1234, .memory = std::move(memory)}, deadline,
                      [this] { passed_.Notify(); });
  }
  // Until all that was posted and due is done.
  static void Settle(DeviceExecutor& executor) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_OK(executor.PostAndWait([] { return absl::OkStatus(); }, absl::Seconds(20), "a test"));
    }
  }
  std::vector<std::string> lines() {
    const absl::MutexLock lock(&mu_);
    return lines_;
  }

  FakeClock clock_;
  std::weak_ptr<int> memory_;
  absl::Notification passed_;

 private:
  absl::Mutex mu_;
  std::vector<std::string> lines_;
};

TEST_F(StreamRetentionTest, MemoryIsReleasedOnceTheStreamHasPassed) {
  DeviceExecutor executor(device_, {}, clock_);
  HeldStream stream(device_);
  Retain(executor, stream.get(), clock_.Now() + absl::Seconds(30));
  Settle(executor);
  EXPECT_FALSE(passed_.HasBeenNotified());
  EXPECT_FALSE(memory_.expired());
  stream.Go();
  ASSERT_TRUE(passed_.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(memory_.expired());
  EXPECT_THAT(lines(), ElementsAre());
}

TEST_F(StreamRetentionTest, WorkThatStaysIsLoggedOnce_AndTheMemoryIsKeptUntilItLeaves) {
  DeviceExecutor executor(device_, {}, clock_);
  HeldStream stream(device_);
  Retain(executor, stream.get(), clock_.Now() + absl::Seconds(30));
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Seconds(31));
    Settle(executor);
  }
  EXPECT_FALSE(passed_.HasBeenNotified());
  EXPECT_FALSE(memory_.expired());
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("1234 bytes stay allocated, since a test may")));
  stream.Go();
  ASSERT_TRUE(passed_.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(memory_.expired());
}

TEST_F(StreamRetentionTest, WorkThatNeverLeaves_KeepsItsMemoryForEver) {
  HeldStream stream(device_);
  {
    DeviceExecutor executor(device_, {.drain = absl::ZeroDuration()});
    Retain(executor, stream.get(), absl::InfiniteFuture());
  }
  EXPECT_TRUE(passed_.HasBeenNotified());
  EXPECT_FALSE(memory_.expired());
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("1234 bytes stay allocated")));
  stream.Go();
}

TEST_F(StreamRetentionTest, WithoutAnEvent_TheMemoryIsKeptForEver) {
  DeviceExecutor executor(device_);
  HeldStream stream(device_);
  FailNext("cuEventRecord", /*CUDA_ERROR_LAUNCH_FAILED*/ 719);
  Retain(executor, stream.get(), absl::InfiniteFuture());
  EXPECT_TRUE(passed_.HasBeenNotified());
  EXPECT_FALSE(memory_.expired());
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("1234 bytes stay allocated")));
}

}  // namespace
}  // namespace ferry::cuda
