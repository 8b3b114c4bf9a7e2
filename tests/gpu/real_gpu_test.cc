// SPDX-License-Identifier: Apache-2.0
// The layer on the machine's GPU: questions that only a real driver can answer. Skipped where there
// is none. With FERRY_CUDA_LIBRARY it runs on that library instead.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/pattern.h"
#include "gpu/cuda/gpu_arena.h"
#include "gpu/cuda/host_stager.h"
#include "gpu/cuda/memory_kind.h"
#include "gpu/kernels/kernels.h"

namespace ferry::cuda {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class RealGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<CudaApi>> api = CudaApi::Load();
    if (!api.ok()) GTEST_SKIP() << api.status().message();
    absl::StatusOr<std::shared_ptr<CudaDevice>> device = CudaDevice::Open(*std::move(api), 0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    current_ = std::make_unique<ScopedCurrent>(*device_);
    absl::StatusOr<std::unique_ptr<CudaStream>> stream = CudaStream::Create(device_);
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
    events_ = EventPool::Create(device_);
  }

  const CudaTable& table() const { return device_->table(); }
  void Sync() { ASSERT_EQ(table().stream_synchronize(stream_->get()), kSuccess); }

  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<ScopedCurrent> current_;
  std::unique_ptr<CudaStream> stream_;
  std::shared_ptr<EventPool> events_;
};

TEST_F(RealGpuTest, EachKindOfMemoryIsClassified) {
  DevicePointer plain = 0;
  ASSERT_EQ(table().memory_alloc(&plain, 5000), kSuccess);
  absl::StatusOr<MemoryInfo> info = Classify(*device_, AsHostPointer(plain + 4999), 1);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->kind, MemoryKind::kPlain);
  EXPECT_EQ(info->pieces[0].base, plain);
  EXPECT_EQ(info->pieces[0].offset, 4999u);
  EXPECT_NE(info->pieces[0].buffer_id, 0u);
  RecordProperty("cudaMalloc", info->no_export_reason);
  EXPECT_EQ(info->export_by, ExportBy::kLegacyHandle) << info->no_export_reason;
  EXPECT_EQ(table().memory_free(plain), kSuccess);

  if (device_->traits().has_pools) {
    MemoryPool pool = nullptr;
    ASSERT_EQ(table().device_get_default_pool(&pool, device_->handle()), kSuccess);
    DevicePointer pooled = 0;
    ASSERT_EQ(table().pool_alloc_async(&pooled, 5000, pool, stream_->get()), kSuccess);
    Sync();
    info = Classify(*device_, AsHostPointer(pooled), 5000);
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->kind, MemoryKind::kPool);
    EXPECT_EQ(info->export_by, ExportBy::kNone);
    EXPECT_EQ(table().memory_free(pooled), kSuccess);
  }
  void* pinned = nullptr;
  ASSERT_EQ(table().host_alloc(&pinned, 5000, kHostAllocPortable), kSuccess);
  EXPECT_EQ(Classify(*device_, pinned, 5000)->kind, MemoryKind::kPinnedHost);
  EXPECT_EQ(table().host_free(pinned), kSuccess);
  std::vector<char> pageable(5000);
  EXPECT_EQ(Classify(*device_, pageable.data(), 5000)->kind, MemoryKind::kPageableHost);
}

TEST_F(RealGpuTest, ArenasDescriptionMatchesTheDrivers) {
  const auto arena = GpuArena::Create(device_, nullptr, {});
  ASSERT_TRUE(arena.ok()) << arena.status();
  RecordProperty("fallback", (*arena)->fallback_reason());
  const auto buffer = (*arena)->Allocate(3 * kMiB + 5);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  const auto exported = ExportMemory(*device_, (*buffer)->data(), (*buffer)->bytes());
  ASSERT_TRUE(exported.ok()) << exported.status();
  ASSERT_EQ(exported->size(), 1u);
  EXPECT_EQ((*exported)[0].descriptor, (*arena)->Describe(**buffer));
}

TEST_F(RealGpuTest, KernelsMakeTheHostsPattern) {
  const auto kernels = Kernels::Load(device_);
  if (absl::IsUnimplemented(kernels.status())) GTEST_SKIP() << kernels.status().message();
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  const auto arena = *GpuArena::Create(device_, nullptr, {});
  constexpr size_t kBytes = 5 * kMiB + 3;
  constexpr uint64_t kSeed = 123456789;
  const auto buffer = *arena->Allocate(kBytes);
  const auto words = *arena->Allocate(16);
  ASSERT_EQ(table().set_bytes_async(words->pointer(), 0, 16, stream_->get()), kSuccess);
  ASSERT_TRUE((*kernels)->FillPattern(stream_->get(), buffer->pointer(), kBytes, kSeed).ok());
  ASSERT_TRUE(
      (*kernels)
          ->ComparePattern(stream_->get(), buffer->pointer(), kBytes, kSeed, words->pointer())
          .ok());
  ASSERT_TRUE(
      (*kernels)->Checksum(stream_->get(), buffer->pointer(), kBytes, words->pointer() + 8).ok());
  std::string host(kBytes, '?');
  uint64_t found[2] = {};
  ASSERT_EQ(table().copy_to_host_async(host.data(), buffer->pointer(), kBytes, stream_->get()),
            kSuccess);
  ASSERT_EQ(table().copy_to_host_async(found, words->pointer(), 16, stream_->get()), kSuccess);
  Sync();
  EXPECT_EQ(cli::CountPatternErrors(host.data(), kBytes, kSeed), 0u);
  EXPECT_EQ(found[0], 0u);
  host.resize((kBytes + 7) / 8 * 8, '\0');
  uint64_t sum = 0;
  for (size_t i = 0; i < host.size() / 8; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, host.data() + i * 8, 8);
    sum += word * (2 * i + 1);
  }
  EXPECT_EQ(found[1], sum);
}

TEST_F(RealGpuTest, StagingRoundTrips) {
  const auto arena = *GpuArena::Create(device_, nullptr, {});
  const auto pinned = *PinnedPool::Create(device_, nullptr, {});
  constexpr size_t kBytes = 20 * kMiB + 7;
  const auto buffer = *arena->Allocate(kBytes);
  std::string there(kBytes, '\0');
  cli::WritePattern(there.data(), kBytes, 5);
  std::string back(kBytes, '?');
  std::unique_ptr<HostStager> stager;
  {
    DeviceExecutor executor(device_);
    stager = *HostStager::Create(executor, events_, pinned, nullptr);
    for (const bool to_host : {false, true}) {
      HostCopy copy;
      copy.device = buffer->pointer();
      copy.host = to_host ? back.data() : there.data();
      copy.bytes = kBytes;
      copy.what = "the test's copy";
      absl::Notification ended;
      const auto done = [&ended](absl::Status status) {
        EXPECT_TRUE(status.ok()) << status;
        ended.Notify();
      };
      ASSERT_TRUE(
          (to_host ? stager->CopyToHost(copy, done) : stager->CopyToDevice(copy, done)).ok());
      ASSERT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(60)));
    }
  }
  EXPECT_EQ(cli::CountPatternErrors(back.data(), kBytes, 5), 0u);
}

}  // namespace
}  // namespace ferry::cuda
