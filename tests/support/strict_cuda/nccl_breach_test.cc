// SPDX-License-Identifier: Apache-2.0
// Programs that break one rule of NCCL each, and must be caught.
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "tests/support/strict_cuda/nccl_pair.h"

namespace strict_cuda {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class NcclBreachTest : public DoubleTest {
 protected:
  NcclBreachTest() { setenv("STRICT_CUDA_DEADLOCK_MS", "300", 1); }

  // Two warmed up ranks in a process each. What is wrong is caught in the first; the second may
  // hang, be caught as well, or end.
  void ExpectCaught(const std::string& rule, const std::function<void(PairRank&)>& first,
                    const std::function<void(PairRank&)>& second) {
    const auto outcomes = RunPair(
        [&](const Wire& wire) {
          UseDevice(0);
          PairRank rank(0, MintFor(wire));
          first(rank);
        },
        [&](const Wire& wire) {
          UseDevice(1);
          PairRank rank(1, wire.Get<ncclUniqueId>());
          second(rank);
          // Until the first has ended.
          char byte = 0;
          if (read(wire.fd(), &byte, 1) != 0) std::_Exit(1);
        });
    ExpectBreach(outcomes[0], rule);
  }

  void ExpectCaughtAlone(const std::string& rule, const std::function<void()>& body) {
    ExpectBreach(RunAlone(body), rule);
  }
};

const auto kNothing = [](PairRank&) {};

TEST_F(NcclBreachTest, CountsDiffer) {
  ExpectCaught(
      "nccl-count-mismatch",
      [](PairRank& rank) {
        rank.Send(Alloc(100), 100);
        rank.Synchronize();
      },
      [](PairRank& rank) { rank.Recv(Alloc(100), 99); });
}

// Each rank of a collective says to each what it is at: all of them see it.
TEST_F(NcclBreachTest, CollectivesDiffer) {
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
    ExpectBreach(outcomes[0], "nccl-count-mismatch");
    ExpectBreach(outcomes[1], "nccl-count-mismatch");
  };
  const Call sum = [](const PairRank& rank, CUdeviceptr memory) {
    OK(CU(ncclAllReduce)(Buffer(memory), Buffer(memory), 4, ncclFloat32, ncclSum, rank.comm,
                         rank.stream));
  };
  const Call longer = [](const PairRank& rank, CUdeviceptr memory) {
    OK(CU(ncclAllReduce)(Buffer(memory), Buffer(memory), 5, ncclFloat32, ncclSum, rank.comm,
                         rank.stream));
  };
  const Call whole = [](const PairRank& rank, CUdeviceptr memory) {
    OK(CU(ncclAllReduce)(Buffer(memory), Buffer(memory), 4, ncclInt32, ncclSum, rank.comm,
                         rank.stream));
  };
  const Call largest = [](const PairRank& rank, CUdeviceptr memory) {
    OK(CU(ncclAllReduce)(Buffer(memory), Buffer(memory), 4, ncclFloat32, ncclMax, rank.comm,
                         rank.stream));
  };
  const Call gather = [](const PairRank& rank, CUdeviceptr memory) {
    OK(CU(ncclAllGather)(Buffer(memory), Buffer(memory + 40), 4, ncclFloat32, rank.comm,
                         rank.stream));
  };
  expect_caught(sum, longer);
  expect_caught(sum, whole);
  expect_caught(sum, largest);
  expect_caught(sum, gather);
}

// The same two collectives, on two communicators in two orders.
TEST_F(NcclBreachTest, CollectivesInDifferentOrdersDeadlock) {
  const auto run = [](const PairRank& first, const PairRank& second) {
    const CUdeviceptr memory = Alloc(16);
    for (const PairRank* const rank : {&first, &second}) {
      OK(CU(ncclAllReduce)(Buffer(memory), Buffer(memory), 1, ncclFloat32, ncclSum, rank->comm,
                           rank->stream));
    }
    second.Synchronize();
  };
  const auto outcomes = RunPair(
      [&](const Wire& wire) {
        UseDevice(0);
        PairRank a(0, MintFor(wire));
        PairRank b(0, MintFor(wire));
        run(a, b);
      },
      [&](const Wire& wire) {
        UseDevice(1);
        PairRank a(1, wire.Get<ncclUniqueId>());
        PairRank b(1, wire.Get<ncclUniqueId>());
        run(b, a);
      });
  ExpectBreach(outcomes[0], "nccl-deadlock");
  ExpectBreach(outcomes[1], "nccl-deadlock");
}

// The trap of lazily connected pairs: either rank only sends first.
TEST_F(NcclBreachTest, FirstExchangeIsOnlyASend) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice(0);
        const ncclComm_t comm = Init(2, MintFor(wire), 0);
        CU(ncclSend)(Buffer(Alloc(8)), 8, ncclUint8, 1, comm, NewStream());
      },
      [](const Wire& wire) {
        UseDevice(1);
        Init(2, wire.Get<ncclUniqueId>(), 1);
        char byte = 0;
        if (read(wire.fd(), &byte, 1) != 0) std::_Exit(1);
      });
  ExpectBreach(outcomes[0], "nccl-first-exchange");
}

TEST_F(NcclBreachTest, TwoThreadsIssue) {
  ExpectCaught(
      "nccl-threads",
      [](PairRank& rank) {
        const CUdeviceptr memory = Alloc(16);
        rank.Send(memory, 8);
        CUcontext context = nullptr;
        OK(CU(cuCtxGetCurrent)(&context));
        std::thread([&] {
          OK(CU(cuCtxSetCurrent)(context));
          rank.Send(memory + 8, 8);
        }).join();
      },
      kNothing);
}

// Sends that cross, each before its receive: legal only in a group.
TEST_F(NcclBreachTest, CrossingSendsDeadlock) {
  const auto body = [](PairRank& rank) {
    const CUdeviceptr memory = Alloc(16);
    rank.Send(memory, 8);
    rank.Recv(memory + 8, 8);
    rank.Synchronize();
  };
  ExpectCaught("nccl-deadlock", body, body);
}

// Two communicators of the same two devices, used in two orders, on two streams.
TEST_F(NcclBreachTest, CommunicatorsInDifferentOrdersDeadlock) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice(0);
        PairRank a(0, MintFor(wire));
        PairRank b(0, MintFor(wire));
        const CUdeviceptr memory = Alloc(16);
        a.Send(memory, 8);
        b.Send(memory + 8, 8);
        b.Synchronize();
      },
      [](const Wire& wire) {
        UseDevice(1);
        PairRank a(1, wire.Get<ncclUniqueId>());
        PairRank b(1, wire.Get<ncclUniqueId>());
        const CUdeviceptr memory = Alloc(16);
        b.Recv(memory + 8, 8);
        a.Recv(memory, 8);
        a.Synchronize();
      });
  ExpectBreach(outcomes[0], "nccl-deadlock");
  ExpectBreach(outcomes[1], "nccl-deadlock");
}

TEST_F(NcclBreachTest, MemoryIsAllocatedInFlight) {
  ExpectCaught(
      "implicit-sync-in-flight",
      [](PairRank& rank) {
        const CUdeviceptr memory = Alloc(16);
        rank.Send(memory, 8);
        Alloc(16);
      },
      kNothing);
}

TEST_F(NcclBreachTest, MemoryIsFreedInFlight) {
  ExpectCaught(
      "implicit-sync-in-flight",
      [](PairRank& rank) {
        const CUdeviceptr memory = Alloc(16);
        rank.Send(memory, 8);
        CU(cuMemFree_v2)(memory);
      },
      kNothing);
}

// Whatever else may wait for the device: pinning, mapping, unmapping, loading, making pools.
TEST_F(NcclBreachTest, WhateverMaySynchroniseIsCaughtInFlight) {
  struct Call {
    const char* name;
    std::function<void()> make;
  };
  static CUmemGenericAllocationHandle chunk = 0;
  static CUdeviceptr reserved = 0;
  static CUdeviceptr mapped = 0;
  static void* pinned = nullptr;
  static char pageable[8192];
  const Call calls[] = {
      {"cuMemHostAlloc",
       [] {
         void* memory = nullptr;
         CU(cuMemHostAlloc)(&memory, 4096, 0);
       }},
      {"cuMemFreeHost",
       [] {
         CU(cuMemFreeHost)
         (pinned);
       }},
      {"cuMemHostRegister",
       [] {
         CU(cuMemHostRegister_v2)
         (pageable, sizeof(pageable), 0);
       }},
      {"cuMemMap",
       [] {
         CU(cuMemMap)
         (reserved, 2 * kMiB, 0, chunk, 0);
       }},
      {"cuMemUnmap",
       [] {
         CU(cuMemUnmap)
         (mapped, 2 * kMiB);
       }},
      {"cuModuleLoadData",
       [] {
         CUmodule module = nullptr;
         CU(cuModuleLoadData)(&module, ".version 7.0");
       }},
      {"cuIpcOpenMemHandle",
       [] {
         CUdeviceptr memory = 0;
         CU(cuIpcOpenMemHandle_v2)(&memory, CUipcMemHandle{}, 1);
       }},
  };
  for (const Call& call : calls) {
    SCOPED_TRACE(call.name);
    ExpectCaught(
        "implicit-sync-in-flight",
        [&call](PairRank& rank) {
          CUmemAllocationProp prop = {};
          prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
          prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
          OK(CU(cuMemAddressReserve)(&reserved, 2 * kMiB, 0, 0, 0));
          OK(CU(cuMemAddressReserve)(&mapped, 2 * kMiB, 0, 0, 0));
          OK(CU(cuMemCreate)(&chunk, 2 * kMiB, &prop, 0));
          OK(CU(cuMemMap)(mapped, 2 * kMiB, 0, chunk, 0));
          OK(CU(cuMemHostAlloc)(&pinned, 4096, 0));
          rank.Send(Alloc(16), 8);
          call.make();
        },
        kNothing);
  }
}

TEST_F(NcclBreachTest, UniqueIdUsedTwice) {
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
  ExpectBreach(outcomes[0], "nccl-id-reuse");
  ExpectSuccess(outcomes[1]);
}

TEST_F(NcclBreachTest, CallAfterAbort) {
  ExpectCaught(
      "nccl-after-abort",
      [](PairRank& rank) {
        OK(CU(ncclCommAbort)(rank.comm));
        ncclResult_t state = ncclSuccess;
        CU(ncclCommGetAsyncError)(rank.comm, &state);
      },
      kNothing);
}

TEST_F(NcclBreachTest, BlockingAndNonBlockingInOneGroup) {
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

TEST_F(NcclBreachTest, GroupOfTooManyOperations) {
  ExpectCaught(
      "nccl-group-too-large",
      [](PairRank& rank) {
        const CUdeviceptr memory = Alloc(1000);
        OK(CU(ncclGroupStart)());
        for (int i = 0; i < 257; ++i) rank.Send(memory + i, 1);
        CU(ncclGroupEnd)();
      },
      kNothing);
}

TEST_F(NcclBreachTest, GroupEndWithoutStart) {
  ExpectCaughtAlone("nccl-group", [] {
    UseDevice();
    CU(ncclGroupEnd)();
  });
}

TEST_F(NcclBreachTest, SendToOneselfAlone) {
  ExpectCaught(
      "nccl-self",
      [](PairRank& rank) {
        CU(ncclSend)(Buffer(Alloc(8)), 8, ncclUint8, 0, rank.comm, rank.stream);
      },
      kNothing);
}

TEST_F(NcclBreachTest, AnotherDeviceIsCurrent) {
  ExpectCaught(
      "nccl-wrong-device",
      [](PairRank& rank) {
        const CUdeviceptr memory = Alloc(8);
        UseDevice(1);
        rank.Send(memory, 8);
      },
      kNothing);
}

TEST_F(NcclBreachTest, BufferOfAnotherDevice) {
  ExpectCaught(
      "nccl-wrong-device",
      [](PairRank& rank) {
        CUcontext own = nullptr;
        OK(CU(cuCtxGetCurrent)(&own));
        UseDevice(1);
        const CUdeviceptr memory = Alloc(8);
        OK(CU(cuCtxSetCurrent)(own));
        CU(ncclSend)(Buffer(memory), 8, ncclUint8, 1, rank.comm, rank.stream);
      },
      kNothing);
}

TEST_F(NcclBreachTest, DestroyedWithOperationsOutstanding) {
  ExpectCaught(
      "nccl-destroy-busy",
      [](PairRank& rank) {
        rank.Send(Alloc(8), 8);
        CU(ncclCommDestroy)(rank.comm);
      },
      kNothing);
}

TEST_F(NcclBreachTest, UsedWhileInProgress) {
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

// The group said "in progress": an event recorded now would be before the operation.
TEST_F(NcclBreachTest, EventRecordedWhileTheLaunchIsInProgress) {
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
        char byte = 0;
        if (read(wire.fd(), &byte, 1) != 0) std::_Exit(1);
      });
  ExpectBreach(outcomes[0], "nccl-not-ready");
}

// Communicator B hangs on the device: the abort of A alone would wait for it for ever.
TEST_F(NcclBreachTest, AbortOfOneWhileAnotherHangs) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice(0);
        PairRank a(0, MintFor(wire));
        PairRank b(0, MintFor(wire));
        b.Send(Alloc(8), 8);
        CU(ncclCommAbort)(a.comm);
      },
      [](const Wire& wire) {
        UseDevice(1);
        PairRank a(1, wire.Get<ncclUniqueId>());
        PairRank b(1, wire.Get<ncclUniqueId>());
        char byte = 0;
        if (read(wire.fd(), &byte, 1) != 0) std::_Exit(1);
      });
  ExpectBreach(outcomes[0], "nccl-abort-order");
}

// A blocking communicator, whose first exchange waits for a peer that does not come.
TEST_F(NcclBreachTest, AbortWhileAnotherThreadIsInACall) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice(0);
        ncclComm_t comm = nullptr;
        OK(CU(ncclCommInitRank)(&comm, 2, MintFor(wire), 0));
        const CUdeviceptr bytes = Alloc(8);
        const CUstream stream = NewStream();
        std::atomic<bool> is_on_its_way = false;
        std::thread other([&] {
          UseDevice(0);
          is_on_its_way = true;
          CU(ncclGroupStart)();
          CU(ncclSend)(Buffer(bytes), 4, ncclUint8, 1, comm, stream);
          CU(ncclRecv)(Buffer(bytes + 4), 4, ncclUint8, 1, comm, stream);
          CU(ncclGroupEnd)();
        });
        while (!is_on_its_way) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        CU(ncclCommAbort)(comm);
        other.join();
      },
      [](const Wire& wire) {
        UseDevice(1);
        ncclComm_t comm = nullptr;
        OK(CU(ncclCommInitRank)(&comm, 2, wire.Get<ncclUniqueId>(), 1));
        char byte = 0;
        if (read(wire.fd(), &byte, 1) != 0) std::_Exit(1);
      });
  ExpectBreach(outcomes[0], "nccl-abort-in-call");
}

TEST_F(NcclBreachTest, AbortOfBothInAGroupIsFine) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice(0);
        PairRank a(0, MintFor(wire));
        PairRank b(0, MintFor(wire));
        b.Send(Alloc(8), 8);
        OK(CU(ncclGroupStart)());
        OK(CU(ncclCommAbort)(a.comm));
        OK(CU(ncclCommAbort)(b.comm));
        OK(CU(ncclGroupEnd)());
      },
      [](const Wire& wire) {
        UseDevice(1);
        PairRank a(1, wire.Get<ncclUniqueId>());
        PairRank b(1, wire.Get<ncclUniqueId>());
        char byte = 0;
        if (read(wire.fd(), &byte, 1) != 0) std::_Exit(1);
      });
  ExpectSuccess(outcomes[0]);
  ExpectSuccess(outcomes[1]);
}

}  // namespace
}  // namespace strict_cuda
