// SPDX-License-Identifier: Apache-2.0
// Effects of failures on tensors that are sent by NCCL.
#include <csignal>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include "tests/node/gpu_patterns.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Far longer than it takes on a loaded machine, and far shorter than a side waits for the other one
// to join a communicator.
constexpr absl::Duration kSoon = absl::Seconds(20);

// Until NCCL work of this process is in flight on a device.
void AwaitNcclWork(GpuPeer& peer) {
  const absl::Time give_up = SteadyClock().Now() + kTimeout;
  while (peer.gpus().gate()->work_count() == 0 && SteadyClock().Now() < give_up) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_GT(peer.gpus().gate()->work_count(), 0);
}

// Releasing a communicator may begin after the transfer that it ends, and is work as well.
bool BecomesIdle(GpuPeer& peer) {
  const absl::Time deadline = SteadyClock().Now() + kTimeout;
  while (peer.gpus().gate()->work_count() > 0 && SteadyClock().Now() < deadline) {
    peer.gpus().WaitIdle(deadline);
    absl::SleepFor(absl::Milliseconds(1));
  }
  return peer.gpus().gate()->work_count() == 0;
}

// Whether any communicator of this job had to start again.
bool HasSecondGeneration() {
  const std::string store = absl::StrCat(std::getenv("STRICT_CUDA_SESSION"), "/store");
  for (const auto& file : std::filesystem::directory_iterator(store)) {
    if (absl::EndsWith(file.path().filename().string(), "%generation")) return true;
  }
  return false;
}

// A call of NCCL's fails on one side, once: the communicator is ended on both, and the tensors go
// by the next one.
TEST(NcclFailure, NcclError_LosesNoTensor) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  for (const char* const failing : {"ncclSend:3:3:1", "ncclGroupEnd:2:2:1", "ncclGroupEnd:3:0:1",
                                    "ncclGroupStart:3:4:1", "ncclCommGetAsyncError:6:0:1"}) {
    for (const bool at_consumer : {false, true}) {
      // It sends a single byte.
      if (at_consumer && absl::StartsWith(failing, "ncclSend")) continue;
      SCOPED_TRACE(absl::StrCat(failing, at_consumer ? " at the consumer" : " at the producer"));
      GpuPairOptions options;
      options.is_apart = true;
      options.transfer.require_transport = "nccl";
      // Not during initialisation: the number of calls meanwhile is unknown.
      const bool is_later = absl::StartsWith(failing, "ncclCommGetAsyncError");
      const RendezvousKey first = GpuPeer::Key("first", "GPU:0", "GPU:1");
      const auto arm = [&](GpuPeer& peer) {
        const std::vector<std::string> fault = absl::StrSplit(failing, ':');
        peer.Control<void (*)(const char*, int, int, int)>("strict_cuda_fail")(
            fault[0].c_str(), std::stoi(fault[1]), std::stoi(fault[2]), 1);
      };
      RunGpuPair(
          options,
          [&](GpuPeer& peer) {
            if (is_later) {
              Step step = peer.Open(2);
              ASSERT_TRUE(step.Send(first, OnGpu(peer, 0)).ok());
              EXPECT_TRUE(step.Close(kTimeout).ok());
              peer.Meet();
            }
            if (!at_consumer) arm(peer);
            SendPatterns(peer, "GPU:1", 8);
          },
          [&](GpuPeer& peer) {
            if (is_later) {
              EXPECT_TRUE(peer.Open(2).RecvValue(first, kTimeout).ok());
              peer.Meet();
            }
            if (at_consumer) arm(peer);
            const auto stream = peer.NewStream(1);
            Step step = peer.Open();
            for (int i = 0; i < 8; ++i) {
              EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", i, stream->get()), "nccl");
            }
            // The fault was hit.
            EXPECT_TRUE(HasSecondGeneration());
            peer.Meet();
          });
    }
  }
}

// While the communicator is being made, NCCL fails on one side, at one of its polls; at the last
// one the other side has its communicator already: it is notified of the failure, and both make the
// next one.
TEST(NcclFailure, InitialisationFailsOnOneSide) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  for (int looks = 0; looks < 6; ++looks) {
    for (const bool at_consumer : {false, true}) {
      SCOPED_TRACE(
          absl::StrCat("look ", looks, at_consumer ? " of the consumer" : " of the producer"));
      GpuPairOptions options;
      options.is_apart = true;
      options.transfer.require_transport = "nccl";
      const auto arm = [&](GpuPeer& peer, bool is_consumer) {
        if (is_consumer != at_consumer) return;
        peer.Control<void (*)(const char*, int, int, int)>("strict_cuda_fail")(
            "ncclCommGetAsyncError", 6, looks, 1);
      };
      RunGpuPair(
          options,
          [&](GpuPeer& peer) {
            arm(peer, false);
            const absl::Time start = SteadyClock().Now();
            SendPatterns(peer, "GPU:1", 4);
            EXPECT_LT(SteadyClock().Now() - start, kSoon);
          },
          [&](GpuPeer& peer) {
            arm(peer, true);
            const auto stream = peer.NewStream(1);
            Step step = peer.Open();
            for (int i = 0; i < 4; ++i) {
              EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", i, stream->get()), "nccl");
            }
            EXPECT_TRUE(HasSecondGeneration());
            peer.Meet();
          });
    }
  }
}

// The sender's kernel is running when the sender is killed: the receiver's would spin forever.
TEST(NcclFailure, ProducerIsKilledInTheMiddle) {
  NEEDS_FAKE_DRIVER("can play what this needs");
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
        AwaitNcclWork(peer);
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
        EXPECT_TRUE(BecomesIdle(peer));
      });
}

// Over a socket the receiver's kernel ends when the sender releases the communicator, with half of
// the tensor, and here before any other message of that.
TEST(NcclFailure, TransferEndsBecauseOfALostPeer_HasNotArrived) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options;
  options.is_apart = true;
  options.transfer.require_transport = "nccl";
  options.environment = {{"STRICT_CUDA_NCCL_PEER_DEATH", "error"}};
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        const auto stop_after = peer.Control<void (*)(long)>("strict_cuda_nccl_stop_after");
        stop_after(1'000'000);
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Tensor tensor = OnGpu(peer, 0);
        const Tensor pattern = GpuPeer::Pattern(kBytes, 0);
        peer.Write(tensor, pattern, stream->get());
        ASSERT_TRUE(step.Send(GpuPeer::Key("t0", "GPU:0", "GPU:1"), tensor, stream->get()).ok());
        peer.Meet();
        peer.Meet();
        peer.Control<void (*)(const char*, int, int)>("strict_cuda_fail_next")(
            "ncclCommGetAsyncError", 3, 0);
        absl::SleepFor(absl::Milliseconds(200));
        stop_after(-1);
        EXPECT_TRUE(step.Close(kTimeout).ok());
        peer.Meet();
      },
      [](GpuPeer& peer) {
        const auto stream = peer.NewStream(1);
        Step step = peer.Open();
        Receipt receipt;
        step.RecvAsync(GpuPeer::Key("t0", "GPU:0", "GPU:1"), {}, receipt.callback());
        peer.Meet();
        absl::SleepFor(absl::Milliseconds(300));
        EXPECT_FALSE(receipt.is_done());
        // The other side's message waits on the loop.
        absl::Notification is_held;
        peer.transfer_engine().loop().Post([&is_held] {
          is_held.Notify();
          absl::SleepFor(absl::Milliseconds(400));
        });
        is_held.WaitForNotification();
        peer.Meet();
        const auto received = receipt.Wait(kTimeout);
        ASSERT_TRUE(received.ok()) << received.status();
        EXPECT_EQ(received->path, "nccl");
        const auto ready = cuda::ReadyOf(received->tensor);
        if (ready != nullptr) {
          EXPECT_TRUE(ready->EnqueueWait(*peer.gpu(1).device, stream->get()).ok());
        }
        EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()), GpuPeer::Pattern(kBytes, 0)));
        peer.Meet();
      });
}

// The kernel of a program's warm-up ends normally when a rank is lost in the middle of it: the
// communicator is unusable, and is not handed out.
TEST(NcclFailure, WarmUpThatLosesARank_YieldsNoCommunicator) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options;
  options.is_apart = true;
  options.producer_dies = true;
  options.environment = {{"STRICT_CUDA_NCCL_PEER_DEATH", "error"}};
  const auto make = [](GpuPeer& peer, int rank) {
    const NcclJob& nccl = peer.transfer_engine().nccl();
    const auto member = [&nccl](int32_t node, uint64_t incarnation) {
      return CommunicatorMember{nccl.device_of(node, static_cast<int>(node))->value(), incarnation};
    };
    const CommunicatorKey key =
        *CommunicatorKey::Create({member(0, 1000), member(1, 1001)}, "the program's");
    peer.gpu(rank);
    peer.Meet();
    return NcclCommunicator::Make(nccl.library, peer.gpus(), rank, key, rank, nccl.store,
                                  {.timeout = absl::Seconds(3)});
  };
  // Both have begun it.
  const auto meet_in_the_middle = [](GpuPeer& peer) {
    while (peer.gpus().gate()->work_count() == 0) absl::SleepFor(absl::Milliseconds(1));
    peer.Meet();
  };
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        peer.Control<void (*)(long)>("strict_cuda_nccl_stop_after")(0);
        std::thread dying([&] {
          meet_in_the_middle(peer);
          kill(getpid(), SIGKILL);
        });
        EXPECT_FALSE(make(peer, 0).ok());
        dying.join();
      },
      [&](GpuPeer& peer) {
        std::thread meeting([&] { meet_in_the_middle(peer); });
        const auto made = make(peer, 1);
        meeting.join();
        ASSERT_FALSE(made.ok());
        // It was begun, and is waited for again.
        EXPECT_THAT(std::string(made.status().message()),
                    AllOf(HasSubstr("generation 2"), HasSubstr("has not come")));
        EXPECT_EQ(peer.gpus().gate()->work_count(), 0);
      });
}

TEST(NcclFailure, ConsumerIsKilledInTheMiddle) {
  NEEDS_FAKE_DRIVER("can play what this needs");
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
        EXPECT_TRUE(BecomesIdle(peer));
      },
      [](GpuPeer& peer) {
        Step step = peer.Open();
        Receipt receipt;
        step.RecvAsync(GpuPeer::Key("t0", "GPU:0", "GPU:1"), {}, receipt.callback());
        peer.Meet();
        AwaitNcclWork(peer);
        kill(getpid(), SIGKILL);
      });
}

// The reason why a pair cannot use NCCL is known before any attempt, and another path is used.
TEST(NcclFailure, WithoutNcclOnOneSide_IsStaged) {
  NEEDS_FAKE_DRIVER("can play what this needs");
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
          query.source = &peer.transfer_engine().self();
          query.destination = &endpoint;
          query.bytes = kBytes;
          query.source_location = {MemorySpace::kCuda, 0};
          query.destination_location = {MemorySpace::kCuda, 1};
          const auto choice = ExplainPath(peer.transfer_engine().transports(), query, {});
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

// A rank never joins: the waiting side gives up, names the rank, and uses another path.
TEST(NcclFailure, RankThatNeverJoins) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options;
  options.is_apart = true;
  options.transfer.transports.nccl.open_timeout = absl::Seconds(1);
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

// A process can leave although NCCL does not release a communicator.
void ReceiveTwoPatterns(GpuPeer& peer) {
  const auto stream = peer.NewStream(1);
  Step step = peer.Open();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ReceivePattern(peer, step, "GPU:1", i, stream->get()), "nccl");
  }
}

// NCCL neither destroys the communicator, nor finalizes it in time and aborts it.
TEST(NcclFailure, EndThatNeverReturns) {
  NEEDS_FAKE_DRIVER("can make NCCL hang");
  for (const bool is_finalized : {true, false}) {
    GpuPairOptions options;
    options.is_apart = true;
    options.transfer.require_transport = "nccl";
    options.transfer.transports.nccl.abort_timeout = absl::Milliseconds(300);
    options.consumer_environment = {{"STRICT_CUDA_FAIL", "ncclCommDestroy:-1,ncclCommAbort:-1"},
                                    {"STRICT_CUDA_NCCL_FINALIZE", is_finalized ? "ends" : "hang"}};
    RunGpuPair(
        options, [](GpuPeer& peer) { SendPatterns(peer, "GPU:1", 2); },
        [](GpuPeer& peer) {
          ReceiveTwoPatterns(peer);
          peer.Meet();
          const absl::Status stopped = peer.transfer_engine().Stop();
          EXPECT_EQ(stopped.code(), absl::StatusCode::kDeadlineExceeded) << stopped;
          EXPECT_THAT(std::string(stopped.message()), HasSubstr("NCCL has not released 1"));
        });
  }
}

// An abort would end either process.
TEST(NcclFailure, CommunicatorWithoutWorkInFlight_IsNotAborted) {
  NEEDS_FAKE_DRIVER("kills the process at a call");
  GpuPairOptions options;
  options.is_apart = true;
  options.transfer.require_transport = "nccl";
  options.producer_environment = {{"STRICT_CUDA_FAIL", "ncclCommAbort:-2"}};
  options.consumer_environment = options.producer_environment;
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        SendPatterns(peer, "GPU:1", 2);
        EXPECT_TRUE(peer.transfer_engine().Stop().ok());
      },
      [](GpuPeer& peer) {
        ReceiveTwoPatterns(peer);
        peer.Meet();
        EXPECT_TRUE(peer.transfer_engine().Stop().ok());
      });
}

}  // namespace
}  // namespace ferry
