// SPDX-License-Identifier: Apache-2.0
// Arenas of device and of pinned memory: reuse, budgets, and uses that are not done.
#include "gpu/cuda/gpu_arena.h"

#include <thread>

#include "absl/time/clock.h"

#include "gpu/cuda/pinned_pool.h"
#include "tests/gpu/cuda_fixture.h"

namespace ferry::cuda {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class GpuArenaTest : public CudaTest {
 protected:
  std::shared_ptr<GpuArena> Make(GpuArenaOptions options = {}) {
    absl::StatusOr<std::shared_ptr<GpuArena>> arena = GpuArena::Create(device_, gate_, options);
    EXPECT_OK(arena.status());
    return *arena;
  }

  const std::shared_ptr<SyncGate> gate_ = std::make_shared<SyncGate>();
};

TEST_F(GpuArenaTest, BuffersAreOnTheDeviceAndDescribeThemselves) {
  const auto arena = Make();
  EXPECT_EQ(arena->export_by(), ExportBy::kPosixFd);
  EXPECT_EQ(arena->fallback_reason(), "");
  const auto first = *arena->Allocate(1000);
  const auto second = *arena->Allocate(1000);
  EXPECT_EQ(first->bytes(), 1000u);
  EXPECT_EQ(first->location(), (TensorLocation{MemorySpace::kCuda, 0}));
  EXPECT_EQ(first->arena(), arena.get());
  EXPECT_EQ(first->pointer() % 512, 0u);
  Write(second->pointer(), "second");
  EXPECT_EQ(Read(second->pointer(), 6), "second");
  // Its own description must agree with the driver's.
  const IpcDescriptor descriptor = arena->Describe(*second);
  const auto exported = ExportMemory(*device_, second->data(), 1000);
  ASSERT_OK(exported.status());
  EXPECT_EQ(descriptor, (*exported)[0].descriptor);
  EXPECT_EQ(descriptor.offset, second->pointer() - descriptor.base);
  EXPECT_TRUE(arena->ExportSegment(*second)->valid());
}

TEST_F(GpuArenaTest, BlockIsReusedWhenItsBufferIsDestroyed) {
  const auto arena = Make();
  auto first = *arena->Allocate(1000);
  const DevicePointer place = first->pointer();
  const uint32_t generation = first->arena_offset().generation;
  first.reset();
  const auto second = *arena->Allocate(1000);
  EXPECT_EQ(second->pointer(), place);
  EXPECT_EQ(second->arena_offset().generation, generation + 1);
  EXPECT_EQ(arena->stats().reused_blocks, 1);
  EXPECT_EQ(arena->stats().segment_count, 1);
}

// A copy that is only enqueued still writes there.
TEST_F(GpuArenaTest, BlockWaitsForTheStreamsThatUseIt) {
  const auto arena = Make();
  auto first = *arena->Allocate(1000);
  const DevicePointer place = first->pointer();
  HeldStream stream(device_);
  first->AddUse(*ReadyEvent::Record(*events_, stream.get()));
  first.reset();
  EXPECT_EQ(arena->stats().pending_count, 1);
  EXPECT_NE((*arena->Allocate(1000))->pointer(), place);
  EXPECT_EQ(arena->Collect(), 0u);
  stream.Go();
  stream.Finish();
  EXPECT_EQ(arena->Collect(), 1024u);
  EXPECT_EQ(arena->stats().block_count, 0);
}

// Nothing else collects such blocks.
TEST_F(GpuArenaTest, BlockWhoseUsesHaveCompleted_IsFoundByTheNextCall) {
  const auto arena = Make();
  // A block that is released while a stream uses it; the use has completed on return.
  const auto use_up = [&](size_t bytes) {
    auto buffer = *arena->Allocate(bytes);
    const DevicePointer place = buffer->pointer();
    HeldStream stream(device_);
    buffer->AddUse(*ReadyEvent::Record(*events_, stream.get()));
    buffer.reset();
    EXPECT_EQ(arena->stats().pending_count, 1);
    stream.Go();
    stream.Finish();
    return place;
  };
  // The whole segment: there is no other block.
  DevicePointer place = use_up(32 * kMiB);
  auto buffer = arena->TryAllocate(32 * kMiB);
  ASSERT_NE(buffer, nullptr);
  EXPECT_EQ(buffer->pointer(), place);
  buffer.reset();
  place = use_up(32 * kMiB);
  buffer = *arena->Allocate(32 * kMiB);
  EXPECT_EQ(buffer->pointer(), place);
  EXPECT_EQ(arena->stats().segment_count, 1);
  buffer.reset();
  use_up(32 * kMiB);
  EXPECT_EQ(arena->Trim(), 32 * kMiB);
}

TEST_F(GpuArenaTest, CompletedUsesAreForgotten) {
  const auto arena = Make();
  const auto buffer = *arena->Allocate(1000);
  const std::unique_ptr<CudaStream> stream = *CudaStream::Create(device_);
  for (int i = 0; i < 1000; ++i) {
    buffer->AddUse(*ReadyEvent::Record(*events_, stream->get()));
    const ScopedCurrent current(*device_);
    ASSERT_EQ(table().stream_synchronize(stream->get()), kSuccess);
  }
  // Each event that is not kept is back in the pool and is taken again.
  EXPECT_LT(events_->idle_count(), 20);
}

TEST_F(GpuArenaTest, ExhaustedBudgetIsNamed) {
  const auto arena = Make({.budget_bytes = 64 * kMiB, .segment_bytes = 16 * kMiB});
  const auto large = *arena->Allocate(50 * kMiB);
  const absl::Status status = arena->Allocate(20 * kMiB).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("the arena of gpu:0 has no room for 20971520 bytes"));
  EXPECT_THAT(status.message(), HasSubstr("GpuArenaOptions::budget_bytes"));
}

TEST_F(GpuArenaTest, FullDeviceQuotesTheDriverAndReturnsTheBudget) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  const auto arena = Make();
  FailNext("cuMemCreate", kErrorOutOfMemory);
  const absl::Status status = arena->Allocate(1000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("gpu:0: cuMemCreate"));
  EXPECT_THAT(std::string(status.message()),
              ContainsRegex("32 MiB were asked for, of 4096 MiB [0-9]+ are free"));
  EXPECT_EQ(arena->stats().mapped_bytes, 0u);
  EXPECT_OK(arena->Allocate(1000).status());
}

// Each step of mapping may fail, and the steps before are undone: the fixture counts.
TEST_F(GpuArenaTest, ErrorHalfWayLeavesNothingBehind) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  const auto arena = Make();
  for (const char* symbol : {"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    FailNext(symbol, kErrorNotSupported);
    EXPECT_EQ(arena->Allocate(1000).status().code(), absl::StatusCode::kInternal) << symbol;
  }
  EXPECT_EQ(arena->stats().segment_count, 0);
}

// A faulty GPU must not take the memory of the others.
TEST_F(GpuArenaTest, PeerThatIsRefusedAccess_IsReported) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  const auto fail =
      reinterpret_cast<void (*)(const char*, int, int, int)>(StrictSymbol("strict_cuda_fail"));
  GpuArenaOptions options;
  options.peer_ordinals = {1};
  const auto arena = Make(options);
  EXPECT_TRUE(arena->IsMappedFor(0));
  EXPECT_TRUE(arena->IsMappedFor(1));
  EXPECT_FALSE(arena->IsMappedFor(2));
  // That of both devices, and that of the peer alone.
  fail("cuMemSetAccess", kErrorNotSupported, 0, 2);
  EXPECT_OK(arena->Allocate(1000).status());
  EXPECT_TRUE(arena->IsMappedFor(0));
  EXPECT_FALSE(arena->IsMappedFor(1));
  // And its own, without which there is no memory.
  fail("cuMemSetAccess", kErrorNotSupported, 0, 3);
  EXPECT_EQ(arena->Allocate(size_t{100} << 20).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(arena->stats().segment_count, 1);
}

TEST_F(GpuArenaTest, WithoutExportableMemoryItFallsBackAndReportsWhy) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  FailNext("cuMemExportToShareableHandle", kErrorNotPermitted);
  const auto arena = Make();
  EXPECT_EQ(arena->export_by(), ExportBy::kLegacyHandle);
  EXPECT_THAT(arena->fallback_reason(), HasSubstr("cuMemExportToShareableHandle failed"));
  const auto first = *arena->Allocate(1000);
  const auto second = *arena->Allocate(1000);
  const IpcDescriptor descriptor = arena->Describe(*second);
  EXPECT_EQ(descriptor.export_by, ExportBy::kLegacyHandle);
  EXPECT_EQ(descriptor.offset, second->pointer() - descriptor.base);
  EXPECT_EQ(descriptor, (*ExportMemory(*device_, second->data(), 1000))[0].descriptor);
  EXPECT_FALSE(arena->ExportSegment(*second)->valid());
  EXPECT_FALSE(arena->IsMappedFor(1)) << "memory of cuMemAlloc";
}

TEST_F(GpuArenaTest, TrimReleasesIdleSegments) {
  const auto arena = Make();
  auto small = *arena->Allocate(1000);
  const auto large = *arena->Allocate(40 * kMiB);
  small.reset();
  EXPECT_EQ(arena->Trim(), 32 * kMiB);
  EXPECT_EQ(arena->stats().mapped_bytes, 40 * kMiB);
}

// Its peers copy from there; the next buffer of the segment is theirs to see too.
TEST_F(GpuArenaTest, SegmentMappedByAPeerStays) {
  const auto arena = Make();
  auto buffer = *arena->Allocate(1000);
  std::shared_ptr<const void> hold = arena->HoldSegment(*buffer);
  buffer.reset();
  EXPECT_EQ(arena->Trim(), 0u);
  // It was the hold alone that kept it.
  hold.reset();
  EXPECT_EQ(arena->Trim(), 32 * kMiB);
  EXPECT_EQ(arena->stats().mapped_bytes, 0u);
}

TEST_F(GpuArenaTest, MemoryIsNotMappedWhileNcclWorkIsInFlight) {
  const auto arena = Make({.timeout = absl::Milliseconds(20)});
  gate_->BeginWork();
  EXPECT_EQ(arena->Allocate(1000).status().code(), absl::StatusCode::kDeadlineExceeded);
  gate_->EndWork();
  const auto first = arena->Allocate(1000);
  EXPECT_OK(first.status());
  // Memory that is mapped already can be allocated at any time.
  gate_->BeginWork();
  EXPECT_OK(arena->Allocate(1000).status());
  gate_->EndWork();
}

TEST_F(GpuArenaTest, BuffersOutliveTheirArenasOwner) {
  auto arena = Make();
  auto buffer = *arena->Allocate(1000);
  arena.reset();
  Write(buffer->pointer(), "alive");
  EXPECT_EQ(Read(buffer->pointer(), 5), "alive");
}

TEST_F(GpuArenaTest, ManyThreadsGetDifferentMemory) {
  const auto arena = Make();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, &arena, i] {
      const std::unique_ptr<CudaStream> stream = *CudaStream::Create(device_);
      for (int round = 0; round < 100; ++round) {
        const auto buffer = *arena->Allocate(size_t{700} << (round % 9));
        const ScopedCurrent current(*device_);
        char read = 0;
        EXPECT_EQ(table().set_bytes_async(buffer->pointer(), static_cast<unsigned char>(i + 1),
                                          buffer->bytes(), stream->get()),
                  kSuccess);
        EXPECT_EQ(table().copy_to_host_async(&read, buffer->pointer() + buffer->bytes() - 1, 1,
                                             stream->get()),
                  kSuccess);
        EXPECT_EQ(table().stream_synchronize(stream->get()), kSuccess);
        EXPECT_EQ(read, i + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena->stats().block_count, 0);
}

TEST_F(GpuArenaTest, InvalidOptionsAreRefused) {
  const absl::Status none = GpuArena::Create(device_, nullptr, {.budget_bytes = 0}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(none.message(), HasSubstr("memory of gpu:0 for tensors may not be 0 bytes: raise "
                                        "--gpu-arena-budget-bytes"));
  const absl::Status no_pins = PinnedPool::Create(device_, nullptr, {.budget_bytes = 0}).status();
  EXPECT_EQ(no_pins.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(no_pins.message(), HasSubstr("--pinned-budget-bytes"));
  EXPECT_EQ(GpuArena::Create(device_, nullptr, {.segment_bytes = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PinnedPool::Create(device_, nullptr, {.segment_bytes = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Less than a segment usually has is no reason to do without.
TEST_F(GpuArenaTest, SmallBudgetIsOneSegment) {
  const auto arena = Make({.budget_bytes = 4 * kMiB});
  const auto all = *arena->Allocate(4 * kMiB);
  EXPECT_THAT(arena->Allocate(1).status().message(), HasSubstr("--gpu-arena-budget-bytes"));
  // A budget below the driver's granularity is empty.
  EXPECT_THAT(Make({.budget_bytes = kMiB})->Allocate(1).status().message(),
              HasSubstr("--gpu-arena-budget-bytes"));
  const auto pool = *PinnedPool::Create(device_, nullptr, {.budget_bytes = kMiB});
  const auto pinned = *pool->Allocate(kMiB);
  EXPECT_THAT(pool->Allocate(1).status().message(), HasSubstr("--pinned-budget-bytes"));
}

TEST_F(GpuArenaTest, PinnedBlocksAreReusedUnderABudget) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  const auto pool =
      *PinnedPool::Create(device_, gate_, {.budget_bytes = 4 * kMiB, .segment_bytes = 2 * kMiB});
  auto first = *pool->Allocate(100'000);
  EXPECT_EQ(first->location(), TensorLocation());
  EXPECT_EQ(Classify(*device_, first->data(), first->bytes())->kind, MemoryKind::kPinnedHost);
  void* const place = first->data();
  first.reset();
  first = *pool->Allocate(100'000);
  EXPECT_EQ(first->data(), place);
  EXPECT_EQ(pool->stats().pinned_bytes, 2 * kMiB);
  const absl::Status status = pool->Allocate(3 * kMiB).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("--pinned-budget-bytes"));
  first.reset();
  // The idle segment makes room.
  EXPECT_OK(pool->Allocate(3 * kMiB).status());
  FailNext("cuMemHostAlloc", kErrorOutOfMemory);
  EXPECT_EQ(pool->Allocate(100).status().code(), absl::StatusCode::kResourceExhausted);
  gate_->BeginWork();
  gate_->EndWork();
}

// A transfer that goes through the host because a program's collective keeps it from NCCL: the
// collective may be waiting for it, so it cannot wait for the collective.
TEST_F(GpuArenaTest, DuringNcclWorkALargerPinnedBlockIsUsed) {
  NEEDS_FAKE_DRIVER("knows what is in flight");
  const auto pool = *PinnedPool::Create(
      device_, gate_,
      {.budget_bytes = 64 * kMiB, .segment_bytes = 16 * kMiB, .timeout = absl::Milliseconds(10)});
  EXPECT_OK(pool->Allocate(kMiB).status());
  gate_->BeginWork();
  EXPECT_OK(pool->Allocate(100'000).status());
  EXPECT_EQ(pool->stats().pinned_bytes, 16 * kMiB);
  // No idle block is as large.
  EXPECT_EQ(pool->Allocate(3 * kMiB).status().code(), absl::StatusCode::kDeadlineExceeded);
  gate_->EndWork();
  EXPECT_OK(pool->Allocate(100'000).status());
  EXPECT_EQ(pool->stats().pinned_bytes, 32 * kMiB);
}

int ImplicitSyncs() {
  return reinterpret_cast<int (*)()>(StrictSymbol("strict_cuda_implicit_syncs"))();
}

// Memory is there while NCCL's work keeps the driver from giving any, for tensors of any size.
TEST_F(GpuArenaTest, ReservedMemoryNeedsNothingFromTheDriver) {
  NEEDS_FAKE_DRIVER("counts calls that may synchronize");
  const auto arena = Make({.reserve_bytes = 96 * kMiB, .reserve_segment_bytes = 32 * kMiB});
  EXPECT_EQ(arena->stats().reserved_bytes, 96 * kMiB);
  EXPECT_EQ(arena->stats().segment_count, 3);
  const auto pool = *PinnedPool::Create(device_, gate_, {.reserve_bytes = 32 * kMiB});
  EXPECT_EQ(pool->stats().reserved_bytes, 32 * kMiB);
  const int before = ImplicitSyncs();
  gate_->BeginWork();
  for (int round = 0; round < 100; ++round) {
    const size_t bytes = size_t{1000} << (round % 15);
    const auto first = arena->Allocate(bytes);
    ASSERT_OK(first.status());
    const auto second = arena->Allocate(30 * kMiB);
    ASSERT_OK(second.status());
    ASSERT_OK(pool->Allocate(std::min(bytes, 16 * kMiB)).status());
  }
  gate_->EndWork();
  EXPECT_EQ(arena->Trim(), 0u);
  EXPECT_EQ(ImplicitSyncs(), before);
  EXPECT_EQ(arena->stats().mapped_bytes, 96 * kMiB);
  // A larger block than a segment of the reserve is allocated from the driver.
  EXPECT_OK(arena->Allocate(40 * kMiB).status());
  EXPECT_GT(ImplicitSyncs(), before);
}

TEST_F(GpuArenaTest, MoreThanTheBudgetCannotBeReserved) {
  const absl::Status arena =
      GpuArena::Create(device_, nullptr, {.budget_bytes = 8 * kMiB, .reserve_bytes = 9 * kMiB})
          .status();
  EXPECT_EQ(arena.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(arena.message(), HasSubstr("--gpu-reserve-bytes"));
  EXPECT_THAT(arena.message(), HasSubstr("or raise --gpu-arena-budget-bytes"));
  const absl::Status pinned =
      PinnedPool::Create(device_, nullptr, {.budget_bytes = 8 * kMiB, .reserve_bytes = 9 * kMiB})
          .status();
  EXPECT_EQ(pinned.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(pinned.message(), HasSubstr("--pinned-reserve-bytes"));
}

// The rounded size must fit too.
TEST_F(GpuArenaTest, ReservesAreRoundedUp) {
  const auto arena = Make(
      {.budget_bytes = 10 * kMiB, .reserve_bytes = 5 * kMiB, .reserve_segment_bytes = 3 * kMiB});
  EXPECT_EQ(arena->stats().reserved_bytes, 6 * kMiB);
  EXPECT_EQ(arena->stats().segment_count, 2);
  const absl::Status refused =
      GpuArena::Create(device_, nullptr, {.budget_bytes = 9 * kMiB, .reserve_bytes = 9 * kMiB})
          .status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("9437184 bytes of gpu:0, rounded up to a multiple of "
                                           "2097152, are to be reserved of a budget of 9437184"));
  EXPECT_THAT(GpuArena::Create(device_, nullptr, {.reserve_segment_bytes = 0}).status().message(),
              HasSubstr("--gpu-reserve-segment-bytes"));
  const auto pool =
      *PinnedPool::Create(device_, nullptr, {.budget_bytes = 3 * 4096, .reserve_bytes = 4097});
  EXPECT_EQ(pool->stats().reserved_bytes, 2 * 4096u);
  const absl::Status pinned =
      PinnedPool::Create(device_, nullptr, {.budget_bytes = 5000, .reserve_bytes = 4097}).status();
  EXPECT_EQ(pinned.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(pinned.message(), HasSubstr("rounded up to a multiple of 4096"));
}

// Nothing else fits into what is left.
TEST_F(GpuArenaTest, BudgetThatIsNearlyAllReserved_TheErrorSaysSo) {
  const auto arena = Make(
      {.budget_bytes = 20 * kMiB, .reserve_bytes = 16 * kMiB, .reserve_segment_bytes = 8 * kMiB});
  const auto first = arena->Allocate(8 * kMiB);
  ASSERT_OK(first.status());
  const auto second = arena->Allocate(1000);
  ASSERT_OK(second.status());
  const absl::Status full = arena->Allocate(100'000).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(),
              HasSubstr("16777216 of them are reserved, in segments of up to 8388608 bytes"));
  EXPECT_THAT(full.message(), HasSubstr("reserve less or in larger segments, or raise "
                                        "--gpu-arena-budget-bytes"));
}

// The segments that could be made are returned: the fixture counts.
TEST_F(GpuArenaTest, DeviceWithoutTheReservedMemoryIsReported) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  // The first call is the arena's own, the second makes the first segment.
  FailNext("cuMemCreate", kErrorOutOfMemory, 2);
  const absl::Status full = GpuArena::Create(device_, gate_, {.reserve_bytes = 64 * kMiB}).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("reserving 67108864 bytes of gpu:0 (--gpu-reserve-bytes) "
                                        "failed: gpu:0: cuMemCreate"));
  FailNext("cuMemHostAlloc", kErrorOutOfMemory, 1);
  const absl::Status pinned =
      PinnedPool::Create(device_, gate_, {.reserve_bytes = 32 * kMiB}).status();
  EXPECT_EQ(pinned.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(pinned.message(), HasSubstr("(--pinned-reserve-bytes) failed: gpu:0: "
                                          "cuMemHostAlloc"));
}

}  // namespace
}  // namespace ferry::cuda
