// SPDX-License-Identifier: Apache-2.0
// The device's thread, and staging through the host.
#include "gpu/cuda/device_executor.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "gpu/cuda/host_stager.h"
#include "tests/gpu/cuda_fixture.h"

namespace ferry::cuda {
namespace {

using ::testing::HasSubstr;

// The result of a completion, and the wait for it.
struct Outcome {
  absl::Notification ended;
  absl::Status status;
  int calls = 0;

  DeviceExecutor::DoneCallback Callback() {
    return [this](absl::Status given) {
      status = std::move(given);
      ++calls;
      ended.Notify();
    };
  }
  const absl::Status& Wait() {
    EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
    return status;
  }
};

class DeviceExecutorTest : public CudaTest {
 protected:
  std::shared_ptr<const ReadyEvent> Record(Stream stream) {
    return *ReadyEvent::Record(*events_, stream);
  }
};

TEST_F(DeviceExecutorTest, WorkRunsInOrderOnItsOwnThreadInTheContext) {
  std::vector<int> order;
  Context context = nullptr;
  {
    DeviceExecutor executor(device_);
    EXPECT_FALSE(executor.is_own_thread());
    for (int i = 0; i < 100; ++i) {
      ASSERT_OK(executor.Post([&, i] {
        order.push_back(i);
        EXPECT_TRUE(executor.is_own_thread());
        table().context_get_current(&context);
      }));
    }
  }
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(context, device_->context());
}

TEST_F(DeviceExecutorTest, ReportsWhenAnEventIsDone) {
  DeviceExecutor executor(device_);
  HeldStream stream(device_);
  Outcome outcome;
  ASSERT_OK(executor.Watch({.event = Record(stream.get()), .what = "a copy"}, outcome.Callback()));
  EXPECT_FALSE(outcome.ended.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
  stream.Go();
  EXPECT_OK(outcome.Wait());
}

// The device may still write: a caller that reaches the deadline must not free the destination.
TEST_F(DeviceExecutorTest, MemoryIsKeptBeyondTheDeadlineUntilTheDeviceIsDone) {
  FakeClock clock;
  DeviceExecutor executor(device_, {}, clock);
  HeldStream stream(device_);
  auto memory = std::make_shared<const int>(1);
  const std::weak_ptr<const int> watched = memory;
  Outcome outcome;
  ASSERT_OK(executor.Watch({.event = Record(stream.get()),
                            .deadline = clock.Now() + absl::Seconds(1),
                            .what = "the copy of step 3 key x",
                            .keep = std::move(memory)},
                           outcome.Callback()));
  EXPECT_FALSE(outcome.ended.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
  clock.Advance(absl::Seconds(2));
  EXPECT_EQ(outcome.Wait().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(outcome.status.message(),
              HasSubstr("gpu:0 has not finished the copy of step 3 key x"));
  EXPECT_FALSE(watched.expired());
  stream.Go();
  for (int i = 0; i < 2000 && !watched.expired(); ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(outcome.calls, 1);
}

TEST_F(DeviceExecutorTest, FailedDeviceEndsItsPendingWork) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  DeviceExecutor executor(device_);
  const std::unique_ptr<CudaStream> stream = *CudaStream::Create(device_);
  const auto event = Record(stream->get());
  const auto fail =
      reinterpret_cast<void (*)(const char*, int, int, int)>(StrictSymbol("strict_cuda_fail"));
  fail("cuEventQuery", 700, 0, 1000);
  Outcome outcome;
  ASSERT_OK(executor.Watch({.event = event, .what = "a copy"}, outcome.Callback()));
  EXPECT_EQ(outcome.Wait().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(outcome.status.message(), HasSubstr("gpu:0: cuEventQuery failed with code 700"));
  reinterpret_cast<void (*)()>(StrictSymbol("strict_cuda_clear_faults"))();
}

// It is unknown then whether the device still uses the memory: it is queried again.
TEST_F(DeviceExecutorTest, QueryThatFailsOnceIsRepeated) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  DeviceExecutor executor(device_);
  HeldStream stream(device_);
  auto memory = std::make_shared<const int>(1);
  const std::weak_ptr<const int> watched = memory;
  const auto event = Record(stream.get());
  FailNext("cuEventQuery", /*error=*/2, /*after_n=*/3);
  Outcome outcome;
  ASSERT_OK(executor.Watch({.event = event, .what = "a copy", .keep = std::move(memory)},
                           outcome.Callback()));
  EXPECT_FALSE(outcome.ended.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  EXPECT_FALSE(watched.expired());
  stream.Go();
  EXPECT_OK(outcome.Wait());
}

TEST_F(DeviceExecutorTest, LimitIsNamedAndRefusedWorkIsNotRun) {
  DeviceExecutor executor(device_, {.max_waiting = 2});
  absl::Notification go;
  std::atomic<int> ran = 0;
  ASSERT_OK(executor.Post([&] { go.WaitForNotification(); }));
  ASSERT_OK(executor.Post([&] { ++ran; }));
  const absl::Status status = executor.Post([&] { ++ran; });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("DeviceExecutorOptions::max_waiting"));
  // Except for work that must not be lost.
  EXPECT_OK(executor.PostAlways([&] { ++ran; }));
  go.Notify();
  while (executor.waiting_count() > 0) std::this_thread::yield();
  EXPECT_EQ(ran, 2);
}

// A caller that is refused must not free what the device still writes.
TEST_F(DeviceExecutorTest, MemoryOfARefusedWatchIsKeptUntilTheDeviceIsDone) {
  for (const bool is_stopped : {false, true}) {
    DeviceExecutor executor(device_, {.max_waiting = 0});
    if (is_stopped) executor.Stop();
    HeldStream stream(device_);
    const auto event = Record(stream.get());
    auto memory = std::make_shared<const int>(1);
    const std::weak_ptr<const int> watched = memory;
    Outcome outcome;
    const absl::Status status = executor.Watch(
        {.event = event, .what = "a copy", .keep = std::move(memory)}, outcome.Callback());
    EXPECT_FALSE(status.ok());
    absl::SleepFor(absl::Milliseconds(20));
    EXPECT_FALSE(watched.expired());
    stream.Go();
    stream.Finish();
    // One that has been stopped does not notice.
    for (int i = 0; i < 2000 && !is_stopped && !watched.expired(); ++i) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_EQ(watched.expired(), !is_stopped);
    memory = std::make_shared<const int>(1);
    const std::weak_ptr<const int> of_done = memory;
    EXPECT_FALSE(executor
                     .Watch({.event = event, .what = "a copy", .keep = std::move(memory)},
                            outcome.Callback())
                     .ok());
    for (int i = 0; i < 2000 && !of_done.expired(); ++i) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_TRUE(of_done.expired());
    EXPECT_EQ(outcome.calls, 0);
  }
}

// The destructor finishes work that has begun; work that never ends, ends with a reason.
TEST_F(DeviceExecutorTest, ItsDestructorWaitsForEventsButNotForever) {
  NEEDS_FAKE_DRIVER("runs host functions of two streams at a time");
  NEEDS_TWO_QUEUES();
  HeldStream fast(device_);
  HeldStream stuck(device_);
  auto memory = std::make_shared<const int>(1);
  const std::weak_ptr<const int> watched = memory;
  Outcome done;
  Outcome never;
  {
    DeviceExecutor executor(device_, {.drain = absl::Milliseconds(200)});
    ASSERT_OK(executor.Watch({.event = Record(fast.get()), .what = "fast"}, done.Callback()));
    ASSERT_OK(
        executor.Watch({.event = Record(stuck.get()), .what = "stuck", .keep = std::move(memory)},
                       never.Callback()));
    fast.Go();
  }
  EXPECT_OK(done.Wait());
  EXPECT_EQ(never.Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(never.status.message(), HasSubstr("has not finished stuck"));
  EXPECT_FALSE(watched.expired()) << "the device may write there still";
}

// An executor that had nothing to do looks again at once, and not after an eighth of its idle time.
TEST_F(DeviceExecutorTest, EventAddedToAnIdleExecutorIsQueriedAtOnce) {
  constexpr absl::Duration kIdle = absl::Milliseconds(400);
  DeviceExecutor executor(device_, {.longest_sleep = absl::Seconds(10)});
  // The machine may be busy: once is enough.
  absl::Duration least = absl::InfiniteDuration();
  for (int attempt = 0; attempt < 5 && least > kIdle / 20; ++attempt) {
    absl::SleepFor(kIdle);
    std::vector<absl::Time> queries;
    Outcome done;
    DeviceExecutor::Watched watched;
    watched.is_done = [&queries]() -> absl::StatusOr<bool> {
      queries.push_back(SteadyClock().Now());
      return queries.size() == 2;
    };
    ASSERT_OK(executor.Watch(std::move(watched), done.Callback()));
    EXPECT_OK(done.Wait());
    least = std::min(least, queries[1] - queries[0]);
  }
  EXPECT_LT(least, kIdle / 20);
}

// Thousands of tensors may be behind one kernel: of those only the first is queried, and one of the
// others in turn.
TEST_F(DeviceExecutorTest, FirstPendingEventOfAStreamIsQueriedForAll) {
  constexpr int kCount = 400;
  constexpr int64_t kPolls = 50;
  const auto stream = reinterpret_cast<Stream>(uintptr_t{0x1000});
  // While the executor is held, all are added.
  absl::Notification go;
  bool is_over = false;
  int64_t first_count = 0;
  int64_t other_count = 0;
  std::vector<Outcome> done(kCount);
  DeviceExecutor executor(device_);
  ASSERT_OK(executor.Post([&] { go.WaitForNotification(); }));
  // In the other order: the sequence numbers decide.
  for (int i = kCount - 1; i >= 0; --i) {
    DeviceExecutor::Watched watched;
    watched.position = {stream, static_cast<uint64_t>(i) + 1};
    watched.is_done = [&, i]() -> absl::StatusOr<bool> {
      if (is_over) return true;
      if (i != 0) return ++other_count < 0;
      if (++first_count == kPolls) {
        EXPECT_LE(other_count, 2 * kPolls);
        EXPECT_GE(other_count, kPolls - 2) << "each must be queried in turn";
        is_over = true;
      }
      return false;
    };
    ASSERT_OK(executor.Watch(std::move(watched), done[static_cast<size_t>(i)].Callback()));
  }
  go.Notify();
  for (Outcome& each : done) EXPECT_OK(each.Wait());
}

// The handle of a stream that was destroyed is given to a new one, whose work is done earlier.
TEST_F(DeviceExecutorTest, EventThatOvertakesItsStream_IsNoticed) {
  const auto stream = reinterpret_cast<Stream>(uintptr_t{0x1000});
  std::atomic<bool> is_over = false;
  Outcome first;
  Outcome second;
  DeviceExecutor executor(device_);
  DeviceExecutor::Watched watched;
  watched.position = {stream, 1};
  watched.is_done = [&]() -> absl::StatusOr<bool> { return is_over.load(); };
  ASSERT_OK(executor.Watch(watched, first.Callback()));
  watched.position = {stream, 2};
  watched.is_done = []() -> absl::StatusOr<bool> { return true; };
  ASSERT_OK(executor.Watch(watched, second.Callback()));
  EXPECT_OK(second.Wait());
  is_over = true;
  EXPECT_OK(first.Wait());
}

TEST_F(DeviceExecutorTest, WaitThatNobodyWantsEndsWithItsError) {
  DeviceExecutor executor(device_);
  HeldStream stuck(device_);
  auto memory = std::make_shared<const int>(1);
  const std::weak_ptr<const int> kept = memory;
  std::atomic<bool> is_wanted = true;
  Outcome done;
  DeviceExecutor::Watched watched;
  watched.event = Record(stuck.get());
  watched.keep = std::move(memory);
  watched.check_wanted = [&] {
    return is_wanted ? absl::OkStatus() : absl::CancelledError("nobody");
  };
  ASSERT_OK(executor.Watch(std::move(watched), done.Callback()));
  absl::SleepFor(absl::Milliseconds(5));
  EXPECT_FALSE(done.ended.HasBeenNotified());
  is_wanted = false;
  EXPECT_EQ(done.Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(kept.expired());
}

TEST_F(DeviceExecutorTest, ErrorOfAQueryIsReported) {
  DeviceExecutor executor(device_);
  Outcome done;
  DeviceExecutor::Watched watched;
  watched.is_done = []() -> absl::StatusOr<bool> { return absl::UnknownError("no such event"); };
  ASSERT_OK(executor.Watch(std::move(watched), done.Callback()));
  EXPECT_EQ(done.Wait().code(), absl::StatusCode::kUnknown);
}

TEST_F(DeviceExecutorTest, CallbacksMayAddWork) {
  Outcome second;
  const std::unique_ptr<CudaStream> stream = *CudaStream::Create(device_);
  {
    DeviceExecutor executor(device_);
    ASSERT_OK(
        executor.Watch({.event = Record(stream->get()), .what = "first"}, [&](absl::Status status) {
          EXPECT_OK(status);
          EXPECT_OK(executor.Watch({.event = Record(stream->get()), .what = "second"},
                                   second.Callback()));
        }));
  }
  EXPECT_OK(second.Wait());
}

class HostStagerTest : public CudaTest {
 protected:
  static constexpr size_t kBytes = 3 * kMiB + 12345;

  HostStagerTest() : pinned_(*PinnedPool::Create(device_, nullptr, {})) {
    device_memory_ = Alloc(kBytes);
    for (size_t i = 0; i < kBytes; ++i) text_ += static_cast<char>(i * 7 + i / 251);
  }
  ~HostStagerTest() override { Free(device_memory_); }

  // The executor ends before the stager's parts do.
  void WithStager(absl::FunctionRef<void(HostStager&)> body, HostStagerOptions options = {},
                  CopyPool* copier = nullptr) {
    std::unique_ptr<HostStager> stager;
    {
      DeviceExecutor executor(device_);
      stager = *HostStager::Create(executor, events_, pinned_, copier, options);
      body(*stager);
    }
  }
  HostCopy CopyOf(void* host) const {
    HostCopy copy;
    copy.device = device_memory_;
    copy.host = host;
    copy.bytes = kBytes;
    copy.what = "a test";
    return copy;
  }

  const std::shared_ptr<PinnedPool> pinned_;
  DevicePointer device_memory_ = 0;
  std::string text_;
};

TEST_F(HostStagerTest, CopiesToAndFromPageableMemory) {
  CopyPool copier({.threads = 1});
  WithStager(
      [&](HostStager& stager) {
        Outcome there;
        ASSERT_OK(stager.CopyToDevice(CopyOf(text_.data()), there.Callback()));
        EXPECT_OK(there.Wait());
        std::string back(kBytes, '?');
        size_t seen = 0;
        HostCopy copy = CopyOf(back.data());
        copy.on_slice = [&](size_t offset, size_t bytes) {
          EXPECT_EQ(offset, seen);
          // The bytes that a slice reports are available.
          EXPECT_EQ(back.compare(offset, bytes, text_, offset, bytes), 0);
          seen += bytes;
        };
        Outcome home;
        ASSERT_OK(stager.CopyToHost(std::move(copy), home.Callback()));
        EXPECT_OK(home.Wait());
        EXPECT_EQ(seen, kBytes);
        EXPECT_EQ(back, text_);
      },
      {.slice_bytes = 256 << 10, .slices_in_flight = 3}, &copier);
  EXPECT_EQ(pinned_->stats().block_count, 0);
  // Slices are used again: three in flight, those that are being copied, and a short last one.
  EXPECT_EQ(pinned_->stats().made_blocks, 26);
  EXPECT_LE(pinned_->stats().made_blocks - pinned_->stats().reused_blocks, 7);
}

TEST_F(HostStagerTest, PinnedMemoryNeedsNoStaging) {
  const auto host = *pinned_->Allocate(kBytes);
  std::copy(text_.begin(), text_.end(), static_cast<char*>(host->data()));
  const int64_t made = pinned_->stats().made_blocks;
  WithStager([&](HostStager& stager) {
    Outcome there;
    ASSERT_OK(stager.CopyToDevice(CopyOf(host->data()), there.Callback()));
    EXPECT_OK(there.Wait());
  });
  EXPECT_EQ(pinned_->stats().made_blocks, made);
  EXPECT_EQ(Read(device_memory_, kBytes), text_);
}

// The producer's kernel has not run when the copy is requested.
TEST_F(HostStagerTest, WaitsForTheEventOfTheProducer) {
  HeldStream producer(device_);
  {
    const ScopedCurrent current(*device_);
    ASSERT_EQ(table().set_bytes_async(device_memory_, 'x', kBytes, producer.get()), kSuccess);
  }
  WithStager([&](HostStager& stager) {
    std::string back(kBytes, '?');
    HostCopy copy = CopyOf(back.data());
    copy.after = *ReadyEvent::Record(*events_, producer.get());
    Outcome home;
    ASSERT_OK(stager.CopyToHost(std::move(copy), home.Callback()));
    EXPECT_FALSE(home.ended.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
    producer.Go();
    EXPECT_OK(home.Wait());
    EXPECT_EQ(back, std::string(kBytes, 'x'));
  });
}

TEST_F(HostStagerTest, RefusedCopyKeepsTheMemoryUntilTheProducerIsDone) {
  HeldStream producer(device_);
  DeviceExecutor executor(device_, {.max_waiting = 0});
  const std::unique_ptr<HostStager> stager =
      *HostStager::Create(executor, events_, pinned_, nullptr, {});
  auto memory = std::make_shared<std::string>(kBytes, '?');
  const std::weak_ptr<std::string> watched = memory;
  HostCopy copy = CopyOf(memory->data());
  copy.after = *ReadyEvent::Record(*events_, producer.get());
  copy.keep = std::move(memory);
  EXPECT_EQ(stager->CopyToHost(std::move(copy), [](absl::Status) {}).code(),
            absl::StatusCode::kResourceExhausted);
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(watched.expired());
  producer.Go();
  for (int i = 0; i < 2000 && !watched.expired(); ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(watched.expired());
}

TEST_F(HostStagerTest, DeadlineEndsItOnceAndKeepsTheMemory) {
  HeldStream producer(device_);
  auto memory = std::make_shared<std::string>(kBytes, '?');
  const std::weak_ptr<std::string> watched = memory;
  WithStager([&](HostStager& stager) {
    HostCopy copy = CopyOf(memory->data());
    copy.after = *ReadyEvent::Record(*events_, producer.get());
    copy.deadline = SteadyClock().Now() + absl::Milliseconds(30);
    copy.keep = std::move(memory);
    copy.what = "step 3 key x";
    Outcome home;
    ASSERT_OK(stager.CopyToHost(std::move(copy), home.Callback()));
    EXPECT_EQ(home.Wait().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(home.status.message(), HasSubstr("step 3 key x"));
    EXPECT_FALSE(watched.expired());
    producer.Go();
    for (int i = 0; i < 2000 && !watched.expired(); ++i) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_TRUE(watched.expired());
  });
}

// The deadline covers every slice, and not only the wait for the producer.
TEST_F(HostStagerTest, DeadlineThatPassesBetweenTwoSlices_EndsTheCopy) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  FakeClock clock;
  std::string back(kBytes, '?');
  std::unique_ptr<HostStager> stager;
  DeviceExecutor executor(device_, {}, clock);
  stager = *HostStager::Create(executor, events_, pinned_, nullptr,
                               {.slice_bytes = 1 << 20, .slices_in_flight = 1});
  HostCopy copy = CopyOf(back.data());
  copy.deadline = clock.Now() + absl::Seconds(1);
  int slices = 0;
  copy.on_slice = [&](size_t, size_t) {
    ++slices;
    clock.Advance(absl::Seconds(2));
    // The next slice is in flight when the executor looks.
    FailNext("cuEventQuery", kErrorNotReady);
  };
  Outcome home;
  ASSERT_OK(stager->CopyToHost(std::move(copy), home.Callback()));
  EXPECT_EQ(home.Wait().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(home.status.message(), HasSubstr("a test"));
  EXPECT_EQ(slices, 1);
}

TEST_F(HostStagerTest, ErrorsOfTheDriverEndItOnce) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  WithStager([&](HostStager& stager) {
    std::string back(kBytes, '?');
    FailNext("cuMemcpyDtoHAsync_v2", 1, /*after_n=*/2);
    Outcome home;
    ASSERT_OK(stager.CopyToHost(CopyOf(back.data()), home.Callback()));
    EXPECT_EQ(home.Wait().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(home.status.message(), HasSubstr("cuMemcpyDtoHAsync"));
    Outcome none;
    HostCopy empty = CopyOf(back.data());
    empty.bytes = 0;
    EXPECT_EQ(stager.CopyToHost(std::move(empty), none.Callback()).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(home.calls, 1);
  });
}

TEST_F(HostStagerTest, CopiesInProgressAreFinishedWhenTheExecutorEnds) {
  std::string back(kBytes, '?');
  Write(device_memory_, text_);
  Outcome home;
  WithStager(
      [&](HostStager& stager) {
        ASSERT_OK(stager.CopyToHost(CopyOf(back.data()), home.Callback()));
      },
      {.slice_bytes = 64 << 10, .slices_in_flight = 1});
  EXPECT_OK(home.Wait());
  EXPECT_EQ(back, text_);
}

}  // namespace
}  // namespace ferry::cuda
