// SPDX-License-Identifier: Apache-2.0
// A sender's probes: one for each pair of devices, whose result reaches every tensor that waits.
#include "transport/cuda_ipc/cuda_ipc_prober.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/transport/cuda_ipc_fixture.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

class CudaIpcProberTest : public CudaIpcTest {
 protected:
  CudaIpcProberTest() {
    prober_->SetControlChannel([this](absl::string_view body, absl::Span<const int>) {
      absl::MutexLock lock(&mu_);
      sent_.emplace_back(body);
      return absl::OkStatus();
    });
  }
  ~CudaIpcProberTest() override {
    prober_->Abort(absl::UnavailableError("over"), *grace_);
    segments_->Abort(*grace_);
    // Before the device.
    grace_ = nullptr;
    prober_ = nullptr;
    segments_ = nullptr;
    Finish();
  }

  // A caller that waits for the pair.
  struct Waiter {
    int calls = 0;
    absl::Status status;
  };
  // Returns after the executor has called it, and a first probe has been sent.
  std::shared_ptr<Waiter> AwaitOpen() {
    auto waiter = std::make_shared<Waiter>();
    EXPECT_TRUE(gpu_->executor
                    ->Post([this, waiter] {
                      prober_->AwaitOpen(*gpu_, kPair, [waiter](const absl::Status& status) {
                        ++waiter->calls;
                        waiter->status = status;
                      });
                    })
                    .ok());
    Flush(*gpu_->executor);
    return waiter;
  }
  // The only one sent.
  CudaIpcProbe Probe() {
    absl::MutexLock lock(&mu_);
    EXPECT_EQ(sent_.size(), 1u);
    return *DecodeCudaIpcProbe(sent_.front());
  }
  absl::Status Reply(uint32_t seed, const std::string& refusal) {
    return prober_->OnProbed({kPair, seed, refusal});
  }

  static constexpr GpuPair kPair = {0, 0};
  absl::Mutex mu_;
  std::vector<std::string> sent_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<DeferredReleaseQueue> grace_ = std::make_shared<DeferredReleaseQueue>(*loop_);
  std::shared_ptr<CudaIpcSegments> segments_ = std::make_shared<CudaIpcSegments>();
  std::shared_ptr<CudaIpcProber> prober_ =
      std::make_shared<CudaIpcProber>(environment_, peer_, segments_);
};

TEST_F(CudaIpcProberTest, SeveralTensorsWait_OneProbeIsSentAndItsRefusalReachesAll) {
  const auto first = AwaitOpen();
  const auto second = AwaitOpen();
  const CudaIpcProbe probe = Probe();
  EXPECT_EQ(first->calls + second->calls, 0);
  EXPECT_EQ(prober_->Refusal(kPair), "");
  ASSERT_TRUE(Reply(probe.seed, "no such device").ok());
  EXPECT_EQ(first->calls, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(first->status)) << first->status;
  EXPECT_EQ(second->status, first->status);
  EXPECT_FALSE(prober_->IsOpen(kPair));
  EXPECT_THAT(prober_->Refusal(kPair), HasSubstr("no such device"));
  // A later tensor is told at once.
  EXPECT_EQ(AwaitOpen()->status, first->status);
}

// The peer has its segment from the probe already.
TEST_F(CudaIpcProberTest, Opened_TheSegmentOfTheProbeIsSentNoMore) {
  // In the same segment, since it has the same size.
  const std::shared_ptr<cuda::DeviceBuffer> buffer = *gpu_->arena->Allocate(kCudaIpcProbeBytes);
  const auto waiter = AwaitOpen();
  ASSERT_TRUE(Reply(Probe().seed, "").ok());
  EXPECT_EQ(waiter->calls, 1);
  EXPECT_TRUE(waiter->status.ok()) << waiter->status;
  EXPECT_TRUE(prober_->IsOpen(kPair));
  std::vector<UniqueFd> descriptors;
  const CudaIpcPiece piece = *segments_->Piece(*gpu_->arena, *buffer, kPair, descriptors);
  EXPECT_EQ(piece.memory.allocation_id, Probe().memory.allocation_id);
  EXPECT_TRUE(piece.is_kept);
  EXPECT_FALSE(piece.has_fd);
  EXPECT_TRUE(descriptors.empty());
}

TEST_F(CudaIpcProberTest, RefusedAndAnsweredAfterAll_PairOpens) {
  AwaitOpen();
  const uint32_t seed = Probe().seed;
  ASSERT_TRUE(Reply(seed, "not now").ok());
  ASSERT_TRUE(Reply(seed + 1, "").ok());
  EXPECT_FALSE(prober_->IsOpen(kPair)) << "by the reply to another probe";
  ASSERT_TRUE(Reply(seed, "").ok());
  EXPECT_TRUE(prober_->IsOpen(kPair));
  EXPECT_EQ(prober_->Refusal(kPair), "");
}

// Otherwise the pair would be refused for good.
TEST_F(CudaIpcProberTest, ExecutorIsFullWhenTheBackOffEnds_PairIsProbedAgain) {
  AwaitOpen();
  EXPECT_TRUE(Reply(Probe().seed, "no").ok());
  EXPECT_THAT(prober_->Refusal(kPair), HasSubstr("no"));
  // The first back-off.
  absl::SleepFor(absl::Milliseconds(1100));
  WhileFull(*gpu_->executor, [&] { EXPECT_THAT(prober_->Refusal(kPair), HasSubstr("no")); });
  absl::MutexLock lock(&mu_);
  EXPECT_EQ(sent_.size(), 2u);
}

TEST_F(CudaIpcProberTest, ReplyToAProbeThatWasNotSent_IsAnError) {
  EXPECT_TRUE(absl::IsInvalidArgument(Reply(1, "")));
}

TEST_F(CudaIpcProberTest, ControlChannelEnds_TensorsThatWaitEnd) {
  const auto waiter = AwaitOpen();
  prober_->Abort(absl::UnavailableError("the peer is gone"), *grace_);
  EXPECT_EQ(waiter->calls, 1);
  EXPECT_EQ(waiter->status.message(), "the peer is gone");
  EXPECT_EQ(AwaitOpen()->status.message(), "the peer is gone");
  EXPECT_TRUE(absl::IsUnavailable(prober_->Record(kPair, nullptr).status()));
}

}  // namespace
}  // namespace ferry
