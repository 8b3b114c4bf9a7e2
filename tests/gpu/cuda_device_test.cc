// SPDX-License-Identifier: Apache-2.0
// Contexts, events, and access between devices.
#include "gpu/cuda/cuda_device.h"

#include <cstring>

#include "gpu/cuda/pinned_pool.h"
#include "tests/gpu/cuda_fixture.h"

namespace ferry::cuda {
namespace {

using ::testing::HasSubstr;

class CudaDeviceTest : public CudaTest {
 protected:
  Context Current() const {
    Context context = nullptr;
    EXPECT_EQ(table().context_get_current(&context), kSuccess);
    return context;
  }
};

TEST_F(CudaDeviceTest, EveryGroupOfFunctionsIsAvailable) {
  for (const CudaGroup group : {CudaGroup::kExecution, CudaGroup::kIpc, CudaGroup::kVirtualMemory,
                                CudaGroup::kPools, CudaGroup::kModules}) {
    EXPECT_OK(StrictApi()->Has(group));
  }
}

// A framework in the same process has the primary context; ours must be the same one.
TEST_F(CudaDeviceTest, SharesThePrimaryContext) {
  NEEDS_TWO_GPUS();
  const std::shared_ptr<CudaDevice> again = OpenDevice();
  EXPECT_EQ(again->context(), device_->context());
  EXPECT_EQ(device_->name(), "gpu:0");
  EXPECT_NE(OpenDevice(1)->context(), device_->context());
  EXPECT_TRUE(device_->traits().has_virtual_memory);
  EXPECT_TRUE(device_->traits().exports_posix_fd);
  EXPECT_TRUE(device_->traits().pools_export_posix_fd);
}

TEST_F(CudaDeviceTest, ScopesNestAndRestoreTheCallersContext) {
  NEEDS_TWO_GPUS();
  const std::shared_ptr<CudaDevice> other = OpenDevice(1);
  EXPECT_EQ(Current(), nullptr);
  {
    const ScopedCurrent outer(*device_);
    EXPECT_OK(outer.status());
    EXPECT_EQ(Current(), device_->context());
    {
      const ScopedCurrent inner(*other);
      EXPECT_EQ(Current(), other->context());
      const ScopedCurrent same(*other);
      EXPECT_EQ(Current(), other->context());
    }
    EXPECT_EQ(Current(), device_->context());
  }
  EXPECT_EQ(Current(), nullptr);
}

TEST_F(CudaDeviceTest, UnknownOrdinalIsAnErrorThatNamesIt) {
  const absl::Status status = CudaDevice::Open(StrictApi(), 99).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("gpu:99: cuDeviceGet"));
}

TEST_F(CudaDeviceTest, OutOfMemoryIsResourceExhausted) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  FailNext("cuStreamCreateWithPriority", kErrorOutOfMemory);
  EXPECT_EQ(CudaStream::Create(device_).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CudaDeviceTest, PeersAreQueriedAndEnabledOnce) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  const PeerMatrix peers = *PeerMatrix::Query(*StrictApi());
  ASSERT_EQ(peers.device_count(), 2);
  EXPECT_TRUE(peers.CanAccess(0, 0));
  EXPECT_TRUE(peers.CanAccess(0, 1));
  const std::shared_ptr<CudaDevice> other = OpenDevice(1);
  EXPECT_OK(EnablePeerAccess(*device_, *other));
  EXPECT_OK(EnablePeerAccess(*device_, *other));
  EXPECT_OK(EnablePeerAccess(*device_, *device_));
  FailNext("cuCtxEnablePeerAccess", kErrorPeerAccessUnsupported);
  const absl::Status status = EnablePeerAccess(*other, *device_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("gpu:1 cannot reach memory of gpu:0"));
}

TEST_F(CudaDeviceTest, EventsAreDoneWhenTheStreamHasPassedThem) {
  HeldStream stream(device_);
  CudaEvent event = *events_->Take();
  ASSERT_OK(event.Record(stream.get()));
  EXPECT_FALSE(*event.IsDone());
  stream.Go();
  stream.Finish();
  EXPECT_TRUE(*event.IsDone());
}

TEST_F(CudaDeviceTest, EventsReturnToTheirPool) {
  EXPECT_EQ(events_->idle_count(), 0);
  Event first = nullptr;
  {
    CudaEvent event = *events_->Take();
    first = event.get();
    CudaEvent moved = std::move(event);
    EXPECT_FALSE(event.is_valid());  // NOLINT(bugprone-use-after-move)
    moved = *events_->Take();
    EXPECT_EQ(events_->idle_count(), 1);
  }
  EXPECT_EQ(events_->idle_count(), 2);
  (void)first;
}

// The consumer's stream waits on the device, and no thread does.
TEST_F(CudaDeviceTest, ConsumersStreamWaitsForTheProducers) {
  const DevicePointer memory = Alloc(16);
  const auto pinned = *PinnedPool::Create(device_, nullptr, {});
  // Copies to and from other host memory would make this thread wait.
  const auto source = *pinned->Allocate(4);
  const auto target = *pinned->Allocate(4);
  std::memcpy(source->data(), "here", 4);
  const std::unique_ptr<CudaStream> consumer = *CudaStream::Create(device_);
  {
    HeldStream producer(device_);
    const ScopedCurrent current(*device_);
    ASSERT_EQ(table().copy_to_device_async(memory, source->data(), 4, producer.get()), kSuccess);
    const auto ready = *ReadyEvent::Record(*events_, producer.get());
    ASSERT_OK(ready->EnqueueWait(*device_, consumer->get()));
    ASSERT_EQ(table().copy_to_host_async(target->data(), memory, 4, consumer->get()), kSuccess);
    EXPECT_FALSE(*ready->IsDone());
  }
  const ScopedCurrent current(*device_);
  ASSERT_EQ(table().stream_synchronize(consumer->get()), kSuccess);
  EXPECT_EQ(std::string(static_cast<char*>(target->data()), 4), "here");
  Free(memory);
}

}  // namespace
}  // namespace ferry::cuda
