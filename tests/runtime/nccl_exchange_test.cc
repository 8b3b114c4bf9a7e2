// SPDX-License-Identifier: Apache-2.0
// Tensors between GPUs of two machines, as far as the processes can tell, by NCCL.
#include <csignal>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

#include "tests/runtime/gpu_patterns.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

TEST(NcclExchange, BetweenMachines) {
  NEEDS_THE_DOUBLE("can play what this needs");
  RunGpuPair(
      {.environment = {{"STRICT_CUDA_DELAY_US", "2000"}}, .is_apart = true},
      [](GpuPeer& peer) { SendPatterns(peer, "GPU:1", 5); },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        for (int i = 0; i < 5; ++i) {
          EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", i, stream->get()), "nccl");
        }
        peer.Meet();
      });
}

TEST(NcclExchange, IntoTheReceiversBuffer) {
  RunGpuPair(
      {.is_apart = true}, [](GpuPeer& peer) { SendPatterns(peer, "GPU:1", 3); },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        for (int i = 0; i < 3; ++i) {
          RecvArgs args;
          args.destination = OnGpu(peer, 1);
          const void* const wanted = args.destination->data();
          const RendezvousKey key = GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1");
          const auto received = step.RecvValue(key, kPatience, std::move(args));
          ASSERT_TRUE(received.ok()) << received.status();
          EXPECT_EQ(received->path, "nccl");
          EXPECT_EQ(received->tensor.data(), wanted);
          EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()),
                            GpuPeer::Pattern(kBytes, static_cast<uint32_t>(i))));
        }
        peer.Meet();
      });
}

// More at once than a batch holds, of many sizes, asked for in another order than they are sent in.
TEST(NcclExchange, ManyInAnyOrder) {
  constexpr int kCount = 100;
  const auto bytes = [](int i) { return static_cast<size_t>(200'000 + 7919 * i); };
  GpuPairOptions options;
  options.is_apart = true;
  options.exchange.require_transport = "nccl";
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        std::vector<Tensor> patterns;
        for (int i = 0; i < kCount; ++i) {
          patterns.push_back(GpuPeer::Pattern(bytes(i), static_cast<uint32_t>(i)));
          const Tensor tensor = OnGpu(peer, 0, bytes(i));
          peer.Write(tensor, patterns.back(), stream->get());
          ASSERT_TRUE(
              step.Send(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), tensor, stream->get())
                  .ok());
        }
        const absl::Status closed = step.Close(kPatience);
        EXPECT_TRUE(closed.ok()) << closed;
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        std::vector<Receipt> receipts(kCount);
        for (int n = 0; n < kCount; ++n) {
          const int i = (n * 37) % kCount;
          step.RecvAsync(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), {},
                         receipts[static_cast<size_t>(i)].callback());
        }
        for (int i = 0; i < kCount; ++i) {
          const auto received = receipts[static_cast<size_t>(i)].Wait();
          ASSERT_TRUE(received.ok()) << received.status();
          EXPECT_EQ(received->path, "nccl");
          EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()),
                            GpuPeer::Pattern(bytes(i), static_cast<uint32_t>(i))));
        }
        peer.Meet();
      });
}

// What is small takes the shorter way, unless there is only one.
TEST(NcclExchange, SmallTensorsAreStagedUnlessNcclIsRequired) {
  for (const bool is_required : {false, true}) {
    GpuPairOptions options;
    options.is_apart = true;
    if (is_required) options.exchange.require_transport = "nccl";
    RunGpuPair(
        options, [](GpuPeer& peer) { SendPatterns(peer, "GPU:1", 2, 1000); },
        [&](GpuPeer& peer) {
          const auto stream = peer.NewStream(1);
          Step step = peer.Open();
          for (int i = 0; i < 2; ++i) {
            EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", i, stream->get(), {}, 1000),
                      is_required ? "nccl" : "inline, staged");
          }
          peer.Meet();
        });
  }
}

// Whether any clique of this job has had to begin anew.
bool HasSecondGeneration() {
  const std::string store = absl::StrCat(std::getenv("STRICT_CUDA_SESSION"), "/store");
  for (const auto& file : std::filesystem::directory_iterator(store)) {
    if (absl::EndsWith(file.path().filename().string(), "%generation")) return true;
  }
  return false;
}

// A call of NCCL's fails on one side, once: the communicator is ended on both, and the tensors go
// by the next one.
TEST(NcclExchange, AnErrorOfNcclCostsNoTensor) {
  NEEDS_THE_DOUBLE("can play what this needs");
  for (const char* const failing : {"ncclSend:3:3:1", "ncclGroupEnd:2:2:1", "ncclGroupEnd:3:0:1",
                                    "ncclGroupStart:3:4:1", "ncclCommGetAsyncError:6:9:1"}) {
    for (const bool at_consumer : {false, true}) {
      // It sends a single byte.
      if (at_consumer && absl::StartsWith(failing, "ncclSend")) continue;
      SCOPED_TRACE(absl::StrCat(failing, at_consumer ? " at the consumer" : " at the producer"));
      GpuPairOptions options;
      options.is_apart = true;
      options.exchange.require_transport = "nccl";
      if (at_consumer) options.consumer_environment = {{"STRICT_CUDA_FAIL", failing}};
      RunGpuPair(
          options,
          [&](GpuPeer& peer) {
            if (!at_consumer) {
              const std::vector<std::string> fault = absl::StrSplit(failing, ':');
              peer.Control<void (*)(const char*, int, int, int)>("strict_cuda_fail")(
                  fault[0].c_str(), std::stoi(fault[1]), std::stoi(fault[2]), 1);
            }
            SendPatterns(peer, "GPU:1", 8);
          },
          [](GpuPeer& peer) {
            const auto stream = peer.NewStream(1);
            Step step = peer.Open();
            for (int i = 0; i < 8; ++i) {
              EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", i, stream->get()), "nccl");
            }
            // The fault was met.
            EXPECT_TRUE(HasSecondGeneration());
            peer.Meet();
          });
    }
  }
}

// The kernel of the sender's half is running when the sender is killed: the receiver's would spin
// for ever.
TEST(NcclExchange, AProducerThatIsKilledInTheMiddle) {
  NEEDS_THE_DOUBLE("can play what this needs");
  GpuPairOptions options;
  options.is_apart = true;
  options.producer_dies = true;
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        peer.Control<void (*)(long)>("strict_cuda_nccl_stop_after")(1'000'000);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor tensor = OnGpu(peer, 0);
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        peer.Write(tensor, pattern, stream->get());
        ASSERT_TRUE(step.Send(GpuPeer::Key("t0", "GPU:0", "GPU:1"), tensor, stream->get()).ok());
        peer.Meet();
        absl::SleepFor(absl::Milliseconds(500));
        kill(getpid(), SIGKILL);
      },
      [](GpuPeer& peer) {
        Step step = peer.Open();
        Receipt receipt;
        step.RecvAsync(GpuPeer::Key("t0", "GPU:0", "GPU:1"), {}, receipt.callback());
        peer.Meet();
        const auto received = receipt.Wait(absl::Seconds(10));
        EXPECT_TRUE(absl::IsUnavailable(received.status())) << received.status();
        EXPECT_THAT(std::string(received.status().message()), HasSubstr("node 0"));
        // The device is free again: nothing of NCCL's is in flight, and its memory can be given
        // back.
        peer.gpus().WaitIdle(SteadyClock().Now() + kPatience);
        EXPECT_EQ(peer.gpus().gate()->work_count(), 0);
      });
}

TEST(NcclExchange, AConsumerThatIsKilledInTheMiddle) {
  NEEDS_THE_DOUBLE("can play what this needs");
  GpuPairOptions options;
  options.is_apart = true;
  options.consumer_dies = true;
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        peer.Control<void (*)(long)>("strict_cuda_nccl_stop_after")(1'000'000);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor tensor = OnGpu(peer, 0);
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        peer.Write(tensor, pattern, stream->get());
        ASSERT_TRUE(step.Send(GpuPeer::Key("t0", "GPU:0", "GPU:1"), tensor, stream->get()).ok());
        peer.Meet();
        const absl::Status closed = step.Close(absl::Seconds(10));
        EXPECT_FALSE(closed.ok());
        EXPECT_THAT(std::string(closed.message()), HasSubstr("node 1"));
        peer.gpus().WaitIdle(SteadyClock().Now() + kPatience);
        EXPECT_EQ(peer.gpus().gate()->work_count(), 0);
      },
      [](GpuPeer& peer) {
        Step step = peer.Open();
        Receipt receipt;
        step.RecvAsync(GpuPeer::Key("t0", "GPU:0", "GPU:1"), {}, receipt.callback());
        peer.Meet();
        absl::SleepFor(absl::Milliseconds(500));
        kill(getpid(), SIGKILL);
      });
}

// Why a pair cannot is known before anything is tried, and another way is taken.
TEST(NcclExchange, WithoutNcclOnOneSideItIsStaged) {
  NEEDS_THE_DOUBLE("can play what this needs");
  const std::map<std::string, std::string> without = {{"FERRY_NCCL_LIBRARY", "/nowhere.so"}};
  const std::map<std::string, std::string> older = {{"STRICT_CUDA_NCCL_VERSION", "22803"}};
  for (const auto& [environment, reason] :
       {std::pair(without, "does not use NCCL"), std::pair(older, "has NCCL 2.28.3")}) {
    GpuPairOptions options;
    options.is_apart = true;
    options.consumer_environment = environment;
    RunGpuPair(
        options,
        [&, reason = std::string(reason)](GpuPeer& peer) {
          SendPatterns(peer, "GPU:1", 2);
          const auto endpoint = peer.PeerEndpoint();
          PathQuery query;
          query.source = &peer.exchange().self();
          query.destination = &endpoint;
          query.bytes = kBytes;
          query.source_place = {MemorySpace::kCuda, 0};
          query.destination_place = {MemorySpace::kCuda, 1};
          const auto choice = ChoosePath(peer.exchange().transports(), query, {});
          ASSERT_TRUE(choice.ok()) << choice.status();
          EXPECT_THAT(Explain(*choice), HasSubstr(reason));
        },
        [](GpuPeer& peer) {
          const auto stream = peer.NewStream(1);
          Step step = peer.Open();
          for (int i = 0; i < 2; ++i) {
            EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", i, stream->get()), "tcp, staged");
          }
          peer.Meet();
        });
  }
}

// A rank that never gets there: who waits gives up, says for whom it waited, and goes another way.
TEST(NcclExchange, ARankThatNeverComes) {
  NEEDS_THE_DOUBLE("can play what this needs");
  GpuPairOptions options;
  options.is_apart = true;
  options.exchange.transports.nccl.open_timeout = absl::Seconds(1);
  options.consumer_environment = {{"STRICT_CUDA_NCCL_ABSENT_RANK", "1"}};
  RunGpuPair(
      options, [](GpuPeer& peer) { SendPatterns(peer, "GPU:1", 3); },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        for (int i = 0; i < 3; ++i) {
          EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", i, stream->get()), "tcp, staged");
        }
        peer.Meet();
      });
}

// Room for one communicator, and two GPUs to exchange with, in turns.
TEST(NcclExchange, CommunicatorsMakeRoomForEachOther) {
  NEEDS_THE_DOUBLE("can play what this needs");
  GpuPairOptions options;
  options.is_apart = true;
  options.exchange.require_transport = "nccl";
  options.exchange.transports.nccl.memory_bytes =
      options.exchange.transports.nccl.communicator_bytes();
  options.environment = {{"STRICT_CUDA_DEVICES", "3"}};
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        Step step = peer.Open();
        for (int i = 0; i < 4; ++i) {
          const auto stream = peer.NewStream(0);
          const Tensor tensor = OnGpu(peer, 0);
          const Tensor pattern = GpuPeer::Pattern(kBytes, static_cast<uint32_t>(i));
          peer.Write(tensor, pattern, stream->get());
          const std::string to = absl::StrCat("GPU:", 1 + i % 2);
          ASSERT_TRUE(
              step.Send(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", to), tensor, stream->get())
                  .ok());
          peer.Meet();
        }
        const absl::Status closed = step.Close(kPatience);
        EXPECT_TRUE(closed.ok()) << closed;
        peer.Meet();
      },
      [](GpuPeer& peer) {
        Step step = peer.Open();
        for (int i = 0; i < 4; ++i) {
          const auto stream = peer.NewStream(1 + i % 2);
          EXPECT_EQ(ReceivePattern(peer, step, absl::StrCat("GPU:", 1 + i % 2), i, stream->get()),
                    "nccl");
          peer.Meet();
        }
        peer.Meet();
      });
}

// A tensor whose bytes come late holds up none that are there.
TEST(NcclExchange, ALateTensorHoldsUpNoOther) {
  NEEDS_THE_DOUBLE("can play what this needs");
  GpuPairOptions options;
  options.is_apart = true;
  options.exchange.require_transport = "nccl";
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        const auto late = peer.NewStream(0);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor gated = OnGpu(peer, 0);
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        const auto release = peer.HoldUp(late->get());
        peer.Write(gated, pattern, late->get());
        ASSERT_TRUE(step.Send(GpuPeer::Key("t0", "GPU:0", "GPU:1"), gated, late->get()).ok());
        const Tensor tensor = OnGpu(peer, 0);
        const Tensor other = GpuPeer::Pattern(kBytes, 1);
        peer.Write(tensor, other, stream->get());
        ASSERT_TRUE(step.Send(GpuPeer::Key("t1", "GPU:0", "GPU:1"), tensor, stream->get()).ok());
        // It has the second one.
        peer.Meet();
        release();
        const absl::Status closed = step.Close(kPatience);
        EXPECT_TRUE(closed.ok()) << closed;
        peer.Meet();
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        Receipt first;
        step.RecvAsync(GpuPeer::Key("t0", "GPU:0", "GPU:1"), {}, first.callback());
        EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", 1, stream->get()), "nccl");
        EXPECT_FALSE(first.is_done());
        peer.Meet();
        const auto received = first.Wait();
        ASSERT_TRUE(received.ok()) << received.status();
        EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()), GpuPeer::Pattern(kBytes, 0)));
        peer.Meet();
      });
}

// Whatever a receive that is called off has got to: its ticket may be on its way, with a grant for
// which the sender's GPU waits.
TEST(NcclExchange, ReceivesThatAreCalledOffHoldUpNoOther) {
  constexpr int kCount = 60;
  constexpr size_t kSize = 300'000;
  GpuPairOptions options;
  options.is_apart = true;
  options.exchange.require_transport = "nccl";
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        Step step = peer.Open();
        const Tensor tensor = OnGpu(peer, 0, kSize);
        const Tensor pattern = GpuPeer::Pattern(kSize, 3);
        const auto stream = peer.NewStream(0);
        peer.Write(tensor, pattern, stream->get());
        for (int i = 0; i <= kCount; ++i) {
          ASSERT_TRUE(
              step.Send(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), tensor, stream->get())
                  .ok());
        }
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        Step step = peer.Open();
        const auto stream = peer.NewStream(1);
        // The communicator is there before anything is called off.
        const auto first = step.Recv(GpuPeer::Key("t0", "GPU:0", "GPU:1"), kPatience);
        ASSERT_TRUE(first.ok()) << first.status();
        std::vector<Receipt> receipts(kCount);
        for (int i = 1; i < kCount; ++i) {
          Cancellation cancellation;
          RecvArgs args;
          args.cancellation = &cancellation;
          Receipt& receipt = receipts[static_cast<size_t>(i)];
          step.RecvAsync(GpuPeer::Key(absl::StrCat("t", i), "GPU:0", "GPU:1"), std::move(args),
                         receipt.callback());
          absl::SleepFor(absl::Microseconds(37 * i));
          cancellation.Cancel();
          const auto received = receipt.Wait(absl::Seconds(10));
          EXPECT_TRUE(received.ok() || absl::IsCancelled(received.status())) << received.status();
        }
        const auto last = step.Recv(GpuPeer::Key(absl::StrCat("t", kCount), "GPU:0", "GPU:1"),
                                    absl::Seconds(10), stream->get());
        ASSERT_TRUE(last.ok()) << last.status();
        EXPECT_TRUE(Holds(peer.Read(*last, stream->get()), GpuPeer::Pattern(kSize, 3)));
        peer.Meet();
      });
}

}  // namespace
}  // namespace ferry
