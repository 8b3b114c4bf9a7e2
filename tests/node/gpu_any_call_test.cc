// SPDX-License-Identifier: Apache-2.0
// Two processes with GPUs, one of which is killed at a library call, or whose call fails: no wait
// is endless, and the data that arrives is right.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/gpu_patterns.h"

namespace ferry {
namespace {

constexpr int kDies = -2;
constexpr int kOutOfMemory = 2;
constexpr int kCount = 4;
// Large enough for NCCL, and for slices.
constexpr size_t kSize = 1'000'003;

struct Fault {
  const char* call;
  int after;
  int error;
};

void Arm(GpuPeer& peer, const Fault& fault) {
  peer.Control<void (*)(const char*, int, int)>("strict_cuda_fail_next")(fault.call, fault.error,
                                                                         fault.after);
}

RendezvousKey KeyOf(int index) { return GpuPeer::Key(absl::StrCat("t", index), "GPU:0", "GPU:1"); }

// Nothing of it is there for good.
void ExpectQuiet(GpuPeer& peer) {
  peer.gpus().WaitIdle(SteadyClock().Now() + kTimeout);
  const absl::Time give_up = absl::Now() + kTimeout;
  while (peer.gpus().gate()->work_count() != 0 && absl::Now() < give_up) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(peer.gpus().gate()->work_count(), 0);
}

void SendRound(GpuPeer& peer, Step& step, int first, const std::vector<Tensor>& tensors,
               bool must_be_well) {
  for (int i = 0; i < kCount; ++i) {
    const absl::Status sent = step.Send(KeyOf(first + i), tensors[static_cast<size_t>(i)]);
    EXPECT_TRUE(sent.ok() || !must_be_well) << sent;
  }
}

void ReceiveRound(GpuPeer& peer, Step& step, int first, cuda::Stream stream, bool must_be_well) {
  std::vector<std::unique_ptr<Receipt>> receipts;
  for (int i = 0; i < kCount; ++i) {
    receipts.push_back(std::make_unique<Receipt>());
    step.RecvAsync(KeyOf(first + i), {}, receipts.back()->callback());
  }
  std::vector<absl::StatusOr<Received>> all;
  for (const std::unique_ptr<Receipt>& receipt : receipts) all.push_back(receipt->Wait(kTimeout));
  // The test's own calls must not fail.
  peer.Control<void (*)()>("strict_cuda_clear_faults")();
  for (int i = 0; i < kCount; ++i) {
    const absl::StatusOr<Received>& received = all[static_cast<size_t>(i)];
    EXPECT_FALSE(absl::IsDeadlineExceeded(received.status())) << received.status();
    EXPECT_TRUE(received.ok() || !must_be_well) << received.status();
    if (!received.ok()) continue;
    const Tensor& tensor = received->tensor;
    if (const auto ready = cuda::ReadyOf(tensor); ready != nullptr) {
      EXPECT_TRUE(ready->EnqueueWait(*peer.gpu(tensor.location().ordinal).device, stream).ok());
    }
    const Tensor pattern = GpuPeer::Pattern(kSize, static_cast<uint32_t>(i));
    EXPECT_TRUE(Holds(peer.Read(tensor, stream), pattern)) << "not what was sent";
  }
}

// How many were killed.
//   warm_rounds: before the fault.
int RunOne(GpuPairOptions options, const Fault& fault, bool at_consumer, int warm_rounds) {
  SCOPED_TRACE(absl::StrCat(fault.call, ":", fault.error, ":", fault.after,
                            at_consumer ? " at the consumer" : " at the producer"));
  const bool dies = fault.error == kDies;
  (at_consumer ? options.consumer_dies : options.producer_dies) = dies;
  return RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        std::vector<Tensor> tensors;
        for (int i = 0; i < kCount; ++i) {
          const Tensor pattern = GpuPeer::Pattern(kSize, static_cast<uint32_t>(i));
          tensors.push_back(OnGpu(peer, 0, kSize));
          peer.Write(tensors.back(), pattern, stream->get());
          peer.Read(tensors.back(), stream->get());
        }
        peer.Meet();
        for (int round = 1; round <= warm_rounds; ++round) {
          SendRound(peer, step, 100 * round, tensors, /*must_be_well=*/true);
          peer.Meet();
        }
        if (!at_consumer) Arm(peer, fault);
        SendRound(peer, step, 0, tensors, /*must_be_well=*/false);
        if (!dies) {
          peer.Meet();
          peer.Control<void (*)()>("strict_cuda_clear_faults")();
          SendRound(peer, step, kCount, tensors, /*must_be_well=*/true);
          peer.Meet();
        }
        const absl::Status closed = step.Close(kTimeout);
        EXPECT_FALSE(absl::IsDeadlineExceeded(closed)) << closed;
        ExpectQuiet(peer);
      },
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        peer.Meet();
        for (int round = 1; round <= warm_rounds; ++round) {
          ReceiveRound(peer, step, 100 * round, stream->get(), /*must_be_well=*/true);
          peer.Meet();
        }
        if (at_consumer) Arm(peer, fault);
        ReceiveRound(peer, step, 0, stream->get(), /*must_be_well=*/false);
        if (!dies) {
          peer.Meet();
          ReceiveRound(peer, step, kCount, stream->get(), /*must_be_well=*/true);
          peer.Meet();
        }
        ExpectQuiet(peer);
      });
}

int RunAll(const GpuPairOptions& options, const std::vector<const char*>& calls, int error,
           int warm_rounds = 0) {
  const std::vector<int> afters = error == kDies ? std::vector<int>{0, 3} : std::vector<int>{1};
  int killed = 0;
  for (const char* const call : calls) {
    for (const int after : afters) {
      for (const bool at_consumer : {false, true}) {
        killed += RunOne(options, {call, after, error}, at_consumer, warm_rounds);
      }
    }
  }
  return killed;
}

const std::vector<const char*>& CallsOfIpc() {
  static const auto& calls = *new std::vector<const char*>{"cuMemExportToShareableHandle",
                                                           "cuMemImportFromShareableHandle",
                                                           "cuMemMap",
                                                           "cuMemSetAccess",
                                                           "cuIpcGetEventHandle",
                                                           "cuIpcOpenEventHandle",
                                                           "cuMemcpyAsync",
                                                           "cuEventRecord",
                                                           "cuEventQuery",
                                                           "cuStreamWaitEvent"};
  return calls;
}

const std::vector<const char*>& CallsOfNccl() {
  static const auto& calls = *new std::vector<const char*>{
      "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclGroupStart", "ncclSend",    "ncclRecv",
      "ncclGroupEnd",    "ncclCommGetAsyncError",  "cuEventRecord",  "cuEventQuery"};
  return calls;
}

GpuPairOptions Apart() {
  GpuPairOptions options;
  options.is_apart = true;
  return options;
}

// While the window is set up.
const std::vector<const char*>& CallsOfWindows() {
  static const auto& calls = *new std::vector<const char*>{
      "ncclCommQueryProperties", "ncclCommWindowRegister", "ncclSignal", "ncclCommGetAsyncError"};
  return calls;
}

// Once it is.
const std::vector<const char*>& CallsOfPuts() {
  static const auto& calls =
      *new std::vector<const char*>{"ncclPutSignal",         "ncclWaitSignal", "cuMemcpyAsync",
                                    "ncclCommGetAsyncError", "cuEventRecord",  "cuEventQuery"};
  return calls;
}

GpuPairOptions WithPuts() {
  GpuPairOptions options = Apart();
  options.transfer.transports.nccl.put_bytes = uint64_t{16} << 20;
  options.environment = {{"STRICT_CUDA_NCCL_VERSION", "23007"},
                         {"STRICT_CUDA_NCCL_EARLY_WAIT", "violation"}};
  return options;
}

TEST(GpuAnyCall, ProcessIsKilledWhileItExportsMemory) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  // Not each of them makes each call.
  EXPECT_GT(RunAll({}, CallsOfIpc(), kDies), 10);
}

TEST(GpuAnyCall, ProcessIsKilledWhileItUsesNccl) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  EXPECT_GT(RunAll(Apart(), CallsOfNccl(), kDies), 10);
}

TEST(GpuAnyCall, CallFailsWhileMemoryIsExported) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  EXPECT_EQ(RunAll({}, CallsOfIpc(), kOutOfMemory), 0);
}

TEST(GpuAnyCall, CallFailsWhileNcclIsUsed) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  EXPECT_EQ(RunAll(Apart(), CallsOfNccl(), kOutOfMemory), 0);
}

TEST(GpuAnyCall, ProcessIsKilledWhileItPuts) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  EXPECT_GT(RunAll(WithPuts(), CallsOfWindows(), kDies), 4);
  EXPECT_GT(RunAll(WithPuts(), CallsOfPuts(), kDies, /*warm_rounds=*/2), 8);
}

TEST(GpuAnyCall, CallFailsWhileItPuts) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  EXPECT_EQ(RunAll(WithPuts(), CallsOfWindows(), kOutOfMemory), 0);
  EXPECT_EQ(RunAll(WithPuts(), CallsOfPuts(), kOutOfMemory, /*warm_rounds=*/2), 0);
}

}  // namespace
}  // namespace ferry
