// SPDX-License-Identifier: Apache-2.0
// Programs that use ids and communicators of NCCL at the wrong time, and must be caught.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "tests/support/strict_cuda/nccl_violation.h"

namespace strict_cuda {
namespace {

// Until the kernel reports that the thread sleeps, for several polls: it waits inside a call.
void AwaitBlocked(pid_t thread) {
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat";
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (int asleep = 0; asleep < 20 && std::chrono::steady_clock::now() < give_up;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::ifstream file(path);
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    // "17 (name) S ...": the name may hold anything.
    const size_t end = text.rfind(") ");
    asleep = end != std::string::npos && text[end + 2] == 'S' ? asleep + 1 : 0;
  }
}

TEST_F(NcclViolationTest, UniqueIdUsedTwice) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice(0);
        const ncclUniqueId id = MintFor(wire);
        Init(2, id, 0);
        ncclComm_t again = nullptr;
        CU(ncclCommInitRank)(&again, 2, id, 0);
      },
      [](const Wire& wire) {
        UseDevice(1);
        Init(2, wire.Get<ncclUniqueId>(), 1);
      });
  ExpectViolation(outcomes[0], "nccl-id-reuse");
  ExpectSuccess(outcomes[1]);
}

TEST_F(NcclViolationTest, CallAfterAbort) {
  ExpectCaught("nccl-after-abort", [](PairRank& rank) {
    OK(CU(ncclCommAbort)(rank.comm));
    ncclResult_t state = ncclSuccess;
    CU(ncclCommGetAsyncError)(rank.comm, &state);
  });
}

TEST_F(NcclViolationTest, DestroyedWithOperationsOutstanding) {
  ExpectCaught("nccl-destroy-busy", [](PairRank& rank) {
    rank.Send(Alloc(8), 8);
    CU(ncclCommDestroy)(rank.comm);
  });
}

TEST_F(NcclViolationTest, DestroyedTwice) {
  ExpectCaught("nccl-after-abort", [](PairRank& rank) {
    OK(CU(ncclCommDestroy)(rank.comm));
    CU(ncclCommDestroy)(rank.comm);
  });
}

TEST_F(NcclViolationTest, DestroyedWhileItIsFinalized) {
  setenv("STRICT_CUDA_NCCL_FINALIZE", "hang", 1);
  ExpectCaught("nccl-not-ready", [](PairRank& rank) {
    EXPECT_CU(ncclInProgress, CU(ncclCommFinalize)(rank.comm));
    CU(ncclCommDestroy)(rank.comm);
  });
  unsetenv("STRICT_CUDA_NCCL_FINALIZE");
}

TEST_F(NcclViolationTest, FinalizedTwice) {
  ExpectCaught("nccl-after-finalize", [](PairRank& rank) {
    CU(ncclCommFinalize)(rank.comm);
    REQUIRE(Settle(rank.comm) == ncclSuccess);
    CU(ncclCommFinalize)(rank.comm);
  });
}

TEST_F(NcclViolationTest, UsedAfterFinalize) {
  ExpectCaught("nccl-after-finalize", [](PairRank& rank) {
    const CUdeviceptr memory = Alloc(8);
    CU(ncclCommFinalize)(rank.comm);
    REQUIRE(Settle(rank.comm) == ncclSuccess);
    CU(ncclSend)(Buffer(memory), 8, ncclUint8, 1, rank.comm, rank.stream);
  });
}

// NCCL refuses it: what ends after a deadline is aborted.
TEST_F(NcclViolationTest, RevokedAfterFinalize) {
  ExpectCaught("nccl-after-finalize", [](PairRank& rank) {
    CU(ncclCommFinalize)(rank.comm);
    REQUIRE(Settle(rank.comm) == ncclSuccess);
    CU(ncclCommRevoke)(rank.comm, 0);
  });
}

TEST_F(NcclViolationTest, FinalizedAfterRevoke) {
  ExpectCaught("nccl-after-finalize", [](PairRank& rank) {
    CU(ncclCommRevoke)(rank.comm, 0);
    REQUIRE(Settle(rank.comm) == ncclSuccess);
    CU(ncclCommFinalize)(rank.comm);
  });
}

TEST_F(NcclViolationTest, SecondIdToGrowWithBeforeTheFirstIsUsed) {
  ExpectCaught("nccl-id-reuse", [](PairRank& rank) {
    ncclUniqueId id = {};
    OK(CU(ncclCommGetUniqueId)(rank.comm, &id));
    CU(ncclCommGetUniqueId)(rank.comm, &id);
  });
}

TEST_F(NcclViolationTest, GrownWithAnIdThatIsNotItsNext) {
  ExpectCaught("nccl-id-reuse", [](PairRank& rank) {
    ncclUniqueId id = {};
    OK(CU(ncclGetUniqueId)(&id));
    ncclConfig_t config = NonBlocking();
    ncclComm_t grown = nullptr;
    CU(ncclCommGrow)(rank.comm, 3, &id, -1, &grown, &config);
  });
}

TEST_F(NcclViolationTest, UsedWhileInProgress) {
  ExpectCaughtAlone("nccl-not-ready", [] {
    UseDevice();
    ncclUniqueId id = {};
    OK(CU(ncclGetUniqueId)(&id));
    ncclConfig_t config = NonBlocking();
    ncclComm_t comm = nullptr;
    EXPECT_CU(ncclInProgress, CU(ncclCommInitRankConfig)(&comm, 2, id, 0, &config));
    int count = 0;
    CU(ncclCommCount)(comm, &count);
  });
}

// The group returned "in progress": an event recorded now would be before the operation.
TEST_F(NcclViolationTest, EventRecordedWhileTheLaunchIsInProgress) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice(0);
        const ncclComm_t comm = Init(2, MintFor(wire), 0);
        const CUstream stream = NewStream();
        const CUdeviceptr memory = Alloc(16);
        CUevent event = nullptr;
        OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
        OK(CU(ncclGroupStart)());
        CU(ncclSend)(Buffer(memory), 8, ncclUint8, 1, comm, stream);
        CU(ncclRecv)(Buffer(memory + 8), 8, ncclUint8, 1, comm, stream);
        EXPECT_CU(ncclInProgress, CU(ncclGroupEnd)());
        CU(cuEventRecord)(event, stream);
      },
      [](const Wire& wire) {
        UseDevice(1);
        Init(2, wire.Get<ncclUniqueId>(), 1);
        AwaitEnd(wire);
      });
  ExpectViolation(outcomes[0], "nccl-not-ready");
}

// Communicator B hangs on the device: the abort of A alone would wait for it forever.
TEST_F(NcclViolationTest, AbortOfOneWhileAnotherHangs) {
  const auto outcomes = RunTwoCommunicators(
      [](PairRank& a, PairRank& b) {
        b.Send(Alloc(8), 8);
        CU(ncclCommAbort)(a.comm);
      },
      [](PairRank&, PairRank&) {});
  ExpectViolation(outcomes[0], "nccl-abort-order");
}

// A blocking communicator, whose first exchange waits for a peer that does not join.
TEST_F(NcclViolationTest, AbortWhileAnotherThreadIsInACall) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice(0);
        ncclComm_t comm = nullptr;
        OK(CU(ncclCommInitRank)(&comm, 2, MintFor(wire), 0));
        const CUdeviceptr bytes = Alloc(8);
        const CUstream stream = NewStream();
        std::atomic<pid_t> in_call = 0;
        std::thread other([&] {
          UseDevice(0);
          in_call = static_cast<pid_t>(syscall(SYS_gettid));
          CU(ncclGroupStart)();
          CU(ncclSend)(Buffer(bytes), 4, ncclUint8, 1, comm, stream);
          CU(ncclRecv)(Buffer(bytes + 4), 4, ncclUint8, 1, comm, stream);
          CU(ncclGroupEnd)();
        });
        while (in_call == 0) std::this_thread::yield();
        // The other rank never joins its exchange.
        AwaitBlocked(in_call);
        CU(ncclCommAbort)(comm);
        other.join();
      },
      [](const Wire& wire) {
        UseDevice(1);
        ncclComm_t comm = nullptr;
        OK(CU(ncclCommInitRank)(&comm, 2, wire.Get<ncclUniqueId>(), 1));
        AwaitEnd(wire);
      });
  ExpectViolation(outcomes[0], "nccl-abort-in-call");
}

// The other rank's kernel waits for data of this one.
TEST_F(NcclViolationTest, AbortUnderARunningOperationOfAPeer) {
  const auto abort_when = [this](bool is_running) {
    return RunPair(
        [is_running](const Wire& wire) {
          UseDevice(0);
          const PairRank rank(0, MintFor(wire));
          // Its arrival shows that the kernel of the peer runs.
          if (is_running) rank.Recv(Alloc(8), 8);
          rank.Synchronize();
          wire.Get<char>();
          OK(CU(ncclCommAbort)(rank.comm));
        },
        [is_running](const Wire& wire) {
          UseDevice(1);
          const PairRank rank(1, wire.Get<ncclUniqueId>());
          if (is_running) {
            const CUdeviceptr memory = Alloc(16);
            OK(CU(ncclGroupStart)());
            rank.Send(memory, 8);
            rank.Recv(memory + 8, 8);
            EndGroup(rank.comm);
          }
          wire.Put('r');
          AwaitEnd(wire);
        })[0];
  };
  ExpectViolation(abort_when(true), "nccl-abort-under-peer");
  ExpectSuccess(abort_when(false));
}

TEST_F(NcclViolationTest, AbortOfBothInAGroupIsAllowed) {
  const auto outcomes = RunTwoCommunicators(
      [](PairRank& a, PairRank& b) {
        b.Send(Alloc(8), 8);
        OK(CU(ncclGroupStart)());
        OK(CU(ncclCommAbort)(a.comm));
        OK(CU(ncclCommAbort)(b.comm));
        OK(CU(ncclGroupEnd)());
      },
      [](PairRank&, PairRank&) {});
  ExpectSuccess(outcomes[0]);
  ExpectSuccess(outcomes[1]);
}

}  // namespace
}  // namespace strict_cuda
