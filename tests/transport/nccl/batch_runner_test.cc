// SPDX-License-Identifier: Apache-2.0
// Communicators that end: the batch runner keeps nothing of them, except memory that their kernels
// may still use.
#include "transport/nccl/batch_runner.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/thread.h"
#include "net/event_loop.h"
#include "tests/gpu/cuda_fixture.h"
#include "tests/node/directory_store.h"

namespace ferry {
namespace {

// Far longer than anything here takes.
constexpr absl::Duration kTooLong = absl::Seconds(30);
constexpr size_t kBytes = 64;

class BatchRunnerTest : public ::testing::Test {
 protected:
  BatchRunnerTest() {
    for (const char* const name : {"FERRY_CUDA_LIBRARY", "FERRY_NCCL_LIBRARY"}) {
      setenv(name, FERRY_STRICT_CUDA, /*overwrite=*/1);
    }
    gpus_ = *Gpus::Create(*cuda::CudaApi::Load(), AllocateHeapBuffer, nullptr, {});
    gpu_ = *gpus_->Get(0);
    loop_ = *EventLoop::Create({});
    runner_ = std::make_shared<BatchRunner>(
        *gpus_, *gpu_, *loop_, threads_,
        [this](const std::shared_ptr<NcclCommunicator>&, const absl::Status& why) {
          if (!is_broken_expected_) ADD_FAILURE() << why;
        },
        [](size_t, absl::Duration) {}, [](bool) {});
  }
  ~BatchRunnerTest() override {
    gpus_->Stop();
    std::filesystem::remove_all(folder_);
  }

  std::shared_ptr<NcclCommunicator> MakeRank(const CommunicatorKey& key, int rank) {
    absl::StatusOr<std::shared_ptr<NcclCommunicator>> made = NcclCommunicator::Make(
        *nccl::NcclApi::Load(), *gpus_, rank, key, rank, DirectoryStores(folder_),
        {.timeout = kTooLong,
         .warms_up = false,
         .end = {.finalize_timeout = absl::Milliseconds(20), .others_timeout = others_timeout_}});
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }
  // It has one rank.
  std::shared_ptr<NcclCommunicator> MakeCommunicator() {
    return MakeRank(*CommunicatorKey::Create({{0, 1000}}), 0);
  }
  // Both ranks are in this process, each on a GPU.
  std::vector<std::shared_ptr<NcclCommunicator>> MakePair() {
    const CommunicatorKey key = *CommunicatorKey::Create({{0, 1000}, {1, 1001}});
    std::vector<std::shared_ptr<NcclCommunicator>> made(2);
    {
      const Thread other("other-rank", [&] { made[1] = MakeRank(key, 1); });
      made[0] = MakeRank(key, 0);
    }
    return made;
  }

  using Copy = int (*)(uint64_t, const void*, size_t);
  using CopyBack = int (*)(void*, uint64_t, size_t);
  void Write(const Buffer& buffer, const std::string& bytes) {
    const cuda::ScopedCurrent current(*gpu_->device);
    EXPECT_EQ(reinterpret_cast<Copy>(cuda::StrictSymbol("cuMemcpyHtoD_v2"))(
                  reinterpret_cast<uint64_t>(buffer.data()), bytes.data(), bytes.size()),
              0);
  }
  std::string Read(const Buffer& buffer) {
    const cuda::ScopedCurrent current(*gpu_->device);
    std::string bytes(buffer.bytes(), 0);
    EXPECT_EQ(reinterpret_cast<CopyBack>(cuda::StrictSymbol("cuMemcpyDtoH_v2"))(
                  bytes.data(), reinterpret_cast<uint64_t>(buffer.data()), bytes.size()),
              0);
    return bytes;
  }
  // Blocks until the GPU has no work.
  void Synchronize() {
    const cuda::ScopedCurrent current(*gpu_->device);
    EXPECT_EQ(reinterpret_cast<int (*)()>(cuda::StrictSymbol("cuCtxSynchronize"))(), 0);
  }
  static void HangFinalize(bool hangs) {
    reinterpret_cast<void (*)(int)>(cuda::StrictSymbol("strict_cuda_nccl_hang_finalize"))(
        hangs ? 1 : 0);
  }
  static void Linger(int ms) {
    reinterpret_cast<void (*)(int)>(cuda::StrictSymbol("strict_cuda_nccl_linger"))(ms);
  }

  // A batch of one step on a stream that stays where it is.
  RunnableBatch OnHeldStream(std::shared_ptr<NcclCommunicator> communicator,
                             const std::shared_ptr<cuda::CudaStream>& stream, int& lost_count,
                             absl::Status& lost) {
    RunnableBatch batch;
    batch.communicator = std::move(communicator);
    batch.stream = stream;
    batch.steps.push_back([](const NcclCommunicator&, cuda::Stream) { return absl::OkStatus(); });
    batch.patience = absl::Milliseconds(50);
    batch.done = [](const absl::Status& status) { ADD_FAILURE() << status; };
    batch.lost = [&](absl::Status status) {
      lost = std::move(status);
      ++lost_count;
    };
    return batch;
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "ferry-batch-runner-", getpid());
  std::unique_ptr<Gpus> gpus_;
  Gpu* gpu_ = nullptr;
  std::unique_ptr<EventLoop> loop_;
  ThreadGroup threads_;
  std::shared_ptr<BatchRunner> runner_;
  std::atomic<bool> is_broken_expected_ = false;
  absl::Duration others_timeout_ = absl::Milliseconds(100);
};

// They are listed by their addresses: the next communicator may have the same one, and none of its
// batches would ever run.
TEST_F(BatchRunnerTest, AbortIsOver_TheCommunicatorIsNotListedAnyMore) {
  std::shared_ptr<NcclCommunicator> communicator = MakeCommunicator();
  ASSERT_NE(communicator, nullptr);
  runner_->Abort(communicator, absl::CancelledError("its peer is gone"));
  // The thread that aborts it has begun, and then has ended.
  runner_->WaitUntilReached(kTooLong);
  ASSERT_TRUE(threads_.StopWithin(kTooLong).empty());
  size_t count = 1;
  ASSERT_TRUE(gpu_->nccl
                  ->PostAndWait(
                      [&] {
                        count = runner_->aborting_count();
                        return absl::OkStatus();
                      },
                      kTooLong, "the count")
                  .ok());
  EXPECT_EQ(count, 0u);
}

// The fake driver ends the process if one that is being finalized is destroyed or revoked.
TEST_F(BatchRunnerTest, CommunicatorThatIsNotFinalizedInTime_IsAborted) {
  const std::shared_ptr<NcclCommunicator> communicator = MakeCommunicator();
  ASSERT_NE(communicator, nullptr);
  HangFinalize(true);
  runner_->Abort(communicator, absl::CancelledError("its memory is wanted"));
  runner_->WaitUntilReached(kTooLong);
  EXPECT_TRUE(threads_.StopWithin(kTooLong).empty());
  HangFinalize(false);
  EXPECT_EQ(communicator->get(), nullptr);
}

// NCCL may wait for it: ncclCommDestroy returns when all ranks of the machine have ended theirs.
TEST_F(BatchRunnerTest, OtherRankIsToldBeforeTheEndIsComplete) {
  const std::vector<std::shared_ptr<NcclCommunicator>> pair = MakePair();
  ASSERT_NE(pair[0], nullptr);
  ASSERT_NE(pair[1], nullptr);
  cuda::FailNext("ncclCommDestroy", /*hangs*/ -1);
  runner_->Abort(pair[0], absl::CancelledError("its memory is wanted"));
  const absl::Time deadline = SteadyClock().Now() + kTooLong;
  while (pair[1]->Check().ok() && SteadyClock().Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(absl::IsAborted(pair[1]->Check())) << pair[1]->Check();
  reinterpret_cast<void (*)()>(cuda::StrictSymbol("strict_cuda_clear_faults"))();
  pair[1]->Close(absl::CancelledError("the other rank has ended it"));
  EXPECT_TRUE(threads_.StopWithin(kTooLong).empty());
}

// ncclCommAbort returned, and the kernel writes on: memory that is handed back then would be
// overwritten under its next user.
TEST_F(BatchRunnerTest, MemoryIsHandedBackOnceTheStreamHasPassed) {
  const std::vector<std::shared_ptr<NcclCommunicator>> pair = MakePair();
  ASSERT_NE(pair[0], nullptr);
  ASSERT_NE(pair[1], nullptr);
  const std::shared_ptr<Buffer> memory = *gpu_->arena->Allocate(2 * kBytes);
  Write(*memory, std::string(2 * kBytes, 'a'));
  // A revocation would wait for the kernel.
  cuda::FailNext("ncclCommRevoke", nccl::kInvalidUsage);
  Linger(300);
  auto* const bytes = static_cast<char*>(memory->data());
  absl::Notification over;
  absl::Status status;
  // The other rank never joins.
  runner_->Launch({.communicator = pair[0],
                   .peer_rank = 1,
                   .operations = {{.is_send = true, .data = bytes, .bytes = kBytes},
                                  {.is_send = false, .data = bytes + kBytes, .bytes = kBytes}},
                   .done = [&](absl::Status ended) {
                     status = std::move(ended);
                     // Its next user.
                     Write(*memory, std::string(2 * kBytes, 'b'));
                     over.Notify();
                   }});
  runner_->WaitUntilReached(kTooLong);
  runner_->Abort(pair[0], absl::CancelledError("its peer is gone"));
  ASSERT_TRUE(over.WaitForNotificationWithTimeout(kTooLong));
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  Synchronize();
  Linger(0);
  EXPECT_EQ(Read(*memory), std::string(2 * kBytes, 'b'));
  pair[1]->Abort(absl::CancelledError("the test is over"));
}

// The other rank's kernel may read memory that an abort frees.
TEST_F(BatchRunnerTest, AbortFreesNothingBeforeTheOtherRankHasStopped) {
  others_timeout_ = kTooLong;
  const std::vector<std::shared_ptr<NcclCommunicator>> pair = MakePair();
  ASSERT_NE(pair[0], nullptr);
  ASSERT_NE(pair[1], nullptr);
  absl::Notification has_stopped;
  std::atomic<bool> is_freed = false;
  {
    const Thread ending("ending", [&] {
      pair[0]->Abort(absl::CancelledError("an error"), [&] { has_stopped.Notify(); });
      is_freed = true;
    });
    EXPECT_TRUE(has_stopped.WaitForNotificationWithTimeout(kTooLong));
    absl::SleepFor(absl::Milliseconds(50));
    EXPECT_FALSE(is_freed);
    pair[1]->Abort(absl::CancelledError("an error"));
  }
  EXPECT_TRUE(is_freed);
}

// It may hang, or be slow to hear of the end.
TEST_F(BatchRunnerTest, StrandedBatchDoesNotWaitUntilTheOtherRankHasStopped) {
  others_timeout_ = kTooLong;
  const std::vector<std::shared_ptr<NcclCommunicator>> pair = MakePair();
  ASSERT_NE(pair[0], nullptr);
  ASSERT_NE(pair[1], nullptr);
  const std::shared_ptr<Buffer> memory = *gpu_->arena->Allocate(2 * kBytes);
  auto* const bytes = static_cast<char*>(memory->data());
  absl::Notification over;
  absl::Status status;
  size_t aborting_count = 0;
  // Is not enqueued: the other rank never joins.
  runner_->Launch({.communicator = pair[0],
                   .peer_rank = 1,
                   .operations = {{.is_send = true, .data = bytes, .bytes = kBytes},
                                  {.is_send = false, .data = bytes + kBytes, .bytes = kBytes}},
                   .done = [&](absl::Status ended) {
                     status = std::move(ended);
                     aborting_count = runner_->aborting_count();
                     over.Notify();
                   }});
  runner_->WaitUntilReached(kTooLong);
  runner_->Abort(pair[0], absl::CancelledError("its peer hangs"));
  EXPECT_TRUE(over.WaitForNotificationWithTimeout(kTooLong / 2));
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_EQ(aborting_count, 1u);
  pair[1]->Abort(absl::CancelledError("the test is over"));
  EXPECT_TRUE(threads_.StopWithin(kTooLong).empty());
}

// Its handle is gone: a call with it would be one on freed memory.
TEST_F(BatchRunnerTest, LaunchedAfterTheEnd_NothingIsIssued) {
  const std::shared_ptr<NcclCommunicator> communicator = MakeCommunicator();
  ASSERT_NE(communicator, nullptr);
  runner_->Abort(communicator, absl::CancelledError("its memory is wanted"));
  runner_->WaitUntilReached(kTooLong);
  ASSERT_TRUE(threads_.StopWithin(kTooLong).empty());
  runner_->WaitUntilReached(kTooLong);
  absl::Notification over;
  absl::Status status;
  RunnableBatch batch;
  batch.communicator = communicator;
  batch.steps.push_back([](const NcclCommunicator&, cuda::Stream) {
    ADD_FAILURE() << "it was issued";
    return absl::OkStatus();
  });
  batch.done = [&](absl::Status ended) {
    status = std::move(ended);
    over.Notify();
  };
  runner_->Launch(std::move(batch));
  ASSERT_TRUE(over.WaitForNotificationWithTimeout(kTooLong));
  EXPECT_TRUE(absl::IsAborted(status)) << status;
}

// A stream that waits for a lost peer's signal, which not even an abort ends: the process's other
// work, and what needs quiet, must not wait for it.
TEST_F(BatchRunnerTest, StreamThatNeverPasses_IsWaitedForNoLongerThanThePatience) {
  const std::shared_ptr<NcclCommunicator> communicator = MakeCommunicator();
  ASSERT_NE(communicator, nullptr);
  cuda::HeldStream held(gpu_->device);
  const std::shared_ptr<cuda::CudaStream> stream = held.shared();
  int lost_count = 0;
  absl::Status lost;
  std::weak_ptr<Buffer> memory;
  {
    RunnableBatch running = OnHeldStream(communicator, stream, lost_count, lost);
    running.memory.push_back(*Tensor::Allocate(DataType::kUint8, *Shape::Create({1000})));
    memory = running.memory[0].buffer();
    runner_->Launch(std::move(running));
    // NCCL refuses this one.
    RunnableBatch stranded = OnHeldStream(communicator, stream, lost_count, lost);
    stranded.steps[0] = [](const NcclCommunicator&, cuda::Stream) {
      return absl::InternalError("refused");
    };
    is_broken_expected_ = true;
    runner_->Launch(std::move(stranded));
  }
  runner_->WaitUntilReached(kTooLong);
  EXPECT_EQ(gpus_->gate()->work_count(), 2);
  // The driver may keep it from freeing memory for as long.
  cuda::FailNext("ncclCommAbort", /*hangs*/ -1);
  runner_->Abort(communicator, absl::CancelledError("its peer is gone"));
  const absl::Time deadline = SteadyClock().Now() + kTooLong;
  while (gpus_->gate()->work_count() > 0 && SteadyClock().Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  runner_->WaitUntilReached(kTooLong);
  EXPECT_EQ(gpus_->gate()->work_count(), 0);
  EXPECT_EQ(lost_count, 2);
  EXPECT_TRUE(absl::IsAborted(lost)) << lost;
  EXPECT_EQ(lost.message(),
            "its communicator was ended, and its stream has not passed it within 50ms");
  EXPECT_FALSE(memory.expired()) << "it may still be read";
  EXPECT_TRUE(gpus_->gate()->RunQuiesced(kTooLong, "test", [] {}).ok());
  reinterpret_cast<void (*)()>(cuda::StrictSymbol("strict_cuda_clear_faults"))();
  EXPECT_TRUE(threads_.StopWithin(kTooLong).empty());
  EXPECT_FALSE(memory.expired()) << "it may still be read";
  held.Go();
  held.Finish();
  while (!memory.expired() && SteadyClock().Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(lost_count, 2) << "once for each";
}

// No event can be recorded: whether the stream has passed will never be known.
TEST_F(BatchRunnerTest, StreamWhoseEndIsNotKnown_LosesTheBatchAtOnce) {
  const std::shared_ptr<NcclCommunicator> communicator = MakeCommunicator();
  ASSERT_NE(communicator, nullptr);
  const std::shared_ptr<cuda::CudaStream> stream = *cuda::CudaStream::Create(gpu_->device);
  int lost_count = 0;
  absl::Status lost;
  RunnableBatch batch = OnHeldStream(communicator, stream, lost_count, lost);
  batch.patience = kTooLong;
  batch.steps[0] = [](const NcclCommunicator&, cuda::Stream) {
    return absl::InternalError("refused");
  };
  is_broken_expected_ = true;
  runner_->Launch(std::move(batch));
  runner_->WaitUntilReached(kTooLong);
  cuda::FailNext("cuEventRecord", /*CUDA_ERROR_LAUNCH_FAILED*/ 719);
  runner_->Abort(communicator, absl::CancelledError("its peer is gone"));
  runner_->WaitUntilReached(kTooLong);
  EXPECT_TRUE(threads_.StopWithin(kTooLong).empty());
  runner_->WaitUntilReached(kTooLong);
  EXPECT_EQ(lost_count, 1);
  EXPECT_EQ(lost.message(),
            "its communicator was ended, and nothing tells when its stream passes it");
  EXPECT_EQ(gpus_->gate()->work_count(), 0);
}

}  // namespace
}  // namespace ferry
