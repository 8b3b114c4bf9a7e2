// SPDX-License-Identifier: Apache-2.0
// The pool of one-sided transfers: how it is made, and when its blocks are free.
#include "transport/nccl/put_memory.h"

#include <cstdlib>
#include <memory>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/cuda_fixture.h"
#include "transport/nccl/put_memory_maker.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kPoolBytes = uint64_t{16} << 20;

class PutMemoryTest : public ::testing::Test {
 protected:
  PutMemoryTest() {
    setenv("FERRY_CUDA_LIBRARY", FERRY_STRICT_CUDA, /*overwrite=*/1);
    gpus_ = *Gpus::Create(*cuda::CudaApi::Load(), AllocateHeapBuffer, nullptr, {});
    gpu_ = *gpus_->Get(0);
  }
  ~PutMemoryTest() override { gpus_->Stop(); }

  std::unique_ptr<Gpus> gpus_;
  Gpu* gpu_ = nullptr;
};

TEST_F(PutMemoryTest, BlockIsFreedOnceItsUsesHaveCompleted) {
  const std::shared_ptr<PutMemory> memory = *PutMemory::Create(*gpu_, kPoolBytes);
  cuda::HeldStream stream(gpu_->device);
  std::shared_ptr<Buffer> buffer = memory->BufferAt(512, 100);
  static_cast<cuda::DeviceBuffer&>(*buffer).AddUse(
      *cuda::ReadyEvent::Record(*gpu_->events, stream.get()));
  EXPECT_THAT(memory->TakeFreed(), IsEmpty());
  buffer.reset();
  EXPECT_THAT(memory->TakeFreed(), IsEmpty());
  stream.Go();
  stream.Finish();
  const auto freed = memory->TakeFreed();
  ASSERT_THAT(freed, SizeIs(1));
  EXPECT_EQ(freed[0].offset, 512u);
  EXPECT_TRUE(freed[0].status.ok());
  EXPECT_THAT(memory->TakeFreed(), IsEmpty());
}

// Otherwise it would be asked for ever, and the block neither used again nor missed.
TEST_F(PutMemoryTest, BlockOfADeviceThatHasFailed_IsFreedWithItsError) {
  const std::shared_ptr<PutMemory> memory = *PutMemory::Create(*gpu_, kPoolBytes);
  cuda::HeldStream stream(gpu_->device);
  std::shared_ptr<Buffer> buffer = memory->BufferAt(512, 100);
  static_cast<cuda::DeviceBuffer&>(*buffer).AddUse(
      *cuda::ReadyEvent::Record(*gpu_->events, stream.get()));
  buffer.reset();
  // A query that fails is repeated once.
  reinterpret_cast<void (*)(const char*, int, int, int)>(cuda::StrictSymbol("strict_cuda_fail"))(
      "cuEventQuery", /*CUDA_ERROR_LAUNCH_FAILED*/ 719, 0, 2);
  const auto freed = memory->TakeFreed();
  ASSERT_THAT(freed, SizeIs(1));
  EXPECT_FALSE(freed[0].status.ok());
  EXPECT_THAT(memory->TakeFreed(), IsEmpty());
}

// Another attempt may have the memory that one lacked.
TEST_F(PutMemoryTest, FailureIsRepeatedUntilItsRetryIsDue_AndThePoolIsMadeOnce) {
  FakeClock clock;
  PutMemoryMaker maker(clock);
  int attempts = 0;
  const auto fail = [&]() -> absl::StatusOr<std::shared_ptr<PutMemory>> {
    ++attempts;
    return absl::ResourceExhaustedError("no memory");
  };
  EXPECT_EQ(maker.Get(fail).status().message(), "no memory");
  const absl::Status again = maker.Get(fail).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(again.message()), HasSubstr("no memory (tried again in 1"));
  EXPECT_EQ(attempts, 1);
  clock.Advance(RetryBackoff::kFirst);
  const auto make = [&] {
    ++attempts;
    return PutMemory::Create(*gpu_, kPoolBytes);
  };
  const auto made = maker.Get(make);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(*maker.Get(make), *made);
  EXPECT_EQ(attempts, 2);
}

}  // namespace
}  // namespace ferry
