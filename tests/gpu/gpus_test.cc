// SPDX-License-Identifier: Apache-2.0
// The GPUs of a process when a call of the driver's fails, and when there are several Gpus.
#include "gpu/gpus.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gpu/cuda/ready_tensor.h"
#include "gpu/external_nccl_scope.h"
#include "tests/gpu/cuda_fixture.h"

namespace ferry {
namespace {

using cuda::FailNext;
using cuda::GpuCount;
using ::testing::HasSubstr;

constexpr cuda::Result kOutOfMemory = 2;
constexpr int64_t kBytes = 300'000;
constexpr TensorLocation kHost = {};

constexpr TensorLocation OnGpu(int ordinal) { return {MemorySpace::kCuda, ordinal}; }

void SetDelay(int microseconds) {
  reinterpret_cast<void (*)(int)>(cuda::StrictSymbol("strict_cuda_set_delay_us"))(microseconds);
}

class GpusTest : public cuda::CudaTest {
 protected:
  GpusTest() {
    options_.arena.segment_bytes = size_t{2} << 20;
    options_.retry_open = absl::ZeroDuration();
  }
  ~GpusTest() override {
    if (!OnRealGpu()) SetDelay(100);
  }

  std::unique_ptr<Gpus> Make() const {
    return *Gpus::Create(cuda::StrictApi(), AllocateHeapBuffer, nullptr, options_);
  }

  static Tensor Pattern(char seed) {
    Tensor tensor = *Tensor::Allocate(DataType::kUint8, *Shape::Create({kBytes}));
    auto* const bytes = static_cast<char*>(tensor.mutable_data());
    for (int64_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<char>(seed + i % 101);
    return tensor;
  }
  static bool IsEqual(const Tensor& a, const Tensor& b) {
    return a.bytes() == b.bytes() && std::equal(static_cast<const char*>(a.data()),
                                                static_cast<const char*>(a.data()) + a.bytes(),
                                                static_cast<const char*>(b.data()));
  }
  static MoveRequest Request(const Tensor& tensor, TensorLocation to) {
    MoveRequest move;
    move.tensor = tensor;
    move.to = to;
    move.deadline = SteadyClock().Now() + absl::Seconds(30);
    move.what = "test";
    return move;
  }

  GpusOptions options_;
};

TEST_F(GpusTest, DeviceThatCouldNotBeOpenedIsTriedAgain) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  options_.retry_open = absl::Milliseconds(200);
  const std::unique_ptr<Gpus> gpus = Make();
  FailNext("cuDevicePrimaryCtxRetain", kOutOfMemory);
  const absl::Status first = gpus->Get(0).status();
  EXPECT_TRUE(absl::IsResourceExhausted(first)) << first;
  // Not at once: there is a pause.
  EXPECT_EQ(gpus->Get(0).status(), first);
  absl::SleepFor(absl::Milliseconds(250));
  EXPECT_OK(gpus->Get(0).status());
}

TEST_F(GpusTest, DeviceThatIsBrieflyFullAllocatesTheSameMemoryLater) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  const std::unique_ptr<Gpus> gpus = Make();
  FailNext("cuMemCreate", kOutOfMemory);
  const absl::Status first = gpus->Get(0).status();
  EXPECT_TRUE(absl::IsResourceExhausted(first)) << first;
  const absl::StatusOr<Gpu*> later = gpus->Get(0);
  ASSERT_OK(later.status());
  EXPECT_EQ((*later)->arena->fallback_reason(), "");
}

// The slice of pinned memory that the failed copy still writes to is not the next one's.
TEST_F(GpusTest, CopyToTheHostWithoutAnEventIsWaitedFor) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  const std::unique_ptr<Gpus> gpus = Make();
  const Tensor one = *gpus->MoveAndWait(Request(Pattern(1), OnGpu(0)));
  const Tensor two = Pattern(2);
  SetDelay(20'000);
  FailNext("cuEventRecord", kOutOfMemory);
  EXPECT_FALSE(gpus->MoveAndWait(Request(one, kHost)).ok());
  const absl::StatusOr<Tensor> arrived = gpus->MoveAndWait(Request(two, OnGpu(0)));
  ASSERT_OK(arrived.status());
  const absl::StatusOr<Tensor> back = gpus->MoveAndWait(Request(*arrived, kHost));
  ASSERT_OK(back.status());
  EXPECT_TRUE(IsEqual(*back, two));
}

// Nor is the memory of the GPU that it copies to; and no thread waits for the producer.
TEST_F(GpusTest, CopyBetweenGpusWithoutAnEvent_KeepsItsMemory) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  NEEDS_TWO_GPUS();
  // Else nothing is copied before the held stream has ended.
  options_.waits_on_device = true;
  const std::unique_ptr<Gpus> gpus = Make();
  const Tensor one = *gpus->MoveAndWait(Request(Pattern(1), OnGpu(0)));
  const Tensor two = Pattern(2);
  ASSERT_OK(gpus->Get(1).status());
  cuda::HeldStream held(device_);
  const auto ready = *cuda::ReadyEvent::Record(*events_, held.get());
  FailNext("cuEventRecord", kOutOfMemory);
  absl::Notification is_over;
  absl::Status status;
  gpus->Move(Request(cuda::WithReady(one, ready), OnGpu(1)), [&](absl::StatusOr<Tensor> moved) {
    status = moved.status();
    is_over.Notify();
  });
  EXPECT_TRUE(is_over.WaitForNotificationWithTimeout(absl::Seconds(20)));
  const absl::StatusOr<Tensor> arrived = gpus->MoveAndWait(Request(two, OnGpu(1)));
  held.Go();
  held.Finish();
  is_over.WaitForNotification();
  EXPECT_FALSE(status.ok());
  ASSERT_OK(arrived.status());
  const absl::StatusOr<Tensor> back = gpus->MoveAndWait(Request(*arrived, kHost));
  ASSERT_OK(back.status());
  EXPECT_TRUE(IsEqual(*back, two));
}

// By default the streams of the device stay free: the copy is enqueued when the tensor is complete.
TEST_F(GpusTest, CopyOfAnIncompleteTensor_OccupiesNoStream) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  NEEDS_TWO_GPUS();
  const std::unique_ptr<Gpus> gpus = Make();
  const Tensor one = *gpus->MoveAndWait(Request(Pattern(1), OnGpu(0)));
  const Gpu* const from = *gpus->Get(0);
  for (const int to : {0, 1}) {
    cuda::HeldStream held(device_);
    const auto ready = *cuda::ReadyEvent::Record(*events_, held.get());
    absl::Notification is_over;
    absl::StatusOr<Tensor> copy;
    MoveRequest request = Request(cuda::WithReady(one, ready), OnGpu(to));
    if (to == 0) request.destination = *gpus->MoveAndWait(Request(Pattern(2), OnGpu(0)));
    gpus->Move(std::move(request), [&](absl::StatusOr<Tensor> moved) {
      copy = std::move(moved);
      is_over.Notify();
    });
    EXPECT_FALSE(is_over.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
    {
      const cuda::ScopedCurrent current(*from->device);
      EXPECT_EQ(table().stream_query(from->copies->get()), cuda::kSuccess);
      // All eight are idle.
      const cuda::Stream idle = from->waits->TakeIdle();
      EXPECT_EQ(idle, from->waits->TakeIdleOrAny());
    }
    held.Go();
    held.Finish();
    is_over.WaitForNotification();
    ASSERT_OK(copy.status());
    const absl::StatusOr<Tensor> back = gpus->MoveAndWait(Request(*copy, kHost));
    ASSERT_OK(back.status());
    EXPECT_TRUE(IsEqual(*back, Pattern(1)));
  }
}

// The tensor is not complete by the deadline: the move ends, and what is written late is kept.
TEST_F(GpusTest, CopyOfAnIncompleteTensor_EndsAtItsDeadline) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  NEEDS_TWO_GPUS();
  const std::unique_ptr<Gpus> gpus = Make();
  Tensor one = *gpus->MoveAndWait(Request(Pattern(1), OnGpu(0)));
  const std::weak_ptr<Buffer> memory = cuda::MemoryOf(one);
  cuda::HeldStream held(device_);
  const auto ready = *cuda::ReadyEvent::Record(*events_, held.get());
  MoveRequest request = Request(cuda::WithReady(std::exchange(one, Tensor()), ready), OnGpu(1));
  request.deadline = SteadyClock().Now() + absl::Milliseconds(50);
  request.what = "step 3 key x";
  const absl::StatusOr<Tensor> moved = gpus->MoveAndWait(std::move(request));
  EXPECT_TRUE(absl::IsDeadlineExceeded(moved.status())) << moved.status();
  EXPECT_THAT(std::string(moved.status().message()), testing::HasSubstr("step 3 key x"));
  EXPECT_FALSE(memory.expired());
  held.Go();
  held.Finish();
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (!memory.expired() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(memory.expired());
}

// Any call fails, once, while tensors move: the data that arrives is right, and then all continues.
TEST_F(GpusTest, AnyCallMayFail) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  const char* const kCalls[] = {"cuDevicePrimaryCtxRetain",
                                "cuStreamCreateWithPriority",
                                "cuCtxEnablePeerAccess",
                                "cuStreamQuery",
                                "cuStreamWaitEvent",
                                "cuEventCreate",
                                "cuEventRecord",
                                "cuEventQuery",
                                "cuMemGetInfo_v2",
                                "cuMemAlloc_v2",
                                "cuMemHostAlloc",
                                "cuPointerGetAttributes",
                                "cuMemcpyAsync",
                                "cuMemcpyPeerAsync",
                                "cuMemcpyHtoDAsync_v2",
                                "cuMemcpyDtoHAsync_v2",
                                "cuMemAddressReserve",
                                "cuMemCreate",
                                "cuMemMap",
                                "cuMemSetAccess",
                                "cuMemExportToShareableHandle",
                                "cuMemGetAllocationGranularity"};
  constexpr int kThreads = 3;
  const int last = GpuCount() > 1 ? 1 : 0;
  int failed = 0;
  for (const char* const call : kCalls) {
    for (const int after : {0, 1, 3, 8}) {
      options_.waits_on_device = after % 2 == 1;
      SCOPED_TRACE(absl::StrCat(call, " after ", after));
      const std::unique_ptr<Gpus> gpus = Make();
      const auto move_about = [&](int thread) -> absl::Status {
        const Tensor pattern = Pattern(static_cast<char>(thread));
        Tensor tensor = pattern;
        for (const TensorLocation to : {OnGpu(0), OnGpu(last), OnGpu(0), kHost}) {
          absl::StatusOr<Tensor> moved = gpus->MoveAndWait(Request(tensor, to));
          if (!moved.ok()) return moved.status();
          tensor = *std::move(moved);
        }
        EXPECT_TRUE(IsEqual(tensor, pattern));
        return absl::OkStatus();
      };
      const auto run = [&] {
        std::atomic<int> failures = 0;
        std::vector<std::thread> threads;
        for (int i = 0; i < kThreads; ++i) {
          threads.emplace_back([&, i] {
            for (int round = 0; round < 2; ++round) failures += move_about(i).ok() ? 0 : 1;
          });
        }
        for (std::thread& thread : threads) thread.join();
        return failures.load();
      };
      FailNext(call, kOutOfMemory, after);
      failed += run();
      reinterpret_cast<void (*)()>(cuda::StrictSymbol("strict_cuda_clear_faults"))();
      EXPECT_EQ(run(), 0);
    }
  }
  EXPECT_GT(failed, 0);
}

TEST_F(GpusTest, GpuThatAnswersWithAnErrorHidesNoOther) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  FailNext("cuDeviceGetUuid_v2", 999);
  FailNext("cuDeviceCanAccessPeer", 999);
  const std::unique_ptr<Gpus> gpus = Make();
  ASSERT_EQ(gpus->count(), 2);
  EXPECT_EQ(gpus->uuids()[0], "");
  EXPECT_NE(gpus->uuids()[1], "");
  EXPECT_FALSE(gpus->peers().CanAccess(0, 1));
  EXPECT_TRUE(gpus->peers().CanAccess(1, 0));
  const Tensor pattern = Pattern(5);
  const absl::StatusOr<Tensor> there = gpus->MoveAndWait(Request(pattern, OnGpu(1)));
  ASSERT_OK(there.status());
  const absl::StatusOr<Tensor> back = gpus->MoveAndWait(Request(*there, kHost));
  ASSERT_OK(back.status());
  EXPECT_TRUE(IsEqual(*back, pattern));
}

TEST_F(GpusTest, CallersContextIsRestored) {
  NEEDS_TWO_GPUS();
  const std::unique_ptr<Gpus> gpus = Make();
  const auto other = cuda::OpenDevice(1);
  const cuda::ScopedCurrent current(*other);
  const Tensor pattern = Pattern(3);
  const absl::StatusOr<Tensor> there = gpus->MoveAndWait(Request(pattern, OnGpu(0)));
  ASSERT_OK(there.status());
  const auto ready =
      cuda::ReadyEvent::Record(*(*gpus->Get(0))->events, (*gpus->Get(0))->copies->get());
  ASSERT_OK(ready.status());
  const absl::StatusOr<Tensor> back = gpus->MoveAndWait(Request(*there, kHost));
  ASSERT_OK(back.status());
  EXPECT_TRUE(IsEqual(*back, pattern));
  cuda::Context now = nullptr;
  ASSERT_EQ(table().context_get_current(&now), cuda::kSuccess);
  EXPECT_EQ(now, other->context());
}

// As for two nodes in one process.
TEST_F(GpusTest, NodesOfAProcessShareOneGate) {
  const std::unique_ptr<Gpus> one = Make();
  const std::unique_ptr<Gpus> two = Make();
  ASSERT_OK(two->Get(0).status());
  one->gate()->BeginWork();
  std::atomic<bool> is_there = false;
  std::thread other([&] {
    // More than its arena has.
    const auto more = two->Allocate(0, DataType::kUint8, *Shape::Create({int64_t{64} << 20}));
    EXPECT_OK(more.status());
    is_there = true;
  });
  while (!one->gate()->is_quiesce_requested() && !is_there) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(is_there);
  one->gate()->EndWork();
  other.join();
}

TEST_F(GpusTest, OneNodeOfAProcessHasKeyedTransfersOnADevice) {
  struct Played final : NcclArbiter::Keyed {
    void OnTurn() override {}
  };
  const std::unique_ptr<Gpus> one = Make();
  const std::unique_ptr<Gpus> two = Make();
  auto first = std::make_shared<Played>();
  const auto second = std::make_shared<Played>();
  EXPECT_OK(one->nccl_arbiter(0)->SetKeyed(first));
  EXPECT_THAT(two->nccl_arbiter(0)->SetKeyed(second).message(),
              HasSubstr("another node of this process"));
  EXPECT_FALSE(two->nccl_arbiter(0)->CheckKeyed().ok());
  first.reset();
  EXPECT_OK(two->nccl_arbiter(0)->CheckKeyed());
  EXPECT_OK(two->nccl_arbiter(0)->SetKeyed(second));
}

// A kernel of an NCCL that Ferry does not drive: it runs until the program stops it.
class OwnNccl final {
 public:
  explicit OwnNccl(const Gpu& gpu) : gpu_(gpu), stream_(*cuda::CudaStream::Create(gpu.device)) {
    const cuda::ScopedCurrent current(*gpu_.device);
    const cuda::CudaTable& table = gpu_.device->table();
    EXPECT_EQ(table.module_load_data(&module_, ".version 7.0\n.visible .entry nccl_spin() {}\n"),
              cuda::kSuccess);
    EXPECT_EQ(table.module_get_function(&kernel_, module_, "nccl_spin"), cuda::kSuccess);
    void* flag = nullptr;
    EXPECT_EQ(table.host_alloc(&flag, sizeof(uint32_t), cuda::kHostAllocPortable), cuda::kSuccess);
    flag_ = static_cast<std::atomic<uint32_t>*>(flag);
    *flag_ = 0;
  }
  ~OwnNccl() {
    Stop();
    const cuda::ScopedCurrent current(*gpu_.device);
    EXPECT_EQ(gpu_.device->table().host_free(flag_), cuda::kSuccess);
  }

  void Launch() {
    const cuda::ScopedCurrent current(*gpu_.device);
    void* parameters[] = {&flag_};
    EXPECT_EQ(gpu_.device->table().launch_kernel(kernel_, 1, 1, 1, 1, 1, 1, 0, stream_->get(),
                                                 parameters, nullptr),
              cuda::kSuccess);
  }
  void Stop() {
    *flag_ = 1;
    const cuda::ScopedCurrent current(*gpu_.device);
    EXPECT_EQ(gpu_.device->table().stream_synchronize(stream_->get()), cuda::kSuccess);
  }
  cuda::Stream stream() const { return stream_->get(); }

 private:
  const Gpu& gpu_;
  const std::unique_ptr<cuda::CudaStream> stream_;
  cuda::Module module_ = nullptr;
  cuda::Function kernel_ = nullptr;
  std::atomic<uint32_t>* flag_ = nullptr;
};

int ImplicitSyncs() {
  return reinterpret_cast<int (*)()>(cuda::StrictSymbol("strict_cuda_implicit_syncs"))();
}

int ImplicitSyncViolations() {
  return reinterpret_cast<int (*)(const char*)>(cuda::StrictSymbol("strict_cuda_violations_of"))(
      "implicit-sync-in-flight");
}

// The reason for the scope: Ferry does not know of the program's NCCL, and allocates beside it.
TEST_F(GpusTest, OutsideAnExternalNcclScope_ADriverAllocationRunsBesideAProgramsNccl) {
  NEEDS_FAKE_DRIVER("reports it");
  const std::unique_ptr<Gpus> gpus = Make();
  OwnNccl nccl(**gpus->Get(0));
  setenv("STRICT_CUDA_ON_BREACH", "record", 1);
  nccl.Launch();
  EXPECT_OK(gpus->Allocate(0, DataType::kUint8, *Shape::Create({int64_t{64} << 20})).status());
  EXPECT_GT(ImplicitSyncViolations(), 0);
  nccl.Stop();
  unsetenv("STRICT_CUDA_ON_BREACH");
  reinterpret_cast<void (*)()>(cuda::StrictSymbol("strict_cuda_clear_violations"))();
}

TEST_F(GpusTest, InAnExternalNcclScope_NothingSynchronisesUntilTheProgramsNcclHasCompleted) {
  NEEDS_FAKE_DRIVER("reports violations");
  options_.arena.timeout = absl::Milliseconds(50);
  options_.arena.reserve_bytes = size_t{8} << 20;
  options_.arena.reserve_segment_bytes = size_t{8} << 20;
  const std::unique_ptr<Gpus> gpus = Make();
  OwnNccl nccl(**gpus->Get(0));
  const auto more = [&gpus] {
    return gpus->Allocate(0, DataType::kUint8, *Shape::Create({int64_t{64} << 20})).status();
  };
  absl::StatusOr<std::unique_ptr<ExternalNcclScope>> scope =
      ExternalNcclScope::Begin(*gpus, 0, absl::Seconds(10));
  ASSERT_OK(scope.status());
  EXPECT_TRUE(gpus->nccl_arbiter(0)->has_turn());
  EXPECT_FALSE(gpus->nccl_arbiter(0)->TryResume()) << "keyed transfers continue";
  const int before = ImplicitSyncs();
  // Begun, and nothing is enqueued yet.
  EXPECT_EQ(more().code(), absl::StatusCode::kDeadlineExceeded);
  nccl.Launch();
  EXPECT_OK((*scope)->End(nccl.stream()));
  EXPECT_EQ((*scope)->End(nccl.stream()).code(), absl::StatusCode::kFailedPrecondition);
  scope->reset();
  // Ended, and the kernel runs.
  const absl::Status late = more();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(late.message(), HasSubstr("1 pieces of NCCL's work were in flight"));
  // Reserved memory needs no driver.
  EXPECT_OK(gpus->Allocate(0, DataType::kUint8, *Shape::Create({kBytes})).status());
  EXPECT_EQ(ImplicitSyncs(), before);
  nccl.Stop();
  while (gpus->gate()->work_count() > 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(gpus->nccl_arbiter(0)->TryResume());
  EXPECT_OK(more());
}

TEST_F(GpusTest, ExternalNcclScopeThatIsNotEnded_EndsWithItsObject) {
  const std::unique_ptr<Gpus> gpus = Make();
  {
    const auto scope = ExternalNcclScope::Begin(*gpus, 0, absl::Seconds(10));
    ASSERT_OK(scope.status());
    const auto another = ExternalNcclScope::Begin(*gpus, 0, absl::Seconds(10));
    ASSERT_OK(another.status());
    EXPECT_EQ(gpus->gate()->work_count(), 2);
  }
  EXPECT_EQ(gpus->gate()->work_count(), 0);
  EXPECT_EQ(ExternalNcclScope::Begin(*gpus, 99, absl::Seconds(10)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(GpusTest, OpenGpuHasItsReserve) {
  NEEDS_FAKE_DRIVER("counts calls that may synchronize");
  options_.arena.reserve_bytes = size_t{32} << 20;
  options_.pinned.reserve_bytes = size_t{16} << 20;
  options_.staging = {
      .budget_bytes = size_t{8} << 20, .slot_bytes = size_t{1} << 20, .is_reserved = true};
  const std::unique_ptr<Gpus> gpus = Make();
  Gpu& gpu = **gpus->Get(0);
  EXPECT_EQ(gpu.arena->stats().reserved_bytes, size_t{32} << 20);
  EXPECT_EQ(gpu.ring->stats().slot_count, 8);
  EXPECT_EQ(gpu.ring->stats().free_count, 8);
  const int before = ImplicitSyncs();
  for (char seed = 0; seed < 50; ++seed) {
    const Tensor pattern = Pattern(seed);
    const auto there = gpus->MoveAndWait(Request(pattern, OnGpu(0)));
    ASSERT_OK(there.status());
    const auto back = gpus->MoveAndWait(Request(*there, kHost));
    ASSERT_OK(back.status());
    EXPECT_TRUE(IsEqual(*back, pattern));
  }
  EXPECT_EQ(ImplicitSyncs(), before);
}

TEST_F(GpusTest, MemoryThatCannotBeRegisteredIsRefused) {
  const std::unique_ptr<Gpus> gpus = Make();
  EXPECT_EQ(gpus->RegisterMemory(Pattern(1)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(gpus->RegisterMemory(Tensor()).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ferry
