// SPDX-License-Identifier: Apache-2.0
// Programs that violate one rule of NCCL each, and must be caught.
#include <thread>

#include "tests/support/strict_cuda/nccl_violation.h"

namespace strict_cuda {
namespace {

TEST_F(NcclViolationTest, CountsDiffer) {
  ExpectCaught(
      "nccl-count-mismatch",
      [](PairRank& rank) {
        rank.Send(Alloc(100), 100);
        rank.Synchronize();
      },
      [](PairRank& rank) { rank.Recv(Alloc(100), 99); });
}

// Each rank of a collective sends its arguments to each other: all of them detect it.
TEST_F(NcclViolationTest, CollectivesDiffer) {
  using Call = void (*)(const PairRank& rank, CUdeviceptr memory);
  const auto expect_caught = [this](Call first, Call second) {
    const auto run = [](PairRank rank, Call call) {
      call(rank, Alloc(100));
      rank.Synchronize();
    };
    const auto outcomes = RunPair(
        [&](const Wire& wire) {
          UseDevice(0);
          run(PairRank(0, MintFor(wire)), first);
        },
        [&](const Wire& wire) {
          UseDevice(1);
          run(PairRank(1, wire.Get<ncclUniqueId>()), second);
        });
    ExpectViolation(outcomes[0], "nccl-count-mismatch");
    ExpectViolation(outcomes[1], "nccl-count-mismatch");
  };
  const Call sum = [](const PairRank& rank, CUdeviceptr memory) {
    AwaitLaunch(CU(ncclAllReduce)(Buffer(memory), Buffer(memory), 4, ncclFloat32, ncclSum,
                                  rank.comm, rank.stream),
                rank.comm);
  };
  const Call longer = [](const PairRank& rank, CUdeviceptr memory) {
    AwaitLaunch(CU(ncclAllReduce)(Buffer(memory), Buffer(memory), 5, ncclFloat32, ncclSum,
                                  rank.comm, rank.stream),
                rank.comm);
  };
  const Call whole = [](const PairRank& rank, CUdeviceptr memory) {
    AwaitLaunch(CU(ncclAllReduce)(Buffer(memory), Buffer(memory), 4, ncclInt32, ncclSum, rank.comm,
                                  rank.stream),
                rank.comm);
  };
  const Call largest = [](const PairRank& rank, CUdeviceptr memory) {
    AwaitLaunch(CU(ncclAllReduce)(Buffer(memory), Buffer(memory), 4, ncclFloat32, ncclMax,
                                  rank.comm, rank.stream),
                rank.comm);
  };
  const Call gather = [](const PairRank& rank, CUdeviceptr memory) {
    AwaitLaunch(CU(ncclAllGather)(Buffer(memory), Buffer(memory + 40), 4, ncclFloat32, rank.comm,
                                  rank.stream),
                rank.comm);
  };
  expect_caught(sum, longer);
  expect_caught(sum, whole);
  expect_caught(sum, largest);
  expect_caught(sum, gather);
}

// The same two collectives, on two communicators in two orders.
TEST_F(NcclViolationTest, CollectivesInDifferentOrdersDeadlock) {
  const auto run = [](const PairRank& first, const PairRank& second) {
    const CUdeviceptr memory = Alloc(16);
    for (const PairRank* const rank : {&first, &second}) {
      AwaitLaunch(CU(ncclAllReduce)(Buffer(memory), Buffer(memory), 1, ncclFloat32, ncclSum,
                                    rank->comm, rank->stream),
                  rank->comm);
    }
    second.Synchronize();
  };
  const auto outcomes = RunTwoCommunicators([&](PairRank& a, PairRank& b) { run(a, b); },
                                            [&](PairRank& a, PairRank& b) { run(b, a); });
  ExpectViolation(outcomes[0], "nccl-deadlock");
  ExpectViolation(outcomes[1], "nccl-deadlock");
}

// The trap of lazily connected pairs: either rank only sends first.
TEST_F(NcclViolationTest, FirstExchangeIsOnlyASend) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice(0);
        const ncclComm_t comm = Init(2, MintFor(wire), 0);
        CU(ncclSend)(Buffer(Alloc(8)), 8, ncclUint8, 1, comm, NewStream());
      },
      [](const Wire& wire) {
        UseDevice(1);
        Init(2, wire.Get<ncclUniqueId>(), 1);
        AwaitEnd(wire);
      });
  ExpectViolation(outcomes[0], "nccl-first-exchange");
}

TEST_F(NcclViolationTest, TwoThreadsIssue) {
  ExpectCaught("nccl-threads", [](PairRank& rank) {
    const CUdeviceptr memory = Alloc(16);
    rank.Send(memory, 8);
    CUcontext context = nullptr;
    OK(CU(cuCtxGetCurrent)(&context));
    std::thread([&] {
      OK(CU(cuCtxSetCurrent)(context));
      rank.Send(memory + 8, 8);
    }).join();
  });
}

// Sends that cross, each before its receive: legal only in a group.
TEST_F(NcclViolationTest, CrossingSendsDeadlock) {
  const auto body = [](PairRank& rank) {
    const CUdeviceptr memory = Alloc(16);
    rank.Send(memory, 8);
    rank.Recv(memory + 8, 8);
    rank.Synchronize();
  };
  ExpectCaught("nccl-deadlock", body, body);
}

// Two communicators of the same two devices, used in two orders, on two streams.
TEST_F(NcclViolationTest, CommunicatorsInDifferentOrdersDeadlock) {
  const auto outcomes = RunTwoCommunicators(
      [](PairRank& a, PairRank& b) {
        const CUdeviceptr memory = Alloc(16);
        a.Send(memory, 8);
        b.Send(memory + 8, 8);
        b.Synchronize();
      },
      [](PairRank& a, PairRank& b) {
        const CUdeviceptr memory = Alloc(16);
        b.Recv(memory + 8, 8);
        a.Recv(memory, 8);
        a.Synchronize();
      });
  ExpectViolation(outcomes[0], "nccl-deadlock");
  ExpectViolation(outcomes[1], "nccl-deadlock");
}

TEST_F(NcclViolationTest, BlockingAndNonBlockingInOneGroup) {
  ExpectCaughtAlone("nccl-mixed-blocking", [] {
    UseDevice();
    ncclUniqueId ids[2] = {};
    for (ncclUniqueId& id : ids) OK(CU(ncclGetUniqueId)(&id));
    ncclComm_t comms[2] = {};
    ncclConfig_t config = NonBlocking();
    OK(CU(ncclGroupStart)());
    CU(ncclCommInitRankConfig)(&comms[0], 1, ids[0], 0, &config);
    CU(ncclCommInitRank)(&comms[1], 1, ids[1], 0);
    CU(ncclGroupEnd)();
  });
}

TEST_F(NcclViolationTest, GroupOfTooManyOperations) {
  ExpectCaught("nccl-group-too-large", [](PairRank& rank) {
    const CUdeviceptr memory = Alloc(1000);
    OK(CU(ncclGroupStart)());
    for (int i = 0; i < 257; ++i) rank.Send(memory + i, 1);
    CU(ncclGroupEnd)();
  });
}

TEST_F(NcclViolationTest, GroupEndWithoutStart) {
  ExpectCaughtAlone("nccl-group", [] {
    UseDevice();
    CU(ncclGroupEnd)();
  });
}

TEST_F(NcclViolationTest, SendToOneselfAlone) {
  ExpectCaught("nccl-self", [](PairRank& rank) {
    CU(ncclSend)(Buffer(Alloc(8)), 8, ncclUint8, 0, rank.comm, rank.stream);
  });
}

TEST_F(NcclViolationTest, AnotherDeviceIsCurrent) {
  ExpectCaught("nccl-wrong-device", [](PairRank& rank) {
    const CUdeviceptr memory = Alloc(8);
    UseDevice(1);
    rank.Send(memory, 8);
  });
}

TEST_F(NcclViolationTest, BufferOfAnotherDevice) {
  ExpectCaught("nccl-wrong-device", [](PairRank& rank) {
    CUcontext own = nullptr;
    OK(CU(cuCtxGetCurrent)(&own));
    UseDevice(1);
    const CUdeviceptr memory = Alloc(8);
    OK(CU(cuCtxSetCurrent)(own));
    CU(ncclSend)(Buffer(memory), 8, ncclUint8, 1, rank.comm, rank.stream);
  });
}

}  // namespace
}  // namespace strict_cuda
