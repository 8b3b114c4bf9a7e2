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
                      [this](StreamEnd end) {
                        const absl::MutexLock lock(&mu_);
                        ends_.push_back(end);
                        if (end != StreamEnd::kLate) over_.Notify();
                      });
  }
  // Until all that was posted and due is done.
  static void Settle(DeviceExecutor& executor) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_OK(executor.PostAndWait([] { return absl::OkStatus(); }, absl::Seconds(20), "a test"));
    }
  }
  std::vector<StreamEnd> ends() {
    const absl::MutexLock lock(&mu_);
    return ends_;
  }
  std::vector<std::string> lines() {
    const absl::MutexLock lock(&mu_);
    return lines_;
  }

  FakeClock clock_;
  std::weak_ptr<int> memory_;
  absl::Notification over_;

 private:
  absl::Mutex mu_;
  std::vector<std::string> lines_;
  std::vector<StreamEnd> ends_;
};

TEST_F(StreamRetentionTest, MemoryIsReleasedOnceTheStreamHasPassed) {
  DeviceExecutor executor(device_, {}, clock_);
  HeldStream stream(device_);
  Retain(executor, stream.get(), clock_.Now() + absl::Seconds(30));
  Settle(executor);
  EXPECT_FALSE(over_.HasBeenNotified());
  EXPECT_FALSE(memory_.expired());
  stream.Go();
  ASSERT_TRUE(over_.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(memory_.expired());
  EXPECT_THAT(lines(), ElementsAre());
  EXPECT_THAT(ends(), ElementsAre(StreamEnd::kPassed));
}

TEST_F(StreamRetentionTest, WorkThatStaysIsLoggedOnce_AndTheMemoryIsKeptUntilItLeaves) {
  DeviceExecutor executor(device_, {}, clock_);
  HeldStream stream(device_);
  Retain(executor, stream.get(), clock_.Now() + absl::Seconds(30));
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Seconds(31));
    Settle(executor);
  }
  EXPECT_FALSE(over_.HasBeenNotified());
  EXPECT_FALSE(memory_.expired());
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("1234 bytes stay allocated, since a test may")));
  EXPECT_THAT(ends(), ElementsAre(StreamEnd::kLate));
  stream.Go();
  ASSERT_TRUE(over_.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(memory_.expired());
  EXPECT_THAT(ends(), ElementsAre(StreamEnd::kLate, StreamEnd::kPassed));
}

TEST_F(StreamRetentionTest, WorkThatNeverLeaves_KeepsItsMemoryForEver) {
  HeldStream stream(device_);
  {
    DeviceExecutor executor(device_, {.drain = absl::ZeroDuration()});
    Retain(executor, stream.get(), absl::InfiniteFuture());
  }
  EXPECT_TRUE(over_.HasBeenNotified());
  EXPECT_FALSE(memory_.expired());
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("1234 bytes stay allocated")));
  EXPECT_THAT(ends(), ElementsAre(StreamEnd::kUnknown));
  stream.Go();
}

TEST_F(StreamRetentionTest, WithoutAnEvent_TheMemoryIsKeptForEver) {
  DeviceExecutor executor(device_);
  HeldStream stream(device_);
  FailNext("cuEventRecord", /*CUDA_ERROR_LAUNCH_FAILED*/ 719);
  Retain(executor, stream.get(), absl::InfiniteFuture());
  EXPECT_TRUE(over_.HasBeenNotified());
  EXPECT_FALSE(memory_.expired());
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("1234 bytes stay allocated")));
  EXPECT_THAT(ends(), ElementsAre(StreamEnd::kUnknown));
}

// It cannot say that the work is late, but when it has completed.
TEST_F(StreamRetentionTest, ExecutorWithRoomForOneWatch_ReleasesTheMemoryOnceTheStreamHasPassed) {
  DeviceExecutor executor(device_, {.max_waiting = 1}, clock_);
  HeldStream stream(device_);
  Retain(executor, stream.get(), clock_.Now() + absl::Seconds(30));
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("max_waiting")));
  EXPECT_FALSE(memory_.expired());
  EXPECT_THAT(ends(), ElementsAre());
  stream.Go();
  ASSERT_TRUE(over_.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(memory_.expired());
  EXPECT_THAT(ends(), ElementsAre(StreamEnd::kPassed));
}

TEST_F(StreamRetentionTest, DeviceThatFailsBeforeTheDeadline_IsNotSaidToBeLate) {
  DeviceExecutor executor(device_, {}, clock_);
  HeldStream stream(device_);
  Retain(executor, stream.get(), clock_.Now() + absl::Seconds(30));
  // For one of the two watches; its query is repeated once.
  reinterpret_cast<void (*)(const char*, int, int, int)>(StrictSymbol("strict_cuda_fail"))(
      "cuEventQuery", /*CUDA_ERROR_LAUNCH_FAILED*/ 719, 0, 2);
  Settle(executor);
  clock_.Advance(absl::Seconds(31));
  Settle(executor);
  const std::vector<StreamEnd> heard = ends();
  stream.Go();
  Settle(executor);
  // The last that is heard says how it ended.
  ASSERT_FALSE(heard.empty());
  for (size_t i = 0; i + 1 < heard.size(); ++i) EXPECT_EQ(heard[i], StreamEnd::kLate);
  EXPECT_EQ(ends().size(), heard.back() == StreamEnd::kLate ? heard.size() + 1 : heard.size());
}

// Its network threads may still write there: that the device runs nothing any more says too little.
TEST_F(StreamRetentionTest, DeviceThatFails_KeepsTheMemoryForEver) {
  DeviceExecutor executor(device_, {}, clock_);
  HeldStream stream(device_);
  Retain(executor, stream.get(), absl::InfiniteFuture());
  // Both watches of the event; each query is repeated once.
  reinterpret_cast<void (*)(const char*, int, int, int)>(StrictSymbol("strict_cuda_fail"))(
      "cuEventQuery", /*CUDA_ERROR_LAUNCH_FAILED*/ 719, 0, 4);
  ASSERT_TRUE(over_.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_FALSE(memory_.expired());
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("1234 bytes stay allocated")));
  EXPECT_THAT(ends(), ElementsAre(StreamEnd::kUnknown));
}

}  // namespace
}  // namespace ferry::cuda
