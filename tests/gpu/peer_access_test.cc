// SPDX-License-Identifier: Apache-2.0
// Copies between two GPUs of a process, in memory of cuMemAlloc: they do not go through host memory
// where the GPUs have peer access.
#include "gpu/cuda/peer_access.h"

#include <memory>
#include <string>
#include <vector>

#include "base/logging.h"
#include "gpu/cuda/ready_tensor.h"
#include "gpu/gpus.h"
#include "tests/gpu/cuda_fixture.h"

namespace ferry::cuda {
namespace {

using ::testing::HasSubstr;

constexpr Result kTooManyPeers = 711;
constexpr size_t kBytes = 300'000;

// Copies so far that a driver would take through host memory.
int HostPeerCopies() {
  return reinterpret_cast<int (*)()>(StrictSymbol("strict_cuda_host_peer_copies"))();
}

// Collects warnings.
class Warnings final {
 public:
  Warnings() {
    SetLogOutput([this](absl::string_view line) { lines_.emplace_back(line); });
  }
  ~Warnings() { SetLogOutput(nullptr); }

  // After the work that may have logged.
  std::vector<std::string> Take() {
    SetLogOutput(nullptr);
    return std::move(lines_);
  }

 private:
  std::vector<std::string> lines_;
};

class PeerAccessTest : public CudaTest {
 protected:
  PeerAccessTest() {
    GpusOptions options;
    options.arena.segment_bytes = size_t{2} << 20;
    options.retry_open = absl::ZeroDuration();
    gpus_ = *Gpus::Create(StrictApi(), AllocateHeapBuffer, nullptr, options);
  }

  // Uninitialized memory that another library of the process might have allocated.
  static Tensor Plain(const std::shared_ptr<CudaDevice>& device) {
    const ScopedCurrent current(*device);
    DevicePointer pointer = 0;
    EXPECT_EQ(device->table().memory_alloc(&pointer, kBytes), kSuccess);
    const auto free = [device, pointer] {
      const ScopedCurrent current(*device);
      EXPECT_EQ(device->table().memory_free(pointer), kSuccess);
    };
    return *Tensor::Create(DataType::kUint8, *Shape::Create({kBytes}),
                           WrapForeignBuffer(AsHostPointer(pointer), kBytes, free,
                                             {MemorySpace::kCuda, device->ordinal()}));
  }

  absl::StatusOr<Tensor> Move(const Tensor& tensor, const Tensor& destination) const {
    MoveRequest move;
    move.tensor = tensor;
    move.to = destination.location();
    move.destination = destination;
    move.deadline = SteadyClock().Now() + absl::Seconds(30);
    move.what = "test";
    return gpus_->MoveAndWait(std::move(move));
  }

  // From the host to one device, to the other, and back; false: other bytes have arrived.
  bool GoesAcross(const std::shared_ptr<CudaDevice>& one,
                  const std::shared_ptr<CudaDevice>& other) const {
    Tensor sent = *Tensor::Allocate(DataType::kUint8, *Shape::Create({kBytes}));
    auto* const bytes = static_cast<char*>(sent.mutable_data());
    for (size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<char>(i % 101 + i / 1000);
    Tensor tensor = sent;
    for (const Tensor& to :
         {Plain(one), Plain(other), *Tensor::Allocate(DataType::kUint8, sent.shape())}) {
      absl::StatusOr<Tensor> moved = Move(tensor, to);
      EXPECT_OK(moved.status());
      if (!moved.ok()) return false;
      tensor = *std::move(moved);
    }
    return std::equal(bytes, bytes + kBytes, static_cast<const char*>(tensor.data()));
  }

  Result Enable(const CudaDevice& from, const CudaDevice& to) const {
    const ScopedCurrent current(from);
    return table().context_enable_peer_access(to.context(), 0);
  }

  std::unique_ptr<Gpus> gpus_;
};

TEST_F(PeerAccessTest, PlainMemoryDoesNotGoThroughTheHost) {
  NEEDS_FAKE_DRIVER("counts copies through the host");
  const auto other = OpenDevice(1);
  const int before = HostPeerCopies();
  EXPECT_TRUE(GoesAcross(device_, other));
  EXPECT_EQ(HostPeerCopies(), before);
  // Both directions were enabled by the first copy.
  EXPECT_EQ(Enable(*device_, *other), kErrorPeerAccessAlreadyEnabled);
  EXPECT_EQ(Enable(*other, *device_), kErrorPeerAccessAlreadyEnabled);
  EXPECT_TRUE(GoesAcross(other, device_));
  EXPECT_EQ(HostPeerCopies(), before);
}

// PyTorch enables the pairs that it uses.
TEST_F(PeerAccessTest, ProgramMayHaveEnabledIt) {
  NEEDS_FAKE_DRIVER("counts copies through the host");
  const auto other = OpenDevice(1);
  Warnings warnings;
  EXPECT_EQ(Enable(*device_, *other), kSuccess);
  EXPECT_TRUE(GoesAcross(device_, other));
  EXPECT_TRUE(GoesAcross(other, device_));
  EXPECT_EQ(Enable(*other, *device_), kErrorPeerAccessAlreadyEnabled);
  EXPECT_TRUE(warnings.Take().empty());
}

// Arenas of devices that export no memory as descriptors are of cuMemAlloc too.
TEST_F(PeerAccessTest, ArenasOfPlainMemoryDoNotGoThroughTheHost) {
  NEEDS_FAKE_DRIVER("counts copies through the host");
  reinterpret_cast<void (*)(const char*, int, int, int)>(StrictSymbol("strict_cuda_fail"))(
      "cuMemExportToShareableHandle", kErrorNotPermitted, 0, 2);
  const Tensor one = *gpus_->Allocate(0, DataType::kUint8, *Shape::Create({kBytes}));
  const Tensor other = *gpus_->Allocate(1, DataType::kUint8, *Shape::Create({kBytes}));
  ASSERT_FALSE((*gpus_->Get(0))->arena->fallback_reason().empty());
  ASSERT_FALSE((*gpus_->Get(1))->arena->fallback_reason().empty());
  const Tensor host = *Tensor::Allocate(DataType::kUint8, one.shape());
  const int before = HostPeerCopies();
  EXPECT_OK(Move(*Move(host, one), other).status());
  EXPECT_EQ(HostPeerCopies(), before);
}

TEST_F(PeerAccessTest, FailureIsLoggedOnceAndCopiesStillWork) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  const auto other = OpenDevice(1);
  const int before = HostPeerCopies();
  Warnings warnings;
  FailNext("cuCtxEnablePeerAccess", kTooManyPeers);
  EXPECT_TRUE(GoesAcross(device_, other));
  EXPECT_EQ(HostPeerCopies(), before + 1);
  // The other direction was enabled all the same.
  EXPECT_TRUE(GoesAcross(other, device_));
  EXPECT_EQ(HostPeerCopies(), before + 1);
  EXPECT_TRUE(GoesAcross(device_, other));
  const std::vector<std::string> lines = warnings.Take();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], HasSubstr("copies between gpu:0 and gpu:1 may go through host memory"));
  EXPECT_THAT(lines[0], HasSubstr("cuCtxEnablePeerAccess failed with code 711"));
}

// Enabling may synchronize, and would wait for a kernel that waits for this very copy.
TEST_F(PeerAccessTest, CopyDoesNotWaitForNcclWork) {
  NEEDS_FAKE_DRIVER("counts copies through the host");
  const auto other = OpenDevice(1);
  ASSERT_OK(gpus_->Get(0).status());
  ASSERT_OK(gpus_->Get(1).status());
  const Tensor from = Plain(device_);
  const Tensor to = Plain(other);
  const int before = HostPeerCopies();
  gpus_->gate()->BeginWork();
  EXPECT_OK(Move(from, to).status());
  EXPECT_EQ(HostPeerCopies(), before + 1);
  gpus_->gate()->EndWork();
  EXPECT_OK(Move(from, to).status());
  EXPECT_EQ(HostPeerCopies(), before + 1);
  gpus_->WaitIdle(SteadyClock().Now() + absl::Seconds(10));
}

}  // namespace
}  // namespace ferry::cuda
