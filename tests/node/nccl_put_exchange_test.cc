// SPDX-License-Identifier: Apache-2.0
// Tensors that one GPU puts into the pool of another by NCCL's one-sided operations, and those that
// it cannot.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/gpu_patterns.h"
#include "transport/nccl/nccl_transport.h"

namespace ferry {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint64_t kPool = uint64_t{16} << 20;

GpuPairOptions WithPuts() {
  GpuPairOptions options;
  options.is_apart = true;
  options.transfer.require_transport = "nccl";
  options.transfer.transports.nccl.put_bytes = kPool;
  options.environment = {{"STRICT_CUDA_NCCL_VERSION", "23007"},
                         {"STRICT_CUDA_NCCL_EARLY_WAIT", "violation"}};
  return options;
}

// Sends tensors from gpu:0 one by one, each in a step of its own, and meets the receiver after
// each.
void SendOneByOne(GpuPeer& peer, int count, size_t bytes = kBytes) {
  const auto stream = peer.NewStream(0);
  for (int i = 0; i < count; ++i) {
    Step step = peer.Open(i + 1);
    const Tensor tensor = OnGpu(peer, 0, bytes);
    const Tensor pattern = GpuPeer::Pattern(bytes, static_cast<uint32_t>(i));
    peer.Write(tensor, pattern, stream->get());
    ASSERT_TRUE(
        step.Send(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), tensor, stream->get())
            .ok());
    const absl::Status closed = step.Close(kTimeout);
    EXPECT_TRUE(closed.ok()) << closed;
    peer.Meet();
  }
}

// Returns the paths by which they came.
std::vector<std::string> ReceiveOneByOne(GpuPeer& peer, int count, bool into_buffer = false,
                                         size_t bytes = kBytes) {
  const auto stream = peer.NewStream(1);
  std::vector<std::string> paths;
  for (int i = 0; i < count; ++i) {
    Step step = peer.Open(i + 1);
    RecvArgs args;
    if (into_buffer) args.destination = OnGpu(peer, 1, bytes);
    paths.push_back(ReceivePattern(peer, step, "GPU:1", i, stream->get(), std::move(args), bytes));
    peer.Meet();
  }
  return paths;
}

// Why the receiver's gpu:1 has no window with the sender's gpu:0.
absl::Status WhyNoPut(GpuPeer& peer) {
  for (const auto& transport : peer.transfer_engine().transports()) {
    if (transport->name() != NcclTransport::kInfo.name) continue;
    return static_cast<const NcclTransport&>(*transport).PutRefusal(1, DeviceId(0));
  }
  return absl::NotFoundError("no transport nccl");
}

// The first tensors go in batches, until the window is set up.
TEST(NcclPut, TensorsArePutOnceTheWindowIsOpen) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  RunGpuPair(
      WithPuts(),
      [](GpuPeer& peer) {
        SendOneByOne(peer, 6);
        peer.Meet();
      },
      [](GpuPeer& peer) {
        const std::vector<std::string> paths = ReceiveOneByOne(peer, 6);
        EXPECT_THAT(paths, Each(AnyOf("nccl", "nccl, put")));
        EXPECT_EQ(paths.front(), "nccl");
        EXPECT_EQ(paths.back(), "nccl, put");
        // The window ends with the peer.
        EXPECT_TRUE(WhyNoPut(peer).ok()) << WhyNoPut(peer);
        peer.Meet();
      });
}

// NCCL takes offsets from the beginning of the allocation: there is other memory in this one.
TEST(NcclPut, PoolInsideASegment_IsRefused) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  constexpr size_t kSmallPool = size_t{4} << 20;
  GpuPairOptions options = WithPuts();
  options.transfer.transports.nccl.put_bytes = kSmallPool;
  RunGpuPair(
      options, [](GpuPeer& peer) { SendOneByOne(peer, 6); },
      [](GpuPeer& peer) {
        const Tensor before = OnGpu(peer, 1, kSmallPool);
        EXPECT_THAT(ReceiveOneByOne(peer, 6), Each("nccl"));
        EXPECT_THAT(WhyNoPut(peer).message(), HasSubstr("NCCL needs it at the beginning"));
      });
}

// In both directions and many at once, more than the pools hold.
TEST(NcclPut, ManyAtOnceInBothDirections) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  constexpr int kCount = 24;
  const auto bytes = [](int i) { return static_cast<size_t>(200'000 + 79'190 * i); };
  const auto exchange = [&](GpuPeer& peer, int own, int other) {
    const auto stream = peer.NewStream(own);
    const auto key = [](int from, int to, int i) {
      const auto device = [](int node) {
        return absl::StrCat("/job:worker/replica:0/task:", node, "/device:GPU:", node);
      };
      return *RendezvousKey::Parse(RendezvousKey::Text(
          device(from), static_cast<uint64_t>(1000 + from), device(to), absl::StrCat("t", i)));
    };
    std::vector<std::string> paths;
    for (int round = 0; round < 3; ++round) {
      Step step = peer.Open(round + 1);
      std::vector<Tensor> patterns;
      std::vector<Receipt> receipts(kCount);
      for (int i = 0; i < kCount; ++i) {
        step.RecvAsync(key(other, own, i), {}, receipts[static_cast<size_t>(i)].callback());
        patterns.push_back(GpuPeer::Pattern(bytes(i), static_cast<uint32_t>(i)));
        const Tensor tensor = OnGpu(peer, own, bytes(i));
        peer.Write(tensor, patterns.back(), stream->get());
        ASSERT_TRUE(step.Send(key(own, other, i), tensor, stream->get()).ok());
      }
      for (int i = 0; i < kCount; ++i) {
        const auto received = receipts[static_cast<size_t>(i)].Wait();
        ASSERT_TRUE(received.ok()) << received.status();
        paths.push_back(std::string(received->path));
        EXPECT_TRUE(
            Holds(peer.Read(received->tensor, stream->get()), patterns[static_cast<size_t>(i)]));
      }
      const absl::Status closed = step.Close(kTimeout);
      EXPECT_TRUE(closed.ok()) << closed;
      peer.Meet();
    }
    EXPECT_THAT(paths, Contains("nccl, put"));
    EXPECT_THAT(paths, Each(AnyOf("nccl", "nccl, put")));
  };
  RunGpuPair(
      WithPuts(), [&](GpuPeer& peer) { exchange(peer, 0, 1); },
      [&](GpuPeer& peer) { exchange(peer, 1, 0); });
}

TEST(NcclPut, IntoTheReceiversBufferGoesInABatch) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  RunGpuPair(
      WithPuts(), [](GpuPeer& peer) { SendOneByOne(peer, 4); },
      [](GpuPeer& peer) {
        EXPECT_THAT(ReceiveOneByOne(peer, 4, /*into_buffer=*/true), Each("nccl"));
      });
}

// As long as the receiver keeps tensors, the pool has no room; then it has again.
TEST(NcclPut, PoolIsFullWhileTensorsAreKept) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  constexpr size_t kLarge = 6 << 20;
  RunGpuPair(
      WithPuts(), [](GpuPeer& peer) { SendOneByOne(peer, 10, kLarge); },
      [](GpuPeer& peer) {
        std::vector<Tensor> kept;
        std::vector<std::string> paths;
        for (int i = 0; i < 10; ++i) {
          if (i == 7) kept.clear();
          Step step = peer.Open(i + 1);
          const auto received =
              step.RecvValue(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), kTimeout);
          ASSERT_TRUE(received.ok()) << received.status();
          kept.push_back(received->tensor);
          paths.push_back(std::string(received->path));
          peer.Meet();
        }
        EXPECT_EQ(paths[6], "nccl") << "two of them fill the pool";
        EXPECT_EQ(paths[7], "nccl, put");
        EXPECT_EQ(paths[8], "nccl, put");
      });
}

// Something that one of the two lacks, or NCCL for their communicator.
TEST(NcclPut, WithoutSupportTensorsGoInBatches) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  const std::map<std::pair<std::string, std::string>, std::string> lacking = {
      {{"STRICT_CUDA_NCCL_VERSION", "22809"}, "NCCL 2.28.9 has none"},
      {{"STRICT_CUDA_NCCL_WINDOWS", "none"}, "NCCL does not support them"},
      {{"STRICT_CUDA_NCCL_WINDOWS", "only"}, "NCCL does not support them"},
      {{"STRICT_CUDA_DRIVER_VERSION", "12040"}, "need a driver of CUDA 12.5"},
  };
  for (const auto& [variable, why] : lacking) {
    SCOPED_TRACE(variable.first + "=" + variable.second);
    GpuPairOptions options = WithPuts();
    options.environment[variable.first] = variable.second;
    RunGpuPair(
        options, [](GpuPeer& peer) { SendOneByOne(peer, 3); },
        [&, why = why](GpuPeer& peer) {
          EXPECT_THAT(ReceiveOneByOne(peer, 3), Each("nccl"));
          EXPECT_THAT(std::string(WhyNoPut(peer).message()), HasSubstr(why));
        });
  }
}

// A driver that is too old for puts, on one side alone: it does not take part in the set-up.
TEST(NcclPut, OneSideWithoutAPool) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  for (const bool at_consumer : {false, true}) {
    SCOPED_TRACE(at_consumer);
    GpuPairOptions options = WithPuts();
    (at_consumer ? options.consumer_environment
                 : options.producer_environment)["STRICT_CUDA_DRIVER_VERSION"] = "12040";
    RunGpuPair(
        options, [](GpuPeer& peer) { SendOneByOne(peer, 3); },
        [](GpuPeer& peer) { EXPECT_THAT(ReceiveOneByOne(peer, 3), Each("nccl")); });
  }
}

// The communicator is lost with it. After the second failure the next one has no window.
TEST(NcclPut, RegistrationThatFailsLosesNoTensor) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  for (const char* const fault :
       {"ncclCommWindowRegister:1:0:9", "ncclCommQueryProperties:3:0:9", "ncclSignal:3:0:9"}) {
    for (const bool at_consumer : {false, true}) {
      SCOPED_TRACE(absl::StrCat(fault, at_consumer ? " at the consumer" : " at the producer"));
      GpuPairOptions options = WithPuts();
      (at_consumer ? options.consumer_environment
                   : options.producer_environment)["STRICT_CUDA_FAIL"] = fault;
      RunGpuPair(
          options, [](GpuPeer& peer) { SendOneByOne(peer, 3); },
          [](GpuPeer& peer) { EXPECT_THAT(ReceiveOneByOne(peer, 3), Each("nccl")); });
    }
  }
}

// A put or a wait that fails ends the communicator: the tensor comes again, by the next one.
TEST(NcclPut, FailedPutOrWaitIsRetried) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  for (const bool at_consumer : {false, true}) {
    SCOPED_TRACE(at_consumer ? "ncclWaitSignal" : "ncclPutSignal");
    GpuPairOptions options = WithPuts();
    (at_consumer ? options.consumer_environment
                 : options.producer_environment)["STRICT_CUDA_FAIL"] =
        at_consumer ? "ncclWaitSignal:3:1:1" : "ncclPutSignal:3:1:1";
    RunGpuPair(
        options, [](GpuPeer& peer) { SendOneByOne(peer, 8); },
        [](GpuPeer& peer) {
          const std::vector<std::string> paths = ReceiveOneByOne(peer, 8);
          EXPECT_THAT(paths, Each(AnyOf("nccl", "nccl, put")));
          EXPECT_EQ(paths.back(), "nccl, put") << "by the next communicator's window";
        });
  }
}

// No stream of the receiver waits for the dead one's signal, and the process ends cleanly.
TEST(NcclPut, ProducerDiesAtAPut) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options = WithPuts();
  options.producer_dies = true;
  options.producer_environment["STRICT_CUDA_FAIL"] = "ncclPutSignal:-2:1";
  const int killed = RunGpuPair(
      options, [](GpuPeer& peer) { SendOneByOne(peer, 8); },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        for (int i = 0; i < 8; ++i) {
          Step step = peer.Open(i + 1);
          const auto received =
              step.RecvValue(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), kTimeout);
          if (!received.ok()) {
            EXPECT_EQ(received.status().code(), absl::StatusCode::kUnavailable)
                << received.status();
            EXPECT_GE(i, 1);
            return;
          }
          EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()),
                            GpuPeer::Pattern(kBytes, static_cast<uint32_t>(i))));
          peer.Meet();
        }
        FAIL() << "no put was made";
      });
  EXPECT_EQ(killed, 1);
}

// The sender's stream completes the put into memory that nobody reads any more.
TEST(NcclPut, ConsumerDiesAtAWait) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options = WithPuts();
  options.consumer_dies = true;
  options.consumer_environment["STRICT_CUDA_FAIL"] = "ncclWaitSignal:-2:1";
  const int killed = RunGpuPair(
      options,
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        for (int i = 0; i < 8; ++i) {
          Step step = peer.Open(i + 1);
          const Tensor tensor = OnGpu(peer, 0);
          const Tensor pattern = GpuPeer::Pattern(kBytes, static_cast<uint32_t>(i));
          peer.Write(tensor, pattern, stream->get());
          ASSERT_TRUE(
              step.Send(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), tensor, stream->get())
                  .ok());
          const absl::Status closed = step.Close(kTimeout);
          if (!closed.ok()) {
            EXPECT_EQ(closed.code(), absl::StatusCode::kUnavailable) << closed;
            return;
          }
          peer.Meet();
        }
        FAIL() << "no wait was made";
      },
      [](GpuPeer& peer) { ReceiveOneByOne(peer, 8); });
  EXPECT_EQ(killed, 1);
}

}  // namespace
}  // namespace ferry
