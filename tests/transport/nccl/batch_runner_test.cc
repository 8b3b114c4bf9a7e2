// SPDX-License-Identifier: Apache-2.0
// Communicators that are over: the batch runner keeps nothing of them.
#include "transport/nccl/batch_runner.h"

#include <cstdlib>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "net/event_loop.h"
#include "tests/node/directory_store.h"

namespace ferry {
namespace {

// Far longer than anything here takes.
constexpr absl::Duration kTooLong = absl::Seconds(30);

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
        [](const std::shared_ptr<NcclCommunicator>&, const absl::Status& why) {
          ADD_FAILURE() << why;
        },
        [](size_t, absl::Duration) {}, [](bool) {});
  }
  ~BatchRunnerTest() override {
    gpus_->Stop();
    std::filesystem::remove_all(folder_);
  }

  // It has one rank.
  std::shared_ptr<NcclCommunicator> MakeCommunicator() {
    absl::StatusOr<std::shared_ptr<NcclCommunicator>> made = NcclCommunicator::Make(
        *nccl::NcclApi::Load(), *gpus_, 0, *CommunicatorKey::Create({{0, 1000}}), 0,
        DirectoryStores(folder_), {.timeout = kTooLong, .warms_up = false});
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "ferry-batch-runner-", getpid());
  std::unique_ptr<Gpus> gpus_;
  Gpu* gpu_ = nullptr;
  std::unique_ptr<EventLoop> loop_;
  ThreadGroup threads_;
  std::shared_ptr<BatchRunner> runner_;
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

}  // namespace
}  // namespace ferry
